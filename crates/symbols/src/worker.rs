//! The thread of one module. It answers from the known names as long as they suffice, and then from
//! the debug information.
//!
//! The thread reads debug information itself, or through the shared readers
//! ([`SharedReaders`](crate::SharedReaders)).

use crate::debug_files::SearchPath;
use crate::files::{Files, Read};
use crate::fingerprint::Fingerprint;
use crate::readers::{Identity, Named, identity};
use crate::run_names::FileNames;
use crate::{Frame, ModuleFile, ModuleSymbols, RunNames, Source, SymbolCache};
use crossbeam_channel::{Receiver, Sender};

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

/// Names of a module that are known without its debug information.
struct Known<'a> {
    names: FileNames,
    /// Where further names are stored.
    store: Store<'a>,
}

/// A store of names.
enum Store<'a> {
    /// Cache of names for the next run. All names in it are from debug information.
    Cache {
        cache: &'a SymbolCache,
        id: &'a [u8],
        fingerprint: Fingerprint,
    },
    /// For other symbolizers of this run.
    Run(&'a RunNames, Identity),
}

impl Known<'_> {
    /// Stores names of the module at `path`, unless a file that may be installed before they are
    /// used again would contain better names.
    fn keep(&self, path: &str, read: &Read, frames: &[(u64, Vec<Frame>)]) {
        match &self.store {
            Store::Cache {
                cache,
                id,
                fingerprint,
            } if read.is_final => cache.keep_names(id, fingerprint, path, frames),
            Store::Cache { .. } => {}
            Store::Run(names, files) => names.keep(files, read.source, frames),
        }
    }
}

impl Desk<'_> {
    /// Answers until the last sender of requests is gone.
    pub fn serve(&self) {
        if let Ok(first) = self.requests.recv() {
            self.open_files(first);
        }
    }

    /// Returns the names that other symbolizers of this run have found.
    fn of_run(&self, files: &Files) -> Option<Known<'_>> {
        let names = self.search.run_names.as_ref()?;
        let files = identity(files)?;
        Some(Known {
            names: names.of(&files),
            store: Store::Run(names, files),
        })
    }

    /// Returns the names that earlier runs have stored. Returns `None` without a cache, if the
    /// module has no build-id, or if its files cannot be read.
    fn of_cache(&self, files: &Files) -> Option<Known<'_>> {
        let cache = self.search.cache.as_ref()?;
        let id = self.module.build_id.as_deref()?;
        let mut files = files.images().into_iter().flatten().peekable();
        files.peek()?;
        let fingerprint = Fingerprint::of(files)?;
        let names = cache.names(id, &fingerprint);
        let frames = names.map_or_else(Default::default, |module| module.frames);
        Some(Known {
            names: FileNames {
                source: Source::DebugInfo,
                frames: frames.into_iter().collect(),
            },
            store: Store::Cache {
                cache,
                id,
                fingerprint,
            },
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
    /// large parts of the files only for the first address without a known name.
    fn open_files(&self, first: Vec<u64>) {
        let (module, search) = (self.module, self.search);
        let mut report = ModuleSymbols {
            path: module.path.clone(),
            ..ModuleSymbols::default()
        };
        let files = Files::open(module, search, &mut report.problems);
        report.debug_file = files.debug_file().cloned();
        let mut known = Vec::new();
        let mut unanswered = (first, report);
        // The cache of earlier runs reads the files for their fingerprint.
        for more in [Self::of_run, Self::of_cache] {
            known.extend(more(self, &files));
            match self.answer_from(&known, unanswered) {
                Some(rest) => unanswered = rest,
                None => return,
            }
        }
        let (first, report) = unanswered;
        match &search.readers {
            None => files.read(u64::MAX, |lookup, read| {
                let names = |svmas: Vec<u64>| {
                    let frames = svmas.into_iter().map(|svma| (svma, lookup.frames(svma)));
                    let frames = frames.collect();
                    let read = read.clone().by(lookup);
                    Named { frames, read }
                };
                self.answer_all(first, &known, names, report);
            }),
            Some(readers) => {
                let reader = readers.reader(files);
                let names = |svmas| {
                    let named = reader.names(svmas);
                    named.unwrap_or_else(|| std::panic::resume_unwind(Box::new("the reader died")))
                };
                self.answer_all(first, &known, names, report);
            }
        }
    }

    /// Answers for as long as the latest known names suffice. Returns the first request that they
    /// cannot answer, or `None` when no more requests arrive.
    fn answer_from(
        &self,
        known: &[Known<'_>],
        (first, report): (Vec<u64>, ModuleSymbols),
    ) -> Option<(Vec<u64>, ModuleSymbols)> {
        let Some((Known { names, .. }, earlier)) = known.split_last() else {
            return Some((first, report));
        };
        let mut of_known = Some(ModuleSymbols {
            path: self.module.path.clone(),
            source: names.source,
            debug_file: report.debug_file.clone(),
            ..ModuleSymbols::default()
        });
        let read = Read {
            source: names.source,
            is_final: true,
            unused: None,
        };
        for svmas in std::iter::once(first).chain(self.requests) {
            let frames = svmas
                .iter()
                .map(|svma| Some((*svma, names.frames.get(svma)?.clone())));
            let Some(frames) = frames.collect::<Option<Vec<_>>>() else {
                return Some((svmas, report));
            };
            for store in earlier {
                store.keep(&self.module.path, &read, &frames);
            }
            if !self.answer(frames, of_known.take()) {
                return None;
            }
        }
        None
    }

    /// Answers all further requests, and stores the names.
    fn answer_all(
        &self,
        first: Vec<u64>,
        known: &[Known<'_>],
        names: impl Fn(Vec<u64>) -> Named,
        report: ModuleSymbols,
    ) {
        let mut report = Some(report);
        for svmas in std::iter::once(first).chain(self.requests) {
            let Named { mut frames, read } = names(svmas);
            for known in known {
                for (svma, frames) in frames.iter_mut().filter(|_| read.is_final) {
                    if let Some(known) = known.names.frames.get(svma) {
                        frames.clone_from(known);
                    }
                }
                // Names are stored before the answer is sent, because a caller that has all answers
                // may end the process.
                known.keep(&self.module.path, &read, &frames);
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
