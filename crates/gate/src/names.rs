//! Turns interned backtraces into sites with names.

use crate::{AllocationSite, SourceFrame};
use memhook_abi::HOOKED_FUNCTIONS;
use memhook_recording::Recording;
use memhook_report::{Backtraces, recorded::ordered_modules};
use memhook_symbols::{Frame, ModuleFile, SearchPath, Symbolizer};
use std::{collections::HashMap, ops::Range, time::Duration};

/// A module and its location in memory.
pub struct MappedModule {
    /// Addresses (avma).
    pub addresses: Range<u64>,
    /// Path in the target.
    pub path: String,
}

/// Backtraces of a trace, and the source of their names.
pub struct NameSource<'a> {
    /// A running trace or a recording.
    pub backtraces: &'a dyn Backtraces,
    /// The modules. If two modules have the same address, the more likely one comes first.
    pub modules: Vec<MappedModule>,
    /// Symbolizer that knows these modules.
    pub symbols: Symbolizer,
}

impl<'a> NameSource<'a> {
    /// Returns the names in a recording.
    pub fn of_recording(recording: &'a Recording, symbols: Symbolizer) -> NameSource<'a> {
        let modules = ordered_modules(recording).into_iter();
        let modules = modules.map(|module| MappedModule {
            addresses: module.start..module.end,
            path: module.path.clone(),
        });
        NameSource {
            backtraces: recording,
            modules: modules.collect(),
            symbols,
        }
    }

    /// Returns the names in a trace with these modules, whose files `search` finds.
    pub fn of_trace(
        backtraces: &'a dyn Backtraces,
        files: Vec<ModuleFile>,
        search: impl Into<SearchPath>,
    ) -> NameSource<'a> {
        let modules = files.iter().map(|file| MappedModule {
            addresses: file.start..file.end,
            path: file.path.clone(),
        });
        let modules = modules.collect();
        let mut symbols = Symbolizer::new(search);
        symbols.set_modules(files);
        NameSource {
            backtraces,
            modules,
            symbols,
        }
    }

    /// Looks up the names of these backtraces, and waits for the answers.
    pub(crate) fn look_up(mut self, stacks: impl Iterator<Item = u32>) -> Names<'a> {
        let backtraces = stacks.filter_map(|id| self.backtraces.backtrace(id));
        self.symbols.request(backtraces.flat_map(|b| b.addresses));
        self.symbols.is_ready(LONGEST_LOOK_UP);
        Names {
            source: self,
            sites: Vec::new(),
            by_stack: HashMap::new(),
            by_text: HashMap::new(),
        }
    }
}

/// Time limit for names. If a slow debuginfod server exceeds it, its names are left out.
const LONGEST_LOOK_UP: Duration = Duration::from_secs(600);

/// Resolves the backtraces of one trace, and merges backtraces with the same text into one site.
pub(crate) struct Names<'a> {
    source: NameSource<'a>,
    sites: Vec<AllocationSite>,
    by_stack: HashMap<Option<u32>, usize>,
    by_text: HashMap<(String, Vec<SourceFrame>), usize>,
}

impl Names<'_> {
    /// Returns the index of a backtrace's site. For `None`, returns the index of the site for
    /// blocks whose allocation was not traced.
    pub fn site(&mut self, stack: Option<u32>) -> usize {
        if let Some(&known) = self.by_stack.get(&stack) {
            return known;
        }
        let site = match stack {
            Some(id) => self.named(id),
            None => AllocationSite {
                kind: "an unknown caller".into(),
                ..AllocationSite::default()
            },
        };
        // Several code locations of one source line (unrolled loops, inlined copies) are one site.
        let mut key = (site.kind.clone(), site.stack.clone());
        for frame in key.1.iter_mut().filter(|f| f.function.is_some()) {
            frame.svma = 0;
        }
        let number = *self.by_text.entry(key).or_insert_with(|| {
            self.sites.push(site);
            self.sites.len() - 1
        });
        self.by_stack.insert(stack, number);
        number
    }

    fn named(&self, id: u32) -> AllocationSite {
        let Some(backtrace) = self.source.backtraces.backtrace(id) else {
            return AllocationSite {
                kind: "an unknown caller".into(),
                ..AllocationSite::default()
            };
        };
        let function = HOOKED_FUNCTIONS.get(usize::from(backtrace.function));
        let described = self.source.backtraces.described(backtrace.function);
        let (symbol, kind) = match (function, described) {
            (Some(function), _) => (Some(function.name.to_owned()), function.kind.to_owned()),
            (None, Some(name)) => (Some(name.clone()), name),
            (None, None) => (None, "an unknown caller".to_owned()),
        };
        AllocationSite {
            symbol,
            kind,
            stack: backtrace
                .addresses
                .iter()
                .flat_map(|&a| self.frames(a))
                .collect(),
            truncated: backtrace.truncated,
            heap: None,
            live: Default::default(),
        }
    }

    fn frames(&self, return_address: u64) -> Vec<SourceFrame> {
        let location = self.source.symbols.location(return_address);
        let inside = |m: &&MappedModule| m.addresses.contains(&return_address.wrapping_sub(1));
        let module = self.source.modules.iter().find(inside);
        let svma = match module {
            Some(_) => location.svma,
            None => return_address,
        };
        let plain = SourceFrame {
            module: module.map(|m| m.path.clone()),
            svma,
            ..SourceFrame::default()
        };
        if location.frames.is_empty() {
            return vec![plain];
        }
        let frame = |f: Frame| SourceFrame {
            function: f.function,
            file: f.file,
            line: f.line,
            inlined: f.inlined,
            ..plain.clone()
        };
        location.frames.into_iter().map(frame).collect()
    }

    /// Returns all sites by number.
    pub fn into_sites(self) -> Vec<AllocationSite> {
        self.sites
    }
}
