//! Compressed sections, whose headers state the uncompressed size.

use std::io::{Read, Result};

/// Compression of a section (gABI, "Section Compression").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// ELFCOMPRESS_ZLIB.
    Zlib,
    /// ELFCOMPRESS_ZSTD.
    Zstd,
}

/// Maximum factor of expansion. Debug information becomes 3 to 10 times larger. A larger factor is an attempt to fill
/// our memory.
const MOST_TIMES: u64 = 64;
/// Size that is accepted with any factor.
const ALWAYS_BYTES: u64 = 1 << 20;
const MOST_BYTES: u64 = 2 << 30;

/// Returns true if a section of `stored_bytes` may plausibly expand to `bytes`.
pub fn is_believable(stored_bytes: u64, bytes: u64) -> bool {
    bytes <= MOST_BYTES && bytes <= stored_bytes.saturating_mul(MOST_TIMES).max(ALWAYS_BYTES)
}

/// Expands a section to exactly `size` bytes; `None` if its size is different, or is implausible.
pub fn inflate(stored: &[u8], compression: Compression, bytes: u64) -> Option<Vec<u8>> {
    if !is_believable(stored.len() as u64, bytes) {
        return None;
    }
    match compression {
        Compression::Zlib => all(flate2::read::ZlibDecoder::new(stored), bytes),
        Compression::Zstd => {
            let mut decoder = zstd::Decoder::with_buffer(stored).ok()?;
            // The window takes memory too, so it is limited to what the section needs (zstd(1), --memory).
            let window = bytes.max(1 << 20).ilog2() + 1;
            decoder.window_log_max(window.clamp(20, 31)).ok()?;
            all(decoder, bytes)
        }
    }
    .ok()
    .flatten()
}

fn all(from: impl Read, bytes: u64) -> Result<Option<Vec<u8>>> {
    let mut out = Vec::new();
    // One more byte shows whether the contents are longer.
    from.take(bytes + 1).read_to_end(&mut out)?;
    Ok((out.len() as u64 == bytes).then_some(out))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut to = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    }

    #[test]
    fn sections_come_back() {
        let text: Vec<u8> = (0..500_000u32)
            .flat_map(|n| n.wrapping_mul(n).to_le_bytes())
            .collect();
        for (compression, stored) in [
            (Compression::Zlib, zlib(&text)),
            (Compression::Zstd, zstd::encode_all(&text[..], 3).unwrap()),
        ] {
            let length = text.len() as u64;
            assert_eq!(
                inflate(&stored, compression, length).as_deref(),
                Some(&text[..])
            );
            for wrong in [0, length - 1, length + 1, length * 60, 100 << 30, u64::MAX] {
                assert_eq!(inflate(&stored, compression, wrong), None, "{wrong}");
            }
            assert_eq!(
                inflate(&stored[..stored.len() / 2], compression, length),
                None
            );
        }
    }

    /// A megabyte that expands to a gigabyte is refused, whatever its header says.
    #[test]
    fn a_bomb_is_refused() {
        let zeros = vec![0; 64 << 20];
        for (compression, stored) in [
            (Compression::Zlib, zlib(&zeros)),
            (Compression::Zstd, zstd::encode_all(&zeros[..], 1).unwrap()),
        ] {
            assert!(stored.len() < 1 << 20);
            for claimed in [zeros.len() as u64, 1 << 20] {
                assert_eq!(inflate(&stored, compression, claimed), None, "{claimed}");
            }
        }
    }
}
