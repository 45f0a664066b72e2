//! Memory for copies of a process's memory. A program may reserve hundreds of gigabytes and use
//! little of that, so only written pages take memory.

use memmap2::{Advice, MmapMut, MmapOptions};
use std::ops::{Deref, DerefMut};

/// Length from which a backing has its own mapping.
const MAPPED_BYTES: usize = 1 << 20;
/// Spare address space after each mapping, in case the copied mapping grows.
const SPARE_BYTES: usize = 64 << 20;

/// Zeroed bytes. Only written pages take memory.
///
/// The kernel does not account for the mapping in advance (MAP_NORESERVE, mmap(2)). If the mapping
/// fails, an error is returned, whereas `vec!` would abort.
#[derive(Debug)]
pub struct Backing {
    memory: Memory,
    length: usize,
    /// The greatest length so far.
    longest: usize,
}

#[derive(Debug)]
enum Memory {
    Small(Vec<u8>),
    Mapped(MmapMut),
}

impl Backing {
    /// Returns `length` zeros, or `None` if there is no address space for them.
    pub fn zeroed(length: usize) -> Option<Backing> {
        if length < MAPPED_BYTES {
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(length).ok()?;
            bytes.resize(length, 0);
            return Some(Backing::from(bytes));
        }
        let reserved = length.checked_add(SPARE_BYTES + length / 8)?;
        let mut options = MmapOptions::new();
        let map = |bytes| options.len(bytes).no_reserve_swap().map_anon().ok();
        let map = [reserved, length].into_iter().find_map(map)?;
        // If the kernel always used huge pages, each written page would take the memory of 512
        // pages.
        let _ = map.advise(Advice::NoHugePage);
        Some(Backing {
            memory: Memory::Mapped(map),
            length,
            longest: length,
        })
    }

    /// Changes the length in place. Returns `false` if there is no space, or if the backing was
    /// longer before, so that the bytes after its end are not zero.
    #[must_use]
    pub fn resize(&mut self, length: usize) -> bool {
        match &mut self.memory {
            Memory::Small(bytes) => {
                if bytes
                    .try_reserve_exact(length.saturating_sub(bytes.len()))
                    .is_err()
                {
                    return false;
                }
                bytes.resize(length, 0);
            }
            Memory::Mapped(map) => {
                let is_clean = length <= self.length || self.length == self.longest;
                if length > map.len() || !is_clean {
                    return false;
                }
            }
        }
        self.length = length;
        self.longest = self.longest.max(length);
        true
    }
}

impl Default for Backing {
    fn default() -> Backing {
        Backing::from(Vec::new())
    }
}

impl From<Vec<u8>> for Backing {
    fn from(bytes: Vec<u8>) -> Backing {
        Backing {
            length: bytes.len(),
            longest: bytes.len(),
            memory: Memory::Small(bytes),
        }
    }
}

impl Deref for Backing {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.memory {
            Memory::Small(bytes) => bytes,
            Memory::Mapped(map) => map,
        };
        &all[..self.length]
    }
}

impl DerefMut for Backing {
    fn deref_mut(&mut self) -> &mut [u8] {
        let all: &mut [u8] = match &mut self.memory {
            Memory::Small(bytes) => bytes,
            Memory::Mapped(map) => map,
        };
        &mut all[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_more_than_the_machine_has() {
        let mut large = Backing::zeroed(200 << 30).expect("nothing is reserved");
        assert_eq!(large.len(), 200 << 30);
        large[150 << 30] = 7;
        assert_eq!((large[150 << 30], large[0]), (7, 0));
        assert!(large.resize(210 << 30) && large.resize(100 << 30));
        assert!(!large.resize(151 << 30), "there is a 7 in it");
        assert_eq!(large.len(), 100 << 30);
        assert!(Backing::zeroed(1 << 60).is_none(), "more than addresses");
    }

    #[test]
    fn it_grows_with_zeros() {
        for length in [0, 100, MAPPED_BYTES] {
            let mut bytes = Backing::zeroed(length).unwrap();
            bytes.fill(1);
            assert!(bytes.resize(length + 4096));
            assert!(bytes[..length].iter().all(|&b| b == 1));
            assert!(bytes[length..].iter().all(|&b| b == 0));
            assert_eq!(bytes.len(), length + 4096);
        }
    }
}
