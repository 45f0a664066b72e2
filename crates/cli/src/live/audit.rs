//! `--audit FILE`: writes a line of JSON for each action on a process
//! (`docs/schemas/audit-1.json`).
//!
//! A separate thread writes the lines, but only while no thread of any process is held. So a slow,
//! full or missing disk does not delay any process.

use anyhow::Context;
use memhook_foreign::{open_appended, visible_json};
use memhook_inject::{Act, AuditEntry, AuditNote, is_holding, read_acts, wait_for_reader};
use memhook_process::{ElfView, Mapping, ModuleFiles, mappings, modules};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::{Duration, UNIX_EPOCH};

const SCHEMA: &str = "memhook-rs/audit/1";
/// Maximum time for which an exiting command waits for its lines to be written.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// Time between two checks whether a thread is held.
const PAUSE: Duration = Duration::from_millis(1);
/// Maximum number of addresses in a line. If there are more, only their number is written.
const MOST_LISTED: usize = 4096;
/// Maximum number of remembered function names.
const MOST_NAMES: usize = 4096;
/// Functions in a process's libraries that memhook-rs calls, by exported name.
const FUNCTIONS: [&str; 18] = [
    "dlopen",
    "__libc_dlopen_mode",
    "dlerror",
    "dladdr",
    "dl_iterate_phdr",
    "free",
    "cfree",
    "malloc_trim",
    "malloc_info",
    "mallinfo2",
    "mallctl",
    "je_mallctl",
    "mi_free",
    "mi_collect",
    "MallocExtension_ReleaseFreeMemory",
    "MallocExtension_GetNumericProperty",
    "tc_free",
    "__errno_location",
];
/// Functions of the hook.
const OF_HOOK: [&str; 4] = [
    "memhook_attach",
    "memhook_patch",
    "memhook_exchange",
    "memhook_close",
];

/// Opens the log file, before any process is touched, and begins to log actions to it.
pub fn start(path: &Path) -> anyhow::Result<()> {
    let file = open_appended(path).context("acts cannot be recorded, so nothing was done")?;
    if let Some(acts) = read_acts() {
        let path = path.display().to_string();
        let writer = Writer {
            file,
            path,
            has_failed: false,
            who: who(),
            names: HashMap::new(),
        };
        let thread = std::thread::Builder::new().name("audit".into());
        thread.spawn(|| writer.write_all(acts))?;
    }
    Ok(())
}

/// Waits until everything is written.
pub fn finish() {
    wait_for_reader(END_PATIENCE);
}

/// Returns facts about the user and the command, which all lines contain.
fn who() -> Map<String, Value> {
    // 4294967295 means that no user has logged in (proc_pid_loginuid(5)).
    let login = std::fs::read_to_string("/proc/self/loginuid");
    let login = login.ok().and_then(|text| text.trim().parse::<u32>().ok());
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let mut who = Map::new();
    who.insert("uid".into(), json!(nix::unistd::getuid().as_raw()));
    who.insert("loginuid".into(), json!(login.filter(|&id| id != u32::MAX)));
    who.insert("attacher".into(), json!(std::process::id()));
    who.insert("command".into(), json!(words.collect::<Vec<_>>()));
    who
}

struct Writer {
    file: File,
    path: String,
    has_failed: bool,
    who: Map<String, Value>,
    /// Names of each process's functions by address, as used by the lines written so far.
    names: HashMap<(i32, Option<u64>, u64), String>,
}

impl Writer {
    fn write_all(mut self, acts: Receiver<AuditNote>) {
        for note in acts {
            while is_holding() {
                std::thread::sleep(PAUSE);
            }
            match note {
                AuditNote::Act(entry) => self.write(&entry),
                AuditNote::End(end) => {
                    let _ = self.file.sync_data();
                    let _ = end.send(());
                }
            }
        }
    }

    fn write(&mut self, entry: &AuditEntry) {
        let line = self.line(entry).to_string();
        let mut line = visible_json(&line).into_owned();
        line.push('\n');
        // Each line is a single write, because other processes may append to the same file.
        if let Err(error) = self.file.write_all(line.as_bytes())
            && !std::mem::replace(&mut self.has_failed, true)
        {
            eprintln!(
                "memhook-rs: cannot write to {}: {error}; acts from here on may be missing in it",
                self.path
            );
        }
    }

    fn line(&mut self, entry: &AuditEntry) -> Value {
        let time = entry.time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut line = Map::new();
        line.insert("schema".into(), json!(SCHEMA));
        line.insert("time_s".into(), json!(time.as_secs_f64()));
        line.extend(self.who.clone());
        line.insert("pid".into(), json!(entry.pid));
        line.insert("started".into(), json!(entry.started));
        let (act, facts) = self.facts(entry);
        line.insert("act".into(), json!(act));
        if let Value::Object(facts) = facts {
            line.extend(facts);
        }
        Value::Object(line)
    }

    fn facts(&mut self, entry: &AuditEntry) -> (&'static str, Value) {
        let listed = |places: &[u64]| {
            let shown = &places[..places.len().min(MOST_LISTED)];
            json!({"count": places.len(), "addresses": shown})
        };
        let range = |range: &std::ops::Range<u64>| json!({"start": range.start, "end": range.end});
        match &entry.act {
            Act::Stop(held) => ("stop", json!({"held_ms": held.as_secs_f64() * 1e3})),
            Act::Call {
                function,
                calls,
                arguments,
            } => {
                let name = self.name(entry, *function);
                // Each call of a release function concerns one block.
                let is_release = name.rsplit('!').next().is_some_and(is_release);
                let shown = &arguments[..arguments.len().min(MOST_LISTED)];
                let act = if is_release { "release" } else { "call" };
                let shown = if is_release {
                    &shown[..shown.len().min(*calls)]
                } else {
                    shown
                };
                let facts = json!({"function": name, "calls": calls, "arguments": shown});
                (act, facts)
            }
            Act::SystemCall {
                number,
                arguments,
                result,
            } => {
                let act = if is_mapping(*number) {
                    "mapping"
                } else {
                    "system_call"
                };
                let facts = json!({
                    "system_call": system_call(*number),
                    "arguments": arguments,
                    "result": result,
                });
                (act, facts)
            }
            Act::Exchange(places) => ("exchange", listed(places)),
            Act::Slots(places) => ("slots", listed(places)),
            Act::SlotsBack(places) => ("slots_back", listed(places)),
            Act::Write(place) => ("write", range(place)),
            Act::Protect(place) => ("protect", range(place)),
            Act::ClearMarks => ("clear_marks", json!({})),
            Act::Fork(child) => ("fork", json!({"child": child})),
        }
    }

    /// Returns `library!function`, or `library+0x1a2b0` for a function without a known name.
    fn name(&mut self, entry: &AuditEntry, address: u64) -> String {
        let key = (entry.pid, entry.started, address);
        if let Some(name) = self.names.get(&key) {
            return name.clone();
        }
        // The map is bounded, because an agent sees many processes come and go.
        if self.names.len() >= MOST_NAMES {
            self.names.clear();
        }
        let name = name_of(entry.pid, address).unwrap_or_else(|| format!("{address:#x}"));
        self.names.insert(key, name.clone());
        name
    }
}

fn name_of(pid: i32, address: u64) -> Option<String> {
    let maps = mappings(pid).ok()?;
    let mapping = maps
        .iter()
        .find(|mapping: &&Mapping| mapping.contains(address))?;
    let file = mapping.path.rsplit('/').next().unwrap_or_default();
    let images = modules(pid, &maps, &mut ModuleFiles::new()).unwrap_or_default();
    let image = images.iter().find(|image| image.path == mapping.path);
    let exported = image.and_then(|image| {
        let bytes = image.bytes.whole();
        let elf = ElfView::parse(&bytes).ok()?;
        let names = FUNCTIONS.into_iter().chain(OF_HOOK);
        let svma = address.wrapping_sub(image.base);
        let found = elf.exported_of(names.clone());
        // If a function has several names, the usual one is used.
        let is_it = |name: &&str| found.get(name).is_some_and(|one| one.svma == svma);
        names.into_iter().find(is_it)
    });
    Some(match exported {
        Some(name) => format!("{file}!{name}"),
        None => format!("{file}+{:#x}", address - mapping.start + mapping.offset),
    })
}

fn is_release(name: &str) -> bool {
    matches!(name, "free" | "cfree" | "mi_free" | "tc_free")
}

fn is_mapping(number: i64) -> bool {
    matches!(
        number,
        libc::SYS_mmap | libc::SYS_munmap | libc::SYS_mprotect | libc::SYS_mremap
    )
}

/// Returns the name of a system call, or its number.
fn system_call(number: i64) -> String {
    let known = [
        (libc::SYS_mmap, "mmap"),
        (libc::SYS_munmap, "munmap"),
        (libc::SYS_mprotect, "mprotect"),
        (libc::SYS_mremap, "mremap"),
        (libc::SYS_madvise, "madvise"),
        (libc::SYS_memfd_create, "memfd_create"),
        (libc::SYS_ftruncate, "ftruncate"),
        (libc::SYS_openat, "openat"),
        (libc::SYS_close, "close"),
        (libc::SYS_pwrite64, "pwrite64"),
        (libc::SYS_sigaltstack, "sigaltstack"),
        (libc::SYS_prctl, "prctl"),
        (libc::SYS_userfaultfd, "userfaultfd"),
        (libc::SYS_membarrier, "membarrier"),
    ];
    let name = known.iter().find(|(known, _)| *known == number);
    name.map_or_else(|| number.to_string(), |(_, name)| (*name).to_owned())
}
