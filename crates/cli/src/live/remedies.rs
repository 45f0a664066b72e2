//! Remedies for a refused attach: commands that the user can type.

use memhook_attach::{ConfigError, Error as AttachError, ProbeError, ReclaimError};
use std::error::Error;

/// Returns the error inside a transparent error, which is shown in its place.
pub fn shown<'a>(error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    match error.downcast_ref() {
        Some(ReclaimError::Claim(error)) => return shown(error),
        Some(ReclaimError::Heap(error)) => return error,
        _ => {}
    }
    match error.downcast_ref() {
        Some(AttachError::Config(config)) => config,
        Some(AttachError::Probe(probe)) => probe,
        Some(AttachError::Output(output)) => output,
        _ => error,
    }
}

/// Returns the remedy for an error, as text with its leading punctuation.
pub fn remedy(error: &(dyn Error + 'static)) -> Option<&'static str> {
    if let Some(error) = error.downcast_ref() {
        return match error {
            ProbeError::TooManyLatencies { .. } => Some(" (--latency)"),
            ProbeError::TooManyEvents { .. } => Some(" (--args, --stack)"),
            _ => None,
        };
    }
    match error.downcast_ref()? {
        ConfigError::AdaptedSamples => Some(": leave out --on-full adapt or --sample"),
        ConfigError::PartialAccesses => Some(
            ": with --access on, leave --sample, --overhead, the sizes and --set clock=attacher out",
        ),
        ConfigError::TimedLooks => Some(": leave out --alloc-time or --access sampled"),
        ConfigError::PartialLooks => Some(
            ": with --access sampled, leave --sample, --overhead, --on-full adapt, the sizes and --set clock=attacher out",
        ),
        ConfigError::OtherSamples => {
            Some(": with --overhead, leave --sample and --on-full adapt out")
        }
        _ => None,
    }
}
