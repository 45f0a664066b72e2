//! File system that a process sees, and its paths in this process.

use crate::{Mapping, proc_path};
use goblin::elf::header::{ELFMAG, SELFMAG};
use memhook_foreign::{open_below, open_regular};
use nix::fcntl::OFlag;
use std::{
    fs::{File, Metadata},
    io,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

/// Root directory of a process: our own, a container's, or the directory of a chroot(2).
#[derive(Clone, Debug)]
pub struct TargetRoot {
    pid: i32,
    is_ours: bool,
    /// Directory of a root other than ours. A container removes it when its process ends, but names are still looked up
    /// afterwards.
    directory: Option<Arc<File>>,
}

impl TargetRoot {
    /// Finds the root of a process.
    pub fn of(pid: i32) -> TargetRoot {
        let same_namespace = {
            let its = std::fs::read_link(proc_path(pid, "ns/mnt")).ok();
            std::fs::read_link("/proc/self/ns/mnt").is_ok_and(|ours| its == Some(ours))
        };
        let directory = |path: &str| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
        let its = directory(&proc_path(pid, "root"));
        let is_ours = same_namespace && its.is_some() && its == directory("/");
        let open = || {
            let mut options = File::options();
            options
                .read(true)
                .custom_flags((OFlag::O_PATH | OFlag::O_DIRECTORY).bits());
            options.open(proc_path(pid, "root")).ok()
        };
        TargetRoot {
            pid,
            is_ours,
            directory: if is_ours { None } else { open().map(Arc::new) },
        }
    }

    /// Returns the path of the root, which is valid as long as this value or a clone of it exists. Our own root is `/`.
    pub fn path(&self) -> PathBuf {
        match &self.directory {
            _ if self.is_ours => PathBuf::from("/"),
            Some(directory) => format!("/proc/self/fd/{}", directory.as_raw_fd()).into(),
            None => proc_path(self.pid, "root").into(),
        }
    }

    /// Returns the roots to search for separate debug files: first the process's own file system, then ours, where the
    /// debug files of a container may be installed. The build-id shows whether a file is the right one.
    pub fn search_order(&self) -> Vec<PathBuf> {
        let ours = (!self.is_ours).then(|| PathBuf::from("/"));
        [self.path()].into_iter().chain(ours).collect()
    }

    /// Opens a regular file as the process would; links stay within its root.
    ///
    /// # Errors
    /// Fails if open(2) fails, or if the file is not a regular file.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        if self.is_ours {
            open_regular(path)
        } else {
            open_below(&self.path(), path)
        }
    }

    /// Returns a path that leads to the file of a mapping, which has at least this many bytes.
    ///
    /// The plain path comes first: it outlives the process, and it is right for a target behind a chroot too, because
    /// the kernel shows paths as the reader sees them. In another mount namespace, the file is reached through the
    /// root. A deleted file is reached only through its mapping.
    pub(crate) fn readable_path(&self, mapping: &Mapping, bytes: u64) -> PathBuf {
        let is_it =
            |metadata: Metadata| metadata.ino() == mapping.file_id.2 && metadata.len() >= bytes;
        let leads_there = |path: &PathBuf| {
            let metadata = open_regular(path).and_then(|file| file.metadata());
            metadata.is_ok_and(is_it)
        };
        let plain = PathBuf::from(&mapping.path);
        let inside = plain.strip_prefix("/").unwrap_or(&plain);
        let through_root = self.path().join(inside);
        let (pid, start, end) = (self.pid, mapping.start, mapping.end);
        let mut paths = [plain.clone(), through_root].into_iter();
        paths
            .find(leads_there)
            .unwrap_or_else(|| proc_path(pid, &format!("map_files/{start:x}-{end:x}")).into())
    }

    /// Returns true if the file of a mapping is an ELF file; `None` if it cannot be read.
    pub(crate) fn is_elf(&self, mapping: &Mapping) -> Option<bool> {
        let mut magic = [0; SELFMAG];
        let file = open_regular(&self.readable_path(mapping, 0)).ok()?;
        let read = file.read_at(&mut magic, 0).ok()?;
        Some(read == SELFMAG && magic == *ELFMAG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_root_is_plain() {
        let root = TargetRoot::of(std::process::id() as i32);
        assert_eq!(root.search_order(), [PathBuf::from("/")]);
        assert!(root.open(Path::new("/etc/passwd")).is_ok());
    }

    /// A process that does not exist is not assumed to have our root.
    #[test]
    fn an_unknown_root_is_not_ours() {
        let root = TargetRoot::of(i32::MAX);
        assert_eq!(root.path(), PathBuf::from("/proc/2147483647/root"));
        assert_eq!(root.search_order().len(), 2);
        assert!(root.open(Path::new("/etc/passwd")).is_err());
    }
}
