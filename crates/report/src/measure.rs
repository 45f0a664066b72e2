//! Measures, and their units.

use crate::{Amount, Measures};
use std::str::FromStr;

/// Measure exported by single-value formats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measure {
    /// Memory that is live at the end of the window.
    #[default]
    Live,
    /// Memory that is live when the most bytes are.
    Peak,
    /// Memory that is allocated within the window.
    Allocated,
    /// Memory that is released within the window.
    Released,
    /// Memory that is released before the thread's next allocation.
    Temporary,
    /// Memory that is unreachable at the end of the run, if a search was made.
    Unreachable,
}

impl Measure {
    /// All measures.
    pub const ALL: [Measure; 6] = [
        Measure::Live,
        Measure::Peak,
        Measure::Allocated,
        Measure::Released,
        Measure::Temporary,
        Measure::Unreachable,
    ];

    /// Returns the measure's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Measure::Live => "live",
            Measure::Peak => "peak",
            Measure::Allocated => "allocated",
            Measure::Released => "released",
            Measure::Temporary => "temporary",
            Measure::Unreachable => "unreachable",
        }
    }

    /// Selects this measure of a site.
    pub fn of(self, measures: &Measures) -> Amount {
        match self {
            Measure::Live => measures.live,
            Measure::Peak => measures.peak,
            Measure::Allocated => measures.allocated,
            Measure::Released => measures.released,
            Measure::Temporary => measures.temporary,
            Measure::Unreachable => measures.unreachable,
        }
    }
}

impl FromStr for Measure {
    type Err = String;

    fn from_str(word: &str) -> Result<Measure, String> {
        let found = Measure::ALL.into_iter().find(|m| m.name() == word);
        found.ok_or_else(|| {
            let names = Measure::ALL.map(Measure::name).join(", ");
            // The page lists it among the measures.
            let hint = match word {
                "growth" => " (rows in the order of their growth: --sort growth)",
                _ => "",
            };
            format!("unknown measure {word}: use one of {names}{hint}")
        })
    }
}

/// Bytes, blocks, or calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Requested bytes.
    #[default]
    Bytes,
    /// Blocks.
    Blocks,
    /// Calls of probed functions, which are counted like blocks.
    Calls,
}

impl Unit {
    /// Returns the unit's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Bytes => "bytes",
            Unit::Blocks => "blocks",
            Unit::Calls => "calls",
        }
    }

    /// Selects this unit of an amount.
    pub fn of(self, amount: Amount) -> u64 {
        match self {
            Unit::Bytes => amount.bytes,
            Unit::Blocks | Unit::Calls => amount.blocks,
        }
    }
}
