//! State of a held thread that has changed so far, and must be undone.

use std::hash::{BuildHasher, RandomState};

use crate::load;
use crate::scratch::{Place, Scratch};
use crate::survey::Survey;
use crate::timing::Timing;
use crate::way_home::WayHome;
use memhook_process::RemoteAddress;

type Filters = Option<Option<Vec<Vec<libc::sock_filter>>>>;

pub(crate) struct RemoteWork {
    /// True if the registers were changed since the stop.
    pub begun: bool,
    /// True if the thread's seccomp filters are suspended.
    pub filters_suspended: bool,
    /// The filters, once they were looked at; `None` where there are none, and `Some(None)` where they cannot be seen.
    pub filters: Option<Filters>,
    /// The frames that lead home, once they are written.
    pub way_home: Option<WayHome>,
    /// Where these are, and how many bytes they have.
    pub frames: Option<(RemoteAddress, usize)>,
    /// Where the scratch memory will be, if nobody maps anything there first.
    pub place: Place,
    pub scratch: Option<Scratch>,
    /// True if the scratch stack has its guard page.
    pub guarded: bool,
    /// Marks the result of one operation; begins at a random number.
    pub token: u64,
    /// Address and value of the thread's `errno` before the first remote call.
    pub errno: Option<(RemoteAddress, [u8; 4])>,
    /// Signals taken off the thread, to be sent again.
    pub taken: Vec<(i32, libc::siginfo_t)>,
    /// The open descriptor of ours that the way home closes.
    pub opened: Option<u64>,
    /// The one that it does not close.
    pub unguarded: Option<u64>,
    /// Device and inode of what is open.
    pub object: Option<(u64, u64)>,
    /// Number of objects of ours that the target has loaded already.
    pub earlier_loads: usize,
    /// True if the thread has restored itself and must not be restored again.
    pub went_home: bool,
    pub timing: Timing,
}

impl RemoteWork {
    /// Nothing has been done with this thread yet.
    pub(crate) fn none(tid: i32, survey: &Survey) -> RemoteWork {
        RemoteWork {
            begun: false,
            filters_suspended: false,
            filters: None,
            way_home: None,
            frames: None,
            place: Place::among(&survey.mappings),
            scratch: None,
            guarded: false,
            token: RandomState::new().hash_one(tid),
            errno: None,
            taken: Vec::new(),
            opened: None,
            unguarded: None,
            object: None,
            earlier_loads: load::earlier_loads(&survey.mappings),
            went_home: false,
            timing: survey.timing,
        }
    }
}
