//! Loaded modules.

use crate::hook_copies::is_ours;
use crate::{
    CLibrary, ElfView, Error, Loader, Mapping, ModuleBytes, ModuleFacts, ModuleFiles,
    RemoteAddress, TargetRoot, proc_path, read_memory,
};
use std::{collections::HashMap, path::PathBuf, sync::Arc};

/// One loaded ELF module.
#[derive(Clone)]
pub struct ModuleImage {
    /// Path as the target sees it.
    pub path: String,
    /// A path by which this process can read the file.
    pub file: PathBuf,
    /// Load bias: avma = base + svma.
    pub base: u64,
    /// First mapped address.
    pub start: u64,
    /// Past the last mapped address.
    pub end: u64,
    /// GNU build-id.
    pub build_id: Option<Vec<u8>>,
    /// Whether it is the executable.
    pub is_main: bool,
    /// Whether it is the dynamic loader.
    pub is_loader: bool,
    /// Whether it is the main library of the [`CLibrary`] that the program runs on.
    pub is_libc: bool,
    /// Whether it is the executable, or a library that it needs, which is loaded with it and never unloaded.
    pub is_permanent: bool,
    /// The file's bytes.
    pub bytes: Arc<ModuleBytes>,
    /// What was found in them.
    pub facts: Arc<ModuleFacts>,
}

impl ModuleImage {
    /// The file name without its directories.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Whether an address lies in the module.
    pub fn contains(&self, address: u64) -> bool {
        address >= self.start && address < self.end
    }
}

/// The vDSO, which is code that the kernel maps into every process. Its bytes come from the mapping. A signal
/// may interrupt a thread in it.
pub fn vdso(pid: i32, maps: &[Mapping]) -> Option<ModuleImage> {
    let mapping = maps.iter().find(|m| m.path == "[vdso]")?;
    let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
    read_memory(pid, RemoteAddress(mapping.start), &mut bytes).ok()?;
    let elf = ElfView::parse(&bytes).ok()?;
    Some(ModuleImage {
        base: mapping.start.wrapping_sub(elf.lowest_load()),
        start: mapping.start,
        end: mapping.end,
        build_id: elf.build_id(),
        is_main: false,
        is_loader: false,
        is_libc: false,
        is_permanent: true,
        path: mapping.path.clone(),
        file: PathBuf::new(),
        bytes: Arc::new(bytes.into()),
        // None of its slots is patched.
        facts: Arc::default(),
    })
}

/// The modules of a process, the executable first, then in address order. Files already read are
/// taken from `files`.
///
/// # Errors
/// When the mappings cannot be read. A module that is not an ELF file of this architecture is left out.
pub fn modules(
    pid: i32,
    maps: &[Mapping],
    files: &mut ModuleFiles,
) -> Result<Vec<ModuleImage>, Error> {
    let executable = std::fs::read_link(proc_path(pid, "exe"))
        .map(|p| {
            p.to_string_lossy()
                .trim_end_matches(" (deleted)")
                .to_owned()
        })
        .unwrap_or_default();
    let root = TargetRoot::of(pid);
    let loader = Loader::of(pid, maps);
    let libc = CLibrary::of(pid, maps);
    let mut found: Vec<ModuleImage> = Vec::new();
    for (i, first) in maps.iter().enumerate() {
        // The ELF header is at file offset 0; one file may be mapped more than once (dlmopen).
        if first.offset != 0 || first.file_id.2 == 0 || !first.path.starts_with('/') {
            continue;
        }
        if is_ours(first) || first.shared {
            continue;
        }
        let end = end_of(first, &maps[i + 1..]);
        let is_code = |m: &&Mapping| m.exec && m.end <= end;
        if !maps[i..]
            .iter()
            .take_while(|m| m.start < end)
            .any(|m| is_code(&m))
        {
            continue; // it is mapped as data
        }
        let mut magic = [0; 4];
        if read_memory(pid, RemoteAddress(first.start), &mut magic).is_err() || &magic != b"\x7fELF"
        {
            continue;
        }
        let Some(file) = files.of_mapping(pid, maps, first) else {
            continue;
        };
        let Some(facts) = file.facts else {
            continue;
        };
        found.push(ModuleImage {
            base: first.start.wrapping_sub(facts.lowest_load),
            start: first.start,
            end: facts.end_at(first, end),
            build_id: facts.build_id.clone(),
            is_main: first.path == executable,
            is_loader: loader.as_ref().is_some_and(|l| l.start == first.start),
            is_libc: libc
                .as_ref()
                .is_some_and(|l| (first.start..end).contains(&l.code.start)),
            is_permanent: false,
            path: first.path.clone(),
            file: root.readable_path(first, file.bytes.len() as u64),
            bytes: file.bytes,
            facts,
        });
    }
    found.sort_by_key(|m| (!m.is_main, m.start));
    mark_permanent(&mut found);
    Ok(found)
}

impl ModuleFacts {
    /// Where a module ends whose mappings, and memory of the program's own that happens to follow them, end at `end`.
    pub(crate) fn end_at(&self, first: &Mapping, end: u64) -> u64 {
        let bytes = self.load_end.saturating_sub(self.lowest_load);
        let loaded = first.start.saturating_add(bytes).saturating_add(4095) & !4095;
        loaded.clamp(first.end, end.max(first.end))
    }
}

/// Where the module ends that begins with `first`, among the mappings behind that.
pub(crate) fn end_of(first: &Mapping, behind: &[Mapping]) -> u64 {
    let mut end = first.end;
    for next in behind {
        let same_file = next.file_id == first.file_id && next.offset != 0;
        // .bss follows its file mapping without a gap.
        let bss = next.file_id.2 == 0 && next.path.is_empty() && next.start == end;
        if !same_file && !bss {
            break;
        }
        end = next.end;
    }
    end
}

/// Follows DT_NEEDED from the executable. A name that two modules have, one of them in another namespace, is
/// ambiguous and ignored.
pub(crate) fn mark_permanent(modules: &mut [ModuleImage]) {
    let facts: Vec<Arc<ModuleFacts>> = modules.iter().map(|m| m.facts.clone()).collect();
    let mut by_name: HashMap<&str, Option<usize>> = HashMap::new();
    for (index, module) in modules.iter().enumerate() {
        let name = facts[index].soname.as_deref().unwrap_or(module.name());
        let only = by_name.entry(name).or_insert(Some(index));
        if *only != Some(index) {
            *only = None;
        }
    }
    let mut permanent = vec![false; modules.len()];
    let mut open: Vec<usize> = (0..modules.len()).filter(|&i| modules[i].is_main).collect();
    while let Some(index) = open.pop() {
        if !std::mem::replace(&mut permanent[index], true) {
            let needed = facts[index].needed.iter();
            open.extend(needed.filter_map(|name| *by_name.get(name.as_str())?));
        }
    }
    drop(by_name);
    for (module, permanent) in modules.iter_mut().zip(permanent) {
        // Programs need musl by another name than that of the file which is its loader.
        module.is_permanent = permanent || module.is_loader;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in a JVM, whose compiled code lies behind the last library that was loaded.
    #[test]
    fn memory_that_follows_is_not_the_modules() {
        let first = Mapping {
            start: 0x10000,
            end: 0x11000,
            read: true,
            write: false,
            exec: false,
            shared: false,
            offset: 0,
            file_id: (0, 1, 7),
            path: "/lib/x.so".to_owned(),
            deleted: false,
        };
        let facts = |lowest_load, load_end| {
            let mut facts = ModuleFacts::default();
            (facts.lowest_load, facts.load_end) = (lowest_load, load_end);
            facts
        };
        assert_eq!(facts(0, 0x4321).end_at(&first, 0x90_0000), 0x15000);
        assert_eq!(facts(0x4000, 0x8321).end_at(&first, 0x90_0000), 0x15000);
        // What a damaged file says.
        assert_eq!(facts(0, u64::MAX).end_at(&first, 0x14000), 0x14000);
        assert_eq!(facts(9, 3).end_at(&first, 0x14000), 0x11000);
    }
}
