//! Names of the stacks on the screen, as they arrive.

use super::Board;
use super::board::Named;
use crate::CUT_ROOT;
use crate::named_run::is_cut;
use crate::{Backtraces, StackFrame, frames_at};
use memhook_symbols::{ModuleFile, Symbolizer};
use std::{collections::HashMap, time::Duration};

/// Requests names and passes them to the board.
pub struct Names {
    symbols: Symbolizer,
    /// Maximum number of frames recorded from each stack.
    depth: u32,
    /// Requested stacks, with true for a final name.
    asked: HashMap<u32, bool>,
}

impl Names {
    /// Creates an empty set of requests. `symbols` finds the names of the target. `depth` is the
    /// maximum number of frames that are recorded from a stack.
    pub fn new(symbols: Symbolizer, depth: u32) -> Names {
        Names {
            symbols,
            depth,
            asked: HashMap::new(),
        }
    }

    /// Requests the names that the board wants. Returns true if any of them are new. `modules` are
    /// the target's current modules.
    pub fn ask(
        &mut self,
        backtraces: &dyn Backtraces,
        modules: impl FnOnce() -> Vec<ModuleFile>,
        board: &Board,
    ) -> bool {
        let mut new = board.wanted();
        new.retain(|id| !self.asked.contains_key(id));
        if new.is_empty() {
            return false;
        }
        self.symbols.set_modules(modules());
        let of_new = new.iter().filter_map(|&id| backtraces.backtrace(id));
        self.symbols.request(of_new.flat_map(|b| b.addresses));
        self.asked.extend(new.iter().map(|&id| (id, false)));
        true
    }

    /// Passes the names that have arrived on to the board. Returns true if there were any.
    pub fn follow(&mut self, backtraces: &dyn Backtraces, board: &mut Board) -> bool {
        let is_waiting = self.asked.values().any(|known| !known);
        if !is_waiting || !self.symbols.is_ready(Duration::ZERO) {
            return false;
        }
        let (symbols, depth) = (&self.symbols, self.depth);
        let new = self.asked.iter_mut().filter(|(_, known)| !**known);
        board.name_sites(new.map(|(&id, known)| {
            *known = true;
            (id, named(backtraces, symbols, depth, id))
        }));
        true
    }
}

/// Returns the known names of an interned stack.
fn named(backtraces: &dyn Backtraces, symbols: &Symbolizer, depth: u32, id: u32) -> Named {
    let backtrace = backtraces.backtrace(id).unwrap_or_default();
    let frames = backtrace.addresses.iter();
    let frames = frames.flat_map(|&address| frames_at(symbols, address));
    let mut frames: Vec<StackFrame> = frames.collect();
    let is_cut = is_cut(
        backtrace.addresses.len(),
        backtrace.truncated,
        depth,
        &frames,
    );
    // Otherwise, another function could be mistaken for the root of the tree.
    frames.extend(is_cut.then(|| StackFrame {
        function: Some(CUT_ROOT.into()),
        ..StackFrame::default()
    }));
    Named {
        kind: backtraces
            .kind(&backtrace)
            .unwrap_or_else(|| "unknown".to_owned()),
        frames,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backtrace;

    struct OfThree;

    impl Backtraces for OfThree {
        fn backtrace(&self, _: u32) -> Option<Backtrace> {
            Some(Backtrace {
                addresses: vec![1, 2, 3],
                ..Backtrace::default()
            })
        }
    }

    #[test]
    fn a_stack_that_was_cut_says_so_at_its_root() {
        let symbols = Symbolizer::new(Vec::new());
        for (depth, expected) in [(3, Some(CUT_ROOT)), (4, None)] {
            let frames = named(&OfThree, &symbols, depth, 1).frames;
            let root = frames.last().and_then(|frame| frame.function.as_deref());
            assert_eq!(root, expected, "{depth}");
        }
    }
}
