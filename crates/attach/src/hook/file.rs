//! The hook as a file in the target's file system, for listeners that find probes only in files.

use super::object::EMITTER;
use crate::config::emission::{Emission, FilePlace};
use memhook_foreign::{open_folder_below, visible};
use memhook_process::{HOOK_FILE_PREFIX, HOOK_FILE_SUFFIX, TargetRoot};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, fchmod, fstatat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Reason why the file could not be provided.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HookFileError {
    /// The path of the directory is relative.
    #[error("{0}: give an absolute path, as the process sees it")]
    Relative(PathBuf),
    /// The directory cannot be opened.
    #[error("{folder}: {cause} (in the file system of process {pid})")]
    Folder {
        /// The process.
        pid: i32,
        /// The directory.
        folder: String,
        /// Reason.
        cause: io::Error,
    },
    /// The directory is mounted noexec, so the loader could not map the file.
    #[error(
        "{folder} is mounted noexec, so the loader cannot map the hook from there: name another directory"
    )]
    NoExec {
        /// The directory.
        folder: String,
    },
    /// Another file has this name.
    #[error(
        "{path} exists and is not the hook of this version, or another user may write to it: remove it, or name another directory"
    )]
    InTheWay {
        /// The file.
        path: String,
    },
    /// The file cannot be written.
    #[error("{path} cannot be written: {cause}")]
    Write {
        /// The file.
        path: String,
        /// Reason.
        cause: io::Error,
    },
}

/// The hook as a file. Dropping this value removes the file if it was created here.
pub struct HookFile {
    folder: OwnedFd,
    place: FilePlace,
    is_made: bool,
    is_kept: bool,
}

impl HookFile {
    /// Writes the hook into a directory, given as the path that process `pid` sees. An existing copy is used without
    /// changes. The file is world-readable, because the process must be able to read it. Only its owner may write to
    /// it.
    pub fn write(pid: i32, path: &Path) -> Result<HookFile, HookFileError> {
        if !path.is_absolute() {
            return Err(HookFileError::Relative(path.into()));
        }
        let folder_name = visible(&path.to_string_lossy()).into_owned();
        let of_folder = |cause: io::Error| HookFileError::Folder {
            pid,
            folder: folder_name.clone(),
            cause,
        };
        // The process's symbolic links are resolved within its own root.
        let folder = open_folder_below(&TargetRoot::of(pid).path(), path).map_err(of_folder)?;
        let mounted = fstatvfs(&folder).map_err(|errno| of_folder(errno.into()))?;
        if mounted.flags().contains(FsFlags::ST_NOEXEC) {
            return Err(HookFileError::NoExec {
                folder: folder_name,
            });
        }
        let name = format!("{HOOK_FILE_PREFIX}{pid}{HOOK_FILE_SUFFIX}");
        let full_name = format!("{}/{name}", folder_name.trim_end_matches('/'));
        let not_written = |cause: io::Error| HookFileError::Write {
            path: full_name.clone(),
            cause,
        };
        let flags = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let new = flags | OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        let mode = Mode::from_bits_truncate(0o644);
        let mut place = FilePlace {
            folder: path.to_string_lossy().trim_end_matches('/').into(),
            name,
            inode: 0,
        };
        let (file, is_made) = match openat(&folder, place.name.as_str(), new, mode) {
            Ok(file) => (File::from(file), true),
            Err(Errno::EEXIST) => {
                let in_the_way = HookFileError::InTheWay {
                    path: full_name.clone(),
                };
                let there = openat(&folder, place.name.as_str(), flags, Mode::empty());
                match there.map(File::from) {
                    Ok(file) if is_the_hook(&file) => (file, false),
                    _ => return Err(in_the_way),
                }
            }
            Err(errno) => return Err(not_written(errno.into())),
        };
        place.inode = file.metadata().map_err(not_written)?.ino();
        let hook = HookFile {
            folder,
            place,
            is_made,
            is_kept: false,
        };
        if is_made {
            // The umask must not apply, because the process may run as another user.
            fchmod(&file, mode).map_err(|errno| not_written(errno.into()))?;
            (&file).write_all(EMITTER.bytes).map_err(not_written)?;
        }
        Ok(hook)
    }

    /// Leaves the file in place, so that the process can use the same copy of the hook the next time.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Returns an emission that loads its hook from this file.
    pub fn emission(&self) -> Emission {
        Emission {
            file: Some(self.place.clone()),
        }
    }
}

/// Returns true if the file is the hook and no other user can change it. The check is needed because the process will
/// run whatever the file contains when the process's loader reads it.
fn is_the_hook(mut file: &File) -> bool {
    let is_it = |m: std::fs::Metadata| {
        let is_closed_to_others = m.uid() == geteuid().as_raw() && m.mode() & 0o022 == 0;
        m.is_file() && is_closed_to_others && m.len() == EMITTER.bytes.len() as u64
    };
    let mut bytes = Vec::new();
    file.metadata().is_ok_and(is_it)
        && file.read_to_end(&mut bytes).is_ok()
        && bytes == EMITTER.bytes
}

impl Drop for HookFile {
    fn drop(&mut self) {
        let name = self.place.name.as_str();
        let now = fstatat(&self.folder, name, AtFlags::AT_SYMLINK_NOFOLLOW);
        // Another user may have replaced the file.
        if self.is_made && !self.is_kept && now.is_ok_and(|now| now.st_ino == self.place.inode) {
            let _ = unlinkat(&self.folder, name, UnlinkatFlags::NoRemoveDir);
        }
    }
}
