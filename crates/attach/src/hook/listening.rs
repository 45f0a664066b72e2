//! Locations at which listeners find the probes `otel_memory:alloc` and `otel_memory:free`. Notes in the hook's file
//! describe the probes (`hook-cxx/arch/x86_64/otel_memory.hpp`).

use super::object::EMITTER;
use crate::error::Error;
use goblin::elf::{Elf, program_header::PT_LOAD};
use memhook_process::{TargetRoot, mappings, proc_path};
use std::path::PathBuf;

/// One probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmittedProbe {
    /// Provider of the probe.
    pub provider: String,
    /// Name of the probe.
    pub name: String,
    /// Offset of its instruction in the file.
    pub offset: u64,
    /// Offset in the file of the word that counts listeners.
    pub semaphore_offset: u64,
    /// Locations of its arguments, as in its note.
    pub arguments: String,
}

/// Place where listeners find the probes.
#[derive(Clone, Debug)]
pub struct Listening {
    /// Path for a listener that runs in our mount namespace.
    pub path: PathBuf,
    /// True for a file; false for anonymous memory of the process.
    pub is_file: bool,
    /// Its probes.
    pub probes: Vec<EmittedProbe>,
}

impl Listening {
    /// Returns the location for the hook that a process has mapped at `base` (avma).
    pub(crate) fn of(pid: i32, base: u64) -> Result<Listening, Error> {
        let maps = mappings(pid)?;
        let hook = maps.iter().find(|m| m.start == base);
        let hook = hook.ok_or(Error::OtherProgram { pid })?;
        let is_file = !hook.deleted && !hook.path.starts_with("/memfd:");
        let path = if is_file {
            let inside = hook.path.trim_start_matches('/');
            match TargetRoot::of(pid).path() {
                root if root == std::path::Path::new("/") => root.join(inside),
                _ => proc_path(pid, &format!("root/{inside}")).into(),
            }
        } else {
            proc_path(pid, &format!("map_files/{:x}-{:x}", hook.start, hook.end)).into()
        };
        Ok(Listening {
            path,
            is_file,
            probes: probes_of(EMITTER.bytes).ok_or(Error::HookObject("probes"))?,
        })
    }
}

/// Returns the probes that the notes of an object describe.
fn probes_of(object: &[u8]) -> Option<Vec<EmittedProbe>> {
    let elf = Elf::parse(object).ok()?;
    let offset_of = |svma: u64| {
        let mut loads = elf.program_headers.iter().filter(|p| p.p_type == PT_LOAD);
        let load = loads.find(|p| (p.p_vaddr..p.p_vaddr + p.p_filesz).contains(&svma))?;
        Some(svma - load.p_vaddr + load.p_offset)
    };
    let notes = elf.iter_note_sections(object, Some(".note.stapsdt"))?;
    let mut probes = Vec::new();
    for note in notes {
        let note = note.ok()?;
        // Three addresses (probe, .stapsdt.base, semaphore), then three strings (UserSpaceProbeImplementation in
        // SystemTap's wiki).
        let word = |i: usize| {
            let bytes = note.desc.get(i * 8..i * 8 + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        let mut words = note.desc.get(24..)?.split(|&byte| byte == 0);
        let mut text = || Some(String::from_utf8_lossy(words.next()?).into_owned());
        probes.push(EmittedProbe {
            provider: text()?,
            name: text()?,
            arguments: text()?,
            offset: offset_of(word(0)?)?,
            semaphore_offset: offset_of(word(2)?)?,
        });
    }
    Some(probes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A listener reads the arguments from a function's argument registers, and the kernel writes the semaphores into
    /// the file's pages.
    #[test]
    fn the_hook_has_two_probes() {
        let probes = probes_of(EMITTER.bytes).expect("notes");
        let found: Vec<_> = probes
            .iter()
            .map(|p| (p.provider.as_str(), p.name.as_str(), p.arguments.as_str()))
            .collect();
        let mut expected = vec![
            ("otel_memory", "alloc", "8@%rdi 8@%rsi 8@%rdx"),
            ("otel_memory", "free", "8@%rdi"),
        ];
        if found.first().is_some_and(|first| first.1 == "free") {
            expected.reverse();
        }
        assert_eq!(found, expected);
        for probe in &probes {
            assert_eq!(EMITTER.bytes[probe.offset as usize], 0x90, "a nop");
            let at = probe.semaphore_offset as usize;
            assert_eq!(EMITTER.bytes[at..at + 2], [0, 0]);
        }
        let of = |name: &str| {
            let probe = probes.iter().find(|p| p.name == name).expect(name);
            probe.semaphore_offset
        };
        // One load checks both semaphores.
        assert_eq!(of("alloc") % 4, 0);
        assert_eq!(of("free"), of("alloc") + 2);
    }
}
