//! Rules for every exchange of code in a process.

use crate::error::Error;
use memhook_inject::{CodeExchange, CodeExchanges, Exchanged, exchange_code};
use memhook_probe::JUMP_BYTES;
use memhook_process::{Mapping, RemoteAddress, read_memory};
use std::fs::File;
use std::time::Duration;

/// Minimum pause before retrying code that a thread was executing.
const PAUSE: Duration = Duration::from_millis(5);
/// Ratio of such a pause to the preceding hold. It ensures that all threads are held for at most a tenth of the time,
/// regardless of the number of threads and the speed of the machine.
const PAUSE_PER_HOLD: u32 = 9;

/// Returns how long to let the process run after all its threads have been held.
pub(crate) fn pause_after(held: Duration) -> Duration {
    PAUSE.max(held.saturating_mul(PAUSE_PER_HOLD))
}

/// Number of attempts on code that is in use.
const TRIES: u32 = 40;

/// Exchanges code with all threads held, and retries if threads are executing that code. `after_hold` is called with
/// the duration of each hold. Returns the exchanged items, and the remaining items, each with the reason. `memory` is
/// the argument of [`exchange_code`].
#[allow(clippy::type_complexity)] // both halves of what was handed over
pub(crate) fn exchange_each<T>(
    pid: i32,
    memory: &File,
    mut open: Vec<(T, CodeExchange)>,
    needs_thread_pointers: bool,
    mut after_hold: impl FnMut(&CodeExchanges),
) -> Result<(Vec<T>, Vec<(T, String)>), Error> {
    let (mut exchanged, mut refused) = (Vec::new(), Vec::new());
    let mut pause = Duration::ZERO;
    for _ in 0..TRIES {
        if open.is_empty() {
            break;
        }
        std::thread::sleep(pause);
        let exchanges: Vec<CodeExchange> = open.iter().map(|(_, e)| e.clone()).collect();
        let result = exchange_code(pid, memory, &exchanges, &[], needs_thread_pointers)?;
        pause = pause_after(result.held);
        after_hold(&result);
        for ((of, exchange), done) in std::mem::take(&mut open).into_iter().zip(result.done) {
            match done {
                Exchanged::Done => exchanged.push(of),
                Exchanged::InUse => open.push((of, exchange)),
                Exchanged::Differs => {
                    refused.push((of, "its code has changed in the meantime".into()))
                }
            }
        }
    }
    let in_use = "a thread is executing its first bytes, or may return into them";
    refused.extend(open.into_iter().map(|(of, _)| (of, in_use.to_owned())));
    Ok((exchanged, refused))
}

/// Returns true if the process has this jump at this address, in file-backed code. If it has unloaded the library and
/// mapped other memory there, the contents of that memory do not count.
pub(crate) fn has_jump(pid: i32, maps: &[Mapping], at: u64, jump: &[u8; JUMP_BYTES]) -> bool {
    let is_code = mapping_at(maps, at).is_some_and(|m| m.exec && !m.shared && m.file_id.2 != 0);
    is_code && holds(pid, at, jump)
}

/// Returns true if code that the process generated at run time contains this jump, so that its destination must stay
/// mapped.
pub(crate) fn has_own_jump(pid: i32, maps: &[Mapping], at: u64, jump: &[u8; JUMP_BYTES]) -> bool {
    let is_own = mapping_at(maps, at).is_some_and(|m| m.exec && (m.shared || m.file_id.2 == 0));
    is_own && holds(pid, at, jump)
}

fn mapping_at(maps: &[Mapping], at: u64) -> Option<&Mapping> {
    let after = maps.partition_point(|m| m.end <= at);
    maps.get(after).filter(|m| m.contains(at))
}

fn holds(pid: i32, at: u64, jump: &[u8; JUMP_BYTES]) -> bool {
    let mut now = [0; JUMP_BYTES];
    read_memory(pid, RemoteAddress(at), &mut now).is_ok() && now == *jump
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_runs_for_most_of_the_time() {
        assert_eq!(pause_after(Duration::from_micros(10)), PAUSE);
        let held = Duration::from_millis(40);
        assert_eq!(pause_after(held), held * 9);
    }
}
