//! A traced process's memory at the end of the trace, to search for unreachable blocks.

use super::StackNames;
use memhook_attach::{Consumer, Session};
use memhook_gate::{FoundLeaks, Reached, Search, traced_blocks};
use memhook_heap::{Captured, Error as HeapError, Request, Snapshot, capture_settled};
use memhook_ledger::{Ledger, Observer};
use memhook_report::{Leaks, UnreachableSite};

/// A copy of the memory, or the reason why there is none.
pub struct LastLook {
    captured: Result<Captured, String>,
    /// Time before the copy, on the ledger's clock; `None` if the process has not run since.
    moment_ns: Option<u64>,
}

impl LastLook {
    /// Copies the memory. Call this while the process is still traced, because a block allocated
    /// later would be in no ledger. `words` turns an error into a message.
    pub fn take<O: Observer + Send>(
        pid: i32,
        consumer: &Consumer<O>,
        request: Request,
        words: fn(&HeapError) -> String,
    ) -> LastLook {
        let moment_ns = consumer.moment_ns();
        let captured = capture_settled(pid, request).map_err(|error| words(&error));
        LastLook::of(captured, Some(moment_ns))
    }

    /// Uses the memory of a process that is stopped while exiting.
    pub fn at_end(captured: Result<Captured, HeapError>) -> LastLook {
        LastLook::of(captured.map_err(|error| error.to_string()), None)
    }

    fn of(captured: Result<Captured, String>, moment_ns: Option<u64>) -> LastLook {
        let captured = captured.map_err(|why| format!("its memory could not be copied: {why}"));
        LastLook {
            captured,
            moment_ns,
        }
    }

    /// Creates the look at a process that has ended.
    pub fn too_late() -> LastLook {
        LastLook {
            moment_ns: None,
            captured: Err("the process ended before its memory could be searched".into()),
        }
    }

    /// Returns the copy, if there is one.
    pub fn snapshot(&self) -> Option<&Snapshot> {
        self.captured
            .as_ref()
            .ok()
            .map(|captured| &captured.snapshot)
    }

    /// Returns the copy or the reason for its absence, and the settings of the search.
    pub fn memory(&self, finds_possible: bool) -> (Result<&Snapshot, String>, Search) {
        let memory = self.captured.as_ref().map(|captured| &captured.snapshot);
        (memory.map_err(String::clone), self.search(finds_possible))
    }

    fn search(&self, finds_possible: bool) -> Search {
        Search {
            before_ns: self.moment_ns,
            is_complete: false,
            finds_possible,
        }
    }

    /// Returns the facts about the blocks that a verdict needs.
    pub fn blocks(self, ledger: &Ledger, finds_possible: bool) -> Reached {
        let (memory, search) = self.memory(finds_possible);
        traced_blocks(ledger, memory, search)
    }

    /// Searches the copy. The ledger must have all events up to the detach.
    pub fn search_in<O: Observer + Send>(
        self,
        consumer: &Consumer<O>,
        finds_possible: bool,
    ) -> Searched {
        let search = self.search(finds_possible);
        let found = self.captured.map(|captured| {
            let state = consumer.lock();
            FoundLeaks::search(&captured.snapshot, &state.ledger, &state.counts, search)
        });
        Searched(found)
    }
}

/// Unreachable blocks in a copy, or the reason why there is no copy.
pub struct Searched(Result<FoundLeaks, String>);

impl Searched {
    /// Returns the blocks grouped by the stack and the thread of their allocation, for the rows of
    /// a report.
    pub fn unreachable(&self) -> Option<&[UnreachableSite]> {
        self.0.as_ref().ok().map(FoundLeaks::unreachable)
    }

    /// Returns the part of a report about unreachable blocks, with `top` call stacks.
    pub fn report(self, session: &Session, reporter: &mut impl StackNames, top: usize) -> Leaks {
        match self.0 {
            Ok(found) => {
                reporter.look_up(session, &mut found.stacks());
                found.report(top, |id| reporter.stack(session, id))
            }
            Err(gap) => Leaks {
                gaps: vec![gap],
                ..Leaks::default()
            },
        }
    }
}
