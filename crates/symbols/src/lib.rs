//! Address to module, function, file:line and inlined frames, from the files on disk.

use addr2line::Loader;
use std::{collections::HashMap, path::PathBuf};

/// A loaded module to look into.
#[derive(Clone, Debug)]
pub struct ModuleFile {
    /// Path as the target sees it.
    pub path: String,
    /// Where to read it: a path through the target's root.
    pub file: PathBuf,
    /// Load bias: avma = base + svma.
    pub base: u64,
    /// First address (avma).
    pub start: u64,
    /// Past the last address (avma).
    pub end: u64,
}

/// One source-level frame at an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Demangled function.
    pub function: Option<String>,
    /// Source file.
    pub file: Option<String>,
    /// Line.
    pub line: Option<u32>,
    /// It was inlined into the frame that follows.
    pub inlined: bool,
}

/// What is known of an address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// File name of the module.
    pub module: Option<String>,
    /// Address in the module's file (svma).
    pub svma: u64,
    /// Frames, innermost first; empty if nothing is known.
    pub frames: Vec<Frame>,
}

/// Resolves addresses; opens a module at its first address.
#[derive(Default)]
pub struct Symbolizer {
    modules: Vec<ModuleFile>,
    loaders: HashMap<PathBuf, Option<Loader>>,
    known: HashMap<u64, Location>,
}

impl Symbolizer {
    /// Takes the modules as they are mapped now; what was resolved before stays.
    pub fn set_modules(&mut self, modules: Vec<ModuleFile>) {
        self.modules = modules;
    }

    /// Resolves a return address: looks at the byte before it, which belongs to the call.
    pub fn resolve(&mut self, return_address: u64) -> &Location {
        if !self.known.contains_key(&return_address) {
            let location = self.look_up(return_address);
            self.known.insert(return_address, location);
        }
        &self.known[&return_address]
    }

    fn look_up(&mut self, return_address: u64) -> Location {
        let address = return_address.wrapping_sub(1);
        let Some(module) = self
            .modules
            .iter()
            .find(|m| address >= m.start && address < m.end)
        else {
            return Location::default();
        };
        let svma = address.wrapping_sub(module.base);
        let loader = self
            .loaders
            .entry(module.file.clone())
            .or_insert_with(|| Loader::new(&module.file).ok());
        let frames = loader.as_ref().map(|l| frames(l, svma)).unwrap_or_default();
        Location {
            module: module.path.rsplit('/').next().map(str::to_owned),
            svma,
            frames,
        }
    }
}

fn frames(loader: &Loader, svma: u64) -> Vec<Frame> {
    let mut found = Vec::new();
    if let Ok(mut iterator) = loader.find_frames(svma) {
        while let Ok(Some(frame)) = iterator.next() {
            let function = frame
                .function
                .as_ref()
                .and_then(|f| f.demangle().ok().map(|n| n.into_owned()));
            let (file, line) = match frame.location {
                Some(l) => (l.file.map(str::to_owned), l.line),
                None => (None, None),
            };
            if function.is_some() || file.is_some() {
                found.push(Frame {
                    function,
                    file,
                    line,
                    inlined: true,
                });
            }
        }
    }
    // Without DWARF for it: the symbol table.
    if found.iter().all(|f| f.function.is_none())
        && let Some(symbol) = loader.find_symbol(svma)
    {
        let name = addr2line::demangle_auto(symbol.into(), None).into_owned();
        match found.last_mut() {
            Some(frame) => frame.function = Some(name),
            None => found.push(Frame {
                function: Some(name),
                ..Frame::default()
            }),
        }
    }
    if let Some(outermost) = found.last_mut() {
        outermost.inlined = false;
    }
    found
}
