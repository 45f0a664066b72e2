//! Ways to bring the hook into a process: through its loader, or by mapping it.

use super::object::{EMITTER, EMITTER_MAPPED, HookObject, LOADED, MAPPED, hook_at};
use crate::config::emission::Emission;
use crate::error::Error;
use memhook_abi::{Function, HOOKED_FUNCTIONS, Role, may_throw};
use memhook_inject::{Dlopen, Held, load_file, load_object};
use memhook_process::{
    CLibrary, CLibraryKind, Check, Mapping, ModuleImage, foreign_calls_of_loader, has_proc,
    hook_copies, is_hook, is_static, mappings,
};

/// The way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loading {
    /// By the loader.
    ByLoader(Dlopen),
    /// Mapped, because there is no loader, or because the loader would refuse or find no file to open.
    WithoutLoader,
    /// An earlier attach left the hook here (avma).
    Present(u64),
}

/// Reason why a mapped hook does not hook a function that throws.
const CANNOT_THROW: &str = "exceptions cannot pass through a hook that is mapped without the loader, because no module has suitable unwind information; its calls of malloc are seen";

/// Method of bringing in the hook, and the reason for mapping it if the process has a loader.
pub struct WayIn {
    /// The way.
    pub loading: Loading,
    /// Name of a function outside the C library that the loader might call.
    pub foreign_call: Option<String>,
}

impl WayIn {
    /// Chooses a method for a process with these modules. `present` is the address of this version's hook, if the
    /// process already has it.
    pub fn of(
        pid: i32,
        maps: &[Mapping],
        modules: &[ModuleImage],
        libc: Option<&CLibrary>,
        present: Option<u64>,
    ) -> Result<WayIn, Error> {
        let loading = Loading::of(pid, libc, present)?;
        let foreign_call = match loading {
            Loading::ByLoader(_) => foreign_calls_of_loader(pid, maps, modules),
            _ => None,
        };
        if let Some(reason) = &foreign_call {
            tracing::debug!(pid, reason, "the hook is mapped without the loader");
        }
        Ok(WayIn {
            loading: match foreign_call {
                Some(_) => loading.without_loader(),
                None => loading,
            },
            foreign_call,
        })
    }

    /// Returns the finding for `doctor`. A loader that cannot be called at all has been reported by earlier checks.
    pub fn check(&self, pid: i32) -> Option<Check> {
        match (&self.loading, &self.foreign_call) {
            (_, Some(reason)) => Some(Check::good(
                "loading",
                format!("the hook is mapped without the loader of process {pid}: {reason}"),
            )),
            (Loading::ByLoader(_), None) => Some(Check::good(
                "loading",
                format!(
                    "the hook is loaded by the loader of process {pid}, which can call nothing but glibc's own code"
                ),
            )),
            _ => None,
        }
    }
}

impl Loading {
    /// Returns the way that the loader itself allows.
    fn of(pid: i32, libc: Option<&CLibrary>, present: Option<u64>) -> Result<Loading, Error> {
        if let Some(base) = present {
            return Ok(Loading::Present(base));
        }
        let Some(libc) = libc else {
            return if is_static(pid) {
                Ok(Loading::WithoutLoader)
            } else {
                Err(Error::NoCLibrary { pid })
            };
        };
        // On musl, mapping is simpler: it takes no lock.
        if libc.kind == CLibraryKind::Musl || !has_proc(pid) {
            return Ok(Loading::WithoutLoader);
        }
        find_dlopen(pid, libc).map(Loading::ByLoader)
    }

    /// Returns the hook object for this way.
    pub fn object(self, pid: i32) -> &'static HookObject {
        match self {
            Loading::ByLoader(_) => &LOADED,
            Loading::WithoutLoader => &MAPPED,
            Loading::Present(base) => hook_at(pid, base).unwrap_or(&LOADED),
        }
    }

    /// Like [`Loading::load`], for an emitting hook.
    pub fn load_to_emit(
        self,
        held: &mut Held,
        emission: &Emission,
    ) -> Result<(u64, &'static HookObject), Error> {
        let base = match (self, &emission.file) {
            (Loading::Present(base), _) => return Ok((base, self.object(held.pid()))),
            (Loading::ByLoader(dlopen), None) => load_object(held, dlopen, EMITTER.bytes)?,
            (Loading::ByLoader(dlopen), Some(file)) => {
                let maps = mappings(held.pid())?;
                let name = file.name.as_str();
                // If a file of this name was loaded and then removed, the loader would return the old object.
                let earlier = maps
                    .iter()
                    .filter(|m| m.offset == 0 && m.path.ends_with(name));
                load_file(held, dlopen, &file.folder, name, earlier.count())?
            }
            (Loading::WithoutLoader, None) => {
                return Ok((EMITTER_MAPPED.map(held)?, &EMITTER_MAPPED));
            }
            (Loading::WithoutLoader, Some(_)) => {
                return Err(Error::NoPlaceToListen { pid: held.pid() });
            }
        };
        Ok((base, &EMITTER))
    }

    /// Avoids the loader in a process that closes unknown descriptors, because the loader uses the number of the hook's
    /// descriptor.
    pub fn without_loader(self) -> Loading {
        match self {
            Loading::ByLoader(_) => Loading::WithoutLoader,
            other => other,
        }
    }

    /// Loads the hook. Returns its load bias and the object that was used. If the loader refuses because a sandbox
    /// forbids opening files, the hook is mapped without the loader, provided that mapping is allowed.
    pub fn load(
        self,
        held: &mut Held,
        may_be_mapped: bool,
    ) -> Result<(u64, &'static HookObject), Error> {
        let pid = held.pid();
        if let Loading::Present(base) = self {
            return Ok((base, self.object(pid)));
        }
        if let Loading::ByLoader(dlopen) = self {
            match load_object(held, dlopen, LOADED.bytes) {
                Ok(base) => return Ok((base, &LOADED)),
                // The loader has refused and is done, or was not called.
                Err(
                    memhook_inject::Error::LoadFailed { .. }
                    | memhook_inject::Error::DescriptorLost { .. },
                ) if may_be_mapped => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok((MAPPED.map(held)?, &MAPPED))
    }
}

/// Decision about a slot for the hook that was brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The slot leads to a wrapper.
    Hooked,
    /// The slot stays unchanged, without a loss.
    PassedBy,
    /// The slot stays unchanged for this reason.
    Refused(&'static str),
}

/// Decides what happens to the slots of a hooked function.
pub fn fate(object: &HookObject, function: usize) -> Fate {
    let hooked = HOOKED_FUNCTIONS.get(function);
    match leaves_alone(object, function) {
        false => Fate::Hooked,
        true if hooked.is_some_and(|f| f.role == Role::Touches) => Fate::PassedBy,
        true => Fate::Refused(CANNOT_THROW),
    }
}

/// Returns true if a hook loaded in the same way as this object leaves a function unhooked. Examples are read(2) and
/// similar calls, because cancelling a thread inside them unwinds its stack.
pub fn leaves_alone(object: &HookObject, function: usize) -> bool {
    let hooked = HOOKED_FUNCTIONS.get(function);
    let may_be_left = |f: &Function| !object.may_be_unwound && may_throw(f);
    object.is_mapped && hooked.is_some_and(|f| may_be_left(f) || f.role == Role::Touches)
}

/// Returns the address (avma) of a hook in the process that can emit as configured.
pub fn hook_to_emit(pid: i32, maps: &[Mapping], emission: &Emission) -> Option<u64> {
    let is_right = |m: &&Mapping| match &emission.file {
        Some(file) => {
            !m.deleted && m.file_id.2 == file.inode && m.path.ends_with(file.name.as_str())
        }
        None => true,
    };
    let first = |m: &&Mapping| m.offset == 0 && is_hook(m);
    let mut hooks = maps.iter().filter(first).filter(is_right);
    let emits = |m: &&Mapping| hook_at(pid, m.start).is_some_and(|object| object.emits);
    hooks.find(emits).map(|m| m.start)
}

/// Returns the address (avma) of a hook of this version in the process that can record; preferably the hook that was in
/// use last.
pub fn hook_to_record(pid: i32, maps: &[Mapping], last: Option<u64>) -> Option<u64> {
    let copies = hook_copies(pid, maps).into_iter().map(|copy| copy.base);
    let records = |base: &u64| hook_at(pid, *base).is_some_and(|object| !object.emits);
    last.into_iter().chain(copies).find(records)
}

fn find_dlopen(pid: i32, libc: &CLibrary) -> Result<Dlopen, Error> {
    let candidates = [("dlopen", false), ("__libc_dlopen_mode", true)];
    for (name, internal_mode) in candidates {
        if let Some(address) = libc.function(name) {
            return Ok(Dlopen {
                address,
                internal_mode,
            });
        }
    }
    Err(Error::NoFunction {
        pid,
        name: "dlopen, nor a __libc_dlopen_mode",
    })
}
