//! A wait for stops that ends at a given time: waitpid(2) takes no timeout, so a timer interrupts it.

use crate::signals;
use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use std::time::{Duration, Instant};

/// Nobody in this process uses alarm(2).
const SIGNAL: Signal = Signal::SIGALRM;
/// The signal may come just before the call that it is to interrupt, so it comes again and again.
const REPEAT: Duration = Duration::from_millis(10);

/// Interrupts the system calls of the thread that made it, from `at` on until it is dropped.
pub(super) struct Alarm {
    /// When it goes off first.
    pub at: Instant,
    _timer: Timer,
}

extern "C" fn interrupt(_: i32) {}

impl Alarm {
    pub fn at(at: Instant) -> nix::Result<Alarm> {
        signals::handle_and_interrupt(SIGNAL as i32, interrupt);
        let mut timer = Timer::new(
            ClockId::CLOCK_MONOTONIC,
            SigEvent::new(SigevNotify::SigevThreadId {
                signal: SIGNAL,
                thread_id: nix::unistd::gettid().as_raw(),
                si_value: 0,
            }),
        )?;
        // A delay of zero would disarm the timer (timer_settime(2)).
        let delay = at.saturating_duration_since(Instant::now());
        let delay = delay.max(Duration::from_nanos(1));
        timer.set(
            Expiration::IntervalDelayed(delay.into(), REPEAT.into()),
            TimerSetTimeFlags::empty(),
        )?;
        Ok(Alarm { at, _timer: timer })
    }
}
