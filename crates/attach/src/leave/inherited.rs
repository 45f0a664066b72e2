//! Our descriptors that forked children have inherited.
//!
//! The hook and the region are memory objects. The target has each of them open during a few system calls of a held
//! thread. A child that another thread forks during that time inherits the descriptor, and keeps it until it executes a
//! program or ends.

use super::residue::stray_descriptors;
use crate::hook::presence::any_point;
use memhook_inject::hold;
use memhook_process::{children, process_age};
use std::time::{Duration, Instant};

/// Resolution of the kernel's process start times.
const TICK: Duration = Duration::from_millis(20);

/// Closes our descriptors in all descendants that a process has forked since `begin`.
pub fn close_inherited(pid: i32, begin: Instant) {
    for child in children(pid) {
        let age = || process_age(child).is_some_and(|age| age <= begin.elapsed() + TICK);
        // A child without our descriptors cannot have passed any to its own children.
        if age() && close_in(child) {
            close_inherited(child, begin);
        }
    }
}

/// Closes inherited descriptors in a process, and returns true if there were any. If a descriptor cannot be closed,
/// because the process is ending or may not be traced, it disappears with the process.
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
