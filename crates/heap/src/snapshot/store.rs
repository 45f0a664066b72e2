//! A snapshot as a file or a stream. It is a single LZ4 frame with checksums that contains, in this
//! order, a line that names the format, the length of a JSON header, the header, the bytes of all
//! runs, and a last line.

use crate::Error;
use crate::ranges::{Runs, pairs, run_bytes};
use crate::room::Room;
use crate::snapshot::Backing;
use crate::snapshot::{CopiedRegion, Meta, Snapshot};
use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use memhook_foreign::size_text;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::ops::Range;

const FORMAT: &[u8] = b"memhook-rs snapshot 1\n";
const END: &[u8] = b"end of snapshot\n";
/// Maximum length of a header.
const MAX_HEADER_BYTES: u64 = 256 << 20;
/// Maximum ratio of a header's size in memory to its size in the file: an empty string takes 3
/// bytes in the file and 24 in memory.
const HEADER_GROWTH: u64 = 10;
/// Maximum length of a region.
const MAX_REGION_BYTES: u64 = 1 << 40;
/// Maximum number of data segments of a module, and maximum number of bytes of a segment. The
/// largest programs have a few hundred megabytes of data.
const MAX_DATA: usize = 64;
const MAX_DATA_BYTES: u64 = 4 << 30;
/// Maximum number of threads: far more than any process has, yet few enough to visit every thread.
const MAX_THREADS: usize = 1 << 16;
/// End of user space, whose addresses have at most 56 bits (5-level paging,
/// Documentation/arch/x86/x86_64/5level-paging.rst).
const END_OF_ADDRESSES: u64 = 1 << 56;

#[derive(Serialize, Deserialize)]
pub(crate) struct Header {
    pub meta: Meta,
    regions: Vec<RegionHeader>,
}

#[derive(Serialize, Deserialize)]
struct RegionHeader {
    start: u64,
    bytes: u64,
    #[serde(with = "pairs")]
    runs: Runs,
}

/// Writes a snapshot.
pub fn save(snapshot: &Snapshot, to: impl Write) -> io::Result<()> {
    let info = FrameInfo::new()
        .block_size(BlockSize::Max1MB)
        .block_mode(BlockMode::Independent)
        .block_checksums(true)
        .content_checksum(true);
    let mut frame = FrameEncoder::with_frame_info(info, to);
    let header = Header {
        meta: snapshot.meta.clone(),
        regions: snapshot
            .regions
            .iter()
            .map(|r| RegionHeader {
                start: r.start,
                bytes: r.bytes.len() as u64,
                runs: r.runs.clone(),
            })
            .collect(),
    };
    let json = serde_json::to_vec(&header)?;
    frame.write_all(FORMAT)?;
    frame.write_all(&(json.len() as u64).to_le_bytes())?;
    frame.write_all(&json)?;
    for region in &snapshot.regions {
        for &Range {
            start: from,
            end: to,
        } in &region.runs
        {
            let bytes = (from - region.start) as usize..(to - region.start) as usize;
            frame.write_all(region.bytes.get(bytes).unwrap_or(&[]))?;
        }
    }
    frame.write_all(END)?;
    let mut to = frame.finish()?;
    to.flush()
}

/// Reads a snapshot. `file` is its name in errors. `memory` limits the memory that reading may use;
/// `None` allows all available memory.
///
/// The file may come from an untrusted source. Every size is checked against the available memory.
/// All addresses and their order are checked against the assumptions of the search.
pub fn load(file: &str, from: impl Read, memory: Option<u64>) -> Result<Snapshot, Error> {
    let bad = |reason: String| Error::Saved {
        file: file.to_owned(),
        reason,
    };
    let damaged = |what: &str| bad(format!("the snapshot is damaged: {what}"));
    let cut = |e: io::Error| match e.kind() {
        io::ErrorKind::UnexpectedEof => bad("the snapshot is truncated".into()),
        _ => damaged(&e.to_string()),
    };
    let room = Room::for_copy(memory);
    let check_room = |needed: u64| match &room {
        Some(room) if room.bytes < needed => Err(bad(format!(
            "it would take about {}, and {room}",
            size_text(needed)
        ))),
        _ => Ok(()),
    };
    let mut frame = FrameDecoder::new(from);
    let mut format = [0; FORMAT.len()];
    match frame.read_exact(&mut format) {
        Ok(()) if format == FORMAT => {}
        Ok(()) if format.starts_with(b"memhook-rs snapshot ") => {
            return Err(bad("a snapshot of another version of memhook-rs".into()));
        }
        _ => {
            return Err(bad("not a snapshot of memhook-rs".into()));
        }
    }
    let mut length = [0; 8];
    frame.read_exact(&mut length).map_err(cut)?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES {
        return Err(damaged("its header is too long"));
    }
    check_room(length * HEADER_GROWTH)?;
    let mut json = Vec::new();
    frame
        .by_ref()
        .take(length)
        .read_to_end(&mut json)
        .map_err(cut)?;
    if json.len() as u64 != length {
        return Err(bad("the snapshot is truncated".into()));
    }
    let header: Header = serde_json::from_slice(&json)
        .map_err(|e| bad(format!("a snapshot of another version of memhook-rs ({e})")))?;
    drop(json);
    if header.meta.processor != std::env::consts::ARCH {
        return Err(bad(format!(
            "a snapshot of a process on {}, which cannot be searched on {}",
            header.meta.processor,
            std::env::consts::ARCH
        )));
    }
    check(&header).map_err(damaged)?;
    let bytes: u64 = header.regions.iter().map(|r| run_bytes(&r.runs)).sum();
    check_room(bytes / 4 * 5)?;
    let mut regions = Vec::new();
    for region in header.regions {
        let mut bytes = usize::try_from(region.bytes)
            .ok()
            .and_then(Backing::zeroed)
            .ok_or_else(|| {
                bad(format!(
                    "there is no room for its {} bytes of memory",
                    region.bytes
                ))
            })?;
        for &Range {
            start: from,
            end: to,
        } in &region.runs
        {
            let place = (from - region.start) as usize..(to - region.start) as usize;
            frame.read_exact(&mut bytes[place]).map_err(cut)?;
        }
        regions.push(CopiedRegion {
            start: region.start,
            bytes,
            runs: region.runs,
        });
    }
    let mut end = Vec::new();
    let most = END.len() as u64 + 1;
    frame.take(most).read_to_end(&mut end).map_err(cut)?;
    if end != END {
        return Err(bad("the snapshot is truncated".into()));
    }
    Ok(Snapshot {
        meta: header.meta,
        regions,
    })
}

/// Checks the assumptions of the search: addresses are in user space, sorted and without overlaps,
/// and no module has more data than a real module could have. The data is searched word by word, so
/// its size must be bounded. The error describes the violation.
fn check(header: &Header) -> Result<(), &'static str> {
    // Adjacent ranges form one region, because a pointer may straddle a page boundary.
    let mut last = None;
    for region in &header.regions {
        let end = region.start.checked_add(region.bytes);
        let Some(end) = end.filter(|&end| end <= END_OF_ADDRESSES) else {
            return Err("its memory lies beyond all possible addresses");
        };
        if last.is_some_and(|last| region.start <= last) || region.bytes > MAX_REGION_BYTES {
            return Err("its memory is out of order");
        }
        last = Some(end);
        let mut at = region.start;
        for &Range {
            start: from,
            end: to,
        } in &region.runs
        {
            if from < at || to <= from || to > end {
                return Err("its pages are out of order");
            }
            at = to;
        }
    }
    if header.meta.threads.len() > MAX_THREADS {
        return Err("it has more threads than a process can have");
    }
    let mut last = 0;
    for area in &header.meta.areas {
        if area.start < last || area.end <= area.start || area.end > END_OF_ADDRESSES {
            return Err("its mappings are out of order");
        }
        last = area.end;
    }
    for module in &header.meta.modules {
        let bounds = [module.start..module.end, module.malloc_code.clone()];
        let is_range = |r: &Range<u64>| r.start <= r.end && r.end <= END_OF_ADDRESSES;
        let is_data = |r: &Range<u64>| is_range(r) && r.end - r.start <= MAX_DATA_BYTES;
        let [data, code] = [&module.data, &module.allocator_code];
        let has_sound_data = data.len() <= MAX_DATA && data.iter().all(is_data);
        let has_sound_data = has_sound_data && code.len() <= MAX_DATA && code.iter().all(is_range);
        if !bounds.iter().all(is_range) || !has_sound_data {
            return Err("one of its modules has no addresses");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn small() -> Snapshot {
        let mut snapshot = crate::testing::snapshot(vec![(0x1000, vec![7; 8192])]);
        snapshot.regions[0].runs = vec![0x1000..0x2000];
        snapshot
    }

    #[test]
    fn comes_back_as_it_was() {
        let mut bytes = Vec::new();
        save(&small(), &mut bytes).unwrap();
        let back = load("x", bytes.as_slice(), None).unwrap();
        assert_eq!(back.word(0x1000), Some(0x0707_0707_0707_0707));
        assert_eq!(back.word(0x2000), Some(0));
        assert_eq!(back.meta.pid, 1);
    }

    #[test]
    fn a_length_that_no_machine_has_room_for() {
        let mut header = serde_json::to_value(Header {
            meta: small().meta,
            regions: Vec::new(),
        })
        .unwrap();
        let regions: Vec<_> = (0..200u64)
            .map(
                |i| serde_json::json!({"start": i << 40, "bytes": (1u64 << 40) - 4096, "runs": []}),
            )
            .collect();
        header["regions"] = regions.into();
        let json = header.to_string();
        let mut frame = FrameEncoder::new(Vec::new());
        frame.write_all(FORMAT).unwrap();
        frame.write_all(&(json.len() as u64).to_le_bytes()).unwrap();
        frame.write_all(json.as_bytes()).unwrap();
        frame.write_all(END).unwrap();
        let error = load("x", frame.finish().unwrap().as_slice(), None).unwrap_err();
        assert!(error.to_string().contains("no room"), "{error}");
    }

    proptest! {
        #[test]
        fn damage_is_an_error(cut in 0usize..2000, at in 0usize..2000, flip in 1u8..) {
            let mut bytes = Vec::new();
            save(&small(), &mut bytes).unwrap();
            let cut = cut % bytes.len();
            // A file that lacks only the frame's final checksum may still be complete.
            let of_cut = load("x", &bytes[..cut], None);
            prop_assert!(of_cut.is_err() || cut + 8 >= bytes.len());
            let at = at % bytes.len();
            bytes[at] ^= flip;
            let _ = load("x", bytes.as_slice(), None);
        }
    }
}
