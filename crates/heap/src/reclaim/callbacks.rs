//! Code of the program that an allocator's `free` would call.
//!
//! Some allocators let a program set hooks, and call them from `free`. A hook may wait for a lock
//! that a sleeping thread keeps, and the thread that was made to release a block would then never
//! return. So either the absence of hooks is proved from outside, or nothing is released. A hook
//! whose address is unknown is certainly not set if no other module contains the name that is
//! needed to set it.

use memhook_process::{Mapping, ModuleImage, RemoteAddress, has_changed_code, read_memory};
use std::ops::Range;

/// Text that a module of the program must contain to set a hook.
const NAMES: [(&str, &[&str]); 3] = [
    // In jemalloc, mallctl(3) sets `arena.<i>.extent_hooks`, and `experimental.hooks.*` since 5.2.
    ("jemalloc", &["extent_hooks", "experimental.hooks"]),
    // The names are from mimalloc.h.
    (
        "mimalloc",
        &[
            "mi_register_deferred_free",
            "mi_register_output",
            "mi_register_error",
        ],
    ),
    // The names are from gperftools/malloc_extension.h.
    (
        "tcmalloc",
        &["SetSystemAllocator", "MallocExtension8Register"],
    ),
];

/// For each hook list of gperftools that `free` may reach, because `free` sometimes maps memory for
/// itself: the function that adds a hook, and the function that calls the hooks.
const LISTS: [(&str, &str); 5] = [
    (
        "MallocHook_AddDeleteHook",
        "_ZN10MallocHook20InvokeDeleteHookSlowEPKv",
    ),
    (
        "MallocHook_AddMmapHook",
        "_ZN10MallocHook18InvokeMmapHookSlowEPKvS1_miiil",
    ),
    (
        "MallocHook_AddPreMmapHook",
        "_ZN10MallocHook21InvokePreMmapHookSlowEPKvmiiil",
    ),
    (
        "MallocHook_AddSbrkHook",
        "_ZN10MallocHook18InvokeSbrkHookSlowEPKvl",
    ),
    (
        "MallocHook_AddPreSbrkHook",
        "_ZN10MallocHook21InvokePreSbrkHookSlowEl",
    ),
];
/// Size of `HookList` of gperftools' src/malloc_hook-inl.h: the number of entries in use, and eight
/// entries.
const LIST_BYTES: usize = 9 * 8;

/// Returns the reason why `free` of this allocator, in this library, may call code of the program,
/// or `None` if it provably does not.
pub(super) fn callback(
    pid: i32,
    maps: &[Mapping],
    images: &[ModuleImage],
    allocator: &str,
    library: &ModuleImage,
) -> Option<String> {
    if has_changed_code(pid, maps, library) {
        return Some(format!("the code of {} was changed", library.name()));
    }
    let names = NAMES.iter().find(|(name, _)| *name == allocator);
    let others = images.iter().filter(|image| image.start != library.start);
    for name in names.into_iter().flat_map(|(_, names)| *names) {
        let has_it = |image: &&ModuleImage| {
            let bytes = image.bytes.whole();
            memchr::memmem::find(&bytes, name.as_bytes()).is_some()
        };
        if let Some(image) = others.clone().find(has_it) {
            return Some(format!("{} may set a hook ({name})", image.name()));
        }
    }
    match allocator {
        "tcmalloc" => hook_of_gperftools(pid, maps, library),
        _ => None,
    }
}

/// Returns the name of a hook list that is not empty, or that cannot be found.
fn hook_of_gperftools(pid: i32, maps: &[Mapping], library: &ModuleImage) -> Option<String> {
    let is_writable = |address: u64| {
        let mapping = maps.iter().find(|m| m.contains(address));
        library.contains(address) && mapping.is_some_and(|m| m.write)
    };
    LISTS.iter().find_map(|(add, invoke)| {
        let unknown = || Some(format!("the list of {add} was not found"));
        let [Some(adding), Some(invoking)] = [add, invoke].map(|name| code_of(library, name))
        else {
            return unknown();
        };
        let by_both = addresses(pid, &adding)
            .into_iter()
            .filter(|&at| is_writable(at))
            .filter(|at| addresses(pid, &invoking).contains(at));
        let mut lists: Vec<u64> = by_both.collect();
        lists.sort_unstable();
        lists.dedup();
        let [list] = lists[..] else {
            return unknown();
        };
        let mut words = [0; LIST_BYTES];
        let read = read_memory(pid, RemoteAddress(list), &mut words);
        let is_empty = read.is_ok() && words == [0; LIST_BYTES];
        (!is_empty).then(|| format!("a hook is set ({add})"))
    })
}

/// Returns the code range of an exported function (avma).
fn code_of(library: &ModuleImage, name: &str) -> Option<Range<u64>> {
    let elf = memhook_process::ElfView::parse(&library.bytes).ok()?;
    let function = elf.exported(name).filter(|e| !e.is_ifunc && e.size > 0)?;
    let start = library.base.wrapping_add(function.svma);
    Some(start..start.checked_add(function.size)?)
}

/// Returns the addresses that code loads with `lea disp32(%rip), %r64` (Intel SDM, volume 2,
/// "LEA"). Bytes that merely look like this instruction are included.
fn addresses(pid: i32, code: &Range<u64>) -> Vec<u64> {
    const MOST_BYTES: u64 = 1 << 16;
    let mut bytes = vec![0; (code.end - code.start).min(MOST_BYTES) as usize];
    if read_memory(pid, RemoteAddress(code.start), &mut bytes).is_err() {
        return Vec::new();
    }
    let windows = (code.start..).zip(bytes.windows(7));
    windows
        .filter_map(|(at, window)| match window {
            [0x48 | 0x4c, 0x8d, register, displacement @ ..] if register & 0xc7 == 0x05 => {
                let displacement = i32::from_le_bytes(displacement.try_into().ok()?);
                Some((at + 7).wrapping_add_signed(displacement.into()))
            }
            _ => None,
        })
        .collect()
}
