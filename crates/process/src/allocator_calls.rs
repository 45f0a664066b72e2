//! Counts the calls to allocators in a module's code: those through slots, and those that are invisible because they go
//! directly to a function of the module itself.

use crate::arch::native::calls::{relative_calls, slot_jumps};
use crate::loader::has_variable;
use crate::{ElfView, ModuleBytes, ModuleImage};
use goblin::elf::{Elf, sym};
use memhook_abi::{ALLOCATORS, Allocator, AllocatorNames, known_allocator};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// Calls in one module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocatorCalls {
    /// Number of call sites that use a slot, or call a function that is hooked at its entry.
    pub through_slots: u64,
    /// Number of call sites that go directly to each function of the module.
    pub direct: BTreeMap<String, u64>,
    /// Allocator built into the module, if its functions or its messages are known.
    pub allocator: Option<&'static str>,
    /// Pool allocator of the module, which hands out parts of larger blocks.
    pub pool: Option<&'static Pool>,
}

/// An allocator built on top of another one that it does not call for small blocks.
#[derive(Debug, PartialEq, Eq)]
pub struct Pool {
    /// Exported function that identifies it.
    mark: &'static str,
    /// Value of the environment variable that turns the pool off. With the suffix `_debug`, the replacement has
    /// additional checks.
    avoided_by: &'static str,
    /// Text about calls that are not seen, with a remedy.
    pub advice: &'static str,
}

static POOLS: [Pool; 1] = [Pool {
    mark: "PyObject_Malloc",
    avoided_by: "PYTHONMALLOC=malloc",
    advice: "Python allocates objects of up to 512 bytes from its own arenas, which are not traced: start it with PYTHONMALLOC=malloc",
}];

impl Pool {
    /// Returns true if the process was started without the pool.
    pub fn is_avoided(&self, pid: i32) -> bool {
        has_variable(pid, |variable| {
            let behind = variable.strip_prefix(self.avoided_by.as_bytes());
            matches!(behind, Some(b"" | b"_debug"))
        })
    }
}

/// Returns true if a process was started with all of its pool allocators turned off.
pub fn avoids_pools(pid: i32) -> bool {
    POOLS.iter().all(|pool| pool.is_avoided(pid))
}

impl AllocatorCalls {
    /// Returns the number of call sites that cannot be seen.
    pub fn direct_count(&self) -> u64 {
        self.direct.values().sum()
    }

    /// Returns the counts that apply if the functions of the module's own allocator are hooked at their entries.
    pub fn all_seen(mut self) -> AllocatorCalls {
        self.through_slots += self.direct_count();
        self.direct.clear();
        self.allocator = None;
        self
    }

    /// Describes which calls are not seen.
    pub fn direct_text(&self) -> Option<String> {
        let count = self.direct_count();
        match self.direct.iter().max_by_key(|(_, count)| **count) {
            Some((name, _)) => Some(format!(
                "{} is part of it: {count} direct calls ({name}, ...) use no slot",
                self.allocator.unwrap_or("an allocator")
            )),
            None => self.allocator.map(|allocator| {
                format!("{allocator} is part of it: its allocations are not seen")
            }),
        }
    }
}

/// Counts the calls in a file, given that the slots of `wanted` functions are hooked. A library that exports `malloc`
/// is itself an allocator, so its internal calls are not counted.
pub fn allocator_calls(
    bytes: &[u8],
    is_main: bool,
    wanted: &dyn Fn(&str) -> bool,
) -> AllocatorCalls {
    let mut calls = AllocatorCalls::default();
    let (Ok(view), Ok(elf)) = (ElfView::parse(bytes), Elf::parse(bytes)) else {
        return calls;
    };
    let mut pools = POOLS.iter();
    calls.pool = pools.find(|pool| view.exported(pool.mark).is_some());
    let slots: HashSet<u64> = view.slots(wanted).iter().map(|r| r.svma).collect();
    let is_allocator = !is_main && view.exported("malloc").is_some();
    let mut own: HashMap<u64, String> = HashMap::new();
    let mut inside: Vec<Range<u64>> = Vec::new();
    if !is_allocator {
        let mut known = None;
        let all: Vec<(sym::Sym, &str)> = functions(&elf).collect();
        let names = AllocatorNames::among(all.iter().map(|(_, name)| *name));
        for &(symbol, name) in &all {
            if let Some(allocator) = names.allocator(name) {
                known = known.or(allocator);
                own.insert(symbol.st_value, name.to_owned());
            }
        }
        known = known.or_else(|| allocator_by_message(bytes));
        calls.allocator = known.map(|allocator| allocator.name);
        // The functions of an allocator call each other. Such calls are not allocations by the program.
        for &(symbol, name) in &all {
            let of_allocator = known.is_some_and(|a| names.is_within(a, name));
            if of_allocator || own.contains_key(&symbol.st_value) {
                let end = symbol.st_value.saturating_add(symbol.st_size);
                inside.push(symbol.st_value..end);
            }
        }
        inside.sort_unstable_by_key(|range| (range.start, range.end));
    }
    let mut stubs = HashSet::new();
    for (svma, code) in view.code() {
        calls.through_slots += slot_jumps(svma, code, &slots, &mut stubs);
    }
    for (svma, code) in view.code() {
        relative_calls(svma, code, |from, to| {
            if stubs.contains(&to) {
                calls.through_slots += 1;
            } else if let Some(name) = own.get(&to)
                && !is_inside(&inside, from)
            {
                *calls.direct.entry(name.clone()).or_default() += 1;
            }
        });
    }
    calls
}

/// Returns the allocator built into a module that is not an allocator's library. The module's allocations from it do
/// not go through a slot. Python's own copy of an allocator does not count, because it is used only on request.
pub fn built_in_allocator(module: &ModuleImage) -> Option<&'static str> {
    let exports = |name: &str| module.facts.exported(name).is_some();
    match (exports("malloc"), module.is_main) {
        (true, false) => None,
        (true, true) => Some(known_allocator(exports).unwrap_or("an allocator")),
        (false, _) => {
            let found = || allocator_in_file(&module.bytes);
            *module.facts.built_in_allocator.get_or_init(found)
        }
    }
}

fn allocator_in_file(file: &ModuleBytes) -> Option<&'static str> {
    let found = match file.constants() {
        Some(sections) => sections
            .iter()
            .find_map(|bytes| allocator_by_message(bytes)),
        None => allocator_by_message(&file.whole()),
    };
    let is_python = || {
        let view = ElfView::parse(file);
        view.is_ok_and(|view| POOLS.iter().any(|pool| view.exported(pool.mark).is_some()))
    };
    Some(found.filter(|_| !is_python())?.name)
}

/// Recognizes an allocator by its messages, in a file that has no symbols for the allocator.
fn allocator_by_message(bytes: &[u8]) -> Option<&'static Allocator> {
    let has = |a: &&Allocator| {
        !a.message.is_empty() && memchr::memmem::find(bytes, a.message.as_bytes()).is_some()
    };
    ALLOCATORS.iter().find(has)
}

fn functions<'a>(elf: &'a Elf<'a>) -> impl Iterator<Item = (sym::Sym, &'a str)> {
    let full = elf.syms.iter().map(|s| (s, elf.strtab.get_at(s.st_name)));
    let dynamic = elf
        .dynsyms
        .iter()
        .map(|s| (s, elf.dynstrtab.get_at(s.st_name)));
    full.chain(dynamic).filter_map(|(symbol, name)| {
        let defined = symbol.st_shndx != 0 && symbol.st_type() == sym::STT_FUNC;
        defined.then_some((symbol, name?))
    })
}

fn is_inside(ranges: &[Range<u64>], svma: u64) -> bool {
    let after = ranges.partition_point(|range| range.start <= svma);
    after > 0 && svma < ranges[after - 1].end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(name: &str) -> bool {
        memhook_abi::function_by_name(name).is_some()
    }

    fn build(name: &str, source: &str, flags: &[&str]) -> Vec<u8> {
        let base =
            std::env::temp_dir().join(format!("memhook-calls-{}-{name}", std::process::id()));
        let (c, out) = (base.with_extension("c"), base.with_extension("out"));
        std::fs::write(&c, source).unwrap();
        let mut cc = std::process::Command::new("cc");
        cc.args(["-O1", "-fno-builtin"])
            .args(flags)
            .arg(&c)
            .arg("-o")
            .arg(&out);
        assert!(cc.status().unwrap().success());
        let bytes = std::fs::read(&out).unwrap();
        let _ = (std::fs::remove_file(&c), std::fs::remove_file(&out));
        bytes
    }

    const THREE: &str = "#include <stdlib.h>
        void *p, *q; int main() { p = malloc(9); q = malloc(8); free(p); return 0; }";

    #[test]
    fn calls_through_slots() {
        for flags in [
            &["-Wl,-z,lazy"][..],
            &["-fno-plt"],
            &["-fcf-protection=full", "-Wl,-z,ibtplt"],
            &["-no-pie"],
        ] {
            let calls = allocator_calls(&build("slots", THREE, flags), true, &wanted);
            assert_eq!(calls.through_slots, 3, "{flags:?}");
            assert_eq!(calls.direct_text(), None);
        }
    }

    #[test]
    fn direct_calls() {
        let source = "typedef unsigned long size_t; void *p, *q; char pool[99];
            __attribute__((noinline)) void *je_malloc(size_t n) { asm(\"\"); return pool + n; }
            __attribute__((noinline)) void *je_calloc(size_t n, size_t m) { asm(\"\"); return je_malloc(n * m) + 1; }
            int main(int n, char **v) { p = je_malloc(n); q = je_calloc(n, 2); je_malloc(n); return 0; }";
        let calls = allocator_calls(&build("direct", source, &[]), true, &wanted);
        assert_eq!(calls.direct_count(), 3);
        assert_eq!(calls.direct["je_malloc"], 2);
        assert!(
            calls
                .direct_text()
                .unwrap()
                .starts_with("jemalloc is part of it: 3 direct")
        );
    }

    #[test]
    fn libraries() {
        let libc = std::fs::read("/lib/x86_64-linux-gnu/libc.so.6").unwrap();
        let calls = allocator_calls(&libc, false, &wanted);
        assert!(calls.through_slots > 100, "{calls:?}");
        assert_eq!(calls.direct_count(), 0);
        assert_eq!(
            allocator_calls(b"no ELF", true, &wanted),
            AllocatorCalls::default()
        );
    }
}
