//! Outputs that are not files: inherited descriptors, terminals, pipes.

use crate::output_error::{OutputError, failed, link, not_ours};
use nix::unistd::geteuid;
use std::{
    fs::{File, Metadata, OpenOptions},
    os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt},
    path::Path,
};

/// Opens an inherited descriptor, by one of its names (`/dev/stdout`, `/dev/fd/63`). The shell has opened the
/// descriptor, so it is the output that the user means.
pub(crate) fn own_descriptor(path: &Path) -> Result<Option<File>, OutputError> {
    let number = match path.to_str() {
        Some("/dev/stdout") => "1",
        Some("/dev/stderr") => "2",
        Some(text) => {
            let directories = ["/dev/fd/", "/proc/self/fd/"];
            match directories
                .iter()
                .find_map(|directory| text.strip_prefix(directory))
            {
                Some(number) => number,
                None => return Ok(None),
            }
        }
        None => return Ok(None),
    };
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    // The descriptor's file may already have contents.
    let opened = OpenOptions::new()
        .append(true)
        .open(format!("/proc/self/fd/{number}"));
    opened.map(Some).map_err(failed(path))
}

/// Opens a terminal, a pipe, or /dev/null: outputs in which no existing data can be overwritten. A pipe must be ours,
/// because the process that created it reads our output.
pub(crate) fn stream(path: &Path, found: &Metadata) -> Result<File, OutputError> {
    let kind = found.file_type();
    if kind.is_symlink() {
        return Err(link(path));
    }
    if kind.is_dir() {
        return Err(not_ours(path, "a directory"));
    }
    if !kind.is_char_device() && !kind.is_fifo() {
        return Err(not_ours(path, "no file to write into"));
    }
    let file = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NOCTTY)
        .open(path)
        .map_err(failed(path))?;
    let opened = file.metadata().map_err(failed(path))?;
    let same =
        opened.file_type() == kind && (opened.dev(), opened.ino()) == (found.dev(), found.ino());
    let is_ours = kind.is_char_device() || opened.uid() == geteuid().as_raw();
    if same && is_ours {
        Ok(file)
    } else {
        Err(not_ours(path, "another user's pipe"))
    }
}
