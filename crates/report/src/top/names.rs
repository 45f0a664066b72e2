//! Names of the stacks that are on the screen, as they come.

use super::Board;
use crate::{Backtraces, StackFrame, frames_at, site_name};
use memhook_symbols::{ModuleFile, Symbolizer};
use std::{collections::HashMap, time::Duration};

/// Asks for names and hands them to the board.
pub struct Names {
    symbols: Symbolizer,
    /// Whether the name is final.
    asked: HashMap<u32, bool>,
}

impl Names {
    /// Nothing has been asked for yet. `symbols` finds the names of the target.
    pub fn new(symbols: Symbolizer) -> Names {
        Names {
            symbols,
            asked: HashMap::new(),
        }
    }

    /// Asks for what is visible; returns whether there was something new. `modules`: those of the target now.
    pub fn ask(
        &mut self,
        backtraces: &dyn Backtraces,
        modules: impl FnOnce() -> Vec<ModuleFile>,
        board: &Board,
    ) -> bool {
        let is_new = |id: &u32| !self.asked.contains_key(id);
        let new: Vec<u32> = board.visible().filter(is_new).collect();
        if new.is_empty() {
            return false;
        }
        self.symbols.set_modules(modules());
        let of_new = new.iter().filter_map(|&id| backtraces.backtrace(id));
        self.symbols.request(of_new.flat_map(|b| b.addresses));
        self.asked.extend(new.iter().map(|&id| (id, false)));
        true
    }

    /// Hands over names that have come; returns whether there were any.
    pub fn follow(&mut self, backtraces: &dyn Backtraces, board: &mut Board) -> bool {
        let is_waiting = self.asked.values().any(|known| !known);
        if !is_waiting || !self.symbols.is_ready(Duration::ZERO) {
            return false;
        }
        for (&id, known) in self.asked.iter_mut().filter(|(_, known)| !**known) {
            let (kind, stack) = named_stack(backtraces, &self.symbols, id);
            board.name_site(id, site_name(&stack), kind, stack);
            *known = true;
        }
        true
    }
}

/// Kind and frames of an interned stack, with the names that are there.
fn named_stack(
    backtraces: &dyn Backtraces,
    symbols: &Symbolizer,
    id: u32,
) -> (String, Vec<StackFrame>) {
    let backtrace = backtraces.backtrace(id).unwrap_or_default();
    let frames = backtrace.addresses.iter();
    let frames = frames.flat_map(|&address| frames_at(symbols, address));
    let kind = backtrace.kind().unwrap_or("unknown");
    (kind.to_owned(), frames.collect())
}
