//! Code sequences that we need and that the target already contains.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, PoisonError};

use memhook_process::{CLibrary, Mapping, RemoteAddress};

/// Addresses of instructions in the target that enter the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gadgets {
    /// `syscall; ret`
    pub syscall: RemoteAddress,
    /// Code that calls rt_sigreturn.
    pub signal_return: SignalReturn,
}

/// Ways to return into a signal frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalReturn {
    /// `mov $15, %rax; syscall`: libc's signal restorer.
    Restorer(RemoteAddress),
    /// `pop %rax; ret`, for a static program that handles no signals and so has no restorer. The sequence can be
    /// anywhere, for example at the end of `pop %r8; ret`.
    PopAndReturn(RemoteAddress),
}

const SYSCALL_RET: [u8; 3] = [0x0f, 0x05, 0xc3];
const SIGRETURN: u8 = libc::SYS_rt_sigreturn as u8;
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, SIGRETURN, 0, 0, 0, 0x0f, 0x05];
/// The shorter encoding, `mov $15, %eax; syscall`.
const RESTORER_SHORT: [u8; 7] = [0xb8, SIGRETURN, 0, 0, 0, 0x0f, 0x05];

const POP_RAX_RET: [u8; 2] = [0x58, 0xc3];

/// Number of bytes of code to search at a time. C libraries have both sequences among their first functions. A larger
/// buffer would cost more in page faults than it saves in reads.
const SEARCH_BYTES: usize = 64 << 10;

/// Offsets of the code in the last C library that was searched, from the beginning of the mapping. Most targets of one
/// run share a C library, and searching it takes longer than all other preparations for a hold.
static LAST: Mutex<Option<(FileId, [u64; 2])>> = Mutex::new(None);

/// Device and inode.
type FileId = (u32, u32, u64);

impl Gadgets {
    /// Searches libc first, then the vDSO, then all executable mappings.
    pub(crate) fn find(
        mem: &File,
        mappings: &[Mapping],
        libc: Option<&CLibrary>,
    ) -> Option<Gadgets> {
        let code = libc.map(|libc| &libc.code);
        let last = || *LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(code), Some((file, [syscall, restorer]))) = (code, last())
            && file == code.file_id
            && code.end - code.start > syscall.max(restorer)
        {
            let found = Gadgets {
                syscall: RemoteAddress(code.start + syscall),
                signal_return: SignalReturn::Restorer(RemoteAddress(code.start + restorer)),
            };
            // Only the bytes matter, not the file.
            if found.are_intact(mem) {
                return Some(found);
            }
        }
        let found = Gadgets::search(mem, mappings, libc)?;
        let in_code = |address: RemoteAddress| {
            let code = code.filter(|code| code.contains(address.0))?;
            Some(address.0 - code.start)
        };
        if let SignalReturn::Restorer(restorer) = found.signal_return
            && let (Some(code), Some(syscall), Some(restorer)) =
                (code, in_code(found.syscall), in_code(restorer))
        {
            let places = [syscall, restorer];
            *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some((code.file_id, places));
        }
        Some(found)
    }

    fn search(mem: &File, mappings: &[Mapping], libc: Option<&CLibrary>) -> Option<Gadgets> {
        let mut code: Vec<&Mapping> = mappings
            .iter()
            // `[vsyscall]` is not real code.
            .filter(|mapping| mapping.exec && mapping.path != "[vsyscall]")
            .collect();
        code.sort_by_key(|mapping| match mapping.path.as_str() {
            _ if libc.is_some_and(|libc| libc.code.start == mapping.start) => 0,
            "[vdso]" => 1,
            _ => 2,
        });
        let mut syscall = None;
        let mut restorer = None;
        let mut pop = None;
        for mapping in code {
            for_each_chunk(mem, mapping, |at, bytes| {
                let find = |pattern| find(bytes, pattern);
                let address = |offset| RemoteAddress(at + offset as u64);
                syscall = syscall.or_else(|| find(&SYSCALL_RET[..]).map(address));
                restorer = restorer.or_else(|| {
                    find(&RESTORER[..])
                        .or_else(|| find(&RESTORER_SHORT[..]))
                        .map(address)
                });
                pop = pop.or_else(|| find(&POP_RAX_RET[..]).map(address));
                syscall.is_none() || restorer.is_none()
            });
            if let (Some(syscall), Some(restorer)) = (syscall, restorer) {
                let signal_return = SignalReturn::Restorer(restorer);
                return Some(Gadgets {
                    syscall,
                    signal_return,
                });
            }
        }
        Some(Gadgets {
            syscall: syscall?,
            signal_return: SignalReturn::PopAndReturn(pop?),
        })
    }

    /// Returns the first words of a signal frame: the words that a thread's `ret` pops to enter rt_sigreturn.
    pub(crate) fn frame_entry(&self) -> Vec<u64> {
        match self.signal_return {
            SignalReturn::Restorer(at) => vec![at.0],
            SignalReturn::PopAndReturn(at) => vec![at.0, u64::from(SIGRETURN), self.syscall.0],
        }
    }

    /// Returns true if the code is unchanged.
    pub(crate) fn are_intact(&self, mem: &File) -> bool {
        let has = |at: RemoteAddress, code: &[u8]| {
            let mut there = vec![0; code.len()];
            mem.read_exact_at(&mut there, at.0).is_ok() && there == code
        };
        has(self.syscall, &SYSCALL_RET)
            && match self.signal_return {
                SignalReturn::Restorer(at) => has(at, &RESTORER) || has(at, &RESTORER_SHORT),
                SignalReturn::PopAndReturn(at) => has(at, &POP_RAX_RET),
            }
    }
}

/// Returns the offset of the first `pattern` in `bytes`.
fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    let (haystack, needle) = (bytes.as_ptr().cast(), pattern.as_ptr().cast());
    // SAFETY: both pairs of pointer and length describe slices, which are only read.
    let place = unsafe { libc::memmem(haystack, bytes.len(), needle, pattern.len()) };
    (!place.is_null()).then(|| place.addr() - haystack.addr())
}

/// Reads a mapping in overlapping pieces, so that no pattern is split, until `more` returns false.
fn for_each_chunk(mem: &File, mapping: &Mapping, mut more: impl FnMut(u64, &[u8]) -> bool) {
    let mut at = mapping.start;
    let mut buffer = vec![0; SEARCH_BYTES];
    while at < mapping.end {
        let left = (mapping.end - at) as usize;
        let bytes = &mut buffer[..SEARCH_BYTES.min(left)];
        if mem.read_exact_at(bytes, at).is_err() || !more(at, bytes) {
            return;
        }
        if bytes.len() == left {
            return;
        }
        at += (bytes.len() - RESTORER.len()) as u64;
    }
}
