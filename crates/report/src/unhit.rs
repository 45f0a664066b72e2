//! Memory that all samples may have missed, in a run whose sampling became sparser. It is reported
//! once, for all rows together.

use crate::units::with_error;
use crate::{ReportModel, Sampling};
use memhook_ledger::{SampledAllocations, standard_error};

impl Sampling {
    /// Returns the standard error that unhit memory adds to a sum whose blocks were all counted;
    /// `None` if every sum is an estimate from samples.
    fn unhit_error(&self) -> Option<u64> {
        self.exact_allocations?;
        let mut counts = SampledAllocations::new(Some(self.mean_bytes), false);
        counts.announce(1);
        standard_error(counts.unhit_variance())
    }
}

/// Returns the error of a row, unless all of its blocks were counted. Unhit memory is reported
/// once, for all rows together.
pub(crate) fn counted_apart(model: &ReportModel, error: Option<u64>) -> Option<u64> {
    let unhit = model.sampling.and_then(|sampling| sampling.unhit_error());
    error.filter(|&error| unhit.is_none_or(|unhit| error > unhit))
}

/// States how much memory of each row samples may have missed.
pub(crate) fn unhit(sampling: &Sampling) -> String {
    sampling.unhit_error().map_or(String::new(), |error| {
        format!("; {} more at each site", with_error(0, Some(error)))
    })
}
