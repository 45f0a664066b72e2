//! Errors in a module.

/// Reason why a module has no table.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not a readable ELF file.
    #[error("not a readable ELF file")]
    Elf(#[from] object::Error),
    /// The file has neither `.eh_frame` nor `.debug_frame`.
    #[error("no .eh_frame and no .debug_frame")]
    NoFrames,
    /// The call frame information is damaged at its root.
    #[error("damaged call frame information")]
    Frames(#[from] gimli::Error),
}
