//! The one list of hooked functions: it drives the wrappers, patching, restoring, `--functions`
//! and the tests.

/// What a hooked function does to blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Returns a new block.
    Allocates,
    /// Releases a block.
    Releases,
    /// Replaces a block.
    Reallocates,
    /// Loads or unloads modules.
    Modules,
}

/// The shape of a hooked function's parameters; the C++ side has one wrapper template for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the parameter lists
pub enum Signature {
    Size,
    CountSize,
    AlignSize,
    PosixMemalign,
    Realloc,
    ReallocArray,
    SizeX,
    SizeXX,
    Free,
    FreeX,
    FreeXX,
    Rallocx,
    Xallocx,
    Dlopen,
    Dlmopen,
    Dlclose,
}

/// One hooked function. Its index in [`HOOKED_FUNCTIONS`] is its function id.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// The dynamic symbol.
    pub name: &'static str,
    /// The word used in reports and by `--functions`: `malloc`, `new`, `delete[]`, …
    pub kind: &'static str,
    /// Parameter list.
    pub signature: Signature,
    /// Effect on blocks.
    pub role: Role,
}

const fn f(name: &'static str, kind: &'static str, signature: Signature, role: Role) -> Function {
    Function {
        name,
        kind,
        signature,
        role,
    }
}

use Role::{Allocates, Modules, Reallocates, Releases};
use Signature as S;

/// Every hooked function. Mangled names are those of the Itanium C++ ABI on LP64.
pub const HOOKED_FUNCTIONS: &[Function] = &[
    f("malloc", "malloc", S::Size, Allocates),
    f("free", "free", S::Free, Releases),
    f("calloc", "calloc", S::CountSize, Allocates),
    f("realloc", "realloc", S::Realloc, Reallocates),
    f("reallocarray", "reallocarray", S::ReallocArray, Reallocates),
    f("cfree", "cfree", S::Free, Releases),
    f("memalign", "memalign", S::AlignSize, Allocates),
    f("aligned_alloc", "aligned_alloc", S::AlignSize, Allocates),
    f(
        "posix_memalign",
        "posix_memalign",
        S::PosixMemalign,
        Allocates,
    ),
    f("valloc", "valloc", S::Size, Allocates),
    f("pvalloc", "pvalloc", S::Size, Allocates),
    f("_Znwm", "new", S::Size, Allocates),
    f("_Znam", "new[]", S::Size, Allocates),
    f("_ZnwmRKSt9nothrow_t", "new", S::SizeX, Allocates),
    f("_ZnamRKSt9nothrow_t", "new[]", S::SizeX, Allocates),
    f("_ZnwmSt11align_val_t", "new", S::SizeX, Allocates),
    f("_ZnamSt11align_val_t", "new[]", S::SizeX, Allocates),
    f(
        "_ZnwmSt11align_val_tRKSt9nothrow_t",
        "new",
        S::SizeXX,
        Allocates,
    ),
    f(
        "_ZnamSt11align_val_tRKSt9nothrow_t",
        "new[]",
        S::SizeXX,
        Allocates,
    ),
    f("_ZdlPv", "delete", S::Free, Releases),
    f("_ZdaPv", "delete[]", S::Free, Releases),
    f("_ZdlPvm", "delete", S::FreeX, Releases),
    f("_ZdaPvm", "delete[]", S::FreeX, Releases),
    f("_ZdlPvRKSt9nothrow_t", "delete", S::FreeX, Releases),
    f("_ZdaPvRKSt9nothrow_t", "delete[]", S::FreeX, Releases),
    f("_ZdlPvSt11align_val_t", "delete", S::FreeX, Releases),
    f("_ZdaPvSt11align_val_t", "delete[]", S::FreeX, Releases),
    f(
        "_ZdlPvSt11align_val_tRKSt9nothrow_t",
        "delete",
        S::FreeXX,
        Releases,
    ),
    f(
        "_ZdaPvSt11align_val_tRKSt9nothrow_t",
        "delete[]",
        S::FreeXX,
        Releases,
    ),
    f("_ZdlPvmSt11align_val_t", "delete", S::FreeXX, Releases),
    f("_ZdaPvmSt11align_val_t", "delete[]", S::FreeXX, Releases),
    // jemalloc(3), "Non-standard API".
    f("mallocx", "mallocx", S::SizeX, Allocates),
    f("rallocx", "rallocx", S::Rallocx, Reallocates),
    f("xallocx", "xallocx", S::Xallocx, Reallocates),
    f("dallocx", "dallocx", S::FreeX, Releases),
    f("sdallocx", "sdallocx", S::FreeXX, Releases),
    // gperftools/tcmalloc.h.
    f("tc_malloc", "malloc", S::Size, Allocates),
    f("tc_free", "free", S::Free, Releases),
    f("tc_calloc", "calloc", S::CountSize, Allocates),
    f("tc_realloc", "realloc", S::Realloc, Reallocates),
    f("tc_memalign", "memalign", S::AlignSize, Allocates),
    f(
        "tc_posix_memalign",
        "posix_memalign",
        S::PosixMemalign,
        Allocates,
    ),
    f("tc_new", "new", S::Size, Allocates),
    f("tc_newarray", "new[]", S::Size, Allocates),
    f("tc_delete", "delete", S::Free, Releases),
    f("tc_deletearray", "delete[]", S::Free, Releases),
    f("dlopen", "dlopen", S::Dlopen, Modules),
    f("dlmopen", "dlmopen", S::Dlmopen, Modules),
    f("dlclose", "dlclose", S::Dlclose, Modules),
];

/// The id of the hooked function with this dynamic symbol.
pub fn function_by_name(name: &str) -> Option<usize> {
    HOOKED_FUNCTIONS.iter().position(|f| f.name == name)
}
