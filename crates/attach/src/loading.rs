//! How the hook comes into a process: by its loader, or mapped without it.

use crate::error::Error;
use crate::hook_object::{HookObject, LOADED, MAPPED, hook_at};
use memhook_abi::{HOOKED_FUNCTIONS, Role, may_throw};
use memhook_inject::{Dlopen, Held, load_object};
use memhook_process::{CLibrary, CLibraryKind, has_proc, is_static};

/// The way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loading {
    /// The loader can be asked.
    ByLoader(Dlopen),
    /// There is none, or it would refuse, or find nothing to open.
    WithoutLoader,
    /// An earlier attach left the hook here (avma).
    Present(u64),
}

/// Why a throwing function is left alone where the hook is mapped.
pub const CANNOT_THROW: &str = "an exception could not pass through a hook that is mapped without the loader; its calls of malloc are seen";

impl Loading {
    /// Chooses one. `present`: where the hook of this version is already.
    pub fn of(pid: i32, libc: Option<&CLibrary>, present: Option<u64>) -> Result<Loading, Error> {
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
        // musl loads nothing that has initial-exec TLS (do_relocs in ldso/dynlink.c).
        if libc.kind == CLibraryKind::Musl || !has_proc(pid) {
            return Ok(Loading::WithoutLoader);
        }
        find_dlopen(pid, libc).map(Loading::ByLoader)
    }

    /// The build of the hook that this is about.
    pub fn object(self, pid: i32) -> &'static HookObject {
        match self {
            Loading::ByLoader(_) => &LOADED,
            Loading::WithoutLoader => &MAPPED,
            Loading::Present(base) => hook_at(pid, base).unwrap_or(&LOADED),
        }
    }

    /// Brings the hook in. Returns its load bias, and which build it is: where the loader refuses, because
    /// a sandbox forbids to open files or no room is left for static TLS, it is mapped without it.
    /// `may_map` says whether that would do.
    pub fn load(
        self,
        held: &mut Held,
        may_map: impl Fn(&Held) -> Result<(), Error>,
    ) -> Result<(u64, &'static HookObject), Error> {
        let pid = held.pid();
        if let Loading::Present(base) = self {
            return Ok((base, self.object(pid)));
        }
        if let Loading::ByLoader(dlopen) = self {
            match load_object(held, dlopen, LOADED.bytes) {
                Ok(base) => return Ok((base, &LOADED)),
                // The loader has said no and is done.
                Err(memhook_inject::Error::LoadFailed { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        may_map(held)?;
        Ok((MAPPED.map(held)?, &MAPPED))
    }
}

/// Whether this build of the hook leaves a hooked function alone. A thread that is cancelled in read(2) or its like is
/// unwound, too.
pub fn leaves_alone(object: &HookObject, function: usize) -> bool {
    let hooked = HOOKED_FUNCTIONS.get(function);
    object.is_mapped && hooked.is_some_and(|f| may_throw(f) || f.role == Role::Touches)
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
