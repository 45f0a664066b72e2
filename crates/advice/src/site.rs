//! What an allocation site is called in a finding.

use memhook_gate::{AllocationSite, SourceFrame};
use memhook_report::{StackFrame, frame_name, is_wrapper, short_place};

/// Frames of a site's name: the function that allocates, and who calls it.
const FRAMES: usize = 3;

/// What a site is called.
#[derive(Clone, PartialEq, Eq)]
pub struct Site {
    /// Its functions, the inner one first; empty if the call was not recorded.
    pub name: String,
    place: String,
}

impl Site {
    pub fn of_stack(stack: &[StackFrame]) -> Site {
        let is_wrapping = |frame: &StackFrame| frame.function.as_deref().is_none_or(is_wrapper);
        let first = stack.iter().position(|frame| !is_wrapping(frame));
        let frames = &stack[first.unwrap_or(0)..];
        let place = frames.first().map(|frame| match (&frame.file, frame.line) {
            (Some(file), Some(line)) => short_place(&format!("{file}:{line}")),
            _ => frame.module.clone().unwrap_or_default(),
        });
        Site {
            name: joined(frames.iter().map(frame_name)),
            place: place.unwrap_or_default(),
        }
    }

    pub fn of_evidence(site: &AllocationSite) -> Site {
        let first = site.stack.iter().position(|frame| !frame.wrapper);
        let frames = &site.stack[first.unwrap_or(0)..];
        let place = frames.first().map(|frame| match &frame.file {
            Some(_) => short_place(&frame.place()),
            None => frame.module_name().unwrap_or_default().to_owned(),
        });
        Site {
            name: joined(frames.iter().map(SourceFrame::name)),
            place: place.unwrap_or_default(),
        }
    }

    /// Whether the call was recorded.
    pub fn is_known(&self) -> bool {
        !self.name.is_empty()
    }

    /// Its name and place, in a sentence.
    pub fn text(&self) -> String {
        match (self.is_known(), self.place.is_empty()) {
            (false, _) => "a caller that was not recorded".to_owned(),
            (true, true) => self.name.clone(),
            (true, false) => format!("{} ({})", self.name, self.place),
        }
    }
}

fn joined(names: impl Iterator<Item = String>) -> String {
    names.take(FRAMES).collect::<Vec<_>>().join(" \u{2190} ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without debug information there is a module instead of a file and line.
    #[test]
    fn a_place_is_in_one_pair_of_parentheses() {
        let mut frame = SourceFrame {
            function: Some("pool_get".into()),
            module: Some("/usr/sbin/haproxy".into()),
            ..SourceFrame::default()
        };
        let text = |frame: &SourceFrame| {
            let stack = vec![frame.clone()];
            Site::of_evidence(&AllocationSite {
                stack,
                ..AllocationSite::default()
            })
            .text()
        };
        assert_eq!(text(&frame), "pool_get (haproxy)");
        (frame.file, frame.line) = (Some("pool.c".into()), Some(7));
        assert_eq!(text(&frame), "pool_get (pool.c:7)");
    }
}
