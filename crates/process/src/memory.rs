//! Memory of a process, read from outside.

use crate::Error;
use std::{fs::File, os::unix::fs::FileExt};

/// Fills `into` from the memory of a process at `address` (avma).
pub fn read_memory(pid: i32, address: u64, into: &mut [u8]) -> Result<(), Error> {
    let path = format!("/proc/{pid}/mem");
    File::open(&path)
        .and_then(|file| file.read_exact_at(into, address))
        .map_err(|cause| Error::Proc { path, cause })
}

/// Words of a process's memory, read by whole pages: those that are wanted one after the other often
/// stand in one.
pub(crate) struct Pages {
    memory: File,
    at: u64,
    bytes: [u8; PAGE_BYTES],
}

const PAGE_BYTES: usize = 4096;

impl Pages {
    /// Of this process.
    pub(crate) fn of(pid: i32) -> Result<Pages, Error> {
        let path = format!("/proc/{pid}/mem");
        let memory = File::open(&path).map_err(|cause| Error::Proc { path, cause })?;
        Ok(Pages {
            memory,
            at: u64::MAX,
            bytes: [0; PAGE_BYTES],
        })
    }

    /// The word at an address (avma) that is a multiple of 8; `None` where nothing can be read.
    pub(crate) fn word(&mut self, address: u64) -> Option<u64> {
        let offset = (address % PAGE_BYTES as u64) as usize;
        let page = address - offset as u64;
        if self.at != page {
            self.at = u64::MAX;
            self.memory.read_exact_at(&mut self.bytes, page).ok()?;
            self.at = page;
        }
        let word = self.bytes.get(offset..offset + 8)?;
        Some(u64::from_le_bytes(word.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_this_process() {
        let mut pages = Pages::of(std::process::id() as i32).expect("our own memory");
        let words: Vec<u64> = (0..2000).map(|i| i * 7 + 1).collect();
        for word in &words {
            assert_eq!(pages.word(&raw const *word as u64), Some(*word));
        }
        assert_eq!(pages.word(8), None);
        assert_eq!(pages.word(&raw const words[3] as u64), Some(words[3]));
    }
}
