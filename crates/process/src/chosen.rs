//! Remembers which process was chosen by a process id.
//!
//! If the chosen process ends, the kernel may reuse its id before one of its threads is stopped. So a choice is the id
//! together with the start time. Code that claims a process, stops a thread or opens memory for writing checks that the
//! id still belongs to the chosen process. Such code gets only the id, so the choices of the whole program are stored
//! here.

use crate::thread_start_time;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Process that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Process id.
    pub pid: i32,
    /// Start time in clock ticks since boot; `None` if there was no such process.
    pub started: Option<u64>,
}

/// The id belongs to another process by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "process {pid} has ended, and its id now belongs to another process, which is left alone: choose again"
)]
pub struct Replaced {
    /// Process id.
    pub pid: i32,
}

/// Start time of the chosen process for each id, and the number of [`Kept`] values that refer to it.
static KEPT: Mutex<BTreeMap<i32, (u64, usize)>> = Mutex::new(BTreeMap::new());

fn kept() -> MutexGuard<'static, BTreeMap<i32, (u64, usize)>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Active choice: until this is dropped, another process with the id is not touched.
#[derive(Debug)]
pub struct Kept(Option<(i32, u64)>);

impl Chosen {
    /// Returns the process that has this id now.
    pub fn now(pid: i32) -> Chosen {
        Chosen {
            pid,
            started: thread_start_time(pid, pid),
        }
    }

    /// Activates the choice.
    ///
    /// # Errors
    /// Fails if the id belongs to another process now, or if an earlier choice of another process with this id is still
    /// active.
    pub fn keep(self) -> Result<Kept, Replaced> {
        let Chosen { pid, started } = self;
        let Some(started) = started else {
            return Ok(Kept(None));
        };
        {
            let mut kept = kept();
            let (first, count) = kept.entry(pid).or_insert((started, 0));
            if *first != started {
                return Err(Replaced { pid });
            }
            *count += 1;
        }
        // The choice is dropped again if the id belongs to another process by now.
        let choice = Kept(Some((pid, started)));
        still_chosen(pid).map(|()| choice)
    }

    /// Activates the choice until this program ends.
    ///
    /// # Errors
    /// The same as for [`Chosen::keep`].
    pub fn keep_for_good(self) -> Result<i32, Replaced> {
        self.keep().map(std::mem::forget)?;
        Ok(self.pid)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let Some((pid, _)) = self.0 else { return };
        let mut kept = kept();
        if let Some((_, count)) = kept.get_mut(&pid) {
            *count -= 1;
            if *count == 0 {
                kept.remove(&pid);
            }
        }
    }
}

/// Checks that a chosen id still belongs to the chosen process. Anything opened or seized before this call then belongs
/// to that process too: an id never returns to a process that has ended.
///
/// # Errors
/// Fails if another process has the id. It is not an error if the process has ended and the id is unused.
pub fn still_chosen(pid: i32) -> Result<(), Replaced> {
    let meant = kept().get(&pid).map(|(started, _)| *started);
    let Some(meant) = meant else { return Ok(()) };
    match thread_start_time(pid, pid) {
        Some(now) if now != meant => Err(Replaced { pid }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_holds_for_one_process() {
        let pid = std::process::id() as i32;
        let own = Chosen::now(pid);
        let (first, second) = (own.keep().expect("it is us"), own.keep().expect("again"));
        assert_eq!(still_chosen(pid), Ok(()));
        let earlier = Chosen {
            started: own.started.map(|started| started - 1),
            ..own
        };
        assert!(earlier.keep().is_err());
        drop((first, second));
        // Nothing remains of a choice that failed.
        assert!(earlier.keep().is_err());
        assert!(own.keep().is_ok());
        let nobody = Chosen::now(i32::MAX);
        assert!(nobody.started.is_none() && nobody.keep().is_ok());
    }
}
