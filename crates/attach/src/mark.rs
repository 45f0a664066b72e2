//! Sets a mark in a trace that another process makes.

use crate::error::Error;
use crate::leave::residue::residue;
use memhook_process::mappings;
use std::time::{Duration, Instant};

/// Longest time for the attacher to notice a mark. It checks every few milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sets a mark in a running trace of a process. When this function returns, all earlier events are before the mark, and
/// all later ones after it. Returns the time since the attach.
pub fn set_mark(pid: i32, name: &str) -> Result<Duration, Error> {
    let residue = residue(pid, &mappings(pid)?);
    let (region, _) = residue.traced().ok_or(Error::NotTraced { pid })?;
    let number = region.set_mark(name);
    let begin = Instant::now();
    loop {
        // Events are stamped with the clock word, so the clock word must have passed the mark.
        if let Some(time_ns) = region.mark_seen_at(number)
            && region.clock_ns() > time_ns
        {
            return Ok(Duration::from_nanos(time_ns));
        }
        if begin.elapsed() > PATIENCE || residue.attacher(pid).is_none() {
            return Err(Error::MarkNotSeen { pid });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
