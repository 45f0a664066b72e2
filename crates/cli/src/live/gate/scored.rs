//! Scores of a judged process. They require a recording, which goes into a temporary file.

use crate::live::scored_trace::Scratch;
use memhook_attach::{Error, Recording, Trace, TraceConfig};
use memhook_gate::{Evidence, score_evidence};
use memhook_recording::{Options, ScoreOptions};

/// The recording of one process.
pub struct ScoreRecording {
    scratch: Scratch,
    options: ScoreOptions,
}

impl ScoreRecording {
    /// Creates the file. `options` controls how sites are scored.
    pub fn create(
        pid: i32,
        config: &TraceConfig,
        options: ScoreOptions,
    ) -> Result<(ScoreRecording, Recording), Error> {
        let scratch = Scratch::new()
            .map_err(|error| Error::Refused(format!("the scores need room: {error}")))?;
        let of_heap = config.of_heap_alone();
        let recording = Recording::create(&scratch.path, &Options::default(), pid, &of_heap)?;
        Ok((ScoreRecording { scratch, options }, recording))
    }

    /// Ends the recording of a trace, and adds its scores to the evidence. All events must have
    /// been taken.
    pub fn finish(self, trace: &mut Trace, evidence: &mut Evidence) {
        let scored = match trace.finish_recordings(&[]).into_iter().next() {
            Some(recorded) if recorded.is_complete() => {
                let recording = crate::report::open(&recorded.path);
                recording.and_then(|recording| {
                    Ok(score_evidence(&recording, None, &self.options, evidence)?)
                })
            }
            _ => Err(anyhow::anyhow!("the recording is not complete")),
        };
        if let Err(error) = scored {
            let gap = format!(
                "its scores are not known: {}",
                crate::remedies::in_words(error.as_ref())
            );
            evidence.gaps.push(gap);
        }
        drop(self.scratch);
    }
}
