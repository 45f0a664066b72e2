//! Runs stockfish's own benchmark: a fixed search of fixed positions.

use super::{Program, find};
use crate::{Figure, Round, Standing, Subject, Tool, is_test, processors::Placement};
use memhook_tests::Target;
use std::process::Stdio;

pub(super) const PROGRAM: Program = Program {
    works: &["stockfish bench"],
    cycles: 20,
    stands: true,
    start,
};

struct Stockfish(Target);

fn start(place: &Placement) -> Result<Box<dyn Subject>, String> {
    let program = find("stockfish", "stockfish")?;
    let mut command = place.command(&program);
    let mut target = Target::silent(command.stderr(Stdio::null()));
    target.expect("Stockfish");
    let mut stockfish = Stockfish(target);
    // The first search loads the neural network.
    stockfish.search(1);
    Ok(Box::new(stockfish))
}

impl Stockfish {
    /// Searches to this depth.
    fn search(&mut self, depth: u32) {
        self.0.send(&format!("bench 16 1 {depth}\nisready\n"));
        while self.0.expect("").trim() != "readyok" {}
    }
}

impl Subject for Stockfish {
    fn round(&mut self, tool: Option<&dyn Tool>) -> Result<Round, String> {
        let pid = self.0.pid();
        let depth = if is_test() { 1 } else { 9 };
        let measure = || {
            let bench = || {
                self.search(depth);
                Ok(1.0)
            };
            Ok(vec![Figure::of(pid, bench)?])
        };
        Standing { pid, measure }.round(tool)
    }
}
