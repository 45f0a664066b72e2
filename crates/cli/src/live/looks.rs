//! Watches single blocks of a trace whose accesses are sampled ("looks"). They have their own
//! thread, because threads of the process may be waiting for them.

use memhook_access::{BirthLooks, SeenLook, SeenLooks, SeenWord};
use memhook_attach::Trace;
use memhook_ledger::Observer;
use memhook_recording::{LOOKS_NOTE, Look, LookWord, looks_text};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

/// The looks at blocks of a process.
pub struct Looks {
    /// Origin of the trace's times.
    origin_ns: u64,
    ends: Arc<AtomicBool>,
    thread: JoinHandle<SeenLooks>,
}

impl Looks {
    /// Starts the looks, if blocks of this trace are selected for them.
    ///
    /// # Errors
    /// Returns the reason if nothing can be watched.
    pub fn begin<O: Observer + Send + 'static>(
        trace: &Trace<O>,
        budget: f64,
    ) -> anyhow::Result<Option<Looks>> {
        let consumer = trace.shared_consumer();
        if !consumer.region().draws_looks() {
            return Ok(None);
        }
        let mut looks = BirthLooks::start(trace.session().pid(), budget)?;
        let ends = Arc::new(AtomicBool::new(false));
        let origin_ns = consumer.monotonic_origin_ns();
        let (of_thread, told) = (consumer, Arc::clone(&ends));
        let thread = std::thread::Builder::new().name("looks".into());
        let thread = thread.spawn(move || {
            let alive_since = |address: u64| {
                let since = of_thread.lock().ledger.alive_since(address)?;
                Some(since + origin_ns)
            };
            while !told.load(Relaxed) {
                std::thread::sleep(looks.turn(of_thread.region(), &alive_since));
            }
            looks.finish(of_thread.region())
        })?;
        Ok(Some(Looks {
            origin_ns,
            ends,
            thread,
        }))
    }

    /// Ends the looks. Returns their results for a recording, and messages to print.
    pub fn end(self) -> ((&'static str, String), Vec<String>) {
        self.ends.store(true, Relaxed);
        let Ok(seen) = self.thread.join() else {
            return (
                (LOOKS_NOTE, String::new()),
                vec!["looks at blocks have failed".into()],
            );
        };
        let origin_ns = self.origin_ns;
        let looks = seen.looks.into_iter().map(|look| on_trace(look, origin_ns));
        let looks: Vec<Look> = looks.collect();
        let mut told = seen.notes;
        if looks.is_empty() {
            told.push(
                "no block could be watched: too few allocations, or all watchpoints are in use"
                    .into(),
            );
        } else {
            told.push(format!(
                "{} were watched, at {:.2} % of the process's time",
                memhook_report::counted(looks.len() as u64, "block"),
                seen.cost * 100.0
            ));
        }
        ((LOOKS_NOTE, looks_text(&looks)), told)
    }
}

/// Converts the times of a look to times since the attach.
fn on_trace(look: SeenLook, origin_ns: u64) -> Look {
    let at = |ns: u64| match ns {
        u64::MAX => ns,
        ns => ns.saturating_sub(origin_ns),
    };
    let word = |word: SeenWord| LookWord {
        offset: word.offset,
        touches: word
            .touches
            .iter()
            .map(|&(t, again)| (at(t), at(again)))
            .collect(),
    };
    Look {
        address: look.address,
        at_ns: at(look.at_ns),
        until_ns: look.until_ns.map_or(u64::MAX, at),
        by_several: look.by_several,
        of_bytes: look.of_bytes,
        words: look.words.into_iter().map(word).collect(),
    }
}
