//! Scores by formulas: their values for sites and runs, and changes between runs.

use super::variables::{Evidence, Numbers};
use super::{AccessSource, Formula, ProfileScores, SiteScores};
use memhook_recording::variance;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Value of a formula in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CustomScore {
    /// Name of the score.
    pub name: String,
    /// The formula.
    pub formula: String,
    /// Sum over the sites with a value; `None` if there are none.
    pub sum: Option<f64>,
    /// Mean over these sites.
    pub mean: Option<f64>,
    /// Variance over these sites.
    pub variance: Option<f64>,
    /// Number of sites with a value.
    pub known_sites: u64,
}

/// Values of the formulas for one site, by name; `None` for a formula without a value.
pub type CustomValues = BTreeMap<String, Option<f64>>;

/// Change of a formula's values from one run to another.
#[derive(Clone, Debug, Serialize)]
pub struct CustomChange {
    /// Name of the score.
    pub name: String,
    /// The formula.
    pub formula: String,
    /// Value in the old run.
    pub old: CustomScore,
    /// Value in the new run.
    pub new: CustomScore,
    /// Sum in the new run minus sum in the old run.
    pub change: Option<f64>,
}

/// Change of a formula's value for one site.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CustomSiteChange {
    /// Value in the old run.
    pub old: Option<f64>,
    /// Value in the new run.
    pub new: Option<f64>,
    /// Value in the new run minus value in the old run.
    pub change: Option<f64>,
}

/// Reason why a formula cannot be evaluated for a run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoEvidence {
    /// The formula needs reads and writes, which are unknown.
    #[error(
        "{score}: '{variable}' (column {column}) is not known: the recording does not say which bytes are read and written"
    )]
    NoAccesses {
        /// The score.
        score: String,
        /// The variable.
        variable: &'static str,
        /// Position of its first use.
        column: usize,
    },
    /// The formula needs timed calls of the allocator, and none was timed.
    #[error(
        "{score}: '{variable}' (column {column}) is not known: no call of the allocator was timed"
    )]
    NotTimed {
        /// The score.
        score: String,
        /// The variable.
        variable: &'static str,
        /// Position of its first use.
        column: usize,
    },
    /// The formula needs all accesses, and only some blocks were watched.
    #[error(
        "{score}: '{variable}' (column {column}) is not known: accesses were sampled, from which only 'usage' and 'useful_lifetime' are estimated"
    )]
    Sampled {
        /// The score.
        score: String,
        /// The variable.
        variable: &'static str,
        /// Position of its first use.
        column: usize,
    },
}

impl Formula {
    /// Fails for a run that lacks the reads and writes that the formula needs.
    ///
    /// # Errors
    /// The error names the first variable without values.
    pub fn check(&self, source: Option<AccessSource>) -> Result<(), NoEvidence> {
        for &(variable, column) in self.variables() {
            let score = self.name().to_owned();
            let (variable, evidence) = (variable.name(), variable.evidence());
            match (evidence, source) {
                (Evidence::Accesses | Evidence::AllAccesses, None) => {
                    return Err(NoEvidence::NoAccesses {
                        score,
                        variable,
                        column,
                    });
                }
                (Evidence::AllAccesses, Some(AccessSource::Sampled)) => {
                    return Err(NoEvidence::Sampled {
                        score,
                        variable,
                        column,
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Fails for a run without timed calls of the allocator, if the formula needs them.
    fn check_timed(&self, is_timed: bool) -> Result<(), NoEvidence> {
        let mut used = self.variables().iter();
        let needed = used.find(|(variable, _)| variable.evidence() == Evidence::AllocatorTime);
        match needed {
            Some(&(variable, column)) if !is_timed => Err(NoEvidence::NotTimed {
                score: self.name().to_owned(),
                variable: variable.name(),
                column,
            }),
            _ => Ok(()),
        }
    }
}

impl ProfileScores {
    /// Adds the scores defined by formulas. Sites that are filtered out later still contribute to
    /// the scores of the run.
    ///
    /// # Errors
    /// Fails if the run lacks the evidence that a formula needs.
    pub fn add_formulas(&mut self, formulas: &[Formula]) -> Result<(), NoEvidence> {
        for formula in formulas {
            formula.check(self.run.access_source)?;
            formula.check_timed(self.is_timed)?;
        }
        let summed = |formula: &Formula| {
            let values = self.sites.iter();
            let values = values.filter_map(|site| formula.value(&self.numbers([site])));
            summary(formula, &values.collect::<Vec<_>>())
        };
        self.custom = formulas.iter().map(summed).collect();
        self.formulas = formulas.to_vec();
        Ok(())
    }

    fn numbers<'a>(&self, sites: impl IntoIterator<Item = &'a SiteScores>) -> Numbers {
        let mut numbers = Numbers::new(self.run_s);
        for site in sites {
            numbers.add(site);
        }
        numbers
    }

    /// Computes the formulas for some sites together, in the order of the formulas.
    pub(crate) fn values<'a>(
        &self,
        sites: impl IntoIterator<Item = &'a SiteScores>,
    ) -> Vec<Option<f64>> {
        let numbers = self.numbers(sites);
        let formulas = self.formulas.iter();
        formulas.map(|formula| formula.value(&numbers)).collect()
    }

    /// Computes one of the formulas for a stack, by its index in the profile.
    pub(crate) fn value_of_stack(&self, formula: usize, stack: u32) -> Option<f64> {
        let site = self.site(stack)?;
        self.formulas.get(formula)?.value(&self.numbers([site]))
    }

    /// Returns the values for a site, by name.
    pub fn named_values(&self, site: &SiteScores) -> CustomValues {
        let names = self
            .formulas
            .iter()
            .map(|formula| formula.name().to_owned());
        names.zip(self.values([site])).collect()
    }
}

fn summary(formula: &Formula, values: &[f64]) -> CustomScore {
    let finite = |value: f64| value.is_finite().then_some(value);
    let sum = values.iter().sum::<f64>();
    let is_known = !values.is_empty();
    CustomScore {
        name: formula.name().to_owned(),
        formula: formula.text().to_owned(),
        sum: is_known.then_some(sum).and_then(finite),
        mean: is_known.then(|| sum / values.len() as f64).and_then(finite),
        variance: variance(values.iter().copied()).and_then(finite),
        known_sites: values.len() as u64,
    }
}

/// Compares two runs, in the order of the formulas.
pub(crate) fn custom_changes(old: &ProfileScores, new: &ProfileScores) -> Vec<CustomChange> {
    let both = old.custom.iter().zip(&new.custom);
    let changes = both.map(|(old, new)| CustomChange {
        name: new.name.clone(),
        formula: new.formula.clone(),
        change: difference(old.sum, new.sum),
        old: old.clone(),
        new: new.clone(),
    });
    changes.collect()
}

/// Compares formulas, from the old run to the new one, for stacks that form one site.
pub(crate) fn custom_site_changes(
    (old, old_stacks): (&ProfileScores, &BTreeSet<u32>),
    (new, new_stacks): (&ProfileScores, &BTreeSet<u32>),
) -> BTreeMap<String, CustomSiteChange> {
    let values = |scores: &ProfileScores, stacks: &BTreeSet<u32>| {
        let mut sites = stacks.iter().filter_map(|&stack| scores.site(stack));
        let first = sites.next();
        match first {
            Some(first) => scores.values(std::iter::once(first).chain(sites)),
            None => vec![None; scores.formulas.len()],
        }
    };
    let both = values(old, old_stacks)
        .into_iter()
        .zip(values(new, new_stacks));
    let changes = both.map(|(old, new)| CustomSiteChange {
        old,
        new,
        change: difference(old, new),
    });
    let names = new.formulas.iter().map(|formula| formula.name().to_owned());
    names.zip(changes).collect()
}

fn difference(old: Option<f64>, new: Option<f64>) -> Option<f64> {
    Some(new? - old?).filter(|change| change.is_finite())
}
