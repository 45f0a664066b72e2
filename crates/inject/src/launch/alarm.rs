//! Waits for stops until a given time. A timer interrupts waitpid(2), because that call has no timeout.

use crate::signals;
use nix::sys::signal::{SigEvent, SigevNotify, Signal};
use nix::sys::timer::{Expiration, Timer, TimerSetTimeFlags};
use nix::time::ClockId;
use std::time::{Duration, Instant};

/// Signal of the timer; no code in this process uses alarm(2).
const SIGNAL: Signal = Signal::SIGALRM;
/// Interval of the signal. The signal is repeated, because it may arrive just before the call that it must interrupt.
const REPEAT: Duration = Duration::from_millis(10);

/// Interrupts the system calls of the thread that created this value, from `at` until the value is dropped.
pub(super) struct Alarm {
    /// Time of the first signal.
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
