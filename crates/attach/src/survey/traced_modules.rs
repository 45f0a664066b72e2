//! The modules of a traced process: those that it has, those that it had, and its vDSO.

use super::process::Surveyed;
use crate::error::Error;
use memhook_process::{CLibraryKind, Mapping, ModuleFiles, ModuleImage, modules};

/// Modules that are traced.
#[derive(Clone)]
pub(crate) struct TracedModules {
    /// As last seen.
    pub now: Vec<ModuleImage>,
    /// Modules that were unloaded: they still explain addresses in old backtraces.
    pub gone: Vec<ModuleImage>,
    vdso: Option<ModuleImage>,
    /// The program is static: there is no loader, and no module comes or goes.
    pub is_static: bool,
    /// The loader may unmap a module while the hook is about to exchange its slots.
    pub may_vanish: bool,
    pub files: ModuleFiles,
    /// Mappings of files as last seen.
    layout: Vec<Mapping>,
}

impl TracedModules {
    /// Modules of a process with these mappings.
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

    /// All that code of the process is in: the modules, and the vDSO.
    pub fn all(&self) -> Vec<ModuleImage> {
        self.now.iter().chain(&self.vdso).cloned().collect()
    }

    /// Returns true if they are where they were.
    pub fn are_as_seen_in(&self, maps: &[Mapping]) -> bool {
        layout(maps) == self.layout
    }

    /// Reads them again. [`TracedModules::settle`] is to follow when all that hangs on them was brought up to date.
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

    /// From now on these mappings are what [`TracedModules::are_as_seen_in`] compares with.
    pub fn settle(&mut self, maps: &[Mapping]) {
        self.layout = layout(maps);
    }
}

/// Returns the mappings that come from files, to compare where modules are.
pub(crate) fn layout(maps: &[Mapping]) -> Vec<Mapping> {
    let of_file = |m: &&Mapping| m.file_id.2 != 0 && m.path.starts_with('/');
    maps.iter().filter(of_file).cloned().collect()
}
