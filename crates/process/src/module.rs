//! Loaded modules.

use crate::hook_copies::is_ours;
use crate::{
    CLibrary, ElfView, Error, Loader, Mapping, ModuleBytes, ModuleFacts, ModuleFiles,
    RemoteAddress, TargetRoot, read_memory,
};
use std::{collections::HashMap, path::PathBuf, sync::Arc};

/// A loaded ELF module.
#[derive(Clone)]
pub struct ModuleImage {
    /// Path as the target sees it.
    pub path: String,
    /// Path by which this process can read the file.
    pub file: PathBuf,
    /// Load bias: avma = base + svma.
    pub base: u64,
    /// First mapped address.
    pub start: u64,
    /// Address after the last mapped one.
    pub end: u64,
    /// GNU build-id.
    pub build_id: Option<Vec<u8>>,
    /// True if it is the executable.
    pub is_main: bool,
    /// True if it is the dynamic loader.
    pub is_loader: bool,
    /// True if it is the main library of the [`CLibrary`] that the program runs on.
    pub is_libc: bool,
    /// True if it is the executable, or a library that the executable needs. Such a library is loaded at the start and
    /// never unloaded.
    pub is_permanent: bool,
    /// Bytes of the file.
    pub bytes: Arc<ModuleBytes>,
    /// Facts found in these bytes.
    pub facts: Arc<ModuleFacts>,
}

impl ModuleImage {
    /// Returns the file name without its directories.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Returns true if the module contains an address.
    pub fn contains(&self, address: u64) -> bool {
        address >= self.start && address < self.end
    }
}

/// Returns the vDSO: code that the kernel maps into every process. Its bytes come from the mapping. A signal may
/// interrupt a thread while it runs this code.
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

/// Returns the modules of a process, the executable first, then in address order. Files already read are taken from
/// `files`.
///
/// # Errors
/// The mappings cannot be read. A module that is not an ELF file of this architecture is omitted.
pub fn modules(
    pid: i32,
    maps: &[Mapping],
    files: &mut ModuleFiles,
) -> Result<Vec<ModuleImage>, Error> {
    let executable = crate::executable(pid).unwrap_or_default();
    let root = TargetRoot::of(pid);
    let loader = Loader::of(pid, maps);
    let libc = CLibrary::of(pid, maps);
    let mut found: Vec<ModuleImage> = Vec::new();
    for (i, first) in maps.iter().enumerate() {
        // The ELF header is at file offset 0; one file may be mapped more than once (dlmopen).
        if first.offset != 0 || first.file_id.2 == 0 || !first.path.starts_with('/') {
            continue;
        }
        if is_ours(first) || first.shared || is_part_of(found.last(), first, maps) {
            continue;
        }
        if !may_have_code(&maps[i..]) {
            continue; // it is mapped as data, and may be large
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
        let Some(end) = facts.loads.end(first, maps) else {
            continue;
        };
        found.push(ModuleImage {
            base: first.start.wrapping_sub(facts.loads.lowest()),
            start: first.start,
            end,
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

/// Returns true if a mapping that begins with a file's first byte belongs to the last module found: several of a
/// module's segments may begin with that byte.
fn is_part_of(last: Option<&ModuleImage>, first: &Mapping, maps: &[Mapping]) -> bool {
    last.is_some_and(|module| {
        let of_module = maps.iter().find(|m| m.start == module.start);
        module.contains(first.start) && of_module.is_some_and(|m| m.is_same_file(first))
    })
}

/// Returns the mappings that may belong to the module that begins with the first mapping: the mappings of its file, and
/// memory that follows them without a gap.
pub(crate) fn run(maps: &[Mapping]) -> &[Mapping] {
    let Some(first) = maps.first() else {
        return maps;
    };
    let follows = |pair: &[Mapping]| {
        let has_no_file = pair[1].file_id.2 == 0 && pair[1].start == pair[0].end;
        pair[1].is_same_file(first) || has_no_file
    };
    let others = maps.windows(2).take_while(|pair| follows(pair)).count();
    &maps[..=others]
}

fn may_have_code(maps: &[Mapping]) -> bool {
    run(maps).iter().any(|m| m.exec)
}

/// Marks the modules reached from the executable by DT_NEEDED. A name shared by two modules, one of them in another
/// namespace, is ambiguous and ignored.
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
        // Programs name musl in DT_NEEDED by a name other than that of its file, which is also the loader.
        module.is_permanent = permanent || module.is_loader;
    }
}
