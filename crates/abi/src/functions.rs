//! List of hooked functions. The wrappers, patching, restoring, `--set functions=` and the tests are derived from it.

/// Effect of a hooked function on blocks.
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
    /// Reports reads and writes: see [`ACCESS_LISTENER`].
    Accesses,
    /// Changes the mappings of the process; hooked only if mappings are traced.
    Maps,
    /// Reads or writes its arguments' bytes; hooked only if accesses are counted.
    Touches,
    /// Names a moment: see [`MARK_LISTENER`].
    Marks,
    /// Creates a process that inherits the traced blocks.
    Forks,
}

/// Shape of a hooked function's parameters; the C++ side has one wrapper template for each.
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
    CountSizeXX,
    XSizeXX,
    XCountSizeXX,
    ReallocXX,
    ReallocArrayXX,
    XReallocXX,
    XReallocArrayXX,
    ReallocXSizeXX,
    ReallocXXSize,
    Dlopen,
    Dlmopen,
    Dlclose,
    Access,
    Mark,
    Mmap,
    Mremap,
    Munmap,
    Brk,
    Sbrk,
    Madvise,
    Shmat,
    Shmdt,
    CopyBytes,
    FillBytes,
    CompareBytes,
    StringLength,
    ReadInto,
    WriteFrom,
    ReadItems,
    WriteItems,
    Fork,
}

/// One hooked function. Its index in [`HOOKED_FUNCTIONS`] is its function id.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// The dynamic symbol.
    pub name: &'static str,
    /// Name in reports and for `--set functions=`: `malloc`, `new`, `delete[]`, …
    pub kind: &'static str,
    /// Parameter list.
    pub signature: Signature,
    /// Effect on blocks.
    pub role: Role,
}

impl Function {
    /// Returns true if it allocates or releases blocks.
    pub fn is_of_allocator(&self) -> bool {
        !matches!(
            self.role,
            Accesses | Forks | Modules | Maps | Marks | Touches
        )
    }
}

const fn f(name: &'static str, kind: &'static str, signature: Signature, role: Role) -> Function {
    Function {
        name,
        kind,
        signature,
        role,
    }
}

/// Function whose slot is not a relocation: the listener of the access runtime. A program that was compiled for access
/// data calls this pointer for each read and write while it is set. A note in the module has the pointer's address.
pub const ACCESS_LISTENER: &str = "memhook_access_listener";

/// Like [`ACCESS_LISTENER`], for the listener that `memhook_mark("…")` of the header `memhook_mark.h` calls while it is
/// set.
pub const MARK_LISTENER: &str = "memhook_mark_listener";

use Role::{Accesses, Allocates, Forks, Maps, Marks, Modules, Reallocates, Releases, Touches};
use Signature as S;

/// All hooked functions. Mangled names are those of the Itanium C++ ABI on LP64.
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
    // Mappings. Offsets have 64 bits on LP64, so both forms of mmap are the same.
    f("mmap", "mmap", S::Mmap, Maps),
    f("mmap64", "mmap", S::Mmap, Maps),
    f("mremap", "mremap", S::Mremap, Maps),
    f("munmap", "munmap", S::Munmap, Maps),
    f("brk", "brk", S::Brk, Maps),
    f("sbrk", "sbrk", S::Sbrk, Maps),
    f("madvise", "madvise", S::Madvise, Maps),
    f("shmat", "shmat", S::Shmat, Maps),
    f("shmdt", "shmdt", S::Shmdt, Maps),
    f(ACCESS_LISTENER, "access", S::Access, Accesses),
    f(MARK_LISTENER, "mark", S::Mark, Marks),
    // Functions of the C library that access the program's bytes. _FORTIFY_SOURCE replaces them with functions with the
    // suffix _chk, which have one more parameter, the size of the destination.
    f("memcpy", "memcpy", S::CopyBytes, Touches),
    f("memmove", "memmove", S::CopyBytes, Touches),
    f("mempcpy", "mempcpy", S::CopyBytes, Touches),
    f("memset", "memset", S::FillBytes, Touches),
    f("memcmp", "memcmp", S::CompareBytes, Touches),
    f("bcmp", "bcmp", S::CompareBytes, Touches),
    f("strlen", "strlen", S::StringLength, Touches),
    f("__memcpy_chk", "memcpy", S::CopyBytes, Touches),
    f("__memmove_chk", "memmove", S::CopyBytes, Touches),
    f("__memset_chk", "memset", S::FillBytes, Touches),
    f("read", "read", S::ReadInto, Touches),
    f("__read_chk", "read", S::ReadInto, Touches),
    f("pread", "pread", S::ReadInto, Touches),
    f("pread64", "pread", S::ReadInto, Touches),
    f("recv", "recv", S::ReadInto, Touches),
    f("__recv_chk", "recv", S::ReadInto, Touches),
    f("recvfrom", "recvfrom", S::ReadInto, Touches),
    f("write", "write", S::WriteFrom, Touches),
    f("pwrite", "pwrite", S::WriteFrom, Touches),
    f("pwrite64", "pwrite", S::WriteFrom, Touches),
    f("send", "send", S::WriteFrom, Touches),
    f("sendto", "sendto", S::WriteFrom, Touches),
    f("fread", "fread", S::ReadItems, Touches),
    f("fwrite", "fwrite", S::WriteItems, Touches),
    // These are always included, because a child unmaps the region of its parent.
    f("fork", "fork", S::Fork, Forks),
    f("__fork", "fork", S::Fork, Forks),
    f("_Fork", "fork", S::Fork, Forks),
    // C23, 7.24.3.
    f("free_sized", "free", S::FreeX, Releases),
    f("free_aligned_sized", "free", S::FreeXX, Releases),
    // Shapes of allocators' functions, each under the name of one function with that shape: see `allocators.rs`. These
    // functions call each other.
    f("mi_malloc", "malloc", S::SizeXX, Allocates),
    f("mi_malloc_aligned", "aligned_alloc", S::SizeXX, Allocates),
    f("mi_zalloc", "calloc", S::SizeXX, Allocates),
    f("mi_calloc", "calloc", S::CountSizeXX, Allocates),
    f("mi_realloc", "realloc", S::ReallocXX, Reallocates),
    f("mi_recalloc", "realloc", S::ReallocArrayXX, Reallocates),
    f("mi_heap_malloc", "malloc", S::XSizeXX, Allocates),
    f("mi_heap_calloc", "calloc", S::XCountSizeXX, Allocates),
    f("mi_heap_realloc", "realloc", S::XReallocXX, Reallocates),
    f(
        "mi_heap_recalloc",
        "realloc",
        S::XReallocArrayXX,
        Reallocates,
    ),
    f(
        "rpaligned_realloc",
        "realloc",
        S::ReallocXSizeXX,
        Reallocates,
    ),
    f("sn_rust_realloc", "realloc", S::ReallocXXSize, Reallocates),
    f("mi_memalign", "memalign", S::AlignSize, Allocates),
    f(
        "mi_posix_memalign",
        "posix_memalign",
        S::PosixMemalign,
        Allocates,
    ),
];

/// Returns the operators new that libstdc++ and libc++abi define as a plain call of malloc or of another operator new
/// (libsupc++/new_op.cc and the files next to it, libcxxabi/src/stdlib_new_delete.cpp). These are the operators without
/// an alignment.
pub fn forwarding_operators() -> impl Iterator<Item = &'static Function> {
    let is_operator_new = |f: &&Function| f.name.starts_with("_Zn");
    let functions = HOOKED_FUNCTIONS.iter().filter(is_operator_new);
    functions.filter(|f| !f.name.contains("align_val_t"))
}

/// Returns true if a hooked function may throw: the replaceable operators new without a nothrow argument (C++ standard,
/// new.delete), and tcmalloc's other names for them.
pub fn may_throw(function: &Function) -> bool {
    let is_operator = function.name.starts_with("_Zn") && !function.name.contains("nothrow");
    is_operator || matches!(function.name, "tc_new" | "tc_newarray")
}

/// Returns true for the name of a function that is hooked only if accesses are counted.
pub fn touches(name: &str) -> bool {
    crate::function_by_name(name).is_some_and(|id| HOOKED_FUNCTIONS[id].role == Touches)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_that_forward_and_functions_that_throw() {
        assert_eq!(forwarding_operators().count(), 4);
        assert_eq!(HOOKED_FUNCTIONS.iter().filter(|f| may_throw(f)).count(), 6);
    }
}
