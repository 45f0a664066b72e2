//! The call stacks of probed functions, as rows and as a profile for a flame graph.

use crate::live_profile::{LiveProfiler, LiveSite};
use crate::named_run::{Backtrace, Backtraces};
use crate::{Amount, Profile, ProfileFrame, StackFrame, Target};
use memhook_symbols::{ModuleFile, Symbolizer};
use serde::Serialize;
use std::collections::HashMap;
use std::time::Duration;

/// Number of calls of a function on one call stack.
#[derive(Clone, Debug, Default)]
pub struct CountedStack {
    /// Number of the probe.
    pub probe: usize,
    /// Return addresses of the callers, innermost first; empty if the stack is unknown.
    pub addresses: Vec<u64>,
    /// True if the stack is longer than recorded, but the unwinder could not follow it.
    pub truncated: bool,
    /// Number of calls.
    pub calls: u64,
}

/// A call stack with names.
#[derive(Clone, Debug, Serialize)]
pub struct StackRow {
    /// Number of calls.
    pub calls: u64,
    /// The callers, innermost first.
    pub stack: Vec<StackFrame>,
    /// True if the outermost callers are missing.
    pub truncated: bool,
}

/// A probed function, which is the innermost frame of its stacks.
#[derive(Clone, Debug)]
pub struct ProbedFunction {
    /// Its name.
    pub name: String,
    /// File name of its module.
    pub module: String,
    /// Entry address of the function (avma).
    pub entry: u64,
}

/// Looks up the names of call stacks.
pub struct ProbeStacks {
    profiler: LiveProfiler,
    functions: Vec<ProbedFunction>,
}

/// Call stacks with names.
pub struct NamedStacks {
    /// All call stacks. In this profile, a block represents a call.
    pub profile: Profile,
    /// The probe of each site of the profile.
    probes: Vec<usize>,
}

/// Stacks by their index. The probed function comes first, as if it had been called at its entry.
struct Listed<'a>(&'a [CountedStack], &'a [ProbedFunction]);

impl Backtraces for Listed<'_> {
    fn backtrace(&self, id: u32) -> Option<Backtrace> {
        let stack = self.0.get(id as usize)?;
        let entry = self.1.get(stack.probe)?.entry;
        Some(Backtrace {
            function: 0,
            addresses: [in_function(entry)]
                .into_iter()
                .chain(stack.addresses.iter().copied())
                .collect(),
            truncated: stack.truncated,
        })
    }
}

/// Returns an address for which the lookup finds the function's entry, because lookups use the byte
/// before a return address.
fn in_function(entry: u64) -> u64 {
    entry.wrapping_add(1)
}

impl ProbeStacks {
    /// Begins to look up names. `depth` is the maximum number of frames collected from each stack.
    pub fn begin(
        target: Target,
        depth: u32,
        functions: Vec<ProbedFunction>,
        stacks: Vec<CountedStack>,
        modules: Vec<ModuleFile>,
        symbols: Symbolizer,
    ) -> ProbeStacks {
        let mut profiler = LiveProfiler::new(symbols, usize::MAX);
        let site = |(number, stack): (usize, &CountedStack)| LiveSite {
            stack: number as u32,
            live: Amount {
                blocks: stack.calls,
                ..Amount::default()
            },
            allocated: Amount::default(),
        };
        let sites = stacks.iter().enumerate().map(site).collect();
        let facts = Profile {
            target,
            // The probed function adds a frame.
            depth: depth.saturating_add(1),
            ..Profile::default()
        };
        profiler.begin(&Listed(&stacks, &functions), modules, sites, facts);
        ProbeStacks {
            profiler,
            functions,
        }
    }

    /// Returns the stacks, if all names arrive within `wait`.
    pub fn poll(&mut self, wait: Duration) -> Option<NamedStacks> {
        let profile = self.profiler.poll(wait)?;
        Some(self.named(profile))
    }

    /// Ends the wait for names. Returns the stacks with the names that have arrived.
    pub fn give_up_names(&mut self) -> Option<NamedStacks> {
        let profile = self.profiler.give_up_names()?;
        Some(self.named(profile))
    }

    /// Merges the frames at a function's entry into one, with the name under which the function was
    /// probed. Functions that are inlined at the entry were not called.
    fn named(&self, mut profile: Profile) -> NamedStacks {
        let of_entry: HashMap<u64, usize> = self
            .functions
            .iter()
            .enumerate()
            .map(|(number, function)| (in_function(function.entry), number))
            .collect();
        let first = profile.frames.len() as u32;
        profile
            .frames
            .extend(self.functions.iter().map(|function| ProfileFrame {
                address: function.entry,
                module: None,
                frame: StackFrame {
                    address: format!("{:#x}", function.entry),
                    module: Some(function.module.clone()),
                    offset: None,
                    function: Some(function.name.clone()),
                    file: None,
                    line: None,
                    inlined: false,
                },
            }));
        let mut probes = Vec::with_capacity(profile.sites.len());
        for site in &profile.sites {
            let frames = &mut profile.stacks[site.stack as usize];
            let address = frames.first().map(|&f| profile.frames[f as usize].address);
            let probe = address.and_then(|address| of_entry.get(&address)).copied();
            let probe = probe.unwrap_or(0);
            let at_entry = in_function(self.functions[probe].entry);
            let callers = frames
                .iter()
                .position(|&f| profile.frames[f as usize].address != at_entry)
                .unwrap_or(frames.len());
            frames.splice(..callers, [first + probe as u32]);
            probes.push(probe);
        }
        NamedStacks { profile, probes }
    }
}

impl NamedStacks {
    /// Returns the stacks of one probe, sorted by calls, most first. Calls with an unknown stack
    /// are left out.
    pub fn rows(&self, probe: usize) -> Vec<StackRow> {
        let sites = self.profile.sites.iter().zip(&self.probes);
        let of_probe = sites.filter(|(_, of)| **of == probe);
        let rows = of_probe.filter_map(|(site, _)| {
            let [_, stack @ ..] = &self.profile.stack(site.stack)[..] else {
                return None;
            };
            (!stack.is_empty()).then(|| StackRow {
                calls: site.measures.live.blocks,
                stack: stack.to_vec(),
                truncated: self.profile.is_cut(site.stack),
            })
        });
        let mut rows: Vec<StackRow> = rows.collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.calls));
        rows
    }
}
