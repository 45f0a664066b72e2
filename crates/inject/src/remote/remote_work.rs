//! Changes made to a held thread so far, which must be undone.

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
    /// Filters, once they have been read; `None` if there are none, and `Some(None)` if they cannot be read.
    pub filters: Option<Filters>,
    /// Frames that lead home, once they are written.
    pub way_home: Option<WayHome>,
    /// Address and size of these frames.
    pub frames: Option<(RemoteAddress, usize)>,
    /// Intended address of the scratch memory.
    pub place: Place,
    pub scratch: Option<Scratch>,
    /// True if the scratch stack has its guard page.
    pub guarded: bool,
    /// Token that marks one operation's result. The first token is random.
    pub token: u64,
    /// Address and value of the thread's `errno` before the first remote call.
    pub errno: Option<(RemoteAddress, [u8; 4])>,
    /// Signals taken from the thread, to be sent again.
    pub taken: Vec<(i32, libc::siginfo_t)>,
    /// Open descriptor of ours that the way home closes.
    pub opened: Option<u64>,
    /// Open descriptor of ours that the way home does not close.
    pub unguarded: Option<u64>,
    /// Device and inode of the open descriptor.
    pub object: Option<(u64, u64)>,
    /// Number of our objects that the target has already loaded.
    pub earlier_loads: usize,
    /// True if the thread has restored itself and must not be restored again.
    pub went_home: bool,
    pub timing: Timing,
}

impl RemoteWork {
    /// Returns the state of a thread without changes.
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
