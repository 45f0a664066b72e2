//! What to type when an attach is refused.

use memhook_attach::{ConfigError, ProbeError};
use std::error::Error;

/// What follows the words for an error, with the sign that it begins with.
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
            ": with --access on, leave --sample, --overhead, the sizes and --clock attacher out",
        ),
        ConfigError::PartialLooks => Some(
            ": with --access sampled, leave --sample, --overhead, --on-full adapt, the sizes and --clock attacher out",
        ),
        ConfigError::OtherSamples => {
            Some(": with --overhead, leave --sample and --on-full adapt out")
        }
        _ => None,
    }
}
