//! Measures how long a program with a large heap waits when it maps memory
//! (`tests/targets/mapping_stalls.cc`).

use crate::{Target, build_target};

/// The running program.
pub struct MappingStalls(pub Target);

impl MappingStalls {
    /// Starts the program with a heap of this many mebibytes.
    pub fn start(mib: &str) -> MappingStalls {
        let program = build_target("mapping_stalls", &["-O1", "-pthread"]);
        MappingStalls(Target::start(&program, &[mib]))
    }

    /// Returns the longest wait since the previous call, in microseconds.
    fn longest_us(&mut self) -> u64 {
        self.0.go();
        let line = self.0.expect("longest ");
        let number = line["longest ".len()..].trim().parse();
        number.expect("microseconds")
    }

    /// Repeats `work` until the longest wait in one run is within the limit, and returns the
    /// longest wait of each run. On a busy machine, the holder of the lock sometimes has to wait
    /// for a processor, but not in every run.
    pub fn waits_during(&mut self, limit_us: u64, mut work: impl FnMut()) -> Vec<u64> {
        let mut waits = Vec::new();
        while waits.len() < 24 && waits.last().is_none_or(|&us| us > limit_us) {
            self.longest_us();
            work();
            waits.push(self.longest_us());
        }
        waits
    }
}
