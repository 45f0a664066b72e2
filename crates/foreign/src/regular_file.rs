//! Opening files with foreign names.

use crate::inside_root;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::Mode;
use std::{
    fs::{File, Metadata},
    io::{Error, ErrorKind, Read, Result},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

/// Opens a regular file for reading. Refuses any other file without opening it: a pipe would block us, and some devices
/// act when they are opened (watchdogs, tapes).
///
/// A path below `/proc/PID/root` is looked up inside that root, including absolute links: the kernel would follow those
/// links into our own root (path_resolution(7)).
///
/// # Errors
/// Errors of open(2). For a file of another kind, an error that [`is_regular`] recognizes.
pub fn open_regular(path: &Path) -> Result<File> {
    if let Some((root, inside)) = root_of_process(path) {
        return inside_root::open_below(&root, &inside);
    }
    // O_PATH has no effect on the file (open(2)).
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    open_found(openat(AT_FDCWD, path, flags, Mode::empty())?)
}

/// Splits `/proc/PID/root` from the path in it.
fn root_of_process(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let rest = path.strip_prefix("/proc").ok()?;
    let mut parts = rest.components();
    let pid = parts.next()?.as_os_str().to_str()?;
    let is_pid = pid == "self" || pid.bytes().all(|byte| byte.is_ascii_digit());
    let is_root = is_pid && parts.next()?.as_os_str() == "root";
    let inside = parts.as_path();
    let root = Path::new("/proc").join(pid).join("root");
    (is_root && !inside.as_os_str().is_empty()).then(|| (root, inside.to_owned()))
}

/// Opens the file that O_PATH has found, if it is a regular file. It is certain to be the same file.
pub(crate) fn open_found(found: OwnedFd) -> Result<File> {
    let found = File::from(found);
    if !found.metadata()?.is_file() {
        return Err(not_regular());
    }
    // O_NONBLOCK is needed because the holder of a lease on the file could make open wait (fcntl(2), "Leases").
    File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

/// Returns the error for a file of another kind.
pub fn not_regular() -> Error {
    Error::new(ErrorKind::InvalidInput, "not a regular file")
}

/// Returns true if [`open_regular`] failed for a reason other than the kind of the file.
pub fn is_regular(error: &Error) -> bool {
    error.kind() != ErrorKind::InvalidInput
}

/// Maximum number of bytes of a file that are read into memory.
const MOST_BYTES: u64 = 4 << 30;
/// Factor by which a file may exceed its size on disk: it may have holes, and the file system may compress it.
const MOST_TIMES_THE_DISK: u64 = 16;
/// Size that is always accepted: some file systems count the blocks of a new file later.
const ALWAYS_BYTES: u64 = 64 << 20;

/// Length of a file, and its size on disk.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// Its length.
    pub bytes: u64,
    /// Bytes on disk.
    pub disk_bytes: u64,
}

impl Extent {
    /// Returns the extent of an open file.
    ///
    /// # Errors
    /// Errors of stat(2).
    pub fn of(file: &File) -> Result<Extent> {
        Ok(Extent::from(&file.metadata()?))
    }

    /// Returns true if `bytes` bytes of the file may be read into memory. A file with holes can have any length at no
    /// cost to its creator, and reading it would cost us memory for its whole length.
    pub fn may_hold(&self, bytes: u64) -> bool {
        bytes <= self.believable_bytes()
    }

    /// Returns the number of bytes of the file that may be read into memory.
    pub fn believable_bytes(&self) -> u64 {
        let on_disk = self.disk_bytes.saturating_mul(MOST_TIMES_THE_DISK);
        let believable = on_disk.saturating_add(ALWAYS_BYTES);
        self.bytes.min(MOST_BYTES).min(believable)
    }
}

impl From<&Metadata> for Extent {
    fn from(metadata: &Metadata) -> Extent {
        Extent {
            bytes: metadata.len(),
            disk_bytes: metadata.blocks().saturating_mul(512),
        }
    }
}

/// Reads the first `bytes` of a file.
///
/// # Errors
/// The file is shorter, or its length is implausible.
pub fn read_exactly(file: &File, bytes: u64) -> Result<Vec<u8>> {
    if !Extent::of(file)?.may_hold(bytes) {
        let why = "sparse, or larger than 4 GiB";
        return Err(Error::new(ErrorKind::FileTooLarge, why));
    }
    let length = usize::try_from(bytes).map_err(|_| ErrorKind::FileTooLarge)?;
    let mut read = vec![0; length];
    file.read_exact_at(&mut read, 0)?;
    Ok(read)
}

/// Reads the start of a file, at most `most` bytes. Use it for files in /proc whose text the kernel reads from the
/// process's own memory: the process chooses the address and length of its command line (prctl(2), `PR_SET_MM`).
///
/// # Errors
/// Errors of open(2) and read(2).
pub fn read_start(path: impl AsRef<Path>, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside_root::tests::Scratch;
    use std::os::unix::fs::symlink;

    #[test]
    fn pipes_and_devices_are_refused_at_once() {
        let scratch = Scratch::new("regular");
        let pipe = scratch.0.join("pipe");
        nix::unistd::mkfifo(&pipe, Mode::S_IRWXU).unwrap();
        for path in [pipe.as_path(), Path::new("/dev/zero"), &scratch.0] {
            let error = open_regular(path).unwrap_err();
            assert!(!is_regular(&error), "{}: {error}", path.display());
        }
        let file = scratch.0.join("file");
        std::fs::write(&file, "text").unwrap();
        symlink("file", scratch.0.join("link")).unwrap();
        let opened = open_regular(&scratch.0.join("link")).unwrap();
        assert_eq!(read_exactly(&opened, 4).unwrap(), b"text");
        assert!(is_regular(
            &open_regular(&scratch.0.join("none")).unwrap_err()
        ));
    }

    #[test]
    fn a_file_of_holes_is_not_read() {
        let scratch = Scratch::new("holes");
        let path = scratch.0.join("sparse");
        std::fs::write(&path, b"\x7fELF").unwrap();
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(200 << 30)
            .unwrap();
        let file = open_regular(&path).unwrap();
        let error = read_exactly(&file, 200 << 30).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert!(read_exactly(&file, 1 << 30).is_err());
        assert_eq!(read_start(&path, 1000).unwrap().len(), 1000);
        assert_eq!(&read_exactly(&file, 1 << 20).unwrap()[..4], b"\x7fELF");
    }

    #[test]
    fn paths_below_the_root_of_a_process() {
        let split = |path: &str| root_of_process(Path::new(path));
        let expected = ("/proc/7/root".into(), "usr/lib/x.so".into());
        assert_eq!(split("/proc/7/root/usr/lib/x.so"), Some(expected));
        for other in [
            "/proc/7/root",
            "/proc/7/maps",
            "/proc/x/root/y",
            "/lib/x.so",
            "proc/7/root/x",
        ] {
            assert_eq!(split(other), None, "{other}");
        }
    }
}
