//! Blocks and bytes, exact or estimated.

use memhook_ledger::Estimate;
use serde::Serialize;

/// Blocks and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Amount {
    /// Blocks.
    pub blocks: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Estimated variance of `bytes`; 0 unless allocations were sampled.
    #[serde(skip)]
    pub variance: f64,
    /// Additional variance for memory that no sample has hit. The value of a sum is the largest
    /// value of its parts.
    #[serde(skip)]
    pub unhit: f64,
}

impl Amount {
    /// Returns the standard error of `bytes`, if they are an estimate.
    pub fn error_bytes(&self) -> Option<u64> {
        Estimate::from(*self).error_bytes()
    }
}

impl From<Estimate> for Amount {
    fn from(estimate: Estimate) -> Amount {
        Amount {
            blocks: estimate.blocks.round() as u64,
            bytes: estimate.bytes.round() as u64,
            variance: estimate.variance,
            unhit: estimate.unhit,
        }
    }
}

impl From<Amount> for Estimate {
    fn from(amount: Amount) -> Estimate {
        Estimate {
            variance: amount.variance,
            unhit: amount.unhit,
            ..Estimate::exact(amount.blocks, amount.bytes)
        }
    }
}

impl std::ops::AddAssign for Amount {
    fn add_assign(&mut self, other: Amount) {
        // A report that was read back may contain any numbers.
        self.blocks = self.blocks.saturating_add(other.blocks);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.variance += other.variance;
        self.unhit = self.unhit.max(other.unhit);
    }
}

impl std::iter::Sum for Amount {
    fn sum<I: Iterator<Item = Amount>>(amounts: I) -> Amount {
        let mut sum = Amount::default();
        amounts.for_each(|amount| sum += amount);
        sum
    }
}
