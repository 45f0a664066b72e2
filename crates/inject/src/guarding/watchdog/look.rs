//! Facts that the watchdog reads about a thread, and about the threads that it may wait for.

use std::ffi::CStr;

use super::raw::{Path, each_thread, leading_number, read};

/// Result of a look at a thread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Look {
    /// State letter of proc_pid_stat(5).
    pub state: u8,
    /// Time on a processor, time waiting for a processor (both in nanoseconds), and number of timeslices
    /// (Documentation/scheduler/sched-stats). `None` if the kernel keeps no such figures.
    pub turns: Option<[u64; 3]>,
}

impl Look {
    pub(super) fn at(stat: &CStr, schedstat: &CStr) -> Look {
        let mut text = [0u8; 512];
        read(stat, &mut text);
        let mut figures = [0u8; 64];
        read(schedstat, &mut figures);
        Look {
            state: state_in(&text),
            turns: figures_in(&figures),
        }
    }

    /// Returns true if the thread was runnable both times and got less than 1/`STARVED_SHARE` of a processor between
    /// the two looks.
    fn is_starved_since(&self, before: &Look, elapsed_ns: u64) -> bool {
        let ran = |look: &Look| look.turns.map_or(0, |turns| turns[0]);
        ran(self).saturating_sub(ran(before)) < elapsed_ns / STARVED_SHARE
    }

    fn of(pid: i32, tid: i32) -> Look {
        let file = |name| {
            let thread = Path::threads_of(pid).with(b"/").with_number(tid);
            thread.with(name)
        };
        Look::at(file(b"/stat").as_c_str(), file(b"/schedstat").as_c_str())
    }
}

/// Returns the state, which follows the last parenthesis: the name in parentheses may contain anything.
fn state_in(text: &[u8; 512]) -> u8 {
    let end = text.iter().rposition(|&byte| byte == b')');
    end.and_then(|end| text.get(end + 2)).copied().unwrap_or(0)
}

fn figures_in(text: &[u8; 64]) -> Option<[u64; 3]> {
    let mut words = text.split(|&byte| byte == b' ');
    let mut next = || leading_number(words.next()?);
    Some([next()?, next()?, next()?])
}

/// A thread that gets less than this fraction (1/n) of a processor is starved. A quota grants some milliseconds per 100
/// ms, so requiring that the thread gets no timeslice at all would be too strict.
const STARVED_SHARE: u64 = 8;

/// Maximum number of remembered runnable threads.
const MOST: usize = 32;

/// Threads that were runnable at the last look, with their figures at that time.
pub(super) struct Wanting {
    threads: [(i32, Look); MOST],
    count: usize,
}

impl Wanting {
    pub(super) fn none() -> Wanting {
        Wanting {
            threads: [(0, Look::default()); MOST],
            count: 0,
        }
    }

    /// Examines the threads of two processes, `elapsed_ns` after the last call. Returns true if any of them has been
    /// runnable since then and has hardly been scheduled. A thread that waits for it is then starved and not stuck.
    pub(super) fn look(&mut self, pids: [i32; 2], elapsed_ns: u64) -> bool {
        let mut now = Wanting::none();
        let mut starves = false;
        for pid in pids {
            each_thread(pid, |tid| {
                let look = Look::of(pid, tid);
                if look.state == b'R' && look.turns.is_some() {
                    starves |= self.threads.iter().take(self.count).any(|(old, before)| {
                        *old == tid && look.is_starved_since(before, elapsed_ns)
                    });
                    if let Some(place) = now.threads.get_mut(now.count) {
                        *place = (tid, look);
                        now.count += 1;
                    }
                }
            });
        }
        *self = now;
        starves
    }
}

/// Returns the number of running and runnable threads of the machine (proc_loadavg(5), the fourth field), or 0 if the
/// kernel does not report it.
pub(super) fn running() -> u32 {
    let mut text = [0u8; 128];
    read(c"/proc/loadavg", &mut text);
    running_in(&text)
}

/// Returns the number before the slash.
fn running_in(text: &[u8; 128]) -> u32 {
    let mut words = text.split(|&byte| byte == b' ');
    let field = words.nth(3).filter(|field| field.contains(&b'/'));
    let number = field.and_then(leading_number).unwrap_or(0);
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room<const BYTES: usize>(text: &str) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    #[test]
    fn who_hardly_gets_a_turn_is_starved() {
        let look = |ran: u64, turns: u64| Look {
            state: b'R',
            turns: Some([ran, 0, turns]),
        };
        let before = look(5_000_000, 7);
        for (now, is_starved) in [
            (before, true),
            (look(6_000_000, 8), true),
            (look(25_000_000, 9), false),
            (look(55_000_000, 8), false),
        ] {
            assert_eq!(now.is_starved_since(&before, 50_000_000), is_starved);
        }
    }

    #[test]
    fn files_of_the_kernel_are_read() {
        assert_eq!(running_in(&room("15.82 18.75 16.76 27/1071 9532\n")), 27);
        assert_eq!(running_in(&room("")), 0);
        assert_eq!(running_in(&room("0.1 0.2 0.3")), 0);
        assert_eq!(state_in(&room("12 (a) R (b)) S 1 2")), b'S');
        assert_eq!(state_in(&room("")), 0);
        assert_eq!(figures_in(&room("12 34 5\n")), Some([12, 34, 5]));
        assert_eq!(figures_in(&room("")), None);
    }
}
