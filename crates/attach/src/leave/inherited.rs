//! Descriptors of ours that forked children have.
//!
//! The hook and the region are memory objects, each of which the target has open for some system calls of one held
//! thread. A child that another thread forks in between has it too, until it executes a program or ends.

use super::residue::stray_descriptors;
use crate::hook::presence::any_point;
use memhook_inject::hold;
use memhook_process::{children, process_age};
use std::time::{Duration, Instant};

/// An age is known to a tick of the kernel.
const TICK: Duration = Duration::from_millis(20);

/// Closes them in the children that a process has made since `begin`, and in theirs.
pub fn close_inherited(pid: i32, begin: Instant) {
    for child in children(pid) {
        let age = || process_age(child).is_some_and(|age| age <= begin.elapsed() + TICK);
        // One that has none has passed none on.
        if age() && close_in(child) {
            close_inherited(child, begin);
        }
    }
}

/// Closes inherited gates in a process, and returns true if it has any. What cannot be closed, because the process is
/// ending or may not be traced, goes with it.
fn close_in(pid: i32) -> bool {
    if stray_descriptors(pid).is_empty() {
        return false;
    }
    if let Ok(mut held) = hold(pid, &any_point()) {
        for descriptor in stray_descriptors(pid) {
            let _ = descriptor.close(&mut held);
        }
        let _ = held.release();
    }
    true
}
