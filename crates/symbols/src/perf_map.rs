//! Names of code generated at run time, from the file that a JIT compiler writes for perf(1)
//! (tools/perf/Documentation/jit-interface.txt). The file has a line for each piece of code:
//! `START SIZE name`, with hexadecimal numbers.
//!
//! The file grows while the program runs, and code can replace other code. A later line takes
//! precedence over earlier ones.

use crate::{Frame, Location, NamedCode};
use memhook_foreign::{Extent, read_exactly};
use std::collections::BTreeMap;
use std::fs::File;

/// Pseudo-module for generated code.
pub const MADE_CODE: &str = "[jit]";
/// Maximum bytes of a file that are read.
const MOST_BYTES: u64 = 256 << 20;
/// Maximum bytes of a name.
const LONGEST_NAME: usize = 1024;
/// Maximum size of a piece of code, in bytes.
const LARGEST_CODE: u64 = 64 << 20;

/// The names in a perf map.
#[derive(Clone, Debug, Default)]
pub struct PerfMap {
    /// End and name of each piece of code, by its first address (avma).
    code: BTreeMap<u64, (u64, String)>,
}

impl PerfMap {
    /// Reads a file.
    ///
    /// # Errors
    /// Errors of stat(2) and read(2).
    pub fn read(file: &File) -> std::io::Result<PerfMap> {
        let bytes = Extent::of(file)?.believable_bytes().min(MOST_BYTES);
        Ok(PerfMap::parse(&read_exactly(file, bytes)?))
    }

    /// Parses the contents of a file, skipping invalid lines.
    pub fn parse(bytes: &[u8]) -> PerfMap {
        let mut map = PerfMap::default();
        for line in bytes.split(|&byte| byte == b'\n') {
            if let Some((start, bytes, name)) = entry(line) {
                map.add_code(start, bytes, name);
            }
        }
        map
    }

    /// Adds a piece of code, if its values are possible.
    pub(crate) fn add_code(&mut self, start: u64, bytes: u64, name: String) {
        let is_possible = bytes > 0 && bytes <= LARGEST_CODE && !name.is_empty();
        if let Some(end) = start.checked_add(bytes).filter(|_| is_possible) {
            self.add(start, end, name);
        }
    }

    fn add(&mut self, start: u64, end: u64, name: String) {
        // New code replaces earlier code.
        let before = self.code.range(..start).next_back();
        if let Some((&first, (last, _))) = before
            && *last > start
            && let Some(old) = self.code.get_mut(&first)
        {
            old.0 = start;
        }
        let covered: Vec<u64> = self.code.range(start..end).map(|(&at, _)| at).collect();
        for at in covered {
            self.code.remove(&at);
        }
        self.code.insert(start, (end, name));
    }

    /// Returns the number of pieces of code with names.
    pub fn len(&self) -> usize {
        self.code.len()
    }

    /// Returns true if there are no names.
    pub fn is_empty(&self) -> bool {
        self.code.is_empty()
    }

    /// Returns the name of the code to which a call returns.
    pub fn name(&self, return_address: u64) -> Option<&str> {
        let address = return_address.checked_sub(1)?;
        let (_, (end, name)) = self.code.range(..=address).next_back()?;
        (address < *end).then_some(name)
    }
}

fn entry(line: &[u8]) -> Option<(u64, u64, String)> {
    let mut fields = line.splitn(3, |&byte| byte == b' ');
    let mut number = || {
        let text = std::str::from_utf8(fields.next()?).ok()?;
        u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
    };
    let (start, size) = (number()?, number()?);
    let name = fields.next()?;
    let name = &name[..name.len().min(LONGEST_NAME)];
    Some((start, size, String::from_utf8_lossy(name).trim().to_owned()))
}

/// Returns code made at run time as a frame.
pub fn made_frame(name: &str) -> Location {
    Location {
        module: Some(MADE_CODE.to_owned()),
        svma: 0,
        frames: vec![Frame {
            function: Some(name.to_owned()),
            ..Frame::default()
        }],
    }
}

impl NamedCode for PerfMap {
    fn location(&self, return_address: u64) -> Option<Location> {
        self.name(return_address).map(made_frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_line_counts() {
        let text =
            b"1000 100 first\n0x1100 10 LazyCompile:*f /a b.js:3:9\nnonsense\n1080 100 second\n\
                     5000 0 empty\nffffffffffffffff 10 over\n6000 10\n";
        let map = PerfMap::parse(text);
        // A return address comes after its call.
        assert_eq!(map.name(0x1000), None);
        assert_eq!(map.name(0x1001), Some("first"));
        assert_eq!(map.name(0x1080), Some("first"));
        assert_eq!(map.name(0x1081), Some("second"));
        assert_eq!(map.name(0x1105), Some("second"));
        assert_eq!(map.name(0x1181), None);
        assert_eq!(map.len(), 2);
        let names = PerfMap::parse(b"10 10 LazyCompile:*f /a b.js:3:9");
        assert_eq!(names.name(0x15), Some("LazyCompile:*f /a b.js:3:9"));
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes: Vec<u8>, at: u64) {
            PerfMap::parse(&bytes).name(at);
        }

        #[test]
        fn pieces_never_overlap(pieces in proptest::collection::vec((0u64..64, 1u64..32), 1..40)) {
            let mut last = [None; 128];
            let mut text = String::new();
            for (n, &(start, size)) in pieces.iter().enumerate() {
                text += &format!("{start:x} {size:x} n{n}\n");
                last[start as usize..(start + size) as usize].fill(Some(n));
            }
            let map = PerfMap::parse(text.as_bytes());
            for (at, expected) in last.iter().enumerate() {
                let name = expected.map(|n| format!("n{n}"));
                // If a piece is split in two, only its first part keeps the name, so a name is
                // never wrong.
                let found = map.name(at as u64 + 1).map(str::to_owned);
                prop_assert!(found == name || found.is_none());
            }
        }
    }
}
