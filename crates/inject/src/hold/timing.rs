//! Time limits for the waits between the code in the target and this process.

use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// Time that a thread waits to be stopped after an operation, before it returns to the target's code by itself.
    pub spin: Duration,
    /// Time after which the result is also read from memory, because a seccomp filter may refuse the bell. It is much
    /// shorter than `spin`.
    pub bell: Duration,
}

impl Timing {
    pub(crate) const USUAL: Timing = Timing {
        spin: Duration::from_millis(300),
        bell: Duration::from_millis(50),
    };
    /// Timing for tests that repeatedly kill the attacher and each time wait until the thread has returned to the
    /// target's code.
    #[cfg(test)]
    pub(crate) const QUICK: Timing = Timing {
        spin: Duration::from_millis(30),
        bell: Duration::from_millis(5),
    };
}
