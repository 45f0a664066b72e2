//! The thread of one module: it answers from the cache as long as that suffices, then from the debug
//! information.
//!
//! Parsed forms borrow from the files' bytes; both live on the thread's stack as long as requests come.

use crate::debug_files::{SearchPath, find, find_alone, find_supplementary};
use crate::file::{Image, format_error, image, parse};
use crate::fingerprint::Fingerprint;
use crate::lookup::{Lookup, context, has_dwarf, sections};
use crate::symbol_table::SymbolTable;
use crate::{Frame, ModuleFile, ModuleSymbols, Source, SymbolCache};
use crossbeam_channel::{Receiver, Sender};
use object::Object;
use std::{collections::HashMap, path::Path};

/// What the thread of a module reports.
pub(crate) enum Answer {
    /// The answer to one request.
    Frames {
        /// The symbolizer's number of the module.
        module: usize,
        /// By svma.
        frames: Vec<(u64, Vec<Frame>)>,
        /// How the module was read. It comes with the first answer, and with the first one from the files.
        symbols: Option<ModuleSymbols>,
    },
    /// The thread has panicked: there will be no more answers.
    Died {
        /// The symbolizer's number of the module.
        module: usize,
    },
}

/// A module with its incoming requests and outgoing answers.
pub(crate) struct Desk<'a> {
    /// The symbolizer's number of the module.
    pub number: usize,
    pub module: &'a ModuleFile,
    pub search: &'a SearchPath,
    /// Addresses (svma).
    pub requests: &'a Receiver<Vec<u64>>,
    pub answers: &'a Sender<Answer>,
}

/// Names of one module by svma, which are known without its debug information.
type Kept = HashMap<u64, Vec<Frame>>;

/// What the cache has about a module.
struct Cached<'a> {
    cache: &'a SymbolCache,
    id: &'a [u8],
    fingerprint: Fingerprint,
    names: Kept,
}

impl Desk<'_> {
    /// Serves until the last sender of requests is gone.
    pub fn serve(&self) {
        if let Ok(first) = self.requests.recv() {
            self.open_files(first);
        }
    }

    /// What the cache has; nothing for a module without a build-id, or if its files cannot be read.
    fn cached(&self, files: [Option<&Image>; 3]) -> Option<Cached<'_>> {
        let cache = self.search.cache.as_ref()?;
        let id = self.module.build_id.as_deref()?;
        let mut files = files.into_iter().flatten().peekable();
        files.peek()?;
        let fingerprint = Fingerprint::of(files)?;
        let names = cache.names(id, &fingerprint);
        let names = names.map_or_else(Kept::new, |module| module.frames.into_iter().collect());
        Some(Cached {
            cache,
            id,
            fingerprint,
            names,
        })
    }

    fn answer(&self, frames: Vec<(u64, Vec<Frame>)>, symbols: Option<ModuleSymbols>) -> bool {
        let answer = Answer::Frames {
            module: self.number,
            frames,
            symbols,
        };
        self.answers.send(answer).is_ok()
    }

    /// Opens the files for the first request, and serves it and all others. Large parts of the files are read
    /// for the first address that the cache does not have.
    fn open_files(&self, first: Vec<u64>) {
        let (module, search) = (self.module, self.search);
        let mut report = ModuleSymbols {
            path: module.path.clone(),
            ..ModuleSymbols::default()
        };
        let problems = &mut report.problems;
        let opened = image(module, &search.roots, problems);
        let elf = opened.as_ref().and_then(|(path, image)| {
            let parsed = parse(path, image);
            parsed.map_err(|problem| problems.push(problem)).ok()
        });
        let separate = match &elf {
            Some(elf) if has_dwarf(elf) => None,
            Some(elf) => find(Path::new(&module.path), elf, search, problems),
            // The debug file has everything that names need.
            None => {
                let id = module.build_id.as_deref();
                id.and_then(|id| find_alone(id, search, problems))
            }
        };
        let separate_elf = separate
            .as_ref()
            .and_then(|file| parse(&file.path, &file.data).ok());
        let separate_file = separate.as_ref().map(|file| (&file.path, &file.data));
        let own_file = opened.as_ref().map(|(path, image)| (path, image));
        let with_dwarf = separate_file.zip(separate_elf.as_ref());
        let with_dwarf = with_dwarf.or(own_file.zip(elf.as_ref()));
        let with_dwarf = with_dwarf.filter(|(_, elf)| has_dwarf(elf));
        let supplementary =
            with_dwarf.and_then(|((path, _), elf)| find_supplementary(path, elf, search, problems));
        report.debug_file = separate.as_ref().map(|file| file.path.clone());
        let cached = self.cached([
            own_file.map(|(_, image)| image),
            separate_file.map(|(_, image)| image),
            supplementary.as_ref().map(|file| &file.data),
        ]);
        let Some((first, mut report)) = self.answer_from(cached.as_ref(), first, report) else {
            return;
        };
        let problems = &mut report.problems;
        let mut symbols = SymbolTable::default();
        for elf in [&elf, &separate_elf].into_iter().flatten() {
            symbols.add(elf);
        }
        symbols.finish();
        let supplementary_elf = supplementary
            .as_ref()
            .and_then(|file| parse(&file.path, &file.data).ok());
        let supplementary_sections = supplementary
            .as_ref()
            .zip(supplementary_elf.as_ref())
            .map(|(file, elf)| sections(elf, &file.data));
        let own_sections = with_dwarf.map(|((_, image), elf)| sections(elf, image));
        let dwarf = own_sections
            .as_ref()
            .and_then(|own| context(own, supplementary_sections.as_ref()));
        if let (Some(((path, _), _)), None) = (with_dwarf, &dwarf) {
            problems.push(format_error(path, "its debug information is damaged"));
        }
        let is_final = with_dwarf.is_some_and(|(_, elf)| {
            let wants_more = elf.gnu_debugaltlink().ok().flatten().is_some();
            dwarf.is_some() && (!wants_more || supplementary.is_some())
        });
        let lookup = Lookup { dwarf, symbols };
        report.source = lookup.source();
        let cached = cached.filter(|_| is_final);
        self.answer_all(first, cached.as_ref(), &lookup, report);
    }

    /// Answers as long as the cache suffices. Returns the first request that the cache cannot answer; `None`
    /// when no more requests come.
    fn answer_from(
        &self,
        cached: Option<&Cached<'_>>,
        first: Vec<u64>,
        report: ModuleSymbols,
    ) -> Option<(Vec<u64>, ModuleSymbols)> {
        let Some(cached) = cached else {
            return Some((first, report));
        };
        let mut of_cache = Some(ModuleSymbols {
            path: self.module.path.clone(),
            source: Source::DebugInfo,
            debug_file: report.debug_file.clone(),
            ..ModuleSymbols::default()
        });
        for svmas in std::iter::once(first).chain(self.requests) {
            let names = svmas
                .iter()
                .map(|svma| Some((*svma, cached.names.get(svma)?.clone())));
            let Some(names) = names.collect() else {
                return Some((svmas, report));
            };
            if !self.answer(names, of_cache.take()) {
                return None;
            }
        }
        None
    }

    /// Answers all requests that come. `cached` is where names are kept; `None` if a file that may be installed
    /// later would give better ones.
    fn answer_all(
        &self,
        first: Vec<u64>,
        cached: Option<&Cached<'_>>,
        lookup: &Lookup<'_>,
        report: ModuleSymbols,
    ) {
        let mut report = Some(report);
        for svmas in std::iter::once(first).chain(self.requests) {
            let names = svmas.into_iter().map(|svma| {
                let known = cached.and_then(|cached| cached.names.get(&svma).cloned());
                (svma, known.unwrap_or_else(|| lookup.frames(svma)))
            });
            let names: Vec<(u64, Vec<Frame>)> = names.collect();
            // Before the answer is sent: a caller that has all answers may end the process.
            if let Some(cached) = cached {
                let (id, files) = (cached.id, &cached.fingerprint);
                cached
                    .cache
                    .keep_names(id, files, &self.module.path, &names);
            }
            if !self.answer(names, report.take()) {
                return;
            }
        }
    }
}
