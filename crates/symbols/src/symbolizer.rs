//! Addresses of each module, and the names known so far.

use crate::SymbolError;
use crate::segments::first_svma;
use crate::worker::{Answer, Desk};
use crate::{Bundle, Frame, Location, ModuleFile, ModuleSymbols, SearchPath, Source};
use crossbeam_channel::{Receiver, Sender, unbounded};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, Instant},
};

/// A module that has been seen at least once. Further mappings of its file do not count as another
/// module.
struct Known {
    file: ModuleFile,
    /// Requests to the module's thread; `None` before the first address, and after the files were
    /// closed.
    requests: Option<Sender<Vec<u64>>>,
    /// Time of the last request.
    requested: Instant,
    frames: HashMap<u64, Vec<Frame>>,
    symbols: Option<ModuleSymbols>,
    /// Number of requests without an answer.
    pending: usize,
    /// True if the module's files have made the thread panic. The module then gets no more names.
    dead: bool,
}

impl Known {
    fn is(&self, file: &ModuleFile) -> bool {
        let same_image =
            is_same(&self.file.image, &file.image) && is_same(&self.file.opened, &file.opened);
        self.file.path == file.path
            && self.file.build_id == file.build_id
            && (file.build_id.is_some() || same_image)
    }
}

fn is_same<T: ?Sized>(a: &Option<Arc<T>>, b: &Option<Arc<T>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => Arc::ptr_eq(a, b),
        (a, b) => a.is_none() && b.is_none(),
    }
}

/// Current mapping of a module.
struct Mapped {
    start: u64,
    end: u64,
    base: u64,
    module: usize,
}

/// Resolves addresses. Opens a module at its first address.
pub struct Symbolizer {
    search: SearchPath,
    reads_files: bool,
    /// Names that were resolved elsewhere.
    bundles: Vec<Bundle>,
    mapped: Vec<Mapped>,
    modules: Vec<Known>,
    answers: (Sender<Answer>, Receiver<Answer>),
}

impl Symbolizer {
    /// Creates a symbolizer that searches separate debug files in a search path, or in roots of
    /// file systems. For a process, the roots are those of
    /// `memhook_process::TargetRoot::search_order`.
    pub fn new(search: impl Into<SearchPath>) -> Self {
        Symbolizer {
            search: search.into(),
            reads_files: true,
            bundles: Vec::new(),
            mapped: Vec::new(),
            modules: Vec::new(),
            answers: unbounded(),
        }
    }

    /// Creates a symbolizer that opens no file. It names only code outside files
    /// ([`NamedCode`](crate::NamedCode)).
    pub fn without_files() -> Self {
        Symbolizer {
            reads_files: false,
            ..Symbolizer::new(SearchPath::default())
        }
    }

    /// Returns true if the symbolizer looks for names in files.
    pub fn reads_files(&self) -> bool {
        self.reads_files
    }

    /// Uses the names of a bundle for modules with equal build-ids. Call it before setting the
    /// modules.
    pub fn add_bundle(&mut self, bundle: Bundle) {
        self.bundles.push(bundle);
    }

    /// Returns all known names, for use elsewhere.
    pub fn to_bundle(&self) -> Bundle {
        let modules = self.modules.iter().filter(|known| !known.frames.is_empty());
        Bundle::new(modules.map(|known| {
            let source = known.symbols.as_ref().map_or(Source::Nothing, |s| s.source);
            (&known.file, source, &known.frames)
        }))
    }

    /// Sets the current modules. Names of known files are kept. If ranges overlap, the first one
    /// takes precedence.
    pub fn set_modules(&mut self, modules: Vec<ModuleFile>) {
        self.mapped.clear();
        for file in modules {
            let module = self.modules.iter().position(|known| known.is(&file));
            self.mapped.push(Mapped {
                start: file.start,
                end: file.end,
                base: file.base,
                module: module.unwrap_or(self.modules.len()),
            });
            if let Some(at) = module
                && file.named_by.is_some()
            {
                // The source of names may know more by now.
                self.modules[at].file.named_by = file.named_by;
            } else if module.is_none() {
                let (frames, symbols) = self.bundled(&file);
                self.modules.push(Known {
                    file,
                    requests: None,
                    requested: Instant::now(),
                    frames,
                    symbols,
                    pending: 0,
                    dead: false,
                });
            }
        }
    }

    /// Returns the bundles' names for a module.
    fn bundled(&self, file: &ModuleFile) -> (HashMap<u64, Vec<Frame>>, Option<ModuleSymbols>) {
        let mut frames = HashMap::new();
        let mut source = None;
        for module in self.bundles.iter().filter_map(|bundle| bundle.of(file)) {
            frames.extend(module.frames.iter().cloned());
            source = source.max(Some(module.source));
        }
        let symbols = source.map(|source| ModuleSymbols {
            path: file.path.clone(),
            source,
            ..ModuleSymbols::default()
        });
        (frames, symbols)
    }

    /// Returns module and svma of the call that returns to this address. The byte before the
    /// address belongs to the call, while the byte at the address may belong to the next line or
    /// function.
    fn place(&self, return_address: u64) -> Option<(usize, u64)> {
        let address = return_address.wrapping_sub(1);
        let inside = |m: &&Mapped| (m.start..m.end).contains(&address);
        let mapped = self.mapped.iter().find(inside)?;
        Some((mapped.module, address.wrapping_sub(mapped.base)))
    }

    /// Returns the number of the module that contains a return address, its file, and the address
    /// of the byte before the return address (svma).
    pub(crate) fn module_of(&self, return_address: u64) -> Option<(usize, &ModuleFile, u64)> {
        let (number, svma) = self.place(return_address)?;
        Some((number, &self.modules[number].file, svma))
    }

    /// Returns the svma of the first byte of a mapping that begins at `offset` in the module's file
    /// and has the module's bounds. Returns `None` if no file of the module is available.
    pub fn first_svma(&self, module: &ModuleFile, offset: u64) -> Option<u64> {
        first_svma(module, &self.search, offset)
    }

    /// Returns the places to search for symbol files.
    pub(crate) fn search(&self) -> &SearchPath {
        &self.search
    }

    /// Starts to look up these return addresses in the background.
    pub fn request(&mut self, return_addresses: impl IntoIterator<Item = u64>) {
        if !self.reads_files {
            return;
        }
        let mut wanted: HashMap<usize, HashSet<u64>> = HashMap::new();
        for address in return_addresses {
            if let Some((module, svma)) = self.place(address)
                && self.modules[module].file.named_by.is_none()
                && !self.modules[module].frames.contains_key(&svma)
            {
                wanted.entry(module).or_default().insert(svma);
            }
        }
        for (number, svmas) in wanted {
            if self.modules[number].dead {
                continue;
            }
            let svmas: Vec<u64> = svmas.into_iter().collect();
            let requests = match self.modules[number].requests.clone() {
                Some(requests) => requests,
                None => self.start(number),
            };
            let module = &mut self.modules[number];
            // Each address is requested only once.
            for &svma in &svmas {
                module.frames.entry(svma).or_default();
            }
            if requests.send(svmas).is_ok() {
                module.pending += 1;
                module.requested = Instant::now();
            }
            module.requests = Some(requests);
        }
    }

    /// Closes the files of modules that have had no request for a new address for this time, and
    /// frees their data. Known names remain. The next unknown address opens the files again.
    pub fn close_unused(&mut self, time: Duration) {
        for module in &mut self.modules {
            // A thread without outstanding requests loses no answer.
            if module.pending == 0 && module.requested.elapsed() >= time {
                module.requests = None;
            }
        }
    }

    fn start(&self, number: usize) -> Sender<Vec<u64>> {
        let (requests, inbox) = unbounded();
        let (module, search) = (self.modules[number].file.clone(), self.search.clone());
        let answers = self.answers.0.clone();
        // If the thread cannot start, the inbox is dropped, and its addresses get no names.
        let _ = std::thread::Builder::new()
            .name("symbols".into())
            .spawn(move || {
                // Damaged files may cost names, but never harm the caller. The inbox is dropped
                // with the panic, so no request is accepted after it.
                let to = answers.clone();
                let serve = move || {
                    let desk = Desk {
                        number,
                        module: &module,
                        search: &search,
                        requests: &inbox,
                        answers: &to,
                    };
                    desk.serve();
                };
                if std::panic::catch_unwind(std::panic::AssertUnwindSafe(serve)).is_err() {
                    let _ = answers.send(Answer::Died { module: number });
                }
            });
        requests
    }

    /// Takes the answers that have arrived, and waits up to `wait` for more. Returns `true` if no
    /// request is outstanding.
    pub fn is_ready(&mut self, wait: Duration) -> bool {
        let deadline = Instant::now() + wait;
        while self.modules.iter().any(|m| m.pending > 0) {
            match self.answers.1.recv_deadline(deadline) {
                Ok(answer) => self.take(answer),
                Err(_) => return false,
            }
        }
        true
    }

    fn take(&mut self, answer: Answer) {
        match answer {
            Answer::Frames {
                module,
                frames,
                symbols,
            } => {
                let module = &mut self.modules[module];
                module.pending -= 1;
                module.frames.extend(frames);
                module.symbols = symbols.or(module.symbols.take());
            }
            Answer::Died { module } => {
                let module = &mut self.modules[module];
                module.pending = 0;
                module.dead = true;
            }
        }
    }

    /// Returns the known facts about a return address. Does not wait; see [`Symbolizer::request`].
    pub fn location(&self, return_address: u64) -> Location {
        let Some((number, svma)) = self.place(return_address) else {
            return Location::default();
        };
        let module = &self.modules[number];
        if let Some(names) = &module.file.named_by {
            return names.location(return_address).unwrap_or_default();
        }
        Location {
            module: module.file.path.rsplit('/').next().map(str::to_owned),
            svma,
            frames: module.frames.get(&svma).cloned().unwrap_or_default(),
        }
    }

    /// Looks up one return address and waits for the answer.
    pub fn resolve(&mut self, return_address: u64) -> Location {
        self.request([return_address]);
        self.is_ready(Duration::from_secs(3600));
        self.location(return_address)
    }

    /// Returns why existing files were not used. Missing files are not reported.
    pub fn refused(&self) -> impl Iterator<Item = &SymbolError> {
        let problems = self.sources().flat_map(|module| &module.problems);
        problems.filter(|problem| !problem.is_of_missing_file())
    }

    /// Returns what was learned from reading the modules that contain requested addresses.
    pub fn sources(&self) -> impl Iterator<Item = &ModuleSymbols> {
        self.modules.iter().filter_map(|m| m.symbols.as_ref())
    }
}
