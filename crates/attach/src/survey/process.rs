//! Facts about a process as an attach finds it. Surveying only reads the process.

use crate::error::Error;
use crate::hook::loading::WayIn;
use crate::hook::object::HookObject;
use crate::hook::passage::InProcess;
use memhook_process::{CLibrary, Mapping, ModuleFiles, ModuleImage, is_static, modules};

/// Facts for planning an attach.
pub(crate) struct Surveyed {
    pub pid: i32,
    pub maps: Vec<Mapping>,
    /// Modules of the process.
    pub modules: Vec<ModuleImage>,
    pub libc: Option<CLibrary>,
    /// True for a static program, which has no loader and whose modules never change.
    pub is_static: bool,
    /// Way in which the hook would come in.
    pub way_in: WayIn,
    /// Passage for exceptions if the hook is mapped.
    pub passage: Option<InProcess>,
    /// Hook object for this way.
    pub object: &'static HookObject,
}

impl Surveyed {
    /// Surveys a process with these mappings. `present`: address (avma) of the hook that an attach would use, if the
    /// process has it.
    pub fn of(
        pid: i32,
        maps: Vec<Mapping>,
        present: Option<u64>,
        files: &mut ModuleFiles,
    ) -> Result<Surveyed, Error> {
        let modules = modules(pid, &maps, files)?;
        let libc = CLibrary::of(pid, &maps);
        let way_in = WayIn::of(pid, &maps, &modules, libc.as_ref(), present)?;
        let object = way_in.loading.object(pid);
        // Depending on which thread is held, a hook that should be loaded may have to be mapped after all.
        let passage = InProcess::of(pid, &modules);
        Ok(Surveyed {
            is_static: libc.is_none() && is_static(pid),
            object: object.with_passage(passage.as_ref()),
            pid,
            maps,
            modules,
            libc,
            way_in,
            passage,
        })
    }

    /// Returns the address (avma) of a function in the process's C library.
    pub fn function(&self, name: &'static str) -> Result<u64, Error> {
        let pid = self.pid;
        let libc = self.libc.as_ref().ok_or(Error::NoCLibrary { pid })?;
        let address = libc.function(name);
        Ok(address.ok_or(Error::NoFunction { pid, name })?.0)
    }
}
