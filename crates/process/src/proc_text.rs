//! Text that the kernel writes.

use std::{fs, io, path::Path};

/// The text of a file in /proc. Names of threads, files and sockets in it may be any bytes; those that are
/// not text are replaced.
pub fn proc_text(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}
