//! What protects a target from us while some of its threads are held.

use crate::terminal_stops::PutOff;
use crate::urgency::Urgency;
use crate::watchdog::Armed;

/// Lives from before the first thread is told to stop until the last one runs again.
pub(crate) struct Guard {
    // They end in this order, so that what may stop us comes last.
    _urgency: Urgency,
    _watchdog: Armed,
    _terminal: PutOff,
}

impl Guard {
    pub(crate) fn begin(pid: i32) -> Guard {
        let terminal = PutOff::begin();
        let watchdog = Armed::begin(pid);
        Guard {
            _urgency: Urgency::begin(),
            _watchdog: watchdog,
            _terminal: terminal,
        }
    }
}
