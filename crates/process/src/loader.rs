//! Dynamic loader of a process, and the modules that it lists as loaded.

use crate::{
    Error, Mapping, RemoteAddress, loaded_elf::LoadedElf, memory::Pages, proc_path,
    proc_text::proc_bytes,
};
use std::time::{Duration, Instant};

/// Start addresses of a program (getauxval(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auxiliary {
    /// Entry point of the executable.
    pub entry: u64,
    /// Address of the loader's ELF header; 0 if the kernel has not loaded one.
    pub loader: u64,
}

/// Types of `<elf.h>` in the auxiliary vector.
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;

impl Auxiliary {
    /// Reads the values of a process.
    pub fn of(pid: i32) -> Result<Auxiliary, Error> {
        let path = proc_path(pid, "auxv");
        let bytes = proc_bytes(&path).map_err(|cause| Error::Proc { path, cause })?;
        let (pairs, _) = bytes.as_chunks::<16>();
        let value = |kind: u64| {
            let found = pairs.iter().find(|pair| pair[..8] == kind.to_le_bytes());
            let value = found.and_then(|pair| pair[8..].first_chunk());
            value.map_or(0, |value| u64::from_le_bytes(*value))
        };
        Ok(Auxiliary {
            entry: value(AT_ENTRY),
            loader: value(AT_BASE),
        })
    }
}

/// Returns true if the program of a process is static: the kernel has not loaded a loader for it, and it is not a
/// loader itself.
pub fn is_static(pid: i32) -> bool {
    let has_no_loader = Auxiliary::of(pid).is_ok_and(|auxiliary| auxiliary.loader == 0);
    has_no_loader && crate::mappings(pid).is_ok_and(|maps| Loader::of(pid, &maps).is_none())
}

/// Returns true if a process was started with LD_AUDIT (ld.so(8)).
pub fn is_audited(pid: i32) -> bool {
    has_variable(pid, |variable| variable.starts_with(b"LD_AUDIT="))
}

/// Returns true if a process was started with a matching variable (`NAME=value`) in its environment.
pub(crate) fn has_variable(pid: i32, is_it: impl Fn(&[u8]) -> bool) -> bool {
    /// Kernel limit (execve(2), "Limits on size of arguments and environment").
    const MOST_BYTES: u64 = 8 << 20;
    let path = proc_path(pid, "environ");
    let environment = memhook_foreign::read_start(path, MOST_BYTES).unwrap_or_default();
    environment.split(|&byte| byte == 0).any(is_it)
}

/// Dynamic loader of a process.
#[derive(Clone, Debug)]
pub struct Loader {
    /// Address of the loader's ELF header (avma).
    pub start: u64,
    elf: LoadedElf,
    /// Address of `struct r_debug` of `<link.h>`, which describes the modules to debuggers.
    debug: u64,
    /// Address of an empty function that is called whenever the list of modules starts or stops changing.
    pub debug_state: Option<u64>,
    /// True if it is glibc's.
    pub is_glibc: bool,
}

/// A module in the loader's list.
#[derive(Clone, Debug)]
pub(crate) struct Linked {
    pub bias: u64,
    pub section: u64,
}

/// Members of `struct r_debug` and of `struct link_map` (`<link.h>`).
const R_MAP: u64 = 8;
const R_STATE: u64 = 24;
const RT_CONSISTENT: u32 = 0;
const L_LD: u64 = 16;
const L_NEXT: u64 = 24;
/// Longest wait while a list is marked as changing. Constructors run after the change.
const CHANGE_PATIENCE: Duration = Duration::from_millis(50);
/// Maximum length of the list. A longer list must be circular.
const MOST_MODULES: usize = 1 << 16;

impl Loader {
    /// Finds the loader of a process; `None` for a static program.
    pub fn of(pid: i32, maps: &[Mapping]) -> Option<Loader> {
        let mut pages = Pages::of(pid).ok()?;
        Loader::find(pid, maps, &mut pages)
    }

    pub(crate) fn find(pid: i32, maps: &[Mapping], pages: &mut Pages) -> Option<Loader> {
        let auxiliary = Auxiliary::of(pid).ok()?;
        let start = match auxiliary.loader {
            // A program without a loader is static, or is a loader that was started as a program.
            0 => {
                let text = maps.iter().find(|m| m.contains(auxiliary.entry))?;
                maps.iter().find(|m| m.is_same_file(text))?.start
            }
            start => start,
        };
        let elf = LoadedElf::at_header(pages, start)?;
        let mut address = |name: &str| Some(elf.symbol(pages, name)?.address);
        let debug_state = address("_dl_debug_state");
        let of_glibc = ["_rtld_global", "_dl_catch_exception"];
        let is_glibc = of_glibc.iter().any(|name| address(name).is_some());
        let debug = if is_glibc {
            address("_r_debug")
        } else {
            // musl has a pointer to it.
            address("_dl_debug_addr").and_then(|at| pages.word(at))
        };
        Some(Loader {
            start,
            debug: debug?,
            debug_state,
            is_glibc,
            elf,
        })
    }

    /// Returns true if its list of modules is complete at the moment.
    pub fn is_consistent(&self, pid: i32) -> bool {
        let state = crate::read_word(pid, RemoteAddress(self.debug) + R_STATE);
        state.is_some_and(|word| word as u32 == RT_CONSISTENT)
    }

    /// Returns the modules of the program's own namespace (dlmopen(3)), in load order.
    pub(crate) fn modules(&self, pages: &mut Pages) -> Vec<Linked> {
        let mut next = pages.word(self.debug.wrapping_add(R_MAP)).unwrap_or(0);
        let mut modules = Vec::new();
        while next != 0 && modules.len() < MOST_MODULES {
            let mut member = |offset| pages.word(next.wrapping_add(offset));
            let (Some(bias), Some(section), Some(after)) =
                (member(0), member(L_LD), member(L_NEXT))
            else {
                break;
            };
            modules.push(Linked { bias, section });
            next = after;
        }
        modules
    }

    /// Returns true if the loader has begun the list. The loaders of glibc and musl set `r_version` once the program's
    /// own modules are loaded.
    pub fn has_begun(&self, pid: i32) -> bool {
        let version = crate::read_word(pid, RemoteAddress(self.debug));
        version.is_some_and(|word| word as u32 != 0)
    }

    /// Returns the dynamic sections of modules that musl will never unload. musl unloads a module only if the dlopen(3)
    /// that loads it fails, and the list is marked as changing during that dlopen. So a module that is listed while the
    /// list is not marked stays. The list and the mark cannot be read at the same moment. So the list is read several
    /// times, each time between two checks of the mark: no dlopen can begin and fail within every one of these
    /// readings.
    pub(crate) fn settled_modules(&self, pid: i32) -> Vec<u64> {
        const READINGS: u32 = 3;
        let begin = Instant::now();
        let mut settled: Option<Vec<u64>> = None;
        let mut readings = 0;
        while readings < READINGS && begin.elapsed() < CHANGE_PATIENCE {
            let before = self.is_consistent(pid);
            let Ok(mut pages) = Pages::of(pid) else {
                break;
            };
            let listed = self.modules(&mut pages);
            if !before || !self.is_consistent(pid) {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            readings += 1;
            let sections = listed.iter().map(|module| module.section);
            settled = Some(match settled {
                None => sections.collect(),
                Some(known) => sections.filter(|section| known.contains(section)).collect(),
            });
        }
        settled.filter(|_| readings == READINGS).unwrap_or_default()
    }

    pub(crate) fn elf(&self) -> &LoadedElf {
        &self.elf
    }
}
