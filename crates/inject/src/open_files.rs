//! Raises the limit of open files of this process.

/// Raises the limit on open files as far as an unprivileged process can: each traced process needs dozens of
/// descriptors, and the usual limit is 1,024 (setrlimit(2), RLIMIT_NOFILE).
pub fn allow_many_open_files() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one rlimit, and then reads it.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}
