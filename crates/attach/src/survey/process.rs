//! A process as an attach finds it. It is only read.

use crate::error::Error;
use crate::hook::loading::WayIn;
use crate::hook::object::HookObject;
use crate::hook::passage::InProcess;
use memhook_process::{CLibrary, Mapping, ModuleFiles, ModuleImage, is_static, modules};

/// Facts that an attach needs before it can be planned.
pub(crate) struct Surveyed {
    pub pid: i32,
    pub maps: Vec<Mapping>,
    /// Its modules.
    pub modules: Vec<ModuleImage>,
    pub libc: Option<CLibrary>,
    /// Its program is static: there is no loader, and no module comes or goes.
    pub is_static: bool,
    /// Way in which the hook would come in.
    pub way_in: WayIn,
    /// The way for exceptions through the hook, should it be mapped.
    pub passage: Option<InProcess>,
    /// The build of the hook that would come in so.
    pub object: &'static HookObject,
}

impl Surveyed {
    /// Survey of a process with these mappings. `present`: where the hook is already that an attach would use (avma).
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
        // A hook that the loader was to load may come in without it after all, when a thread is held.
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

    /// Where a function of its C library is (avma).
    pub fn function(&self, name: &'static str) -> Result<u64, Error> {
        let pid = self.pid;
        let libc = self.libc.as_ref().ok_or(Error::NoCLibrary { pid })?;
        let address = libc.function(name);
        Ok(address.ok_or(Error::NoFunction { pid, name })?.0)
    }
}
