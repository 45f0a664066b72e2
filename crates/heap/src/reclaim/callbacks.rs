//! Code of the program that an allocator's `free` would call.
//!
//! An allocator that lets a program set hooks calls them from `free`, and they may wait for a lock that some thread keeps
//! while it sleeps: the thread that was made to release a block would then never come back. So the absence of hooks is
//! proved from outside, or nothing is released. Where a hook lies in memory that is not known, nobody can have set it if
//! no other module has the name of what sets it.

use memhook_process::{Mapping, ModuleImage, RemoteAddress, has_changed_code, read_memory};
use std::ops::Range;

/// Text without which a module of the program cannot set a hook.
const NAMES: [(&str, &[&str]); 3] = [
    // mallctl(3): `arena.<i>.extent_hooks`; `experimental.hooks.*` since 5.2.
    ("jemalloc", &["extent_hooks", "experimental.hooks"]),
    // mimalloc.h.
    (
        "mimalloc",
        &[
            "mi_register_deferred_free",
            "mi_register_output",
            "mi_register_error",
        ],
    ),
    // gperftools/malloc_extension.h.
    (
        "tcmalloc",
        &["SetSystemAllocator", "MallocExtension8Register"],
    ),
];

/// The functions of gperftools that add a hook to each list that `free` may come to, as it maps memory for itself at times,
/// and those that call the hooks of the list.
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
/// `HookList` of gperftools' src/malloc_hook-inl.h: the number of places in use, and eight places.
const LIST_BYTES: usize = 9 * 8;

/// Returns why `free` of this allocator, in this library, may call code of the program; `None` if it is proved that it
/// does not.
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

/// A list of hooks that is not empty, or that cannot be found.
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

/// Where the code of an exported function is (avma).
fn code_of(library: &ModuleImage, name: &str) -> Option<Range<u64>> {
    let elf = memhook_process::ElfView::parse(&library.bytes).ok()?;
    let function = elf.exported(name).filter(|e| !e.is_ifunc && e.size > 0)?;
    let start = library.base.wrapping_add(function.svma);
    Some(start..start.checked_add(function.size)?)
}

/// The addresses that code takes by `lea disp32(%rip), %r64` (Intel SDM, volume 2, "LEA"). What only looks like one is among
/// them.
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
