//! Precedence of a thread that others wait for.

/// How much nicer other threads are then: enough that a thread which has slept gets a processor at once among many
/// busy ones, and too little for it to keep theirs from them for long.
const NICE: i32 = -10;

/// Gives the calling thread precedence over ordinary ones for the rest of its life, where that is allowed
/// (CAP_SYS_NICE or RLIMIT_NICE, setpriority(2)). A niceness that somebody has chosen stays. Not real time, as in a
/// hold: this thread may have work without end, and the target needs the processor, too.
pub fn take_precedence() {
    // SAFETY: takes and returns integers; on Linux, 0 stands for the calling thread only (setpriority(2), BUGS).
    unsafe {
        if libc::getpriority(libc::PRIO_PROCESS, 0) == 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The niceness of the calling thread.
    fn niceness() -> i32 {
        // SAFETY: as above.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    #[test]
    fn only_the_calling_thread_gets_it() {
        let before = niceness();
        let raised = std::thread::spawn(|| {
            take_precedence();
            niceness()
        });
        let raised = raised.join().expect("it ends");
        assert!(raised == NICE || raised == before, "{raised}");
        assert_eq!(niceness(), before);
    }
}
