//! The thread of one module. It answers from the cache for as long as that suffices, then from the
//! debug information.
//!
//! The thread reads debug information itself, or through the shared readers
//! ([`SharedReaders`](crate::SharedReaders)).

use crate::debug_files::SearchPath;
use crate::file::Image;
use crate::files::Files;
use crate::fingerprint::Fingerprint;
use crate::readers::Named;
use crate::{Frame, ModuleFile, ModuleSymbols, Source, SymbolCache};
use crossbeam_channel::{Receiver, Sender};
use std::collections::HashMap;

/// Message from a module's thread.
pub(crate) enum Answer {
    /// Answer to one request.
    Frames {
        /// The symbolizer's number of the module.
        module: usize,
        /// Frames by svma.
        frames: Vec<(u64, Vec<Frame>)>,
        /// Result of reading the module. It comes with the first answer, and again with the first
        /// answer from the files.
        symbols: Option<ModuleSymbols>,
    },
    /// The thread has panicked, so there will be no more answers.
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
    /// Requested addresses (svma).
    pub requests: &'a Receiver<Vec<u64>>,
    pub answers: &'a Sender<Answer>,
}

/// Names of one module by svma that are known without its debug information.
type Kept = HashMap<u64, Vec<Frame>>;

/// The cache's names for a module.
struct Cached<'a> {
    cache: &'a SymbolCache,
    id: &'a [u8],
    fingerprint: Fingerprint,
    names: Kept,
}

impl Desk<'_> {
    /// Answers until the last sender of requests is gone.
    pub fn serve(&self) {
        if let Ok(first) = self.requests.recv() {
            self.open_files(first);
        }
    }

    /// Returns the cache's names; `None` for a module without a build-id, or if its files cannot be
    /// read.
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

    /// Opens the files for the first request, and answers this request and all later ones. Reads
    /// large parts of the files only for the first address that the cache lacks.
    fn open_files(&self, first: Vec<u64>) {
        let (module, search) = (self.module, self.search);
        let mut report = ModuleSymbols {
            path: module.path.clone(),
            ..ModuleSymbols::default()
        };
        let files = Files::open(module, search, &mut report.problems);
        report.debug_file = files.debug_file().cloned();
        let cached = self.cached(files.images());
        let Some((first, report)) = self.answer_from(cached.as_ref(), first, report) else {
            return;
        };
        match &search.readers {
            None => files.read(u64::MAX, |lookup, read| {
                let names = |svmas: Vec<u64>| {
                    let frames = svmas.into_iter().map(|svma| (svma, lookup.frames(svma)));
                    let frames = frames.collect();
                    let read = read.clone().by(lookup);
                    Named { frames, read }
                };
                self.answer_all(first, cached.as_ref(), names, report);
            }),
            Some(readers) => {
                let reader = readers.reader(files);
                let names = |svmas| {
                    let named = reader.names(svmas);
                    named.unwrap_or_else(|| std::panic::resume_unwind(Box::new("the reader died")))
                };
                self.answer_all(first, cached.as_ref(), names, report);
            }
        }
    }

    /// Answers for as long as the cache suffices. Returns the first request that the cache cannot
    /// answer, or `None` when no more requests arrive.
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

    /// Answers all further requests. `cached` stores the names, unless a file that may be installed
    /// later would contain better names.
    fn answer_all(
        &self,
        first: Vec<u64>,
        cached: Option<&Cached<'_>>,
        names: impl Fn(Vec<u64>) -> Named,
        report: ModuleSymbols,
    ) {
        let mut report = Some(report);
        for svmas in std::iter::once(first).chain(self.requests) {
            let Named { mut frames, read } = names(svmas);
            let cached = cached.filter(|_| read.is_final);
            if let Some(cached) = cached {
                for (svma, frames) in &mut frames {
                    if let Some(known) = cached.names.get(svma) {
                        frames.clone_from(known);
                    }
                }
            }
            // Names are stored before the answer is sent, because a caller that has all answers may
            // end the process.
            if let Some(cached) = cached {
                let (id, files) = (cached.id, &cached.fingerprint);
                cached
                    .cache
                    .keep_names(id, files, &self.module.path, &frames);
            }
            let report = report.take().map(|mut report| {
                report.source = read.source;
                report.problems.extend(read.problem());
                report
            });
            if !self.answer(frames, report) {
                return;
            }
        }
    }
}
