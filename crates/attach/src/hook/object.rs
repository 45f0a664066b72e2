//! The embedded hook, which the target's loader loads, or which is mapped without the loader.

use super::passage::InProcess;
use crate::error::Error;
use goblin::elf::program_header::PT_LOAD;
use goblin::elf::{Elf, ProgramHeader, reloc};
use memhook_inject::{HOOK_NAME, Held, ObjectImage, map_object};
use memhook_process::{
    MAPPED_MARK, Mapping, ModuleBytes, ModuleImage, RemoteAddress, hook_copies, read_memory,
};
use std::ffi::CStr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Embedded object, and how it comes into a process.
#[derive(Debug)]
pub struct HookObject {
    /// Name of its memory object.
    pub name: &'static CStr,
    /// The file.
    pub bytes: &'static [u8],
    /// True if the object is mapped without the loader, so that no unwinder of the target knows it.
    pub is_mapped: bool,
    /// True if exceptions and other unwinding can pass through the hook's calls.
    pub may_be_unwound: bool,
    /// True if it records nothing and reports to listeners.
    pub emits: bool,
}

/// The object that a program links to report its reads and writes.
pub const ACCESS_RUNTIME: &[u8] = include_bytes!(env!("MEMHOOK_ACCESS_RUNTIME"));

const HOOK: &[u8] = include_bytes!(env!("MEMHOOK_HOOK_OBJECT"));
const EMITTER_BYTES: &[u8] = include_bytes!(env!("MEMHOOK_EMITTER_OBJECT"));

/// The hook, loaded by the target's loader.
pub static LOADED: HookObject = HookObject {
    name: HOOK_NAME,
    bytes: HOOK,
    is_mapped: false,
    may_be_unwound: true,
    emits: false,
};

/// The hook that emits, loaded by the target's loader.
pub static EMITTER: HookObject = HookObject {
    name: HOOK_NAME,
    bytes: EMITTER_BYTES,
    is_mapped: false,
    may_be_unwound: true,
    emits: true,
};

/// Like [`LOADED`], but mapped without the loader. Its copies have a mark.
pub static MAPPED: HookObject = MAPPED_OBJECT;

const MAPPED_OBJECT: HookObject = HookObject {
    name: HOOK_NAME,
    bytes: HOOK,
    is_mapped: true,
    may_be_unwound: false,
    emits: false,
};

/// Like [`MAPPED`], with a [passage](super::passage) for unwinders.
pub static MAPPED_WITH_PASSAGE: HookObject = HookObject {
    may_be_unwound: true,
    ..MAPPED_OBJECT
};

/// The emitting hook, mapped without the loader from its file, so that listeners find the same probes.
pub static EMITTER_MAPPED: HookObject = EMITTER_MAPPED_OBJECT;

const EMITTER_MAPPED_OBJECT: HookObject = HookObject {
    bytes: EMITTER_BYTES,
    emits: true,
    ..MAPPED_OBJECT
};

/// Like [`EMITTER_MAPPED`], with a passage.
pub static EMITTER_MAPPED_WITH_PASSAGE: HookObject = HookObject {
    may_be_unwound: true,
    ..EMITTER_MAPPED_OBJECT
};

/// Object that pads of probes call to examine arguments or call stacks.
pub static PROBE: HookObject = HookObject {
    name: c"memhook-probe-code",
    bytes: include_bytes!(env!("MEMHOOK_PROBE_OBJECT")),
    is_mapped: true,
    may_be_unwound: false,
    emits: false,
};

/// Addresses (svma) of the functions that the attacher calls in the hook.
#[derive(Clone, Copy)]
pub struct EntryPoints {
    pub attach: u64,
    pub patch: u64,
    pub exchange: u64,
    pub close: u64,
}

/// Returns the hook object of this version at an address of a process, if there is one.
pub fn hook_at(pid: i32, base: u64) -> Option<&'static HookObject> {
    // This much of the file includes the build-id.
    let mut start = [0; 1024];
    read_memory(pid, RemoteAddress(base), &mut start).ok()?;
    let (place, mark) = MAPPED_MARK;
    let is_mapped = start[place] == mark;
    start[place] = HOOK[place];
    let objects = match is_mapped {
        true => [&MAPPED, &EMITTER_MAPPED],
        false => [&LOADED, &EMITTER],
    };
    let is_it = |object: &&HookObject| object.bytes.starts_with(&start);
    objects.into_iter().find(is_it)
}

/// Returns the hooks of this version in a process as modules.
pub fn hook_images(pid: i32, maps: &[Mapping]) -> Vec<ModuleImage> {
    let copies = hook_copies(pid, maps).into_iter();
    copies
        .filter_map(|copy| hook_at(pid, copy.base)?.image(copy.base).ok())
        .collect()
}

const PAGE_BYTES: u64 = 4096;

impl HookObject {
    /// Returns the variant of this object with a passage, if a passage was found.
    pub fn with_passage(&'static self, passage: Option<&InProcess>) -> &'static HookObject {
        match self.is_mapped && passage.is_some() {
            true if self.emits => &EMITTER_MAPPED_WITH_PASSAGE,
            true => &MAPPED_WITH_PASSAGE,
            false => self,
        }
    }

    fn parse(&self) -> Result<Elf<'static>, Error> {
        Elf::parse(self.bytes).map_err(|_| Error::HookObject("anything"))
    }

    /// Finds the entry points in the dynamic symbol table.
    pub fn entry_points(&self) -> Result<EntryPoints, Error> {
        Ok(EntryPoints {
            attach: self.function("memhook_attach")?,
            patch: self.function("memhook_patch")?,
            exchange: self.function("memhook_exchange")?,
            close: self.function("memhook_close")?,
        })
    }

    /// Returns the address (svma) of an exported function.
    pub fn function(&self, name: &'static str) -> Result<u64, Error> {
        let elf = self.parse()?;
        elf.dynsyms
            .iter()
            .find(|s| elf.dynstrtab.get_at(s.st_name) == Some(name))
            .map(|s| s.st_value)
            .ok_or(Error::HookObject(name))
    }

    /// Returns the hook as a module of a target in which the hook's base is `base`.
    pub fn image(&'static self, base: u64) -> Result<ModuleImage, Error> {
        static BYTES: [OnceLock<Arc<ModuleBytes>>; 2] = [const { OnceLock::new() }; 2];
        Ok(ModuleImage {
            path: "memhook-hook".into(),
            file: PathBuf::new(),
            base,
            start: base,
            end: base + end_of(&self.parse()?),
            build_id: None,
            is_main: false,
            is_loader: false,
            is_libc: false,
            facts: Default::default(),
            is_permanent: true,
            bytes: BYTES[usize::from(self.emits)]
                .get_or_init(|| Arc::new(self.bytes.to_vec().into()))
                .clone(),
        })
    }

    /// Maps the object into the held thread's process without the loader; returns its load bias.
    pub fn map(&self, held: &mut Held) -> Result<u64, Error> {
        let elf = self.parse()?;
        let segment = |accepts: &dyn Fn(u32) -> bool| {
            let mut loads = elf.program_headers.iter();
            let load = loads.find(|p| p.p_type == PT_LOAD && accepts(p.p_flags));
            load.ok_or(Error::HookObject("code and data"))
        };
        let code = segment(&|flags| flags & goblin::elf::program_header::PF_X != 0)?;
        let data = segment(&|flags| flags & goblin::elf::program_header::PF_W != 0)?;
        let page = |address: u64| address / PAGE_BYTES * PAGE_BYTES;
        let next_page = |address: u64| address.next_multiple_of(PAGE_BYTES);
        let end = end_of(&elf);
        // The hook's gate must be in anonymous memory, which a fork can wipe. A forked process never reaches the code
        // that pads call, and every mapping of that code must carry its name.
        let data_end = if self.name == HOOK_NAME {
            next_page(data.p_vaddr + data.p_filesz)
        } else {
            end
        };
        let in_file = data.p_vaddr + data.p_filesz;
        let cleared = match self.emits {
            true => in_file..data_end,
            false => 0..0,
        };
        let contents = |base| {
            let mut contents = self.in_memory(&elf, base)?;
            if self.emits {
                // Listeners read the notes, which follow in the file.
                let is_in_place = |p: &&ProgramHeader| p.p_offset == p.p_vaddr;
                let mut loads = elf.program_headers.iter().filter(|p| p.p_type == PT_LOAD);
                let rest = self.bytes.get(contents.len()..);
                let rest = rest.filter(|_| loads.all(|p| is_in_place(&p)));
                contents.extend(rest.ok_or(Error::HookObject("segments at their addresses"))?);
            }
            Ok::<_, Error>(contents)
        };
        // Any defect of the object must be found before the target is touched.
        contents(0)?;
        let object = ObjectImage {
            name: self.name,
            bytes: end,
            code: page(code.p_vaddr)..next_page(code.p_vaddr + code.p_memsz),
            data: page(data.p_vaddr)..data_end,
            cleared,
            zeros: data_end..end,
            contents: &|base| contents(base).unwrap_or_default(),
        };
        Ok(map_object(held, &object)?)
    }

    /// Returns the object's bytes as they are when it is mapped at `base`, up to the end of the file's contents.
    fn in_memory(&self, elf: &Elf<'_>, base: u64) -> Result<Vec<u8>, Error> {
        let broken = || Error::HookObject("whole segments");
        let mut memory = Vec::new();
        for load in elf.program_headers.iter().filter(|p| p.p_type == PT_LOAD) {
            let bytes = self.bytes.get(load.file_range()).ok_or_else(broken)?;
            let (start, end) = (load.p_vaddr as usize, load.p_vaddr as usize + bytes.len());
            if memory.len() < end {
                memory.resize(end, 0);
            }
            memory[start..end].copy_from_slice(bytes);
        }
        for relocation in elf.dynrelas.iter() {
            // psABI, table 4.9: B + A.
            if relocation.r_type != reloc::R_X86_64_RELATIVE {
                return Err(Error::HookObject("relative relocations only"));
            }
            let at = relocation.r_offset as usize;
            let value = base.wrapping_add_signed(relocation.r_addend.unwrap_or(0));
            let word = memory.get_mut(at..at + 8).ok_or_else(broken)?;
            word.copy_from_slice(&value.to_le_bytes());
        }
        Ok(memory)
    }
}

/// Returns the end of an object (svma), in whole pages.
fn end_of(elf: &Elf<'_>) -> u64 {
    let loads = elf.program_headers.iter().filter(|p| p.p_type == PT_LOAD);
    let end = loads.map(|p| p.p_vaddr + p.p_memsz).max().unwrap_or(0);
    end.next_multiple_of(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use goblin::elf::dynamic::{DF_STATIC_TLS, DT_FLAGS};
    use goblin::elf::program_header::{PF_W, PF_X, PT_TLS};

    /// The hook loads into any process: it needs no library, imports no symbol, and has no thread-local storage, for
    /// which the loader would take the lock of the list of stacks.
    #[test]
    fn hook_imports_nothing() {
        for object in [&LOADED, &EMITTER, &PROBE] {
            let elf = object.parse().unwrap();
            assert!(elf.libraries.is_empty(), "{:?}", elf.libraries);
            let undefined: Vec<_> = elf
                .dynsyms
                .iter()
                .filter(|s| s.st_shndx == 0 && s.st_name != 0)
                .filter_map(|s| elf.dynstrtab.get_at(s.st_name))
                .collect();
            assert!(undefined.is_empty(), "{undefined:?}");
            assert!(elf.program_headers.iter().all(|p| p.p_type != PT_TLS));
            let relocations = || elf.dynrelas.iter().chain(elf.pltrelocs.iter());
            assert!(relocations().all(|r| r.r_type == reloc::R_X86_64_RELATIVE));
            let flags = elf.dynamic.iter().flat_map(|d| &d.dyns);
            let static_tls =
                |d: &goblin::elf::Dyn| d.d_tag == DT_FLAGS && d.d_val & DF_STATIC_TLS != 0;
            assert!(!flags.into_iter().any(static_tls));
        }
        LOADED.entry_points().unwrap();
        EMITTER.entry_points().unwrap();
        PROBE.function("memhook_probe_hit").unwrap();
        PROBE.function("memhook_probe_begin").unwrap();
    }

    /// Checks that an object for mapping without the loader has only relative relocations, all of them in its data.
    #[test]
    fn a_mapped_hook_can_be_relocated_from_outside() {
        let elf = PROBE.parse().unwrap();
        assert!(PROBE.in_memory(&elf, 0x7000_0000_0000).is_ok());
        let elf = MAPPED.parse().unwrap();
        let loads = || elf.program_headers.iter().filter(|p| p.p_type == PT_LOAD);
        assert!(loads().all(|p| p.p_flags & (PF_X | PF_W) != (PF_X | PF_W)));
        assert_eq!(loads().filter(|p| p.p_flags & PF_X != 0).count(), 1);
        let data: Vec<_> = loads().filter(|p| p.p_flags & PF_W != 0).collect();
        let [data] = data[..] else {
            panic!("{} writable segments", data.len());
        };
        assert!(elf.pltrelocs.is_empty() && elf.dynrels.is_empty());
        let in_file = data.p_vaddr..data.p_vaddr + data.p_filesz;
        assert!(elf.dynrelas.iter().all(|r| in_file.contains(&r.r_offset)));
        let base = 0x7000_0000_0000;
        let (here, there) = (
            MAPPED.in_memory(&elf, 0).unwrap(),
            MAPPED.in_memory(&elf, base).unwrap(),
        );
        for relocation in elf.dynrelas.iter() {
            let word = |memory: &[u8]| {
                let at = relocation.r_offset as usize;
                u64::from_le_bytes(memory[at..at + 8].try_into().unwrap())
            };
            assert_eq!(word(&there), word(&here) + base);
        }
        assert_eq!(here.len() as u64, data.p_vaddr + data.p_filesz);
        assert_eq!(LOADED.bytes[MAPPED_MARK.0], 0);
    }
}
