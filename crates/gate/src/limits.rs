//! Limits of a verdict.

use crate::evidence::AllocationSite;
use crate::pattern::template_matches;

/// A limit on the live blocks of one site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteLimit {
    /// Maximum number of live bytes.
    pub bytes: u64,
    /// Sites to which the limit applies. Their bytes are added up. The syntax is the same as for
    /// `leak:` suppressions.
    pub pattern: String,
}

impl SiteLimit {
    /// Returns true if the limit applies to a site.
    pub fn is_about(&self, site: &AllocationSite) -> bool {
        let matches = |text: &Option<String>| {
            text.as_ref()
                .is_some_and(|text| template_matches(&self.pattern, text))
        };
        let mut frames = site.stack.iter();
        frames.any(|f| matches(&f.function) || matches(&f.file) || matches(&f.module))
    }
}

/// Limits; `None` means unlimited.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Limit on unreachable bytes.
    pub leaked_bytes: Option<u64>,
    /// Limit on the number of unreachable blocks.
    pub leaked_blocks: Option<u64>,
    /// Limit on bytes live at the end, leaked or not.
    pub live_bytes: Option<u64>,
    /// Limit on the peak of live bytes.
    pub peak_bytes: Option<u64>,
    /// Limit on the number of allocations.
    pub allocations: Option<u64>,
    /// Minimum lifetime score, from 0 to 1.
    pub lifetime_score: Option<f64>,
    /// Minimum usage score, from 0 to 1.
    pub usage_score: Option<f64>,
    /// Limits of single sites.
    pub sites: Vec<SiteLimit>,
    /// Percentage by which a site's leak may exceed the baseline.
    pub tolerance_percent: f64,
}

impl Limits {
    /// Returns true if there are limits other than those on leaks.
    pub fn has_any_but_leaks(&self) -> bool {
        let sums = [self.live_bytes, self.peak_bytes, self.allocations];
        sums.iter().any(Option::is_some)
            || self.lifetime_score.is_some()
            || self.usage_score.is_some()
            || !self.sites.is_empty()
    }
}

impl Default for Limits {
    /// Returns limits that allow no leak at all.
    fn default() -> Self {
        Limits {
            leaked_bytes: Some(0),
            leaked_blocks: Some(0),
            live_bytes: None,
            peak_bytes: None,
            allocations: None,
            lifetime_score: None,
            usage_score: None,
            sites: Vec::new(),
            tolerance_percent: 0.0,
        }
    }
}
