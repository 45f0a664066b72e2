//! Taking over descriptors of the target.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use crate::error::mappings;
use crate::{Error, Held};
use memhook_process::{living_thread, open_descriptor, proc_path};

impl Held {
    /// Notes which object a descriptor is that the target has just opened for us. Its other threads run: one that
    /// closes descriptors by their numbers (closefrom(3)) may close this one at any moment, and a file of the target may
    /// then get its number.
    pub(crate) fn note_object(&mut self, number: u64, name: &CStr) -> Result<(), Error> {
        let path = proc_path(self.pid, &format!("fd/{number}"));
        let link = match fs::read_link(&path) {
            Ok(link) => link,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Default::default(),
            Err(_) => {
                // It cannot be seen from here.
                self.work.object = None;
                return Ok(());
            }
        };
        let ours = format!("/memfd:{} (deleted)", name.to_string_lossy());
        let object = identity(&path).filter(|_| link.as_os_str() == ours.as_str());
        // No file has these, so whatever has the number is not taken for ours.
        self.work.object = Some(object.unwrap_or((0, 0)));
        object.map(drop).ok_or(self.descriptor_lost())
    }

    /// Checks that the number still is that object's, as far as that can be seen.
    pub(crate) fn check_object(&self, number: u64) -> Result<(), Error> {
        let path = proc_path(self.pid, &format!("fd/{number}"));
        match self.work.object {
            Some(object) if identity(&path) != Some(object) => Err(self.descriptor_lost()),
            _ => Ok(()),
        }
    }

    /// Checks that this file, which was opened by the number, is the object.
    fn check_file(&self, file: &File) -> Result<(), Error> {
        let found = file.metadata().ok().map(|found| (found.dev(), found.ino()));
        match self.work.object {
            Some(object) if found != Some(object) => Err(self.descriptor_lost()),
            _ => Ok(()),
        }
    }

    /// Checks that the mapping that was made by the number is the object. What is not is unmapped.
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

/// Does it again, a few times, if another thread of the target has closed the descriptor meanwhile.
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

/// Returns true if this error can come from a descriptor that somebody else has closed: any call may find that out.
fn is_loss(error: &Error) -> bool {
    match error {
        Error::DescriptorLost { .. } => true,
        Error::RemoteSyscall { cause, .. } => cause.raw_os_error() == Some(libc::EBADF),
        Error::File { cause, .. } => cause.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

/// Opens the target's descriptor here, which is that of the object: through /proc, else by pidfd_getfd(2).
pub(crate) fn open_here(held: &Held, number: u64) -> Result<File, Error> {
    held.check_opened()?;
    let file = match open_descriptor(held.pid, number) {
        Ok(file) => file,
        Err(memhook_process::Error::Proc { path, cause }) => {
            let copy = duplicate_descriptor(held.pid, number);
            copy.map_err(|_| Error::File { path, cause })?.into()
        }
        Err(error) => return Err(Error::of_process(held.pid, error)),
    };
    held.check_file(&file)?;
    Ok(file)
}

/// Gives the object its size: from here, because in the target the number may be that of a file of its own by now, unless
/// the object cannot be opened here, or our own limit is lower (RLIMIT_FSIZE: the kernel would end us).
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

/// 0 if it is not known.
fn own_file_limit() -> u64 {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one rlimit.
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    limit.rlim_cur
}

/// Device and inode of what a path leads to.
pub(crate) fn identity(path: &str) -> Option<(u64, u64)> {
    let found = fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// A descriptor of ours for what the target's descriptor `number` refers to (pidfd_getfd(2)).
pub fn duplicate_descriptor(pid: i32, number: u64) -> io::Result<OwnedFd> {
    let process = descriptor_of_process(pid)?;
    // SAFETY: no pointers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}

/// A descriptor of the process (pidfd_open(2)), by which its memory and its descriptors can be had.
pub(crate) fn descriptor_of_process(pid: i32) -> io::Result<OwnedFd> {
    let thread = living_thread(pid);
    // An initial thread that has ended has neither any more; a descriptor of another one takes Linux 6.9.
    let flags = if thread == pid { 0 } else { PIDFD_THREAD };
    // SAFETY: no pointers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, thread, flags) })
}

/// `PIDFD_THREAD` of linux/pidfd.h.
const PIDFD_THREAD: libc::c_int = libc::O_EXCL;

/// Returns the descriptor that a system call has returned.
fn owned(number: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(number) {
        // SAFETY: the kernel has just made this descriptor for us; nobody else owns it.
        Ok(number @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        _ => Err(io::Error::last_os_error()),
    }
}
