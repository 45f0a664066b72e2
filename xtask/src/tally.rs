//! Counts of failures by class.

use std::collections::{BTreeMap, BTreeSet};

/// Class of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// The target ended
    Died,
    /// The target hung, stopped or traced
    Stuck,
    /// The target waits for a lock that was left locked
    Unusable,
    /// The target's self-check failed
    WrongAnswer,
    /// A wait ended too early
    Early,
    /// A debugger could not be attached to the target
    Debugger,
    /// A slot does not hold its original value
    Slots,
    /// Mappings, descriptors or blocked signals changed
    Footprint,
    /// Resident memory grows
    Memory,
    /// The attacher crashed, hung, or failed without a reason
    Attacher,
    /// Events were lost
    Lost,
}

/// One failure.
#[derive(Debug)]
pub struct Failure(pub Class, pub String);

/// Returns a failure.
pub fn failed<T>(class: Class, what: impl Into<String>) -> Result<T, Failure> {
    Err(Failure(class, what.into()))
}

/// Counts for one kind of target, or for all kinds.
#[derive(Default)]
pub struct Tally {
    /// Number of all cycles, and of cycles in which the attacher was killed, was stopped, or refused to attach.
    pub cycles: u64,
    pub killed: u64,
    pub stopped: u64,
    pub refused: u64,
    /// Number of cycles in which the attacher was late for lack of processor time.
    pub late: u64,
    /// Number of cycles after which a debugger ran.
    pub debugged: u64,
    /// Refusals that were printed, with digits removed.
    shown: BTreeSet<String>,
    failures: BTreeMap<Class, u64>,
    /// Number of the target's waits, and of waits that ended with EINTR.
    pub waits: u64,
    pub interrupted: u64,
    /// Largest delay of the end of a wait, in milliseconds.
    pub latest_ms: u64,
    /// Growth of resident memory in KiB, and the number of cycles in which it was measured.
    pub growth_kib: i64,
    pub growth_cycles: u64,
}

impl Tally {
    /// Counts a failure.
    pub fn count(&mut self, failure: &Failure) {
        *self.failures.entry(failure.0).or_default() += 1;
    }

    /// Counts a refusal, and prints it unless a similar refusal was printed before.
    pub fn refuse(&mut self, what: &str) {
        self.refused += 1;
        let without_numbers = what.replace(|c: char| c.is_ascii_digit(), "");
        if self.shown.insert(without_numbers) {
            println!("{what}");
        }
    }

    /// Returns the number of failures.
    pub fn failures(&self) -> u64 {
        self.failures.values().sum()
    }

    /// Adds the counts of another tally.
    pub fn add(&mut self, other: &Tally) {
        self.cycles += other.cycles;
        self.killed += other.killed;
        self.stopped += other.stopped;
        self.refused += other.refused;
        self.late += other.late;
        self.debugged += other.debugged;
        for (&class, &count) in &other.failures {
            *self.failures.entry(class).or_default() += count;
        }
        self.waits += other.waits;
        self.interrupted += other.interrupted;
        self.latest_ms = self.latest_ms.max(other.latest_ms);
        self.growth_kib += other.growth_kib;
        self.growth_cycles += other.growth_cycles;
    }

    /// Formats the counts.
    pub fn text(&self) -> String {
        let mut text = format!(
            "{} cycles ({} killed, {} stopped, {} refused, {} late, {} followed by gdb), {} failures",
            self.cycles,
            self.killed,
            self.stopped,
            self.refused,
            self.late,
            self.debugged,
            self.failures()
        );
        for (class, count) in &self.failures {
            let share = *count as f64 * 100.0 / self.cycles.max(1) as f64;
            text += &format!("; {class:?} {count} ({share:.1} %)");
        }
        if self.waits > 0 {
            text += &format!(
                "; EINTR in {} of {} waits, at most {} ms late",
                self.interrupted, self.waits, self.latest_ms
            );
        }
        if self.growth_cycles > 0 {
            let cycles = self.growth_cycles;
            text += &format!("; resident {:+} KiB in {cycles} cycles", self.growth_kib);
        }
        text
    }
}
