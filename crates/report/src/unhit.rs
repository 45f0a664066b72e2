//! What no sample may have hit of a run whose samples became rarer: said once of all rows.

use crate::units::with_error;
use crate::{ReportModel, Sampling};
use memhook_ledger::{SampledAllocations, standard_error};

impl Sampling {
    /// Standard error of a sum all of whose blocks were counted, for what no sample has hit; `None` where every sum has
    /// samples.
    fn unhit_error(&self) -> Option<u64> {
        self.exact_allocations?;
        let mut counts = SampledAllocations::new(Some(self.mean_bytes), false);
        counts.announce(1);
        standard_error(counts.unhit_variance())
    }
}

/// The error of a row, unless all of its blocks were counted: what no sample has hit is said once, of all rows.
pub(crate) fn counted_apart(model: &ReportModel, error: Option<u64>) -> Option<u64> {
    let unhit = model.sampling.and_then(|sampling| sampling.unhit_error());
    error.filter(|&error| unhit.is_none_or(|unhit| error > unhit))
}

/// What no sample may have hit, of each row.
pub(crate) fn unhit(sampling: &Sampling) -> String {
    sampling.unhit_error().map_or(String::new(), |error| {
        format!("; {} more at each site", with_error(0, Some(error)))
    })
}
