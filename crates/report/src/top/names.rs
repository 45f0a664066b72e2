//! Names of the stacks that are on the screen, as they come.

use super::Board;
use super::board::Named;
use crate::{Backtraces, frames_at};
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

    /// Asks for the names that the board wants; returns whether there was something new. `modules`: those of the
    /// target now.
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

    /// Hands over names that have come; returns whether there were any.
    pub fn follow(&mut self, backtraces: &dyn Backtraces, board: &mut Board) -> bool {
        let is_waiting = self.asked.values().any(|known| !known);
        if !is_waiting || !self.symbols.is_ready(Duration::ZERO) {
            return false;
        }
        let symbols = &self.symbols;
        let new = self.asked.iter_mut().filter(|(_, known)| !**known);
        board.name_sites(new.map(|(&id, known)| {
            *known = true;
            (id, named(backtraces, symbols, id))
        }));
        true
    }
}

/// Names of an interned stack, as far as they are there.
fn named(backtraces: &dyn Backtraces, symbols: &Symbolizer, id: u32) -> Named {
    let backtrace = backtraces.backtrace(id).unwrap_or_default();
    let frames = backtrace.addresses.iter();
    let frames = frames.flat_map(|&address| frames_at(symbols, address));
    Named {
        kind: backtrace.kind().unwrap_or("unknown").to_owned(),
        frames: frames.collect(),
    }
}
