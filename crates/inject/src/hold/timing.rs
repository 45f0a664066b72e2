//! Time limits for which the code in the target and this process wait for each other.

use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// Time for which a thread waits after an operation to be stopped, before it returns to the target's code on its
    /// own.
    pub spin: Duration,
    /// Time after which the result is also read from memory, because a seccomp filter may refuse the system call that
    /// rings the bell. This time is much shorter than `spin`.
    pub bell: Duration,
}

impl Timing {
    pub(crate) const USUAL: Timing = Timing {
        spin: Duration::from_millis(300),
        bell: Duration::from_millis(50),
    };
    /// Timing for tests that repeatedly kill the attacher. After each kill, they wait until the thread has returned to
    /// the target's code.
    #[cfg(test)]
    pub(crate) const QUICK: Timing = Timing {
        spin: Duration::from_millis(30),
        bell: Duration::from_millis(5),
    };
}
