//! Protects a target from our failures while some of its threads are held.

use crate::audit::Holding;
use crate::terminal_stops::PutOff;
use crate::urgency::Urgency;
use crate::watchdog::Armed;

/// Guard that exists from before the first thread is told to stop until the last thread runs again.
pub(crate) struct Guard {
    // Fields are dropped in declaration order. Those that may stop us come last.
    _urgency: Urgency,
    _watchdog: Armed,
    _terminal: PutOff,
    _holding: Holding,
}

impl Guard {
    /// `may_let_go`: true if the watchdog may release the threads early, because the work does not need all of them to
    /// be stopped.
    pub(crate) fn begin(pid: i32, may_let_go: bool) -> Guard {
        let holding = Holding::begin(pid);
        let terminal = PutOff::begin();
        let watchdog = Armed::begin(pid, may_let_go);
        Guard {
            _urgency: Urgency::begin(),
            _watchdog: watchdog,
            _terminal: terminal,
            _holding: holding,
        }
    }
}
