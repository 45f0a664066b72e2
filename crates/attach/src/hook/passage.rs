//! Lets exceptions and other unwinding pass through a hook that no unwinder knows.
//!
//! If the hook is mapped without the loader, no unwinder of the process finds its call frame information. Therefore a
//! call that may throw returns into the code of a module that stays loaded, and from there to the hook. For that code,
//! unwinders have call frame information that fits the hook's frame too ([`memhook_unwind::passage`]). Nothing is
//! registered, and no lock is taken.

use memhook_process::{ModuleImage, RemoteAddress, code_places, read_memory};
use memhook_unwind::{PASSAGE_CODE, Passage, Sections, passage};

/// Passage in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InProcess {
    /// Address of the passage (avma).
    address: u64,
    saved: [u8; 5],
}

impl InProcess {
    /// Finds a passage in a module that is never unloaded. The search begins with the C library, which has had a
    /// passage in all known cases.
    pub fn of(pid: i32, modules: &[ModuleImage]) -> Option<InProcess> {
        let mut permanent: Vec<&ModuleImage> = modules.iter().filter(|m| m.is_permanent).collect();
        permanent.sort_by_key(|m| (!m.is_libc, !m.is_loader, m.is_main));
        let found = permanent.into_iter().find_map(|module| {
            let Passage { address, saved } = in_module(module)?;
            let address = module.base.wrapping_add(address);
            let mut code = [0; PASSAGE_CODE.len()];
            read_memory(pid, RemoteAddress(address), &mut code).ok()?;
            (code == PASSAGE_CODE).then_some(InProcess { address, saved })
        });
        tracing::debug!(pid, ?found, "a way for exceptions was looked for");
        found
    }

    /// Returns the arguments for the hook: the address of the passage, and one byte per saved register, which gives the
    /// place where the register is saved.
    pub fn arguments(passage: Option<&InProcess>) -> [u64; 2] {
        let Some(InProcess { address, saved }) = passage else {
            return [0, 0];
        };
        let places = saved.iter().rev();
        let packed = places.fold(0, |packed, &place| packed << 8 | u64::from(place));
        [*address, packed]
    }
}

/// Number of bytes of code that are read at a time, because the code of a library is large.
const READ_BYTES: u64 = 64 << 10;

fn in_module(module: &ModuleImage) -> Option<Passage> {
    let sections = Sections::of(&module.bytes).ok()?;
    let mut candidates = Vec::new();
    for (segment, offset) in code_places(&module.bytes) {
        let mut start = segment.start;
        while start < segment.end {
            // The instruction may begin with the last byte of a part.
            let part = start..segment.end.min(start + READ_BYTES + 1);
            let at = usize::try_from(offset + (part.start - segment.start)).ok()?;
            let length = usize::try_from(part.end - part.start).ok()?;
            let code = module.bytes.at(at, length)?;
            let found = memchr::memmem::find_iter(&code, &PASSAGE_CODE);
            candidates.extend(found.map(|at| part.start + at as u64));
            start += READ_BYTES;
        }
    }
    passage(&sections, &candidates)
}
