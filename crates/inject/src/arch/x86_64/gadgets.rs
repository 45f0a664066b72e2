//! Code that we need and that the target has already.

use std::fs::File;
use std::os::unix::fs::FileExt;

use memhook_process::{CLibrary, Mapping, RemoteAddress};

/// Instructions in the target that lead into the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gadgets {
    /// `syscall; ret`
    pub syscall: RemoteAddress,
    /// `mov $15, %rax; syscall`: libc's signal restorer, which makes rt_sigreturn.
    pub restorer: RemoteAddress,
}

const SYSCALL_RET: [u8; 3] = [0x0f, 0x05, 0xc3];
const SIGRETURN: u8 = libc::SYS_rt_sigreturn as u8;
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, SIGRETURN, 0, 0, 0, 0x0f, 0x05];
/// The shorter encoding, `mov $15, %eax; syscall`.
const RESTORER_SHORT: [u8; 7] = [0xb8, SIGRETURN, 0, 0, 0, 0x0f, 0x05];

/// Bytes of text searched at a time.
const SEARCH_BYTES: usize = 1 << 20;

impl Gadgets {
    /// Searches libc first, then the vdso, then everything executable.
    pub(crate) fn find(
        mem: &File,
        mappings: &[Mapping],
        libc: Option<&CLibrary>,
    ) -> Option<Gadgets> {
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
                syscall.is_none() || restorer.is_none()
            });
            if let (Some(syscall), Some(restorer)) = (syscall, restorer) {
                return Some(Gadgets { syscall, restorer });
            }
        }
        None
    }

    /// Whether the code is still there.
    pub(crate) fn are_intact(&self, mem: &File) -> bool {
        let mut syscall = [0; SYSCALL_RET.len()];
        let mut restorer = [0; RESTORER.len()];
        mem.read_exact_at(&mut syscall, self.syscall.0).is_ok()
            && mem.read_exact_at(&mut restorer, self.restorer.0).is_ok()
            && syscall == SYSCALL_RET
            && (restorer == RESTORER || restorer.starts_with(&RESTORER_SHORT))
    }
}

/// Offset of the first `pattern` in `bytes`.
fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    let (haystack, needle) = (bytes.as_ptr().cast(), pattern.as_ptr().cast());
    // SAFETY: both pairs of pointer and length describe slices, which are only read.
    let place = unsafe { libc::memmem(haystack, bytes.len(), needle, pattern.len()) };
    (!place.is_null()).then(|| place.addr() - haystack.addr())
}

/// Reads a mapping in pieces that overlap, so that no pattern is cut, until `more` is false.
fn for_each_chunk(mem: &File, mapping: &Mapping, mut more: impl FnMut(u64, &[u8]) -> bool) {
    let mut at = mapping.start;
    while at < mapping.end {
        let left = (mapping.end - at) as usize;
        let mut bytes = vec![0u8; SEARCH_BYTES.min(left)];
        if mem.read_exact_at(&mut bytes, at).is_err() || !more(at, &bytes) {
            return;
        }
        if bytes.len() == left {
            return;
        }
        at += (bytes.len() - RESTORER.len()) as u64;
    }
}
