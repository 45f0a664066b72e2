//! System calls and reads of /proc for code that must not call libc, allocate or panic.

pub(crate) use crate::raw_calls::call;
use std::ffi::CStr;

pub(super) fn plain(nr: i64, a: usize, b: usize, c: usize) -> i64 {
    // SAFETY: this is used for calls that write no memory. Calls that read memory get its length too.
    unsafe { call(nr, [a, b, c, 0, 0, 0]) }
}

/// Fills the buffer from a file. Leaves the buffer unchanged on failure.
pub(super) fn read(path: &CStr, into: &mut [u8]) {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let (at, path) = (libc::AT_FDCWD as usize, path.as_ptr().addr());
    let file = plain(libc::SYS_openat, at, path, flags);
    if file < 0 {
        return;
    }
    let arguments = [file as usize, into.as_mut_ptr().addr(), into.len(), 0, 0, 0];
    // SAFETY: the kernel writes at most the length of the buffer.
    unsafe { call(libc::SYS_read, arguments) };
    plain(libc::SYS_close, file as usize, 0, 0);
}

/// Formats a positive number in decimal digits.
pub(super) fn decimal(number: i32, room: &mut [u8; 20]) -> &[u8] {
    let mut left = number.unsigned_abs();
    let mut at = room.len();
    while at > 10 {
        at -= 1;
        room[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    &room[at..]
}

/// Path that is built without an allocation.
pub(super) struct Path {
    bytes: [u8; 64],
    length: usize,
}

impl Path {
    /// Returns `/proc/PID/task`.
    pub(super) fn threads_of(pid: i32) -> Path {
        let empty = Path {
            bytes: [0; 64],
            length: 0,
        };
        empty.with(b"/proc/").with_number(pid).with(b"/task")
    }

    /// Appends text to the path, truncated to the room.
    pub(super) fn with(mut self, text: &[u8]) -> Path {
        for &byte in text {
            // The last byte stays zero.
            if self.length + 1 < self.bytes.len() {
                self.bytes[self.length] = byte;
                self.length += 1;
            }
        }
        self
    }

    /// Appends a number to the path.
    pub(super) fn with_number(self, number: i32) -> Path {
        let mut room = [0; 20];
        self.with(decimal(number, &mut room))
    }

    /// Returns the path for a system call.
    pub(super) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

/// Calls `each` with the id of each thread of a process. Does nothing if the threads cannot be listed.
pub(super) fn each_thread(pid: i32, each: impl FnMut(i32)) {
    let path = Path::threads_of(pid);
    let flags = (libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) as usize;
    let (at, path) = (libc::AT_FDCWD as usize, path.as_c_str().as_ptr().addr());
    let directory = plain(libc::SYS_openat, at, path, flags);
    if directory < 0 {
        return;
    }
    each_thread_in(directory as usize, each);
    plain(libc::SYS_close, directory as usize, 0, 0);
}

/// Lists the threads in an open `/proc/PID/task`, starting at its beginning.
pub(super) fn each_thread_in(directory: usize, mut each: impl FnMut(i32)) {
    plain(libc::SYS_lseek, directory, 0, libc::SEEK_SET as usize);
    // struct linux_dirent64 (getdents64(2)), which begins with two 64-bit numbers.
    const LENGTH_AT: usize = 16;
    const NAME_AT: usize = 19;
    let mut entries = [0u64; 128];
    let room = size_of_val(&entries);
    loop {
        let arguments = [directory, (&raw mut entries).addr(), room, 0, 0, 0];
        // SAFETY: the kernel writes at most the length of the buffer.
        let filled = unsafe { call(libc::SYS_getdents64, arguments) };
        let Some(mut rest) = usize::try_from(filled)
            .ok()
            .filter(|&filled| filled > 0)
            .and_then(|filled| bytes_of(&entries).get(..filled))
        else {
            break;
        };
        while let (Some(&[low, high]), Some(name)) = (
            rest.get(LENGTH_AT..LENGTH_AT + 2)
                .and_then(<[u8]>::first_chunk),
            rest.get(NAME_AT..),
        ) {
            if let Some(tid) = leading_number(name)
                && let Ok(tid) = i32::try_from(tid)
            {
                each(tid);
            }
            let length = usize::from(u16::from_le_bytes([low, high])).max(NAME_AT);
            rest = rest.get(length..).unwrap_or(&[]);
        }
    }
}

fn bytes_of(words: &[u64; 128]) -> &[u8] {
    // SAFETY: integers are bytes, and a byte needs no alignment.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

/// Returns the number at the beginning of a text, or `None` if the text does not begin with a digit.
pub(super) fn leading_number(text: &[u8]) -> Option<u64> {
    let mut number = None;
    for &byte in text {
        if !byte.is_ascii_digit() {
            break;
        }
        let digit = u64::from(byte - b'0');
        number = Some(number.unwrap_or(0u64).wrapping_mul(10).wrapping_add(digit));
    }
    number
}

/// Returns the time of the monotonic clock, in nanoseconds.
pub(super) fn now_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let clock = libc::CLOCK_MONOTONIC as usize;
    let arguments = [clock, (&raw mut time).addr(), 0, 0, 0, 0];
    // SAFETY: the kernel writes one timespec.
    unsafe { call(libc::SYS_clock_gettime, arguments) };
    (time.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::os::fd::AsRawFd;

    #[test]
    fn threads_are_listed_as_the_library_lists_them() {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let wait = std::sync::Mutex::new(wait);
        std::thread::scope(|scope| {
            for _ in 0..100 {
                scope.spawn(|| {
                    let _ = wait.lock().map(|wait| wait.recv());
                });
            }
            let own = std::process::id() as i32;
            let directory = std::fs::File::open(format!("/proc/{own}/task")).unwrap();
            let is_listed_alike = || {
                let mut found = BTreeSet::new();
                each_thread(own, |tid| _ = found.insert(tid));
                let listed: BTreeSet<i32> = memhook_process::thread_ids(own)
                    .unwrap()
                    .into_iter()
                    .collect();
                (0..2).all(|_| {
                    let mut again = BTreeSet::new();
                    each_thread_in(directory.as_raw_fd() as usize, |tid| _ = again.insert(tid));
                    found.intersection(&again).count() > 100
                }) && found.intersection(&listed).count() > 100
            };
            // Other tests start and end threads at the same time. When a thread ends, the kernel may omit the threads
            // listed after it.
            assert!((0..1000).any(|_| is_listed_alike()));
            drop(done);
        });
    }

    #[test]
    fn numbers_and_paths() {
        assert_eq!(leading_number(b"17\0\0"), Some(17));
        assert_eq!((leading_number(b"."), leading_number(b"")), (None, None));
        let path = Path::threads_of(4711)
            .with(b"/")
            .with_number(12)
            .with(b"/stat");
        assert_eq!(path.as_c_str(), c"/proc/4711/task/12/stat");
        let long = Path::threads_of(1).with(&[b'x'; 100]);
        assert_eq!(long.as_c_str().to_bytes().len(), 63);
    }
}
