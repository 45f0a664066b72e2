//! Opening of files that a process has mapped.

use crate::regular_file::open_regular;
use std::{
    fs::File,
    io::{Error, ErrorKind, Result},
    ops::Range,
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

/// Opens the file of a mapping, even if the file was replaced or deleted since. Without the
/// necessary privilege, opens the file at its path in the root of the process, if it has this inode
/// number.
///
/// # Errors
/// There is no such file, or it is not a regular file.
pub fn open_mapped(pid: i32, at: &Range<u64>, path: &str, inode: u64) -> Result<File> {
    let by_mapping = format!("/proc/{pid}/map_files/{:x}-{:x}", at.start, at.end);
    if let Ok(file) = open_regular(by_mapping.as_ref()) {
        return Ok(file);
    }
    // `/proc/PID/root` and an absolute path.
    let file = open_regular(&PathBuf::from(format!("/proc/{pid}/root{path}")))?;
    if file.metadata()?.ino() == inode {
        Ok(file)
    } else {
        Err(Error::from(ErrorKind::NotFound))
    }
}
