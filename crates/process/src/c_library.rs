//! The C library of a process: its kind, its address, and the parts of its code that must not be interrupted.
//!
//! The C library is recognized by the modules that the loader has loaded and by its exports, never by the name of a
//! file, because a program may map any file, at any address, under any name.

use crate::loaded_elf::LoadedElf;
use crate::memory::Pages;
use crate::{Loader, Mapping, ModuleFacts, ModuleImage, RemoteAddress};
use std::cell::RefCell;
use std::ops::Range;

/// Kind of C library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CLibraryKind {
    /// The GNU C library.
    Glibc,
    /// musl, whose loader is also the C library.
    Musl,
}

/// Name of glibc's main library (DT_SONAME), and a function that only glibc has.
const GLIBC: &str = "libc.so.6";
const GLIBC_MARK: &str = "gnu_get_libc_version";
/// Libraries of glibc that contained `dlopen` and `pthread_create` before version 2.34.
const GLIBC_PARTS: [&str; 2] = ["libdl.so.2", "libpthread.so.0"];
/// Prefix of the names of glibc's loaders.
const GLIBC_LOADER: &str = "ld-linux";
/// Function with which a C library starts programs.
const START: &str = "__libc_start_main";

/// C library of a process, in the program's own namespace (dlmopen(3)).
pub struct CLibrary {
    /// Kind of the library.
    pub kind: CLibraryKind,
    /// Mapping of its code.
    pub code: Mapping,
    /// Libraries that belong to it, the main one first.
    parts: Vec<LoadedElf>,
    pages: RefCell<Pages>,
}

impl CLibrary {
    /// Finds the C library of a process; `None` if it has none, or has not loaded it yet.
    pub fn of(pid: i32, maps: &[Mapping]) -> Option<CLibrary> {
        let mut pages = Pages::of(pid).ok()?;
        let loader = Loader::find(pid, maps, &mut pages)?;
        let (kind, parts) = if loader.is_glibc {
            (CLibraryKind::Glibc, glibc_parts(&loader, &mut pages)?)
        } else {
            (CLibraryKind::Musl, vec![loader.elf().clone()])
        };
        let start = parts[0].function(&mut pages, START)?;
        Some(CLibrary {
            kind,
            code: maps.iter().find(|m| m.contains(start))?.clone(),
            parts,
            pages: RefCell::new(pages),
        })
    }

    /// Returns the address of an exported function.
    pub fn function(&self, name: &str) -> Option<RemoteAddress> {
        let mut pages = self.pages.borrow_mut();
        let mut parts = self.parts.iter();
        let found = parts.find_map(|part| part.function(&mut pages, name));
        found.map(RemoteAddress)
    }
}

fn glibc_parts(loader: &Loader, pages: &mut Pages) -> Option<Vec<LoadedElf>> {
    let listed = loader.modules(pages);
    let mut loaded: Vec<LoadedElf> = listed
        .iter()
        .filter_map(|module| LoadedElf::with_dynamic(pages, module.bias, module.section))
        .collect();
    let is_main = |elf: &LoadedElf, pages: &mut Pages| {
        elf.is_named(pages, GLIBC) && elf.function(pages, GLIBC_MARK).is_some()
    };
    let main = loaded.iter().position(|elf| is_main(elf, pages))?;
    let mut parts = vec![loaded.swap_remove(main)];
    for name in GLIBC_PARTS {
        let mut others = loaded.iter();
        parts.extend(others.find(|elf| elf.is_named(pages, name)).cloned());
    }
    Some(parts)
}

/// Returns true if a file is glibc's main library.
pub(crate) fn is_glibc(facts: &ModuleFacts) -> bool {
    facts.soname.as_deref() == Some(GLIBC) && facts.exported(GLIBC_MARK).is_some()
}

/// Returns the version of glibc, from the banner in its read-only data: `stable release version 2.36.`
pub fn glibc_version(bytes: &[u8]) -> Option<String> {
    let banner = b"GNU C Library";
    let at = memchr::memmem::find(bytes, banner)?;
    let text = String::from_utf8_lossy(&bytes[at..bytes.len().min(at + 200)]).into_owned();
    let version = text.split("version ").nth(1)?;
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    Some(version[..end].trim_end_matches('.').to_owned())
}

/// Distance by which the static functions of glibc's malloc.c extend below its first public function, and above its
/// last one. They have no dynamic symbols. In the builds of 2.31 to 2.41, `_int_malloc` and similar functions are
/// nearer.
const BELOW_MALLOC: u64 = 24 * 1024;
const ABOVE_MALLOC: u64 = 8 * 1024;

/// Returns the code (avma) of glibc's allocator, in a module that is glibc's main library.
pub fn allocator_code(module: &ModuleImage) -> Option<Range<u64>> {
    let facts = Some(&module.facts).filter(|facts| is_glibc(facts))?;
    let public = [
        "malloc",
        "free",
        "calloc",
        "realloc",
        "memalign",
        "malloc_trim",
    ];
    let addresses = public
        .iter()
        .filter_map(|name| facts.exported(name))
        .map(|function| module.base.wrapping_add(function.svma));
    let (low, high) = (addresses.clone().min()?, addresses.max()?);
    Some(low.saturating_sub(BELOW_MALLOC)..high.saturating_add(ABOVE_MALLOC))
}

/// Functions of glibc that hold the lock on the loader's list of modules while they call functions of the program,
/// which may take long.
const LOCKING_THE_LOADER: [&str; 2] = ["fork", "dl_iterate_phdr"];

/// Returns true for musl, which is its own loader.
fn is_musl(module: &ModuleImage) -> bool {
    module.is_loader && module.is_libc
}

/// Returns true for a loader that is separate from the C library. If the process's loader could not be read, the
/// module's name decides.
fn is_loader(module: &ModuleImage) -> bool {
    let is_named_so = |soname: &String| soname.starts_with(GLIBC_LOADER);
    let has_its_name = module.facts.soname.as_ref().is_some_and(is_named_so);
    !is_musl(module) && (module.is_loader || has_its_name)
}

/// Returns true if a module is the loader, which is separate from the C library or, with musl, the library itself.
pub(crate) fn is_rtld(module: &ModuleImage) -> bool {
    module.is_loader || is_loader(module)
}

pub(crate) fn is_part_of_glibc(facts: &ModuleFacts) -> bool {
    let is_part = |soname: &String| GLIBC_PARTS.contains(&soname.as_str());
    is_glibc(facts) || facts.soname.as_ref().is_some_and(is_part)
}

/// Returns the code of exported functions.
fn functions(module: &ModuleImage, names: &[&str]) -> impl Iterator<Item = Range<u64>> {
    names.iter().filter_map(|name| {
        let function = module.facts.exported(name)?;
        let start = module.base.wrapping_add(function.svma);
        Some(start..start.saturating_add(function.size.max(1)))
    })
}

/// Returns the code (avma) in which a thread blocks callers of dl_iterate_phdr(3), or may be changing the list that
/// dl_iterate_phdr(3) walks.
pub fn loader_ranges(modules: &[ModuleImage]) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    for module in modules {
        if is_loader(module) {
            ranges.push(module.start..module.end);
        } else if is_part_of_glibc(&module.facts) {
            ranges.extend(functions(module, &LOCKING_THE_LOADER));
        }
    }
    ranges
}

/// Role of a frame's module, for a thread that is to call the loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModulePart {
    /// Code of the program, or of a library that takes no part in loading and allocating.
    Program,
    /// Part of glibc. Every glibc counts, including those of other namespaces (dlmopen(3)).
    Glibc,
    /// musl, which is its own loader and allocates while it holds its own lock.
    Musl,
    /// The loader, the unwinder, and every library that replaces a function called during loading or that calls the
    /// loader. All of them may hold locks that loading needs.
    Locking,
}

/// Library that contains the unwinder, which locks its list of loaded modules.
const UNWINDER: &str = "libgcc_s.so.1";

/// Functions that the loader looks up by name and calls (`__rtld_malloc_init_real` in glibc's elf/dl-minimal.c), or
/// that call the loader. A library with one of them may hold its own lock during the call.
const AROUND_LOADING: [&str; 9] = [
    "malloc",
    "calloc",
    "realloc",
    "free",
    "memalign",
    "dlopen",
    "dlmopen",
    "dlclose",
    "dl_iterate_phdr",
];

/// Returns the role of a module.
pub fn module_part(module: &ModuleImage) -> ModulePart {
    let facts = &module.facts;
    if is_musl(module) {
        ModulePart::Musl
    } else if is_part_of_glibc(facts) {
        ModulePart::Glibc
    } else if is_loader(module)
        || (stands_in(facts) && !module.is_main)
        || facts.soname.as_deref() == Some(UNWINDER)
    {
        ModulePart::Locking
    } else {
        ModulePart::Program
    }
}

fn stands_in(facts: &ModuleFacts) -> bool {
    let mut names = AROUND_LOADING.iter();
    names.any(|name| facts.exported(name).is_some())
}

/// System call wrappers of glibc in which a thread sleeps and, on any path through them, holds no lock of the C
/// library. Of the futex waits, only those for condition variables and semaphores are listed, because the C library
/// itself uses the others to wait for mutexes, the end of threads, and similar events.
pub const WAITING: &[&str] = &[
    "accept",
    "accept4",
    "clock_nanosleep",
    "connect",
    "copy_file_range",
    "epoll_pwait",
    "epoll_pwait2",
    "epoll_wait",
    "fcntl",
    "fcntl64",
    "fdatasync",
    "flock",
    "fsync",
    "getrandom",
    "ioctl",
    "mq_timedreceive",
    "mq_timedsend",
    "msgrcv",
    "msgsnd",
    "nanosleep",
    "open",
    "open64",
    "openat",
    "openat64",
    "pause",
    "poll",
    "ppoll",
    "pread",
    "pread64",
    "preadv",
    "preadv2",
    "pselect",
    "pthread_cond_clockwait",
    "pthread_cond_timedwait",
    "pthread_cond_wait",
    "pwrite",
    "pwrite64",
    "pwritev",
    "pwritev2",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmmsg",
    "recvmsg",
    "sched_yield",
    "select",
    "sem_clockwait",
    "sem_timedwait",
    "sem_wait",
    "semop",
    "semtimedop",
    "send",
    "sendfile",
    "sendfile64",
    "sendmmsg",
    "sendmsg",
    "sendto",
    "sigsuspend",
    "sigtimedwait",
    "sigwait",
    "sigwaitinfo",
    "sleep",
    "splice",
    "syscall",
    "sync_file_range",
    "tee",
    "usleep",
    "wait",
    "wait3",
    "wait4",
    "waitid",
    "waitpid",
    "write",
    "writev",
];

/// Functions of [`WAITING`] that end in a jump to a function without a symbol.
pub const WAITING_ELSEWHERE: &[&str] = &["sem_clockwait", "sem_timedwait", "sem_wait"];

/// Exported glibc functions that appear in the outermost frames of a thread's stack.
pub const STARTING: &[&str] = &["__libc_start_main", "clone"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_in_the_banner() {
        let banner =
            b"xx\0GNU C Library (Debian GLIBC 2.36-9+deb12u9) stable release version 2.36.\n";
        assert_eq!(glibc_version(banner).as_deref(), Some("2.36"));
        assert_eq!(glibc_version(b"GNU C Library"), None);
    }
}
