//! A region that we cannot open, and therefore read through the target's memory.

use memhook_abi::{
    Control, MAGIC, MAX_RINGS, RINGS_OFFSET, RingHeader, TALLY_OFFSET, Tally, birth, ring_stride,
};
use memhook_process::{RemoteAddress, read_memory, read_word};
use std::mem::offset_of;
use std::time::{Duration, Instant};

fn word32(pid: i32, address: RemoteAddress) -> Option<u32> {
    let mut word = [0; 4];
    read_memory(pid, address, &mut word).ok()?;
    Some(u32::from_le_bytes(word))
}

/// Reads a word of the control block; `None` if the region has none.
fn control32(pid: i32, address: RemoteAddress, offset: usize) -> Option<u32> {
    (read_word(pid, address + offset_of!(Control, magic) as u64)? == MAGIC)
        .then(|| word32(pid, address + offset as u64))?
}

/// Reads a word of the tally; `None` if the region has no control block.
fn tally32(pid: i32, address: RemoteAddress, offset: usize) -> Option<u32> {
    control32(pid, address, TALLY_OFFSET + offset)
}

/// Returns the pid of the attacher that wrote the control block.
pub fn attacher_pid(pid: i32, address: RemoteAddress) -> Option<u32> {
    control32(pid, address, offset_of!(Control, attacher_pid))
}

/// Returns the number of the process that uses the region ([`Control::owner`]), or 0 if no process
/// has used it yet.
pub fn owner(pid: i32, address: RemoteAddress) -> u64 {
    read_word(pid, address + offset_of!(Control, owner) as u64).unwrap_or(0)
}

/// Returns the state of a region that was made for a forked child ([`Control::birth`]).
pub fn birth(pid: i32, address: RemoteAddress) -> Option<u32> {
    tally32(pid, address, offset_of!(Tally, birth))
}

/// Returns the number of the attach.
pub fn epoch(pid: i32, address: RemoteAddress) -> Option<u32> {
    let told = control32(pid, address, offset_of!(Control, epoch))?;
    let is_of_child = birth(pid, address).is_some_and(|birth| birth != birth::NONE);
    let of_child = tally32(pid, address, offset_of!(Tally, birth_epoch)).filter(|_| is_of_child);
    Some(told.max(of_child.unwrap_or(0)).min(4095))
}

/// Returns true if all threads leave the wrappers within a second.
pub fn comes_to_rest(pid: i32, address: RemoteAddress, ring_bytes: u64) -> bool {
    let start = Instant::now();
    memhook_stream::barrier();
    loop {
        let rings = tally32(pid, address, offset_of!(Tally, rings_used)).unwrap_or(0);
        let at_work = (0..u64::from(rings).min(MAX_RINGS as u64)).any(|ring| {
            let header = RINGS_OFFSET as u64 + ring * ring_stride(ring_bytes as usize) as u64;
            let outer = address + header + offset_of!(RingHeader, outer) as u64;
            read_word(pid, outer) != Some(0)
        });
        if !at_work || start.elapsed() > Duration::from_secs(1) {
            return !at_work;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
