//! Maps blocks to threads by the thread pointers that the blocks contain.

use memhook_process::{RemoteAddress, read_memory, thread_ids};
use std::collections::{HashMap, HashSet};

/// Size of the searched part of a thread's control block.
const MOST_OFFSET: usize = 2048;

/// Ids of threads by thread pointer.
#[derive(Default)]
pub(super) struct ThreadNames {
    /// Offset of a thread's id from its thread pointer.
    id_offset: Option<usize>,
    known: HashMap<u64, (i32, String)>,
}

impl ThreadNames {
    /// Derives the offset of the thread id from threads with known thread pointers. Both glibc and
    /// musl store the id in the control block, but its offset differs between versions.
    pub fn learn(&mut self, pid: i32, threads: &[(i32, u64)]) {
        let blocks: Vec<(i32, Vec<u8>)> = threads
            .iter()
            .filter_map(|&(tid, pointer)| {
                let mut block = vec![0; MOST_OFFSET];
                read_memory(pid, RemoteAddress(pointer), &mut block).ok()?;
                Some((tid, block))
            })
            .collect();
        let has_id = |&offset: &usize| {
            let holds =
                |(tid, block): &(i32, Vec<u8>)| block[offset..offset + 4] == tid.to_le_bytes();
            !blocks.is_empty() && blocks.iter().all(holds)
        };
        self.id_offset = (0..MOST_OFFSET).step_by(4).find(has_id);
        for &(tid, pointer) in threads {
            self.name(pid, tid, pointer);
        }
    }

    /// Looks up the threads with these thread pointers while the threads are alive.
    pub fn look(&mut self, pid: i32, pointers: impl Iterator<Item = u64>) {
        let Some(offset) = self.id_offset else { return };
        let new: Vec<u64> = pointers.filter(|p| !self.known.contains_key(p)).collect();
        if new.is_empty() {
            return;
        }
        let living: HashSet<i32> = thread_ids(pid).unwrap_or_default().into_iter().collect();
        for pointer in new {
            let mut id = [0; 4];
            if read_memory(pid, RemoteAddress(pointer) + offset as u64, &mut id).is_ok()
                && living.contains(&i32::from_le_bytes(id))
            {
                self.name(pid, i32::from_le_bytes(id), pointer);
            }
        }
    }

    fn name(&mut self, pid: i32, tid: i32, pointer: u64) {
        let name = memhook_process::thread_name(pid, tid).unwrap_or_default();
        self.known.insert(pointer, (tid, name));
    }

    /// Returns the id and name of the thread with this pointer, if it was seen alive.
    pub fn of(&self, pointer: u64) -> Option<(i32, &str)> {
        self.known
            .get(&pointer)
            .map(|(tid, name)| (*tid, name.as_str()))
    }
}
