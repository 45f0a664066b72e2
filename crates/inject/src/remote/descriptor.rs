//! Taking over descriptors of the target.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use crate::error::mappings;
use crate::{Error, Held};
use memhook_process::living_thread;

impl Held {
    /// Records the object of a descriptor that the target has just opened for us. The target's other threads keep
    /// running: a thread that closes descriptors by number (closefrom(3)) may close this descriptor at any moment, and
    /// a file of the target may then get its number.
    pub(crate) fn note_object(&mut self, number: u64, name: &CStr) -> Result<(), Error> {
        let path = own_path(self, number);
        let link = match fs::read_link(&path) {
            Ok(link) => link,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Default::default(),
            Err(_) => {
                // We cannot see the object.
                self.work.object = None;
                return Ok(());
            }
        };
        let ours = format!("/memfd:{} (deleted)", name.to_string_lossy());
        let object = identity(&path).filter(|_| link.as_os_str() == ours.as_str());
        // No file has these numbers, so no other file is mistaken for ours.
        self.work.object = Some(object.unwrap_or((0, 0)));
        object.map(drop).ok_or(self.descriptor_lost())
    }

    /// Checks, as far as this process can tell, that the number still refers to the recorded object.
    pub(crate) fn check_object(&self, number: u64) -> Result<(), Error> {
        let path = own_path(self, number);
        match self.work.object {
            Some(object) if identity(&path) != Some(object) => Err(self.descriptor_lost()),
            _ => Ok(()),
        }
    }

    /// Checks that this file, which was opened by its number, is the object.
    fn check_file(&self, file: &File) -> Result<(), Error> {
        let found = file.metadata().ok().map(|found| (found.dev(), found.ino()));
        match self.work.object {
            Some(object) if found != Some(object) => Err(self.descriptor_lost()),
            _ => Ok(()),
        }
    }

    /// Checks that a mapping that was made through the number maps the object. Unmaps it otherwise.
    pub(crate) fn check_mapped(&mut self, address: u64, bytes: u64) -> Result<(), Error> {
        let Some((_, inode)) = self.work.object else {
            return Ok(());
        };
        let maps = mappings(self.pid)?;
        if maps
            .iter()
            .any(|m| m.start == address && m.file_id.2 == inode)
        {
            return Ok(());
        }
        self.syscall(libc::SYS_munmap, [address, bytes, 0, 0, 0, 0])?;
        Err(self.descriptor_lost())
    }

    fn descriptor_lost(&self) -> Error {
        Error::DescriptorLost { pid: self.pid }
    }
}

/// Repeats an operation a few times if another thread of the target has closed the descriptor in the meantime.
pub(crate) fn undisturbed<T>(
    held: &mut Held,
    attempt: impl Fn(&mut Held) -> Result<T, Error>,
) -> Result<T, Error> {
    const ATTEMPTS: u32 = 20;
    for _ in 0..ATTEMPTS {
        match attempt(held) {
            Err(error) if is_loss(&error) => {}
            other => return other,
        }
    }
    Err(held.descriptor_lost())
}

/// Returns true if another thread may have caused this error by closing the descriptor. Any call may report such an
/// error.
fn is_loss(error: &Error) -> bool {
    match error {
        Error::DescriptorLost { .. } => true,
        Error::RemoteSyscall { cause, .. } => cause.raw_os_error() == Some(libc::EBADF),
        Error::File { cause, .. } => cause.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

/// Returns the path of a descriptor of the held thread, which may have a table of its own (unshare(2), CLONE_FILES).
fn own_path(held: &Held, number: u64) -> String {
    format!("/proc/{}/task/{}/fd/{number}", held.pid, held.tid)
}

/// Opens the object of the target's descriptor in this process, through /proc or else by pidfd_getfd(2).
pub(crate) fn open_here(held: &Held, number: u64) -> Result<File, Error> {
    held.check_opened()?;
    let path = own_path(held, number);
    let file = match File::options().read(true).write(true).open(&path) {
        Ok(file) => file,
        Err(cause) => {
            let copy = duplicate_opened(held, number);
            copy.map_err(|_| Error::File { path, cause })?.into()
        }
    };
    held.check_file(&file)?;
    Ok(file)
}

/// Sets the size of the object from this process, because in the target the number may by now refer to a file of the
/// target. The target sets the size if we cannot open the object, or if our own limit is lower (RLIMIT_FSIZE: the
/// kernel would kill us).
pub(crate) fn resize(held: &mut Held, number: u64, bytes: u64) -> Result<(), Error> {
    match open_here(held, number) {
        Ok(file) if bytes <= own_file_limit() => file.set_len(bytes).map_err(|cause| Error::File {
            path: format!("/proc/{}/fd/{number}", held.pid),
            cause,
        }),
        Err(error @ (Error::DescriptorLost { .. } | Error::WentHome { .. })) => Err(error),
        _ => {
            held.check_object(number)?;
            let arguments = [number, bytes];
            held.checked_syscall("ftruncate", libc::SYS_ftruncate, &arguments)
                .map(drop)
        }
    }
}

/// Returns 0 if it is unknown.
fn own_file_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one rlimit.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

/// Returns device and inode of a path.
pub(crate) fn identity(path: &str) -> Option<(u64, u64)> {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// Returns a descriptor of ours for the object of the target's descriptor `number` (pidfd_getfd(2)).
pub fn duplicate_descriptor(pid: i32, number: u64) -> io::Result<OwnedFd> {
    let process = descriptor_of_process(pid)?;
    // SAFETY: no pointers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}

/// Like [`duplicate_descriptor`], for a descriptor of the held thread. Before Linux 6.9, only the table of the initial
/// thread is accessible.
pub(crate) fn duplicate_opened(held: &Held, number: u64) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let thread = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, held.tid, PIDFD_THREAD) });
    let thread = thread.or_else(|_| descriptor_of_process(held.pid))?;
    // SAFETY: no pointers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, thread.as_raw_fd(), number, 0) })
}

/// Returns a descriptor of the process (pidfd_open(2)), through which its memory and its descriptors are accessible.
pub(crate) fn descriptor_of_process(pid: i32) -> io::Result<OwnedFd> {
    let thread = living_thread(pid);
    // If the initial thread has ended, it has neither memory nor descriptors. A pidfd of another thread requires Linux
    // 6.9.
    let flags = if thread == pid { 0 } else { PIDFD_THREAD };
    // SAFETY: no pointers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, thread, flags) })
}

/// `PIDFD_THREAD` of linux/pidfd.h.
const PIDFD_THREAD: libc::c_int = libc::O_EXCL;

/// Wraps the descriptor that a system call has returned.
fn owned(number: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(number) {
        // SAFETY: the kernel has just made this descriptor for us; no other code owns it.
        Ok(number @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        _ => Err(io::Error::last_os_error()),
    }
}
