//! Modules of a traced process: current ones, unloaded ones, and the vDSO.

use super::process::Surveyed;
use crate::error::Error;
use memhook_process::{CLibraryKind, Mapping, ModuleFiles, ModuleImage, is_ours, modules};

/// Modules that are traced.
#[derive(Clone)]
pub(crate) struct TracedModules {
    /// Last known modules.
    pub now: Vec<ModuleImage>,
    /// Unloaded modules, needed to symbolize addresses in old backtraces.
    pub gone: Vec<ModuleImage>,
    vdso: Option<ModuleImage>,
    /// True for a static program, which has no loader and whose modules never change.
    pub is_static: bool,
    /// True if the loader may unmap a module while the hook is about to patch its slots.
    pub may_vanish: bool,
    pub files: ModuleFiles,
    /// Last known mappings of files.
    layout: Vec<Mapping>,
}

impl TracedModules {
    /// Returns the modules of a process with these mappings.
    pub fn of(
        survey: &Surveyed,
        maps: &[Mapping],
        files: ModuleFiles,
        vdso: Option<ModuleImage>,
    ) -> TracedModules {
        let libc = survey.libc.as_ref();
        TracedModules {
            now: survey.modules.clone(),
            gone: Vec::new(),
            vdso,
            is_static: survey.is_static,
            may_vanish: libc.is_some_and(|libc| libc.kind == CLibraryKind::Musl),
            files,
            layout: layout(maps),
        }
    }

    /// Returns everything that contains code of the process: the modules and the vDSO.
    pub fn all(&self) -> Vec<ModuleImage> {
        self.now.iter().chain(&self.vdso).cloned().collect()
    }

    /// Returns true if the modules have not moved.
    pub fn are_as_seen_in(&self, maps: &[Mapping]) -> bool {
        layout(maps) == self.layout
    }

    /// Returns true if a file with code was mapped since the modules were read. Mapped files without code are not
    /// modules.
    pub fn has_new_code_in(&self, maps: &[Mapping]) -> bool {
        let is_code = |m: &&Mapping| m.exec && !is_ours(m);
        let layout = layout(maps);
        let mut code = layout.iter().filter(is_code);
        code.any(|mapping| !self.layout.contains(mapping))
    }

    /// Makes the next look read the modules again, even if no mapping has changed.
    pub fn unsettle(&mut self) {
        self.layout.clear();
    }

    /// Reads the modules again. Call [`TracedModules::settle`] after everything that depends on the modules has been
    /// updated.
    pub fn renew(&mut self, pid: i32, maps: &[Mapping]) -> Result<(), Error> {
        let now = modules(pid, maps, &mut self.files)?;
        for module in std::mem::replace(&mut self.now, now) {
            let same = |m: &ModuleImage| m.base == module.base && m.path == module.path;
            if !self.now.iter().chain(&self.gone).any(same) {
                self.gone.push(module);
            }
        }
        Ok(())
    }

    /// Makes these mappings the reference for [`TracedModules::are_as_seen_in`].
    pub fn settle(&mut self, maps: &[Mapping]) {
        self.layout = layout(maps);
    }
}

/// Returns the mappings of files, for comparing where the modules are.
pub(crate) fn layout(maps: &[Mapping]) -> Vec<Mapping> {
    let of_file = |m: &&Mapping| m.file_id.2 != 0 && m.path.starts_with('/');
    maps.iter().filter(of_file).cloned().collect()
}
