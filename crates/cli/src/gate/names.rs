//! From interned backtraces to sites with names.

use crate::frames::module_file;
use crate::report::ordered_modules;
use memhook_abi::HOOKED_FUNCTIONS;
use memhook_attach::Session;
use memhook_gate::{Frame, Site};
use memhook_recording::Recording;
use memhook_symbols::Symbolizer;
use std::{collections::HashMap, ops::Range, time::Duration};

/// Where backtraces are kept: a trace under way, or a recording.
pub trait Backtraces {
    /// Function id of the allocation, return addresses, and whether the stack goes on behind them.
    fn backtrace(&self, id: u32) -> Option<(u8, Vec<u64>, bool)>;
}

impl Backtraces for Session {
    fn backtrace(&self, id: u32) -> Option<(u8, Vec<u64>, bool)> {
        let truncated = self.region().stack(id).is_some_and(|s| s.truncated);
        self.stack(id)
            .map(|(function, frames)| (function, frames, truncated))
    }
}

impl Backtraces for Recording {
    fn backtrace(&self, id: u32) -> Option<(u8, Vec<u64>, bool)> {
        let stack = self.stacks().get(id)?;
        Some((stack.function, stack.frames.to_vec(), stack.truncated))
    }
}

/// A mapped file: its addresses (avma) and path.
struct Place {
    addresses: Range<u64>,
    path: String,
}

/// Resolves the backtraces of one trace; those that read alike become one site.
pub struct Names<'a> {
    backtraces: &'a dyn Backtraces,
    modules: Vec<Place>,
    symbols: Symbolizer,
    sites: Vec<Site>,
    by_stack: HashMap<Option<u32>, usize>,
    by_text: HashMap<(String, Vec<Frame>), usize>,
}

impl<'a> Names<'a> {
    /// Has all these backtraces looked up, and waits for the answers.
    pub fn new(session: &'a Session, stacks: impl Iterator<Item = u32>) -> Names<'a> {
        let mut symbols = Symbolizer::new(session.root().search_order());
        let modules = session.modules.iter().chain(&session.gone);
        symbols.set_modules(modules.clone().map(module_file).collect());
        let places = modules.map(|m| Place {
            addresses: m.start..m.end,
            path: m.path.clone(),
        });
        Names::of(session, places.collect(), symbols, stacks)
    }

    /// The same, of a recording.
    pub fn recorded(
        recording: &'a Recording,
        symbols: Symbolizer,
        stacks: impl Iterator<Item = u32>,
    ) -> Names<'a> {
        let modules = ordered_modules(recording).into_iter();
        let places = modules.map(|m| Place {
            addresses: m.start..m.end,
            path: m.path.clone(),
        });
        Names::of(recording, places.collect(), symbols, stacks)
    }

    fn of(
        backtraces: &'a dyn Backtraces,
        modules: Vec<Place>,
        mut symbols: Symbolizer,
        stacks: impl Iterator<Item = u32>,
    ) -> Names<'a> {
        symbols.request(stacks.flat_map(|id| backtraces.backtrace(id).map_or(Vec::new(), |s| s.1)));
        symbols.is_ready(Duration::from_secs(600));
        Names {
            backtraces,
            modules,
            symbols,
            sites: Vec::new(),
            by_stack: HashMap::new(),
            by_text: HashMap::new(),
        }
    }

    /// The number of a backtrace's site; `None`: that of blocks whose allocation was not traced.
    pub fn site(&mut self, stack: Option<u32>) -> usize {
        if let Some(&known) = self.by_stack.get(&stack) {
            return known;
        }
        let site = match stack {
            Some(id) => self.named(id),
            None => Site {
                kind: "an unknown caller".into(),
                ..Site::default()
            },
        };
        // The same line at several places of the code (unrolled loops, inlined copies) is one site.
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

    fn named(&self, id: u32) -> Site {
        let Some((function, addresses, truncated)) = self.backtraces.backtrace(id) else {
            return Site {
                kind: "an unknown caller".into(),
                ..Site::default()
            };
        };
        let function = HOOKED_FUNCTIONS.get(usize::from(function));
        Site {
            symbol: function.map(|f| f.name.to_owned()),
            kind: function.map_or("an unknown caller", |f| f.kind).to_owned(),
            stack: addresses.iter().flat_map(|&a| self.frames(a)).collect(),
            truncated,
            live: Default::default(),
        }
    }

    fn frames(&self, return_address: u64) -> Vec<Frame> {
        let location = self.symbols.location(return_address);
        let inside = |m: &&Place| m.addresses.contains(&return_address.wrapping_sub(1));
        let module = self.modules.iter().find(inside);
        let svma = match module {
            Some(_) => location.svma,
            None => return_address,
        };
        let plain = Frame {
            module: module.map(|m| m.path.clone()),
            svma,
            ..Frame::default()
        };
        if location.frames.is_empty() {
            return vec![plain];
        }
        let frame = |f: memhook_symbols::Frame| Frame {
            function: f.function,
            file: f.file,
            line: f.line,
            inlined: f.inlined,
            ..plain.clone()
        };
        location.frames.into_iter().map(frame).collect()
    }

    /// All sites by number.
    pub fn into_sites(self) -> Vec<Site> {
        self.sites
    }
}
