//! Lists of locks that the kernel marks when a thread ends (get_robust_list(2)).

/// Returns the head of a thread's list, or `None` if it has none or if the kernel does not permit the query.
pub fn robust_list(tid: i32) -> Option<u64> {
    let mut head = 0u64;
    let mut length = 0usize;
    let (head_place, length_place) = (&raw mut head, &raw mut length);
    // SAFETY: the kernel writes a pointer and a size_t to these variables, which live for the call.
    let result = unsafe { libc::syscall(libc::SYS_get_robust_list, tid, head_place, length_place) };
    (result == 0 && head != 0).then_some(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_has_a_list() {
        // SAFETY: no pointers.
        let tid = unsafe { libc::gettid() };
        // glibc registers a list for each thread. The list is in the thread's descriptor.
        assert!(robust_list(tid).is_some());
        assert_eq!(robust_list(i32::MAX), None);
    }
}
