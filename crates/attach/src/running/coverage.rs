//! Coverage of each module: calls that the hook sees, and calls that it does not.

use crate::plan::hooking::is_hooked;
use crate::session::Session;
use crossbeam_channel::{Receiver, Sender, bounded};
use memhook_abi::known_allocator;
use memhook_abi::slot_state;
use memhook_process::{AllocatorCalls, ModuleImage, allocator_calls, built_in_allocator};
use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

/// Maximum number of unreceived results. Beyond it, the scan waits.
const BACKLOG: usize = 64;
/// Time after which a scan of a file on an unresponsive file system is abandoned.
const LONGEST_SCAN: Duration = Duration::from_secs(120);

/// Path and calls of a module.
type Scanned = (String, AllocatorCalls);

/// Coverage of one module.
#[derive(Clone, Debug)]
pub struct ModuleCoverage {
    /// File name of the module.
    pub module: String,
    /// Its path.
    pub path: String,
    /// Number of slots that lead, or led, to the hook.
    pub hooked: u64,
    /// Number of slots and calls that cannot be hooked.
    pub unhookable: u64,
    /// Reasons for the unhookable ones.
    pub reasons: Vec<String>,
    /// Number of calls in its code that go through slots.
    pub calls_seen: u64,
    /// Allocator that the module's blocks come from, or that is linked into the module and traced.
    pub allocator: Option<ModuleAllocator>,
    /// Description of the calls that the module's own allocator hides from the hook, with a remedy; may be empty.
    pub hidden: &'static str,
}

impl ModuleCoverage {
    /// Returns the coverage of a program that an emulator runs.
    fn of_emulated(path: &str) -> ModuleCoverage {
        ModuleCoverage {
            module: path.rsplit('/').next().unwrap_or(path).to_owned(),
            path: path.to_owned(),
            hooked: 0,
            unhookable: 0,
            reasons: vec!["an emulator runs it: none of its allocations is seen".into()],
            calls_seen: 0,
            allocator: None,
            hidden: "",
        }
    }
}

/// An allocator other than the C library's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleAllocator {
    /// Name of the allocator.
    pub name: &'static str,
    /// True if the allocator is linked into a program, or into a library that is not only an allocator.
    pub is_linked_in: bool,
}

/// Background scans of the modules' code for calls to allocators.
pub struct CallScans {
    /// Results by path; `None`: in progress.
    calls: HashMap<String, Option<AllocatorCalls>>,
    results: (Sender<Scanned>, Receiver<Scanned>),
    /// Time of the last result or request.
    last_progress: Instant,
}

impl Default for CallScans {
    fn default() -> Self {
        CallScans {
            calls: HashMap::new(),
            results: bounded(BACKLOG),
            last_progress: Instant::now(),
        }
    }
}

impl CallScans {
    /// Requests scans of modules that have not been scanned yet.
    pub fn request(&mut self, modules: &[ModuleImage]) {
        let new =
            |m: &&ModuleImage| (!m.is_loader || m.is_libc) && !self.calls.contains_key(&m.path);
        let new: Vec<ModuleImage> = modules.iter().filter(new).cloned().collect();
        if new.is_empty() {
            return;
        }
        self.last_progress = Instant::now();
        self.calls
            .extend(new.iter().map(|m| (m.path.clone(), None)));
        let results = self.results.0.clone();
        // If the thread cannot be started, scanning in the background is skipped, which only delays the end of the
        // trace.
        let started = std::thread::Builder::new().spawn(move || {
            for module in new {
                // A damaged file affects only its own row. A panic of its scan must be caught, because the end of the
                // trace waits for a result.
                let scan = || allocator_calls(&module.bytes.whole(), module.is_main, &is_hooked);
                let calls = catch_unwind(AssertUnwindSafe(scan)).unwrap_or_default();
                if results.send((module.path.clone(), calls)).is_err() {
                    return;
                }
            }
        });
        if started.is_err() {
            self.calls.retain(|_, calls| calls.is_some());
        }
    }

    /// Receives results, waiting for at most `wait`. Returns true if all modules have been scanned, or if a scan has
    /// taken so long that its file is considered unreadable.
    pub fn is_ready(&mut self, wait: Duration) -> bool {
        let deadline = Instant::now() + wait;
        let is_given_up = self.last_progress.elapsed() > LONGEST_SCAN;
        while !is_given_up && self.calls.values().any(Option::is_none) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.results.1.recv_timeout(left) {
                Ok((path, calls)) => {
                    self.last_progress = Instant::now();
                    self.calls.insert(path, Some(calls));
                }
                Err(_) => return false,
            }
        }
        true
    }

    /// Returns the modules with calls that are seen or that are known to be missed.
    pub fn coverage(&self, session: &Session) -> Vec<ModuleCoverage> {
        let slots = session.region().slots();
        let mut found = Vec::new();
        for module in session.modules() {
            let of = |state| {
                let of_state = |s: &&_| is_slot_of(s, module) && s.state == state;
                slots.iter().filter(of_state).count() as u64
            };
            let hooked = of(slot_state::PATCHED) + of(slot_state::RESTORED);
            let refused = of(slot_state::REFUSED) + of(slot_state::CHANGED);
            let mut reasons: Vec<String> = session
                .unhookable()
                .iter()
                .filter(|(name, _)| name == module.name())
                .map(|(_, reason)| (*reason).to_owned())
                .collect();
            let mut unhookable = refused + reasons.len() as u64;
            if of(slot_state::REFUSED) > 0 {
                reasons.push("the page cannot be made writable".into());
            }
            if of(slot_state::CHANGED) > 0 {
                reasons.push("a slot does not hold the function that the loader put there".into());
            }
            for refused in session.refused_pads(module) {
                reasons.push(format!("{}: {}", refused.name, refused.why));
                unhookable += 1;
            }
            if session.is_unannounced(module) {
                reasons.push("calls before memhook-rs found it are not seen: it was not opened by a call of dlopen that can be followed".into());
            }
            let calls = self.calls.get(&module.path).cloned().flatten();
            let allocator = allocator_of(session, module, calls.as_ref(), &slots);
            let calls = if session.covers_allocator_of(module) {
                calls.map(AllocatorCalls::all_seen)
            } else {
                calls
            };
            if let Some(calls) = &calls
                && let Some(text) = calls.direct_text()
            {
                unhookable += calls.direct_count();
                reasons.push(text);
            }
            let pool = calls.as_ref().and_then(|calls| calls.pool);
            let pool = pool.filter(|_| session.uses_pools());
            let says_something = !reasons.is_empty() || pool.is_some() || allocator.is_some();
            if hooked + unhookable == 0 && !says_something {
                continue;
            }
            reasons.dedup();
            found.push(ModuleCoverage {
                module: module.name().to_owned(),
                path: module.path.clone(),
                hooked,
                unhookable,
                reasons,
                calls_seen: calls.map_or(0, |calls| calls.through_slots),
                allocator,
                hidden: pool.map_or("", |pool| pool.advice),
            });
        }
        found.extend(session.emulated().map(ModuleCoverage::of_emulated));
        found
    }
}

/// Returns the allocator of this module's blocks if it is not the C library's.
fn allocator_of(
    session: &Session,
    module: &ModuleImage,
    calls: Option<&AllocatorCalls>,
    slots: &[memhook_stream::SlotView],
) -> Option<ModuleAllocator> {
    if module.is_libc || module.is_loader {
        return None;
    }
    if session.covers_allocator_of(module) {
        let name = calls?.allocator?;
        return Some(ModuleAllocator {
            name,
            is_linked_in: true,
        });
    }
    let exports = |name: &str| module.facts.exported(name).is_some();
    let leads_in = |slot: &memhook_stream::SlotView| {
        module.contains(slot.original) && !is_slot_of(slot, module)
    };
    let is_used = || slots.iter().any(leads_in);
    let is_library = !module.is_main && exports("malloc") && is_used();
    let name = known_allocator(exports).filter(|_| is_library)?;
    Some(ModuleAllocator {
        name,
        is_linked_in: false,
    })
}

fn is_slot_of(slot: &memhook_stream::SlotView, module: &ModuleImage) -> bool {
    slot.module_base == module.base
}

/// Describes, in a sentence each, the allocators that are linked into other modules, through which the program may
/// allocate or leak without the trace seeing any event.
pub fn unseen_allocators(session: &Session) -> impl Iterator<Item = String> {
    let modules = session.modules().iter();
    let others = modules.filter(|m| !m.is_libc && !m.is_loader);
    others.filter_map(|module| {
        if session.is_static() {
            return Some(format!(
                "{} is statically linked: stale pointers in the free blocks of its allocator may hide leaks",
                module.name()
            ));
        }
        let allocator = built_in_allocator(module)?;
        let what = if session.covers_allocator_of(module) {
            "stale pointers in its free blocks may hide leaks"
        } else {
            "allocations from it go through no slot"
        };
        Some(format!("{allocator} is part of {}: {what}", module.name()))
    })
}
