//! Time limits for the waits between the code in the target and this process.

use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// Time that a thread waits to be stopped after an operation, before it goes home.
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
    /// Timing for tests that kill the attacher repeatedly, and wait for the thread to go home each time.
    #[cfg(test)]
    pub(crate) const QUICK: Timing = Timing {
        spin: Duration::from_millis(30),
        bell: Duration::from_millis(5),
    };
}
