//! Remedies for refusals. Libraries describe the error, but do not know the options of a command.

use memhook_foreign::OutputError;
use memhook_gate::Error as GateError;
use memhook_heap::Error as HeapError;
use memhook_inject::Error as InjectError;
use memhook_process::{CoreError, SelectionError};
use memhook_recording::{Error as RecordingError, WhyNoScores};
use memhook_report::recorded::NotSearched;
use memhook_report::{NoEvidence, ReadBackError};
use memhook_symbols::BundleError;
use std::error::Error;

/// Describes an error and its causes in one line, with the remedy.
pub fn in_words(error: &(dyn Error + 'static)) -> String {
    let (mut text, mut what_to_do) = (error.to_string(), remedy(error));
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        what_to_do = what_to_do.or_else(|| remedy(error));
        cause = error.source();
    }
    text + &what_to_do.unwrap_or_default()
}

/// Returns the remedy for an error, as text with its leading punctuation.
fn remedy(error: &(dyn Error + 'static)) -> Option<String> {
    let error = shown(error);
    of_output(error)
        .or_else(|| of_process(error))
        .or_else(|| of_recording(error))
        .or_else(|| of_baseline(error))
        .map(str::to_owned)
        .or_else(|| of_formula(error).map(str::to_owned))
        .or_else(|| of_report(error))
        .or_else(|| of_snapshot(error))
        .or_else(|| of_attach::remedy(error).map(str::to_owned))
}

/// This file is in the directory of architecture-specific code, although nothing in it needs
/// porting.
#[cfg(target_arch = "x86_64")]
#[path = "live/remedies.rs"]
mod of_attach;

/// Remedies without an attach.
#[cfg(not(target_arch = "x86_64"))]
mod of_attach {
    use std::error::Error;

    pub fn shown<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
        error
    }

    pub fn remedy(_: &(dyn Error + 'static)) -> Option<&'static str> {
        None
    }
}

/// Returns the error inside a transparent error, which `source` does not return.
fn shown<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    if let Some(RecordingError::Output(output)) = error.downcast_ref() {
        return output;
    }
    if let Some(BundleError::Output(output)) = error.downcast_ref() {
        return output;
    }
    if let Some(HeapError::Core(core)) = error.downcast_ref() {
        return core;
    }
    of_attach::shown(error)
}

fn of_output(error: &(dyn Error + 'static)) -> Option<&'static str> {
    match error.downcast_ref()? {
        OutputError::Exists { .. } => Some(": choose another name or add --force"),
        _ => None,
    }
}

fn of_process(error: &(dyn Error + 'static)) -> Option<&'static str> {
    if let Some(CoreError::Lz4 { .. }) = error.downcast_ref() {
        return Some(", which --load reads");
    }
    match error.downcast_ref()? {
        SelectionError::Nothing => Some(", or --cgroup PATH"),
        SelectionError::Id(_) => Some(": leave out --cgroup and --all, or give a name"),
        SelectionError::Several { .. } => {
            Some("; give the PID of one (pgrep -n finds the newest); attach takes all with --all")
        }
        _ => None,
    }
}

fn of_baseline(error: &(dyn Error + 'static)) -> Option<&'static str> {
    match error.downcast_ref()? {
        GateError::Baseline { .. } => Some(": write one with --write-baseline"),
        _ => None,
    }
}

fn of_report(error: &(dyn Error + 'static)) -> Option<String> {
    Some(match error.downcast_ref()? {
        ReadBackError::Rows { .. } => ": make it with --by site".to_owned(),
        ReadBackError::Measure { wanted, .. } => format!(": make it with --measure {wanted}"),
        ReadBackError::Shortened { all, .. } => format!(": make it with --top {all}"),
        _ => return None,
    })
}

fn of_recording(error: &(dyn Error + 'static)) -> Option<&'static str> {
    if let Some(NotSearched::NotAsked) = error.downcast_ref() {
        return Some("; record with attach --leaks");
    }
    let RecordingError::NoScores(why) = error.downcast_ref()? else {
        return None;
    };
    Some(match why {
        WhyNoScores::Sums => "; record events (--record events)",
        WhyNoScores::Samples => "; record all of them (leave --sample and --overhead out)",
        WhyNoScores::NoAccesses => {
            "; build the program with the callbacks of 'memhook-rs sdk -o DIR', and record it again"
        }
    })
}

fn of_formula(error: &(dyn Error + 'static)) -> Option<&'static str> {
    Some(match error.downcast_ref()? {
        NoEvidence::NoAccesses { .. } => {
            "; record again with --access sampled, or build the program with the callbacks of 'memhook-rs sdk -o DIR'"
        }
        NoEvidence::NotTimed { .. } => "; record again with --alloc-time",
        NoEvidence::Sampled { .. } => {
            "; build the program with the callbacks of 'memhook-rs sdk -o DIR', and record it again"
        }
    })
}

fn of_snapshot(error: &(dyn Error + 'static)) -> Option<String> {
    Some(match error.downcast_ref()? {
        HeapError::NoRoom { .. } => "; --max-memory SIZE allows more".to_owned(),
        HeapError::TooLong { .. } => " (--max-hold)".to_owned(),
        HeapError::NoShortHold { enough_ms, .. } => {
            format!(". --max-hold {enough_ms:.0}ms allows it")
        }
        // The value is an estimate.
        HeapError::LongCall { needed_ms, .. } => {
            format!(": --max-hold {:.0}ms allows it", 1.5 * needed_ms + 1.0)
        }
        HeapError::Inject(InjectError::NotPorted { .. }) => "; add --read-only".to_owned(),
        HeapError::HeapOfMusl { .. } => {
            ": attach --leaks and gate find leaks among the blocks that they trace".to_owned()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    /// The library's error is the source of the error that the command shows.
    #[test]
    fn options_follow_errors_of_libraries() {
        let shortened = Err::<(), _>(ReadBackError::Shortened { listed: 1, all: 41 });
        let error = shortened.context("old.json").expect_err("an error");
        let text = in_words(error.as_ref());
        assert!(
            text.starts_with("old.json: it lists only the 1 largest of 41 sites"),
            "{text}"
        );
        assert!(text.ends_with(": make it with --top 41"), "{text}");
        let text = in_words(&NotSearched::NotAsked);
        assert!(
            text.ends_with("for leaks; record with attach --leaks"),
            "{text}"
        );
    }
}
