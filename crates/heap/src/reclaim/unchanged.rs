//! Checks whether blocks of a running process are unchanged since a snapshot of it.

use crate::dissect::Heap;
use crate::glibc::layout::{FLAGS, IS_MMAPPED, PREV_INUSE};
use crate::snapshot::Snapshot;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::io::IoSliceMut;

/// Pieces in one process_vm_readv (UIO_MAXIOV).
const PIECES: usize = 1024;
/// Maximum number of bytes read from the process at a time, and maximum compared per block.
const BATCH_BYTES: u64 = 16 << 20;

/// Returns the blocks that are unchanged since the snapshot: their headers mark them as in use, and
/// their sizes and their first `most` bytes are equal. A block that was released in the meantime
/// has a list link in its first word.
pub fn unchanged(
    pid: i32,
    snapshot: &Snapshot,
    heap: &Heap,
    blocks: &[u32],
    most: u64,
) -> Vec<bool> {
    let mut result = Vec::with_capacity(blocks.len());
    // Only the beginning of a very large block is compared. Most of the block may never have been
    // touched, and reading it would allocate pages for it.
    let compared = |number: u32| heap.blocks.get(number).bytes.min(most).min(BATCH_BYTES);
    let mut left = blocks;
    let is_apart = |pieces: &[(u64, u64)], now: &[u8]| is_apart(pid, pieces[0].0, now);
    while !left.is_empty() {
        let mut bytes = 0;
        let fitting = left.iter().take(PIECES / 2).take_while(|&&number| {
            bytes += compared(number);
            bytes <= BATCH_BYTES
        });
        let (batch, later) = left.split_at(fitting.count().max(1));
        left = later;
        // The header and the contents are read first, then the next header, which has the in-use
        // flag of this block.
        let pieces: Vec<(u64, u64)> = batch
            .iter()
            .flat_map(|&number| {
                let block = heap.blocks.get(number);
                let header = block.address.wrapping_sub(8);
                [
                    (header, 8 + compared(number)),
                    (block.address.wrapping_add(block.bytes), 8),
                ]
            })
            .collect();
        match read(pid, &pieces) {
            Some(now) => {
                let mut at = 0;
                for pair in pieces.chunks(2) {
                    let bytes: u64 = pair.iter().map(|p| p.1).sum();
                    let end = at + bytes as usize;
                    let now = &now[at..end];
                    result.push(is_same(snapshot, pair, now) && is_apart(pair, now));
                    at = end;
                }
            }
            // One of the blocks is unmapped, so the blocks are read one by one.
            None => result.extend(pieces.chunks(2).map(|pair| {
                let is_mapped = last_of_mapping(snapshot, pair[0].0);
                let pair = if is_mapped { &pair[..1] } else { pair };
                read(pid, pair)
                    .is_some_and(|now| is_same(snapshot, pair, &now) && is_apart(pair, &now))
            })),
        }
    }
    result
}

/// Like `unchanged`, for blocks without headers in regions of one size. Their allocator writes
/// nothing into a freed block, so another method must determine whether the blocks are still live.
pub fn unchanged_contents(
    pid: i32,
    snapshot: &Snapshot,
    heap: &Heap,
    blocks: &[u32],
    most: u64,
) -> Vec<bool> {
    let is_same = |&number: &u32| {
        let block = heap.blocks.get(number);
        let bytes = block.bytes.min(most).min(BATCH_BYTES);
        let now = read(pid, &[(block.address, bytes)]);
        now.is_some_and(|now| snapshot.bytes(block.address, bytes) == Some(&now[..]))
    };
    blocks.iter().map(is_same).collect()
}

/// Returns true if the chunk with this size word has its own mapping, in which no other chunk
/// follows it.
fn last_of_mapping(snapshot: &Snapshot, header: u64) -> bool {
    snapshot.word(header).is_some_and(|w| w & IS_MMAPPED != 0)
}

fn is_same(snapshot: &Snapshot, pieces: &[(u64, u64)], now: &[u8]) -> bool {
    let (header, bytes) = pieces[0];
    let Some(then) = snapshot.bytes(header, bytes) else {
        return false;
    };
    let word = |bytes: &[u8]| bytes.first_chunk().map_or(0, |w| u64::from_le_bytes(*w));
    // The flag of the previous chunk may have changed.
    let same_size = (word(then) ^ word(now)) & !PREV_INUSE == 0 && word(now) & !FLAGS != 0;
    let in_use = last_of_mapping(snapshot, header)
        || word(now.get(bytes as usize..).unwrap_or(&[])) & PREV_INUSE != 0;
    same_size && in_use && then.get(8..) == now.get(8..bytes as usize)
}

/// Returns true if the chunk whose current header is `now` has not been merged into the previous
/// chunk. A chunk that is freed between two free chunks becomes part of the first of them. In that
/// case, neither the chunk nor the memory after it changes; only the first chunk grows.
fn is_apart(pid: i32, header: u64, now: &[u8]) -> bool {
    let size = now.first_chunk().map_or(0, |w| u64::from_le_bytes(*w));
    if size & (PREV_INUSE | IS_MMAPPED) != 0 {
        return true;
    }
    let word = |at: u64| {
        let bytes = read(pid, &[(at, 8)])?;
        bytes.first_chunk().map(|w| u64::from_le_bytes(*w))
    };
    let before = header
        .checked_sub(8)
        .and_then(word)
        .filter(|&bytes| bytes != 0);
    before.is_some_and(|bytes| {
        let its_size = header.checked_sub(bytes).and_then(word);
        its_size.is_some_and(|size| size & !FLAGS == bytes)
    })
}

/// Reads all pieces, one after the other. Returns `None` if that fails.
fn read(pid: i32, pieces: &[(u64, u64)]) -> Option<Vec<u8>> {
    let bytes: u64 = pieces.iter().map(|p| p.1).sum();
    let mut now = vec![0; bytes as usize];
    let remote: Vec<RemoteIoVec> = pieces
        .iter()
        .map(|&(base, bytes)| RemoteIoVec {
            base: base as usize,
            len: bytes as usize,
        })
        .collect();
    let read = process_vm_readv(
        Pid::from_raw(pid),
        &mut [IoSliceMut::new(&mut now)],
        &remote,
    );
    (read == Ok(now.len())).then_some(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares a header, the contents and the next header in their earlier and current versions.
    fn compare(then: [u64; 4], now: [u64; 4]) -> bool {
        let bytes = |words: [u64; 4]| {
            words
                .iter()
                .flat_map(|w| w.to_le_bytes())
                .collect::<Vec<_>>()
        };
        let snapshot = crate::testing::snapshot(vec![(0x1008, bytes(then))]);
        is_same(&snapshot, &[(0x1008, 24), (0x1020, 8)], &bytes(now))
    }

    #[test]
    fn a_block_that_was_released_is_told() {
        let then = [0x21, 7, 8, 0x21];
        assert!(compare(then, then));
        // The neighbours may be allocated and freed, and another chunk may take the place of the
        // next one.
        assert!(compare(then, [0x20, 7, 8, 0x1001]));
        // The block is in a cache or a bin, was merged with a neighbour, has another size, or was
        // written to.
        assert!(!compare(then, [0x21, 0x5555, 8, 0x21]));
        assert!(!compare(then, [0x21, 7, 8, 0x20]));
        assert!(!compare(then, [0x31, 7, 8, 0x21]));
        assert!(!compare(then, [0x21, 7, 9, 0x21]));
    }
}
