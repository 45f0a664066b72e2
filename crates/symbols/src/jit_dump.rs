//! Names of JIT-compiled code, from the file that the compiler writes for `perf inject --jit`
//! (tools/perf/Documentation/jitdump-specification.txt). The file consists of records, some of
//! which give the address and name of a piece of code.
//!
//! The file grows while the program runs, so each read continues where the previous one ended.
//! Everything else in the records is skipped: the code itself, its unwind tables, and its line
//! table, whose addresses V8 shifts by the size of a header that perf adds.

use crate::PerfMap;
use memhook_foreign::Extent;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// First word of a file with this machine's byte order: "JiTD".
const MAGIC: u32 = 0x4a69_5444;
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 40;
const PREFIX_BYTES: u64 = 16;
const CODE_LOAD: u32 = 0;
const CODE_MOVE: u32 = 1;
const CODE_CLOSE: u32 = 3;
/// Bytes of a load record from the prefix to the name, and of a move record after the prefix.
const LOAD_BYTES: u64 = 40;
const MOVE_BYTES: u64 = 48;
/// Maximum bytes of a name.
const LONGEST_NAME: u64 = 1024;
/// Maximum number of records that are read from a file.
const MOST_RECORDS: u64 = 4_000_000;

/// Contents read so far.
#[derive(Clone, Debug, Default)]
pub struct JitDump {
    names: PerfMap,
    /// Offset of the next record; 0 before the header.
    at: u64,
    records: u64,
    /// True if the rest of the file cannot be trusted, or if the program has ended it with a close
    /// record.
    has_ended: bool,
}

/// Fills a buffer from an offset in the file. Returns `false` if there are too few bytes.
type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> bool;

impl JitDump {
    /// Reads what was appended to a file. Returns true if there was anything new.
    ///
    /// # Errors
    /// Errors of stat(2).
    pub fn read_on(&mut self, file: &File) -> std::io::Result<bool> {
        let bytes = Extent::of(file)?.believable_bytes();
        let read = |at: u64, into: &mut [u8]| file.read_exact_at(into, at).is_ok();
        Ok(self.read_up_to(bytes, &read))
    }

    /// Parses the contents of a file.
    pub fn parse(bytes: &[u8]) -> JitDump {
        let mut dump = JitDump::default();
        let read = |at: u64, into: &mut [u8]| {
            let from = usize::try_from(at).ok();
            let found = from.and_then(|from| bytes.get(from..from.checked_add(into.len())?));
            found.is_some_and(|found| {
                into.copy_from_slice(found);
                true
            })
        };
        dump.read_up_to(bytes.len() as u64, &read);
        dump
    }

    /// Returns the names.
    pub fn names(&self) -> &PerfMap {
        &self.names
    }

    fn read_up_to(&mut self, end: u64, read: Read<'_>) -> bool {
        let before = self.at;
        if self.at == 0 && end >= HEADER_BYTES {
            let Some(header_bytes) = header(read) else {
                self.has_ended = true;
                return false;
            };
            self.at = header_bytes;
        }
        while self.at > 0 && !self.has_ended && self.step(end, read).is_some() {}
        self.at > before
    }

    /// Reads one record. Returns `None` if it is incomplete, or if there are no more.
    fn step(&mut self, end: u64, read: Read<'_>) -> Option<()> {
        let mut prefix = [0; PREFIX_BYTES as usize];
        let behind = self.at.checked_add(PREFIX_BYTES)?;
        if behind > end || !read(self.at, &mut prefix) {
            return None;
        }
        let (kind, bytes) = (u32_at(&prefix, 0), u64::from(u32_at(&prefix, 4)));
        self.records += 1;
        if bytes < PREFIX_BYTES || kind == CODE_CLOSE || self.records > MOST_RECORDS {
            self.has_ended = true;
            return None;
        }
        let next = self.at.checked_add(bytes)?;
        if next > end {
            return None;
        }
        match kind {
            CODE_LOAD => self.load(behind, next, read),
            CODE_MOVE => self.moved(behind, next, read),
            _ => None,
        };
        self.at = next;
        Some(())
    }

    /// Processes a load record. Ignores an invalid record.
    fn load(&mut self, at: u64, end: u64, read: Read<'_>) -> Option<()> {
        let mut fields = [0; LOAD_BYTES as usize];
        let name_at = at.checked_add(LOAD_BYTES).filter(|&name| name <= end)?;
        if !read(at, &mut fields) {
            return None;
        }
        let (start, size) = (u64_at(&fields, 16), u64_at(&fields, 24));
        let mut name = vec![0; (end - name_at).min(LONGEST_NAME) as usize];
        if !read(name_at, &mut name) {
            return None;
        }
        let length = name.iter().position(|&byte| byte == 0)?;
        let name = String::from_utf8_lossy(&name[..length]).trim().to_owned();
        self.names.add_code(start, size, name);
        Some(())
    }

    /// Processes a move record.
    fn moved(&mut self, at: u64, end: u64, read: Read<'_>) -> Option<()> {
        let mut fields = [0; MOVE_BYTES as usize];
        at.checked_add(MOVE_BYTES).filter(|&behind| behind <= end)?;
        if !read(at, &mut fields) {
            return None;
        }
        let (from, to, size) = (
            u64_at(&fields, 16),
            u64_at(&fields, 24),
            u64_at(&fields, 32),
        );
        let name = self.names.name(from.checked_add(1)?)?.to_owned();
        self.names.add_code(to, size, name);
        Some(())
    }
}

/// Returns the length of the header, if the file has one.
fn header(read: Read<'_>) -> Option<u64> {
    let mut bytes = [0; HEADER_BYTES as usize];
    if !read(0, &mut bytes) {
        return None;
    }
    let is_known = u32_at(&bytes, 0) == MAGIC && u32_at(&bytes, 4) == VERSION;
    let length = u64::from(u32_at(&bytes, 8));
    (is_known && length >= HEADER_BYTES).then_some(length)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.map_or(0, |field| u32::from_le_bytes(*field))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.map_or(0, |field| u64::from_le_bytes(*field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    fn file_header() -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [MAGIC, VERSION, 40, 62, 0, 1] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend([0; 16]);
        bytes
    }

    fn record(kind: u32, fields: &[u64], rest: &[u8]) -> Vec<u8> {
        let mut body = vec![0; 8];
        body.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
        body.extend(rest);
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend((body.len() as u32 + 16).to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(body);
        bytes
    }

    fn load(at: u64, size: u64, name: &str) -> Vec<u8> {
        let rest = [name.as_bytes(), b"\0", &vec![0xcc; size as usize]].concat();
        record(CODE_LOAD, &[at, at, size, 1], &rest)
    }

    #[test]
    fn code_has_the_name_of_its_last_record() {
        let mut bytes = file_header();
        bytes.extend(load(0x1000, 64, "first"));
        bytes.extend(record(2, &[7; 9], b"lines"));
        bytes.extend(load(0x2000, 64, "second"));
        bytes.extend(record(CODE_MOVE, &[0, 0x1000, 0x3000, 64, 1], &[]));
        bytes.extend(load(0x1020, 8, "third"));
        let dump = JitDump::parse(&bytes);
        let names = dump.names();
        assert_eq!(names.name(0x1001), Some("first"));
        assert_eq!(names.name(0x1024), Some("third"));
        assert_eq!(names.name(0x2010), Some("second"));
        assert_eq!(names.name(0x3010), Some("first"));
        assert_eq!(names.name(0x4010), None);
        // A header of the other byte order is not accepted.
        bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
        assert!(JitDump::parse(&bytes).names().is_empty());
    }

    #[test]
    fn it_is_read_as_it_grows() {
        let path = std::env::temp_dir().join(format!("memhook-jit-dump-{}", std::process::id()));
        let mut writer = File::create(&path).unwrap();
        let reader = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let mut dump = JitDump::default();
        assert!(!dump.read_on(&reader).unwrap());
        let whole = [
            file_header(),
            load(0x1000, 64, "first"),
            load(0x2000, 64, "second"),
        ]
        .concat();
        for (written, expected) in [(20, 0), (100, 0), (170, 1), (whole.len(), 2)] {
            let before = reader.metadata().unwrap().len() as usize;
            writer.write_all(&whole[before..written]).unwrap();
            dump.read_on(&reader).unwrap();
            assert_eq!(dump.names().len(), expected, "{written}");
        }
        assert!(!dump.read_on(&reader).unwrap());
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(
            kinds in proptest::collection::vec((0u32..6, any::<[u64; 5]>(), any::<Vec<u8>>()), 0..8),
            cut: u16,
            flips in proptest::collection::vec((any::<u16>(), any::<u8>()), 0..4),
            at: u64,
        ) {
            let mut bytes = file_header();
            for (kind, fields, rest) in kinds {
                bytes.extend(record(kind, &fields, &rest));
            }
            bytes.truncate(bytes.len().saturating_sub(usize::from(cut % 64)));
            for (place, value) in flips {
                let place = usize::from(place) % bytes.len().max(1);
                if let Some(byte) = bytes.get_mut(place) {
                    *byte = value;
                }
            }
            JitDump::parse(&bytes).names().name(at);
        }
    }
}
