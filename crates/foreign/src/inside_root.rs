//! Lookup of a path in another root directory: the root of a target, or a copy of one.

use crate::regular_file::open_found;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::sys::stat::{Mode, fstat};
use std::{
    collections::VecDeque,
    ffi::OsString,
    fs::File,
    io::Result,
    os::fd::OwnedFd,
    path::{Component, Path},
};

/// Opens a regular file below a root for reading, like a process with that root: absolute links and `..` stay in the
/// root. See [`open_regular`](crate::open_regular).
///
/// # Errors
/// Errors of openat2(2).
pub fn open_below(root: &Path, path: &Path) -> Result<File> {
    open_found(find_below(root, path)?)
}

/// Opens the directory at a path like a process with the root directory `root`, so that files in it can be created and
/// removed (`O_PATH`). Links stay within the root.
///
/// # Errors
/// Errors of open(2). Also fails if the path is not a directory.
pub fn open_folder_below(root: &Path, path: &Path) -> Result<OwnedFd> {
    let found = find_below(root, path)?;
    if fstat(&found)?.st_mode & libc::S_IFMT != libc::S_IFDIR {
        return Err(Errno::ENOTDIR.into());
    }
    Ok(found)
}

fn find_below(root: &Path, path: &Path) -> nix::Result<OwnedFd> {
    let folder = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let root = nix::fcntl::open(root, folder, Mode::empty())?;
    match by_kernel(&root, path) {
        // The call fails in this way before Linux 5.6, or under a seccomp filter that does not know the call.
        Err(Errno::ENOSYS | Errno::EPERM) => by_steps(&root, path),
        found => found,
    }
}

/// Number of retries after a rename made a lookup uncertain (openat2(2), EAGAIN).
const TRIES: usize = 16;

fn by_kernel(root: &OwnedFd, path: &Path) -> nix::Result<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let how = OpenHow::new().flags(flags).resolve(resolve);
    let mut found = Err(Errno::EAGAIN);
    for _ in 0..TRIES {
        found = openat2(root, path, how);
        if !matches!(found, Err(Errno::EAGAIN)) {
            break;
        }
    }
    found
}

/// Number of links that the kernel follows (path_resolution(7)).
const MOST_LINKS: usize = 40;
/// Maximum number of components in a path. A longer path is an attempt to keep us busy.
const MOST_PARTS: usize = 4096;

/// Looks up a path without openat2(2): one name at a time, each opened without following links. `..` returns to the
/// directory from which the walk came, so moving a directory during the lookup does not lead outside.
fn by_steps(root: &OwnedFd, path: &Path) -> nix::Result<OwnedFd> {
    let mut passed: Vec<OwnedFd> = Vec::new();
    let mut left: VecDeque<Step> = steps(path).collect();
    let mut links = 0;
    while let Some(step) = left.pop_front() {
        let name = match step {
            Step::Root => {
                passed.clear();
                continue;
            }
            Step::Up => {
                passed.pop();
                continue;
            }
            Step::Down(name) => name,
        };
        let at = passed.last().unwrap_or(root);
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let found = openat(at, name.as_os_str(), flags, Mode::empty())?;
        let kind = fstat(&found)?.st_mode & libc::S_IFMT;
        if kind != libc::S_IFLNK {
            passed.push(found);
            continue;
        }
        links += 1;
        if links > MOST_LINKS || is_of_proc(&found)? {
            return Err(Errno::ELOOP);
        }
        let target = readlinkat(&found, "")?;
        for step in steps(Path::new(&target))
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            left.push_front(step);
        }
        if left.len() > MOST_PARTS {
            return Err(Errno::ENAMETOOLONG);
        }
    }
    match passed.pop() {
        Some(found) => Ok(found),
        None => root.try_clone().map_err(|_| Errno::EMFILE),
    }
}

/// Returns true for links of procfs, which lead to places without a name.
fn is_of_proc(link: &OwnedFd) -> nix::Result<bool> {
    Ok(nix::sys::statfs::fstatfs(link)?.filesystem_type() == nix::sys::statfs::PROC_SUPER_MAGIC)
}

enum Step {
    Root,
    Up,
    Down(OsString),
}

fn steps(path: &Path) -> impl Iterator<Item = Step> + '_ {
    path.components().filter_map(|component| match component {
        Component::RootDir => Some(Step::Root),
        Component::ParentDir => Some(Step::Up),
        Component::Normal(name) => Some(Step::Down(name.to_owned())),
        Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    /// A temporary folder.
    pub(crate) struct Scratch(pub PathBuf);

    impl Scratch {
        pub(crate) fn new(name: &str) -> Scratch {
            let name = format!("memhook-foreign-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder).unwrap();
            Scratch(folder)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// Both methods find the file inside the root, never the file outside that the same path reaches from our own root.
    #[test]
    fn links_stay_in_their_root() {
        let scratch = Scratch::new("root");
        let (root, outside) = (scratch.0.join("root"), scratch.0.join("outside"));
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(outside.join("x"), "outside").unwrap();
        let inner = root.join(outside.strip_prefix("/").unwrap());
        std::fs::create_dir_all(&inner).unwrap();
        std::fs::write(inner.join("x"), "inside").unwrap();
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::write(root.join("a/y"), "inside").unwrap();
        symlink(&outside, root.join("absolute")).unwrap();
        symlink("../../../../../../../a/y", root.join("a/b/up")).unwrap();
        symlink(outside.join("only"), root.join("away")).unwrap();
        std::fs::write(outside.join("only"), "outside").unwrap();
        symlink("circle", root.join("circle")).unwrap();
        let folder = OFlag::O_PATH | OFlag::O_DIRECTORY;
        let fd = nix::fcntl::open(&root, folder, Mode::empty()).unwrap();
        for way in [by_kernel, by_steps] {
            let read = |path: &str| {
                let mut file = open_found(way(&fd, Path::new(path))?)?;
                let mut text = String::new();
                file.read_to_string(&mut text)?;
                Ok::<String, std::io::Error>(text)
            };
            for path in ["absolute/x", "/absolute/x", "a/b/up", "a/b/../../../../a/y"] {
                assert_eq!(read(path).unwrap(), "inside", "{path}");
            }
            for path in ["away", "circle", "a", "none", ""] {
                assert!(read(path).is_err(), "{path}");
            }
        }
        // From our own root, the link leads outside, and the lookup must not follow it there.
        assert_eq!(
            std::fs::read_to_string(root.join("absolute/x")).unwrap(),
            "outside"
        );
    }

    #[test]
    fn links_of_proc_lead_nowhere() {
        let root =
            nix::fcntl::open("/", OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty()).unwrap();
        for way in [by_kernel, by_steps] {
            let found = way(&root, Path::new("proc/self/root/etc/passwd"));
            assert_eq!(found.map(drop), Err(Errno::ELOOP));
        }
    }
}
