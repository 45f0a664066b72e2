//! Time limits for the code in the target and this process to wait for each other.

use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    /// Time for which a thread that has finished an operation waits to be stopped before it goes home.
    pub spin: Duration,
    /// After this time the result is looked for in memory too, because a seccomp filter may refuse the
    /// bell. Well below `spin`.
    pub bell: Duration,
}

impl Timing {
    pub(crate) const USUAL: Timing = Timing {
        spin: Duration::from_millis(300),
        bell: Duration::from_millis(50),
    };
    /// For tests that kill the attacher over and over, and wait for the thread to go home each time.
    #[cfg(test)]
    pub(crate) const QUICK: Timing = Timing {
        spin: Duration::from_millis(30),
        bell: Duration::from_millis(5),
    };
}
