//! MiniDebugInfo: `.gnu_debugdata`, an xz-compressed ELF file inside a stripped ELF file, with the
//! symbols of all functions. All Fedora and Red Hat packages include it (gdb's manual,
//! "MiniDebugInfo").
//!
//! Of the container ("The .xz File Format", 1.2.0), only the default output of `xz` is supported:
//! one stream of blocks with LZMA2 as the only filter. Checksums are not verified, because damage
//! to a file would rarely be confined to this section.

use crate::file::{Elf, Image};
use lzma_rust2::Lzma2Reader;
use object::{Object, ObjectSection};
use std::io::Read;
use std::sync::Arc;

const SECTION: &str = ".gnu_debugdata";
/// Maximum stored and unpacked sizes of a section, which is untrusted.
const MOST_STORED_BYTES: u64 = 64 << 20;
const MOST_BYTES: u64 = 512 << 20;
/// Maximum size of the LZMA2 dictionary, which is held in our memory. `xz -9` uses this size.
const MOST_WINDOW_BYTES: u64 = 64 << 20;

/// Returns the ELF file with the symbols, if the file contains a readable ELF file.
pub(crate) fn mini_symbols(elf: &Elf<'_>, image: &Image) -> Option<Image> {
    let section = elf.section_by_name(SECTION)?;
    let (offset, size) = section.file_range()?;
    let stored = (size <= MOST_STORED_BYTES).then(|| image.part(offset, size))??;
    let bytes = unpacked(&stored)?;
    Some(Image::Bytes(Arc::new(bytes)))
}

/// Unpacks an xz stream.
fn unpacked(stored: &[u8]) -> Option<Vec<u8>> {
    const MAGIC: &[u8] = b"\xfd7zXZ\0";
    const HEADER_BYTES: usize = 12;
    let rest = stored.strip_prefix(MAGIC)?;
    let check_bytes = match rest.get(1)? & 0xf {
        0 => 0,
        kind => 4 << ((kind - 1) / 3),
    };
    let mut bytes = Vec::new();
    let mut at = HEADER_BYTES;
    // After the last block, a zero begins the index.
    while *stored.get(at)? != 0 {
        let block = Block::of(stored.get(at..)?)?;
        let data = stored.get(at + block.header_bytes..)?;
        let mut left = data;
        let reader = Lzma2Reader::new(&mut left, block.window_bytes, None);
        let room = MOST_BYTES.checked_sub(bytes.len() as u64)?;
        reader.take(room + 1).read_to_end(&mut bytes).ok()?;
        if bytes.len() as u64 > MOST_BYTES {
            return None;
        }
        let packed = data.len() - left.len();
        at += block.header_bytes + packed.next_multiple_of(4) + check_bytes;
    }
    Some(bytes)
}

/// The header of a block.
struct Block {
    header_bytes: usize,
    window_bytes: u32,
}

impl Block {
    fn of(bytes: &[u8]) -> Option<Block> {
        const LZMA2: u64 = 0x21;
        let header_bytes = (usize::from(*bytes.first()?) + 1) * 4;
        let flags = *bytes.get(1)?;
        let mut rest = bytes.get(2..header_bytes)?;
        // There must be one filter, and no reserved bits.
        if flags & 0x3f != 0 {
            return None;
        }
        for has_size in [flags & 0x40 != 0, flags & 0x80 != 0] {
            if has_size {
                number(&mut rest)?;
            }
        }
        if number(&mut rest)? != LZMA2 || number(&mut rest)? != 1 {
            return None;
        }
        let window = match u32::from(*rest.first()?) {
            bits @ 0..40 => u64::from(2 | (bits & 1)) << (bits / 2 + 11),
            _ => return None,
        };
        let window_bytes = u32::try_from(window.min(MOST_WINDOW_BYTES + 1)).ok()?;
        (window <= MOST_WINDOW_BYTES).then_some(Block {
            header_bytes,
            window_bytes,
        })
    }
}

/// Reads a variable-length number with seven bits in each byte, lowest bits first.
fn number(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..63).step_by(7) {
        let (&byte, behind) = rest.split_first()?;
        *rest = behind;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    /// Returns the output of xz for these bytes.
    fn xz(arguments: &[&str], bytes: &[u8]) -> Vec<u8> {
        let mut command = Command::new(memhook_tests::programs::installed("xz"));
        command.args(arguments).arg("-c");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("xz");
        let mut input = child.stdin.take().expect("a pipe");
        let bytes = bytes.to_vec();
        let writer = std::thread::spawn(move || input.write_all(&bytes));
        let output = child.wait_with_output().expect("xz");
        writer.join().expect("a thread").expect("written");
        output.stdout
    }

    #[test]
    fn what_xz_packs_comes_back() {
        let text: Vec<u8> = (0..300_000u32)
            .flat_map(|n| (n / 7).wrapping_mul(n).to_le_bytes())
            .collect();
        for arguments in [
            &["-6"][..],
            &["-9"],
            &["-0", "--check=crc32"],
            &["--check=none"],
            &["--check=sha256"],
            &["--block-size=100000"],
        ] {
            for bytes in [&text[..], b"", b"x"] {
                let stored = xz(arguments, bytes);
                assert_eq!(unpacked(&stored).as_deref(), Some(bytes), "{arguments:?}");
                for end in [0, 5, 11, 12, 20, stored.len() / 2] {
                    let _ = unpacked(&stored[..end.min(stored.len())]);
                }
            }
        }
    }

    #[test]
    fn a_damaged_stream_is_no_panic() {
        let stored = xz(&["-6"], &[7; 10_000]);
        for at in 0..stored.len() {
            for flip in [1, 0x80, 0xff] {
                let mut damaged = stored.clone();
                damaged[at] ^= flip;
                let _ = unpacked(&damaged);
            }
        }
        // The header requests a window of 4 GiB.
        let mut greedy = stored;
        let at = greedy
            .iter()
            .position(|&byte| byte == 0x21)
            .expect("a filter");
        greedy[at + 2] = 40;
        assert_eq!(unpacked(&greedy), None);
    }
}
