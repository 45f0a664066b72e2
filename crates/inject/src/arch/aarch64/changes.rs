//! Stubs of the code that changes processes, for a processor to which it has not been ported. No value of these types
//! exists, and the functions that would create one fail.

use crate::seen::watchable::{Neighbours, Watchable};
use crate::{Error, Registers};
use memhook_process::{Mapping, RemoteAddress};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A value that does not exist.
enum Never {}

/// Refuses: processes cannot be changed on this processor.
pub fn may_change(pid: i32) -> Result<(), Error> {
    Err(Error::NotPorted { pid })
}

fn refused<T>(pid: i32) -> Result<T, Error> {
    Err(Error::NotPorted { pid })
}

fn no_call<T>() -> io::Result<T> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A held thread.
pub struct Held(Never);

impl Held {
    /// Maximum number of calls at once.
    pub const MAX_CALLS: usize = 0;

    /// Returns its registers.
    pub fn registers(&self) -> &Registers {
        match self.0 {}
    }

    /// Returns for how long it has been held.
    pub fn held_for(&self) -> Duration {
        match self.0 {}
    }

    /// Lets it go.
    pub fn release(self) -> Result<Duration, Error> {
        match self.0 {}
    }

    /// Stops the other threads.
    pub fn stop_others(&mut self, _: &Others) -> Result<bool, Error> {
        match self.0 {}
    }

    /// Returns the other threads.
    pub fn other_threads(&self) -> impl Iterator<Item = (i32, &Registers)> {
        match self.0 {}
        #[expect(unreachable_code)]
        std::iter::empty()
    }

    /// Lets others run for a time.
    pub fn let_others_run(&mut self, _: &[i32], _: Duration) -> Result<(), Error> {
        match self.0 {}
    }

    /// Lets the others go.
    pub fn let_others_go(&mut self) {
        match self.0 {}
    }

    /// Calls a function that may wait for a lock.
    pub fn call_unless_locked(
        &mut self,
        _: RemoteAddress,
        _: &[u64],
        _: Duration,
    ) -> Result<u64, Error> {
        match self.0 {}
    }

    /// Calls a function with each of these arguments.
    pub fn call_each(&mut self, _: RemoteAddress, _: &[u64], _: Instant) -> Result<usize, Error> {
        match self.0 {}
    }

    /// Calls a function with each of these arguments, and waits until each call has returned.
    pub fn call_each_to_its_end(
        &mut self,
        _: RemoteAddress,
        _: &[u64],
        _: Instant,
        _: Duration,
    ) -> Result<usize, Error> {
        match self.0 {}
    }

    /// Calls a function to its end.
    pub fn call_to_its_end(
        &mut self,
        _: RemoteAddress,
        _: &mut [u8],
        _: Duration,
        _: impl FnOnce(RemoteAddress) -> Vec<u64>,
    ) -> Result<u64, Error> {
        match self.0 {}
    }
}

/// The threads beside a held one.
pub struct Others(());

impl Others {
    /// None.
    pub fn of(_: i32) -> Others {
        Others(())
    }
}

/// Holds that were abandoned before all threads had stopped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InVain {
    /// Number of holds.
    pub holds: u32,
    /// The longest of them.
    pub longest: Duration,
    /// The thread that was waited for last.
    pub tid: i32,
}

/// Every thread of a process, held.
pub struct AllHeld(Never);

/// Refuses.
pub fn hold_all_within(pid: i32, _: Option<Duration>) -> Result<AllHeld, Error> {
    refused(pid)
}

impl AllHeld {
    /// Returns the threads.
    pub fn threads(&self) -> impl Iterator<Item = (i32, &Registers, &[u8])> {
        match self.0 {}
        #[expect(unreachable_code)]
        std::iter::empty()
    }

    /// Returns the values of queued signals.
    pub fn queued_values(&self) -> Vec<u64> {
        match self.0 {}
    }

    /// Returns places of restartable sequences.
    pub fn rseq_places(&self) -> Vec<u64> {
        match self.0 {}
    }

    /// Returns for how long they have been held.
    pub fn held_for(&self) -> Duration {
        match self.0 {}
    }

    /// Returns holds that were given up.
    pub fn in_vain(&self) -> InVain {
        match self.0 {}
    }

    /// Lets some run for a time.
    pub fn let_run(&mut self, _: &[i32], _: Duration) -> Result<(), Error> {
        match self.0 {}
    }

    /// Lets them go.
    pub fn release(self) -> Duration {
        match self.0 {}
    }

    /// Makes a frozen copy of the process.
    pub fn fork(&mut self, _: &ForkPlan) -> Result<FrozenChild, Error> {
        match self.0 {}
    }
}

/// Facts that a fork needs.
pub struct ForkPlan(Never);

impl ForkPlan {
    /// Refuses.
    pub fn of(pid: i32) -> Result<ForkPlan, Error> {
        refused(pid)
    }
}

/// A frozen copy of a process.
pub struct FrozenChild(Never);

impl FrozenChild {
    /// Returns its process id.
    pub fn pid(&self) -> i32 {
        match self.0 {}
    }
}

/// Watches writes into mappings of a process.
pub struct WriteWatch(Never);

impl WriteWatch {
    /// Refuses.
    pub fn start(pid: i32) -> Result<WriteWatch, Error> {
        refused(pid)
    }

    /// Returns for how long a thread was held.
    pub fn held_for(&self) -> Duration {
        match self.0 {}
    }

    /// Returns mappings that can be watched.
    pub fn watchable(&self, _: &[Mapping], _: &dyn Fn(&Mapping) -> bool) -> Vec<Neighbours> {
        match self.0 {}
    }

    /// Watches neighbours.
    pub fn add_all(&self, _: Neighbours) -> (Vec<Watchable>, Vec<Range<u64>>) {
        match self.0 {}
    }

    /// Ends the watch of a range.
    pub fn remove(&self, _: Range<u64>) -> io::Result<()> {
        match self.0 {}
    }

    /// Adds written pages.
    pub fn written(&self, _: Range<u64>, _: &mut Vec<Range<u64>>) -> io::Result<()> {
        match self.0 {}
    }

    /// Adds huge pages.
    pub fn huge(&self, _: Range<u64>, _: &mut Vec<Range<u64>>) -> io::Result<()> {
        match self.0 {}
    }
}

/// A program that was started here.
pub struct Child(Never);

/// A thread at its end.
pub struct EndingThread {
    /// Kernel thread id.
    pub tid: i32,
    /// General registers.
    pub registers: Registers,
    /// The extended state.
    pub extended: Vec<u8>,
}

impl Child {
    /// Returns the threads of a process at its end.
    pub fn ending_threads(&self, _: i32) -> &[EndingThread] {
        match self.0 {}
    }
}

/// Refuses.
pub fn kernel_places(pid: i32) -> Result<(Vec<Range<u64>>, Duration), Error> {
    refused(pid)
}

/// Refuses.
pub fn duplicate_descriptor(_: i32, _: u64) -> io::Result<OwnedFd> {
    no_call()
}

/// Does nothing: no thread stops late.
pub fn wait_for_late_threads(_: Duration) {}

/// Does nothing: no thread stops late.
pub fn let_late_threads_go() {}
