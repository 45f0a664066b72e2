//! Chunks that have their own mapping (`sysmalloc_mmap` of malloc.c).

use crate::glibc::arenas::Parameters;
use crate::glibc::layout::{FLAGS, IS_MMAPPED, Layout};
use crate::snapshot::{AreaKind, Snapshot};
use std::ops::Range;

const PAGE_BYTES: u64 = 4096;
/// Maximum number of chunks among which data that only looks like a chunk is identified.
const MOST_COMPARED: usize = 2000;
/// Offsets in a page at which a chunk header can start. memalign moves the header up within the mapping to 16 bytes
/// before an aligned address, and writes the distance into `mchunk_prev_size`.
const HEADER_PLACES: [u64; 9] = [
    0,
    PAGE_BYTES - 16,
    2048 - 16,
    1024 - 16,
    512 - 16,
    256 - 16,
    128 - 16,
    64 - 16,
    32 - 16,
];

/// A chunk that has its own mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mmapped {
    /// Address of the header.
    pub address: u64,
    /// Size of the chunk.
    pub bytes: u64,
    /// Bytes of the mapping before the header.
    pub before: u64,
    /// Bytes of the mapping after the chunk.
    pub foot: u64,
}

impl Mmapped {
    /// Returns the address at which the mapping begins.
    pub fn start(&self) -> u64 {
        self.address - self.before
    }

    /// Returns the address at which the mapping ends.
    pub fn end(&self) -> u64 {
        self.address + self.bytes + self.foot
    }

    /// Returns the bytes of the mapping, as `mp_.mmapped_mem` counts them.
    pub fn mapped_bytes(&self) -> u64 {
        self.before + self.bytes + self.foot
    }
}

/// Returns all mapped chunks outside the `known` ranges of the arenas.
pub fn find(snapshot: &Snapshot, layout: &Layout, known: &[Range<u64>]) -> Vec<Mmapped> {
    let mut found: Vec<Mmapped> = Vec::new();
    for region in &snapshot.regions {
        // Pages that were never touched hold no header.
        for &Range { start, end } in &region.runs {
            let mut at = found.last().map_or(start, |m| start.max(m.end()));
            while at < end {
                let next = known.partition_point(|k| k.end <= at);
                if let Some(&Range {
                    start: from,
                    end: to,
                }) = known.get(next)
                    && from <= at
                {
                    at = to.next_multiple_of(PAGE_BYTES);
                    continue;
                }
                let limit = known
                    .get(next)
                    .map_or(region.end(), |k| k.start.min(region.end()));
                let first = found.last().map_or(0, Mmapped::end).max(region.start);
                match chunk_at(snapshot, layout.mapped_foot, at, first..limit) {
                    Some(chunk) => {
                        let chunk = moved(snapshot, chunk).unwrap_or(chunk);
                        found.push(chunk);
                        at = chunk.end();
                    }
                    None => at += PAGE_BYTES,
                }
            }
        }
    }
    found.retain(|m| {
        snapshot
            .area(m.address)
            .is_some_and(|a| a.kind == AreaKind::Anonymous)
    });
    found
}

/// Leaves out data that only looks like a chunk, if malloc's own count shows which data that is.
///
/// Tables of 16-bit numbers, such as those of a JVM's class metadata, may look like a header. If one
/// or two chunks too many were found, and only one choice of them leaves as many chunks and bytes as
/// malloc counts, that choice is not malloc's.
pub fn without_lookalikes(
    mut found: Vec<Mmapped>,
    layout: &Layout,
    parameters: Parameters,
) -> Vec<Mmapped> {
    let count = found.len();
    let surplus = (count as u64).saturating_sub(parameters.mmapped_chunks);
    if !(1..=2).contains(&surplus) || count > MOST_COMPARED {
        return found;
    }
    let all: u64 = found.iter().map(Mmapped::mapped_bytes).sum();
    let bytes = |at: usize| found[at].mapped_bytes();
    let leaves_counted = |&(first, second): &(usize, usize)| {
        let of_second = if first == second { 0 } else { bytes(second) };
        let rest = all - bytes(first) - of_second;
        parameters.agree_with(layout, (parameters.mmapped_chunks, rest))
    };
    // A choice is two chunks, or a single one twice.
    let choices = (0..count).flat_map(|first| (first..count).map(move |second| (first, second)));
    let choices = choices.filter(|(first, second)| (first == second) == (surplus == 1));
    let mut choices = choices.filter(leaves_counted);
    if let (Some((first, second)), None) = (choices.next(), choices.next()) {
        found.remove(second);
        if first != second {
            found.remove(first);
        }
    }
    found
}

/// Returns the chunk whose header is in a page, if it is plausible. Its mapping must be in `room`, because the
/// program's own data may look like a header with arbitrary sizes.
fn chunk_at(snapshot: &Snapshot, foot: u64, page: u64, room: Range<u64>) -> Option<Mmapped> {
    HEADER_PLACES.iter().find_map(|place| {
        let address = page + place;
        let before = snapshot.word(address)?;
        let header = snapshot.word(address + 8)?;
        let bytes = header & !FLAGS;
        let mapped = bytes.checked_add(before)?.checked_add(foot)?;
        let fits = header & FLAGS == IS_MMAPPED
            && bytes > 0
            && bytes.is_multiple_of(16)
            && mapped % PAGE_BYTES == 0
            && before % PAGE_BYTES == *place
            && address.checked_sub(before)? >= room.start
            && address.checked_add(bytes + foot)? <= room.end;
        fits.then_some(Mmapped {
            address,
            bytes,
            before,
            foot,
        })
    })
}

/// If memalign has moved this chunk, returns the chunk to which it was moved. memalign leaves the
/// first header in place.
fn moved(snapshot: &Snapshot, chunk: Mmapped) -> Option<Mmapped> {
    let end = chunk.address + chunk.bytes;
    let first = HEADER_PLACES.iter().skip(1).copied();
    // Pages that were never touched hold no header. In a large block, these may be nearly all
    // pages.
    let runs = snapshot.region(chunk.address).map_or(&[][..], |r| &r.runs);
    let first_run = runs.partition_point(|r| r.end <= chunk.address);
    let touched = runs[first_run..].iter().take_while(|r| r.start < end);
    let pages = touched.flat_map(
        |&Range {
             start: from,
             end: to,
         }| {
            let from = from.max(chunk.address) - chunk.address;
            let to = to.min(end) - chunk.address;
            (from / PAGE_BYTES).max(1)..to.div_ceil(PAGE_BYTES).min(chunk.bytes / PAGE_BYTES)
        },
    );
    let later = pages.map(|page| page * PAGE_BYTES + PAGE_BYTES - 16);
    first.chain(later).find_map(|place| {
        let address = chunk.address + place;
        let before = snapshot.word(address)?;
        let header = snapshot.word(address + 8)?;
        let fits = before == chunk.before + place
            && header & FLAGS == IS_MMAPPED
            && address.checked_add(header & !FLAGS) == Some(end);
        fits.then_some(Mmapped {
            address,
            bytes: end - address,
            before,
            foot: chunk.foot,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    const START: u64 = 0x7000_0000_0000;

    /// Finds chunks in five pages that begin with these words.
    fn found(words: [[u64; 2]; 5]) -> Vec<Mmapped> {
        let pages = words.iter().flat_map(|words| {
            let mut page = vec![0; PAGE_BYTES as usize];
            for (at, word) in words.iter().enumerate() {
                page[at * 8..][..8].copy_from_slice(&word.to_le_bytes());
            }
            page
        });
        let snapshot = testing::snapshot(vec![(START, pages.collect())]);
        let layout = Layout::candidates(36).next().expect("a layout");
        find(&snapshot, &layout, &[])
    }

    #[test]
    fn a_mapping_begins_in_its_room() {
        let chunk = |page: u64, bytes, before| Mmapped {
            address: START + page * PAGE_BYTES,
            bytes,
            before,
            foot: 0,
        };
        let one_page = PAGE_BYTES | IS_MMAPPED;
        let none = [0; 2];
        // The chunk was moved up by one page, which is free.
        let moved = [none, [PAGE_BYTES, one_page], none, none, none];
        assert_eq!(found(moved), [chunk(1, PAGE_BYTES, PAGE_BYTES)]);
        // The mapping would begin before the memory, before address 0, or inside the last chunk.
        for before in [2 * PAGE_BYTES, 1 << 50, u64::MAX << 12] {
            let words = [none, [before, one_page], [0, one_page], none, none];
            assert_eq!(found(words), [chunk(2, PAGE_BYTES, 0)], "{before:#x}");
        }
        let words = [[0, one_page], [PAGE_BYTES, one_page], none, none, none];
        assert_eq!(found(words), [chunk(0, PAGE_BYTES, 0)]);
    }

    #[test]
    fn the_count_shows_what_only_looks_like_a_chunk() {
        let layout = Layout::candidates(36).next().expect("a layout");
        let chunks = |pages: &[u64]| -> Vec<Mmapped> {
            let starts = pages.iter().scan(START, |end, pages| {
                *end += pages * PAGE_BYTES;
                Some(*end - pages * PAGE_BYTES)
            });
            let chunks = starts.zip(pages);
            chunks
                .map(|(address, pages)| Mmapped {
                    address,
                    bytes: pages * PAGE_BYTES,
                    before: 0,
                    foot: 0,
                })
                .collect()
        };
        // Found, counted, and left, each in pages.
        for (pages, (count, sum), left) in [
            (&[33, 257, 48, 257][..], (3, 547), &[33, 257, 257][..]),
            (&[33, 257, 48, 7], (2, 290), &[33, 257]),
            // Any of two could be the wrong one.
            (&[33, 48, 48], (2, 81), &[33, 48, 48]),
            // 33 + 48 = 41 + 40.
            (&[33, 48, 41, 40], (2, 81), &[33, 48, 41, 40]),
            // No choice agrees.
            (&[33, 48], (1, 34), &[33, 48]),
            (&[33, 48], (2, 81), &[33, 48]),
            (&[33], (2, 81), &[33]),
        ] {
            let parameters = Parameters {
                mmapped_chunks: count,
                mmapped_bytes: sum * PAGE_BYTES,
                ..Parameters::default()
            };
            let found = without_lookalikes(chunks(pages), &layout, parameters);
            let found: Vec<u64> = found.iter().map(|m| m.bytes / PAGE_BYTES).collect();
            assert_eq!(found, left, "{pages:?} of {count}, {sum}");
        }
    }
}
