//! An unnamed file for functions that take a path.

use nix::sys::memfd::{MFdFlags, memfd_create};
use std::{cell::RefCell, fs::File, os::fd::AsRawFd, os::unix::fs::FileExt, path::PathBuf};

thread_local! {
    static FILE: RefCell<Option<File>> = const { RefCell::new(None) };
}

/// Calls `read` with the path of a file that contains these bytes.
pub fn with_file<T>(bytes: &[u8], read: impl FnOnce(PathBuf) -> T) -> T {
    FILE.with_borrow_mut(|slot| {
        let file = slot.get_or_insert_with(|| {
            let fd = memfd_create("memhook-fuzz", MFdFlags::MFD_CLOEXEC).expect("a memory file");
            File::from(fd)
        });
        file.set_len(0).expect("emptied");
        file.write_all_at(bytes, 0).expect("written");
        read(format!("/proc/self/fd/{}", file.as_raw_fd()).into())
    })
}
