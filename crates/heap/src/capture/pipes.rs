//! The contents of the pipes of a process. Threads may pass pointers to each other through them.

use crate::capture::kernel_words::is_closed;
use crate::snapshot::addresses_anywhere;
use memhook_inject::duplicate_descriptor;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, tee};
use nix::unistd::pipe2;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Maximum size of a pipe of an unprivileged process (/proc/sys/fs/pipe-max-size).
const PIPE_BYTES: usize = 1 << 20;

/// The inspected pipes, and a pipe of our own to copy to.
#[derive(Default)]
pub struct Pipes {
    seen: BTreeSet<PathBuf>,
    own: Option<(File, OwnedFd)>,
}

impl Pipes {
    /// Searches the contents of a pipe, at any offset, for words that may be pointers, and adds
    /// them to `found`. `number` is the process's descriptor for the pipe, and `name` identifies
    /// the pipe. The contents are copied with tee(2), which does not consume them. Returns `false`
    /// if not all of the contents are visible.
    pub fn read(&mut self, pid: i32, number: u64, name: PathBuf, found: &mut Vec<u64>) -> bool {
        if self.seen.contains(&name) {
            return true;
        }
        let descriptor = match duplicate_descriptor(pid, number) {
            Ok(descriptor) => descriptor,
            Err(error) => return is_closed(&error),
        };
        let Some((out, into)) = self.own() else {
            return false;
        };
        let flags = SpliceFFlags::SPLICE_F_NONBLOCK;
        let bytes = match tee(&descriptor, into, PIPE_BYTES, flags) {
            Ok(bytes) => bytes,
            // The call fails for the write end, which has no waiting data, and for an empty pipe.
            Err(error) => return matches!(error, Errno::EBADF | Errno::EAGAIN),
        };
        let mut copy = vec![0; bytes];
        let copied = out.read_exact(&mut copy).is_ok();
        found.extend(addresses_anywhere(&copy));
        self.seen.insert(name);
        copied && bytes < PIPE_BYTES
    }

    fn own(&mut self) -> Option<&mut (File, OwnedFd)> {
        if self.own.is_none() {
            let (out, into) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).ok()?;
            let _ = fcntl(&into, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES as i32));
            self.own = Some((File::from(out), into));
        }
        self.own.as_mut()
    }
}
