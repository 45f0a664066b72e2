//! Memory of a process, read from outside.

use crate::threads::by_living_thread;
use crate::{Error, RemoteAddress, proc_path};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::{fs::File, io::IoSliceMut, os::unix::fs::FileExt};

/// Opens /proc/PID/mem for reading and writing. The file stays bound to the process's current address space: after an
/// execve(2), reads and writes have no effect.
pub fn open_memory(pid: i32) -> Result<File, Error> {
    let open = |path: &str| File::options().read(true).write(true).open(path);
    let memory = by_living_thread(pid, "mem", open, |_| false)?;
    crate::still_chosen(pid)?;
    Ok(memory)
}

/// Returns true if the process still executes the same program as when this file was [opened](open_memory). While one
/// of its threads is stopped, only the death of the process can change that. A read from an address space that has
/// ended returns nothing instead of an error, unlike a read of unmapped memory (`mem_rw` of fs/proc/base.c).
pub fn is_executed_still(memory: &File) -> bool {
    !matches!(memory.read_at(&mut [0], 0), Ok(0))
}

/// Opens the page tables of a process (proc_pid_pagemap(5)).
pub fn open_pagemap(pid: i32) -> Result<File, Error> {
    by_living_thread(pid, "pagemap", |path| File::open(path), |_| false)
}

/// Fills `into` from the memory of a process, completely or not at all: after an error its contents are unspecified.
///
/// process_vm_readv(2) comes first, because it needs no descriptor; /proc/PID/mem also reads pages that the process
/// itself may not read.
pub fn read_memory(pid: i32, address: RemoteAddress, into: &mut [u8]) -> Result<(), Error> {
    let remote = RemoteIoVec {
        base: address.0 as usize,
        len: into.len(),
    };
    let length = into.len();
    if process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(into)], &[remote]) == Ok(length) {
        return Ok(());
    }
    let path = proc_path(pid, "mem");
    File::open(&path)
        .and_then(|file| file.read_exact_at(into, address.0))
        .map_err(|cause| Error::Proc { path, cause })
}

/// Returns the word at an address of a process; `None` if nothing can be read.
pub fn read_word(pid: i32, address: RemoteAddress) -> Option<u64> {
    let mut word = [0; 8];
    read_memory(pid, address, &mut word).ok()?;
    Some(u64::from_le_bytes(word))
}

/// Reader of small pieces of a process's memory that reads whole pages, because the next piece is often in the same
/// page.
pub(crate) struct Pages {
    memory: File,
    at: u64,
    bytes: [u8; PAGE_BYTES],
}

const PAGE_BYTES: usize = 4096;

impl Pages {
    /// Opens the pages of a process.
    pub(crate) fn of(pid: i32) -> Result<Pages, Error> {
        let memory = by_living_thread(pid, "mem", |path| File::open(path), |_| false)?;
        Ok(Pages {
            memory,
            at: u64::MAX,
            bytes: [0; PAGE_BYTES],
        })
    }

    /// Returns the bytes from an address (avma) to the end of its page; `None` if the page is unreadable.
    fn rest_of_page(&mut self, address: u64) -> Option<&[u8]> {
        let offset = (address % PAGE_BYTES as u64) as usize;
        let page = address - offset as u64;
        if self.at != page {
            self.at = u64::MAX;
            self.memory.read_exact_at(&mut self.bytes, page).ok()?;
            self.at = page;
        }
        self.bytes.get(offset..)
    }

    /// Returns the bytes at an address (avma).
    pub(crate) fn bytes<const N: usize>(&mut self, address: u64) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        let mut done = 0;
        while done < N {
            let rest = self.rest_of_page(address.checked_add(done as u64)?)?;
            let count = rest.len().min(N - done);
            bytes[done..done + count].copy_from_slice(&rest[..count]);
            done += count;
        }
        Some(bytes)
    }

    /// Returns the word at an address (avma).
    pub(crate) fn word(&mut self, address: u64) -> Option<u64> {
        self.bytes(address).map(u64::from_le_bytes)
    }

    /// Returns half a word.
    pub(crate) fn half(&mut self, address: u64) -> Option<u32> {
        self.bytes(address).map(u32::from_le_bytes)
    }

    /// Returns true if the zero-terminated string at an address (avma) is the expected one.
    pub(crate) fn has_string(&mut self, address: u64, expected: &str) -> bool {
        let expected = expected.as_bytes().iter().chain(&[0]);
        let mut numbered = (address..).zip(expected);
        numbered.all(|(at, &byte)| self.bytes(at) == Some([byte]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn words_of_this_process() {
        let pid = std::process::id() as i32;
        let mut pages = Pages::of(pid).expect("our own memory");
        let words: Vec<u64> = (0..2000).map(|i| i * 7 + 1).collect();
        for word in &words {
            assert_eq!(pages.word(&raw const *word as u64), Some(*word));
        }
        assert_eq!(pages.word(8), None);
        assert_eq!(pages.word(&raw const words[3] as u64), Some(words[3]));
        assert_eq!(
            read_word(pid, RemoteAddress(&raw const words[5] as u64)),
            Some(words[5])
        );
        assert_eq!(read_word(pid, RemoteAddress(8)), None);
    }

    #[test]
    fn another_program_in_the_same_process() {
        let mut child = Command::new("sh")
            .args(["-c", "read line; exec sleep 60"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let id = child.id();
        let name = || std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap();
        while name() != "sh\n" {
            std::thread::yield_now();
        }
        let memory = open_memory(id as i32).unwrap();
        let before = is_executed_still(&memory);
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"\n").unwrap();
        while name() != "sleep\n" {
            std::thread::yield_now();
        }
        let after = is_executed_still(&memory);
        let of_sleep = open_memory(id as i32).unwrap();
        let again = is_executed_still(&of_sleep);
        child.kill().unwrap();
        child.wait().unwrap();
        let at_last = is_executed_still(&of_sleep);
        assert_eq!((before, after, again, at_last), (true, false, true, false));
    }

    #[test]
    fn strings_end_where_they_should() {
        let mut pages = Pages::of(std::process::id() as i32).expect("our own memory");
        // Longer than a page, so that some of the strings cross a page boundary.
        let text: Vec<u8> = b"libc.so.6\0".repeat(1000);
        for at in (0..text.len()).step_by(10) {
            let address = &raw const text[at] as u64;
            assert!(pages.has_string(address, "libc.so.6"));
            assert!(!pages.has_string(address, "libc.so"));
            assert!(!pages.has_string(address, "libc.so.60"));
        }
    }
}
