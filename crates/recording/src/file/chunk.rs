//! Chunks: a fixed header with two checksums, and a zstd frame.

use crate::Error;
use crate::file::format::{
    CHUNK_HEADER_BYTES, CHUNK_MAGIC, FILE_HEADER_BYTES, Kind, MAGIC, MAX_CHUNK_BYTES, VERSION,
};

/// The lowest compression level. Files are hardly smaller with higher levels
/// (docs/measurements.md).
const ZSTD_LEVEL: i32 = 1;

/// Contents of a chunk header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkHeader {
    pub kind: Kind,
    /// Bytes of the compressed payload.
    pub stored_bytes: u32,
    /// Bytes of the payload.
    pub raw_bytes: u32,
    /// Earliest time in the chunk, in nanoseconds since the attach.
    pub from_ns: u64,
    /// Last moment in the chunk.
    pub to_ns: u64,
    /// Number of items in the chunk: events, blocks, stacks, ...
    pub items: u32,
    pub payload_checksum: u32,
}

impl ChunkHeader {
    fn to_bytes(self) -> [u8; CHUNK_HEADER_BYTES] {
        let mut out = [0; CHUNK_HEADER_BYTES];
        out[0..4].copy_from_slice(&CHUNK_MAGIC);
        out[4] = self.kind as u8;
        out[8..12].copy_from_slice(&self.stored_bytes.to_le_bytes());
        out[12..16].copy_from_slice(&self.raw_bytes.to_le_bytes());
        out[16..24].copy_from_slice(&self.from_ns.to_le_bytes());
        out[24..32].copy_from_slice(&self.to_ns.to_le_bytes());
        out[32..36].copy_from_slice(&self.items.to_le_bytes());
        out[36..40].copy_from_slice(&self.payload_checksum.to_le_bytes());
        let checksum = crc32fast::hash(&out[..40]);
        out[40..44].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Parses a header; `None` if the bytes are not a header.
    pub fn parse(bytes: &[u8; CHUNK_HEADER_BYTES]) -> Option<ChunkHeader> {
        let whole = bytes[0..4] == CHUNK_MAGIC
            && crc32fast::hash(&bytes[..40]) == u32_at(bytes, 40)
            && u32_at(bytes, 12) as usize <= MAX_CHUNK_BYTES;
        if !whole {
            return None;
        }
        Some(ChunkHeader {
            kind: Kind::from_code(bytes[4])?,
            stored_bytes: u32_at(bytes, 8),
            raw_bytes: u32_at(bytes, 12),
            from_ns: u64_at(bytes, 16),
            to_ns: u64_at(bytes, 24),
            items: u32_at(bytes, 32),
            payload_checksum: u32_at(bytes, 36),
        })
    }

    /// Returns the bytes of header and payload in the file.
    pub fn file_bytes(&self) -> u64 {
        CHUNK_HEADER_BYTES as u64 + u64::from(self.stored_bytes)
    }
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    word.map_or(0, u64::from_le_bytes)
}

/// Returns the file header of part number `part` of a recording.
pub(crate) fn file_header(part: u32) -> [u8; FILE_HEADER_BYTES] {
    let mut out = [0; FILE_HEADER_BYTES];
    out[0..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&VERSION.to_le_bytes());
    out[12..16].copy_from_slice(&part.to_le_bytes());
    let checksum = crc32fast::hash(&out[..20]);
    out[20..24].copy_from_slice(&checksum.to_le_bytes());
    out
}

/// Checks the start of a file and returns its part number.
pub(crate) fn check_file_header(bytes: &[u8]) -> Result<u32, Error> {
    let known = bytes.len().min(MAGIC.len());
    if bytes[..known] != MAGIC[..known] || bytes.is_empty() {
        return Err(Error::NotARecording);
    }
    if bytes.len() < FILE_HEADER_BYTES {
        return Err(Error::Empty);
    }
    let version = u32_at(bytes, 8);
    if version != VERSION {
        return Err(Error::Version {
            found: version,
            expected: VERSION,
        });
    }
    if crc32fast::hash(&bytes[..20]) != u32_at(bytes, 20) {
        return Err(Error::damaged("the file header").in_chunk_at(0));
    }
    Ok(u32_at(bytes, 12))
}

/// Makes chunks.
pub(crate) struct Packer {
    compressor: zstd::bulk::Compressor<'static>,
}

impl Packer {
    pub fn new() -> std::io::Result<Self> {
        let compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
        Ok(Self { compressor })
    }

    /// Returns header and compressed payload.
    pub fn pack(
        &mut self,
        kind: Kind,
        (from_ns, to_ns): (u64, u64),
        items: usize,
        payload: &[u8],
    ) -> std::io::Result<Vec<u8>> {
        if payload.len() > MAX_CHUNK_BYTES {
            return Err(std::io::Error::other("a chunk grew beyond its limit"));
        }
        let bound = zstd::zstd_safe::compress_bound(payload.len());
        let mut out = vec![0; CHUNK_HEADER_BYTES + bound];
        let stored = self
            .compressor
            .compress_to_buffer(payload, &mut out[CHUNK_HEADER_BYTES..])?;
        out.truncate(CHUNK_HEADER_BYTES + stored);
        let header = ChunkHeader {
            kind,
            stored_bytes: stored as u32,
            raw_bytes: payload.len() as u32,
            from_ns,
            to_ns,
            items: items as u32,
            payload_checksum: crc32fast::hash(&out[CHUNK_HEADER_BYTES..]),
        };
        out[..CHUNK_HEADER_BYTES].copy_from_slice(&header.to_bytes());
        Ok(out)
    }
}

/// Checks a payload and decompresses it.
pub(crate) fn unpack(
    header: &ChunkHeader,
    stored: &[u8],
    decompressor: &mut zstd::bulk::Decompressor<'_>,
) -> Result<Vec<u8>, Error> {
    if crc32fast::hash(stored) != header.payload_checksum {
        return Err(Error::damaged("the checksum of a chunk is wrong"));
    }
    // The header was checked, so this is at most MAX_CHUNK_BYTES.
    let raw = decompressor
        .decompress(stored, header.raw_bytes as usize)
        .map_err(|_| Error::damaged("a chunk cannot be decompressed"))?;
    if raw.len() != header.raw_bytes as usize {
        return Err(Error::damaged("a chunk has another length than announced"));
    }
    Ok(raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the fields of a layout, as numbers.
    fn fields<'a>(layout: &'a [crate::file::format::Field], bytes: &[u8]) -> Vec<(&'a str, u64)> {
        let number = |at: usize, len: usize| {
            let all = bytes[at..at + len].iter().rev();
            all.fold(0u64, |value, byte| value << 8 | u64::from(*byte))
        };
        let values = layout
            .iter()
            .map(|(name, at, len)| (*name, number(*at, *len)));
        values.collect()
    }

    #[test]
    fn what_is_written_follows_the_layout_tables() {
        let chunk = Packer::new()
            .unwrap()
            .pack(Kind::Stacks, (3, 9), 2, &[7; 1000])
            .unwrap();
        let payload = &chunk[CHUNK_HEADER_BYTES..];
        let number = |bytes: &[u8]| fields(&[("", 0, bytes.len())], bytes)[0].1;
        assert_eq!(
            fields(&crate::file::format::CHUNK_HEADER, &chunk),
            [
                ("magic", number(&CHUNK_MAGIC)),
                ("kind", Kind::Stacks as u64),
                ("reserved", 0),
                ("stored_bytes", payload.len() as u64),
                ("raw_bytes", 1000),
                ("from_ns", 3),
                ("to_ns", 9),
                ("items", 2),
                ("payload_checksum", crc32fast::hash(payload).into()),
                ("header_checksum", crc32fast::hash(&chunk[..40]).into()),
            ]
        );
        let header = file_header(5);
        assert_eq!(
            fields(&crate::file::format::FILE_HEADER, &header),
            [
                ("magic", number(&MAGIC)),
                ("version", VERSION.into()),
                ("part", 5),
                ("reserved", 0),
                ("checksum", crc32fast::hash(&header[..20]).into()),
            ]
        );
    }

    #[test]
    fn a_header_comes_back_and_no_flipped_bit_passes() {
        let chunk = Packer::new()
            .unwrap()
            .pack(Kind::Threads, (3, 9), 2, b"payload")
            .unwrap();
        let head: [u8; CHUNK_HEADER_BYTES] = chunk[..CHUNK_HEADER_BYTES].try_into().unwrap();
        let header = ChunkHeader::parse(&head).unwrap();
        assert_eq!((header.from_ns, header.to_ns, header.items), (3, 9, 2));
        assert_eq!(header.file_bytes(), chunk.len() as u64);
        for bit in 0..CHUNK_HEADER_BYTES * 8 {
            let mut flipped = head;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(ChunkHeader::parse(&flipped).is_none(), "bit {bit}");
        }
    }
}
