//! The memory of a traced process at the end of its trace.

use super::copy_limits::words_of_a_search;
use crate::options::HoldLimit;
use memhook_attach::Consumer;
use memhook_checkup::LastLook;
use memhook_ledger::Observer;

/// A traced process's memory at the end of the trace.
pub fn last_look<O: Observer + Send>(
    pid: i32,
    consumer: &Consumer<O>,
    hold: HoldLimit,
) -> LastLook {
    LastLook::take(pid, consumer, hold.to_search(), words_of_a_search)
}
