//! Errors of examining a process.

/// Error of reading, with its reason.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file under /proc could not be read.
    #[error("{path}: {cause}")]
    Proc {
        /// The file.
        path: String,
        /// Kernel error. It is part of the message, so it is not also the error's source.
        cause: std::io::Error,
    },
    /// The process is not the chosen one.
    #[error(transparent)]
    Replaced(#[from] crate::Replaced),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_repeats_its_source() {
        let error = Error::Proc {
            path: "/proc/7/maps".into(),
            cause: std::io::Error::from_raw_os_error(2),
        };
        assert!(error.to_string().contains("No such file"));
        assert!(std::error::Error::source(&error).is_none());
    }
}
