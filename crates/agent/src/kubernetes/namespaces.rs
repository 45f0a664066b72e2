//! Limits per namespace, on the number of its targets and on the processor time for tracing them.

use crate::budget::{Budget, OwnUse, Verdict, processors};
use crate::config::{File, Namespace};
use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

/// Returns the limits for a namespace: those of the first pattern that matches it.
pub fn limits_of<'a>(file: &'a File, namespace: &str) -> Option<&'a Namespace> {
    let kubernetes = file.kubernetes.as_ref()?.get_ref();
    let mut all = kubernetes.namespace.iter().map(toml::Spanned::get_ref);
    all.find(|limits| limits.name.get_ref().matches(namespace))
}

/// Describes the limits, as a phrase that follows the pattern of the namespace.
pub fn limits_in_words(limits: &Namespace) -> String {
    let targets = limits.max_targets.map(|most| match most {
        1 => "1 target".to_owned(),
        most => format!("{most} targets"),
    });
    let share = limits.max_cpu;
    let share = share.map(|share| format!("{} % of the processors", 100.0 * share.0));
    let both: Vec<String> = targets.into_iter().chain(share).collect();
    let name = &limits.name.get_ref().0;
    format!("\"{name}\": at most {}", both.join(" and "))
}

/// A namespace with targets.
struct Spending {
    budget: Budget,
    used: Duration,
    verdict: Verdict,
}

/// All namespaces.
#[derive(Default)]
pub struct Namespaces {
    of: BTreeMap<String, Spending>,
    /// Processor time of each target's threads at the last check.
    before: HashMap<i32, Duration>,
}

impl Namespaces {
    /// Judges each namespace's use of processor time, given the total for each target's threads.
    pub fn judge<'a>(
        &mut self,
        now: Instant,
        file: &File,
        targets: impl Iterator<Item = (i32, &'a str, Duration)>,
    ) {
        let before = std::mem::take(&mut self.before);
        let mut used = BTreeMap::<&str, Duration>::new();
        for (pid, namespace, all) in targets {
            // A total that is smaller than before indicates another process, or a new attach to the
            // same process.
            let last = before.get(&pid).filter(|&&last| last <= all);
            let more = all - last.copied().unwrap_or_default();
            *used.entry(namespace).or_default() += more;
            self.before.insert(pid, all);
        }
        for &namespace in used.keys() {
            let share = limits_of(file, namespace).and_then(|limits| limits.max_cpu);
            let Some(share) = share else {
                self.of.remove(namespace);
                continue;
            };
            let rate = share.0 * processors();
            let spending = self.of.entry(namespace.to_owned());
            let spending = spending.or_insert_with(|| {
                let mut budget = Budget::new(rate, u64::MAX);
                // The use of the namespace's first target so far counts.
                let verdict = budget.judge(now, OwnUse::default());
                Spending {
                    budget,
                    used: Duration::ZERO,
                    verdict,
                }
            });
            spending.budget.set(rate, u64::MAX);
        }
        self.of.retain(|namespace, spending| {
            let more = used.get(namespace.as_str()).copied().unwrap_or_default();
            spending.used += more;
            let all = OwnUse {
                cpu_seconds: spending.used.as_secs_f64(),
                resident: 0,
            };
            spending.verdict = spending.budget.judge(now, all);
            // A namespace without targets is forgotten once it has paid for its earlier targets.
            used.contains_key(namespace.as_str()) || spending.verdict != Verdict::Free
        });
    }

    /// Returns true if the namespace has used little enough processor time that another of its
    /// processes may be traced.
    pub fn is_free(&self, namespace: &str) -> bool {
        let spending = self.of.get(namespace);
        spending.is_none_or(|spending| spending.verdict == Verdict::Free)
    }

    /// Returns the namespaces that exceed their share so far that a target has to be dropped.
    pub fn to_shed(&self) -> Vec<String> {
        let shed = self
            .of
            .iter()
            .filter(|(_, spending)| matches!(spending.verdict, Verdict::Shed(_)));
        shed.map(|(namespace, _)| namespace.clone()).collect()
    }

    /// Records that a target of a namespace was dropped.
    pub fn has_shed(&mut self, namespace: &str, now: Instant) {
        if let Some(spending) = self.of.get_mut(namespace) {
            spending.budget.has_shed(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> File {
        let text = "[[rule]]\nname = \"x\"\nuid = 1\n[kubernetes]\nkubelet = \"https://x\"\n\
                    [[kubernetes.namespace]]\nname = \"shop-*\"\nmax_cpu = \"1%\"\n\
                    [[kubernetes.namespace]]\nname = \"*\"\nmax_targets = 2\n";
        toml::from_str(text).expect("right")
    }

    #[test]
    fn the_first_limits_that_fit_count() {
        let file = file();
        let most = |namespace: &str| limits_of(&file, namespace).and_then(|l| l.max_targets);
        assert_eq!((most("shop-a"), most("bank")), (None, Some(2)));
    }

    /// A namespace that uses too much processor time loses targets. Other namespaces are not
    /// affected.
    #[test]
    fn each_namespace_has_a_budget_of_its_own() {
        let (file, begin) = (file(), Instant::now());
        let mut namespaces = Namespaces::default();
        let share = 0.01 * processors();
        let mut shed = 0;
        for second in 1..=120u32 {
            let used = |share: f64| Duration::from_secs_f64(share * f64::from(second));
            let targets = [
                (7, "shop-a", used(10.0 * share)),
                (8, "shop-b", used(0.5 * share)),
                (9, "bank", used(1.0)),
            ];
            let now = begin + Duration::from_secs(u64::from(second));
            namespaces.judge(now, &file, targets.into_iter());
            assert!(namespaces.is_free("shop-b") && namespaces.is_free("bank"));
            for namespace in namespaces.to_shed() {
                assert_eq!(namespace, "shop-a");
                namespaces.has_shed(&namespace, now);
                shed += 1;
            }
        }
        assert!(!namespaces.is_free("shop-a"));
        assert!((5..=12).contains(&shed), "{shed}");
        // The namespace is forgotten after it has paid back.
        for second in 121..=500u64 {
            let now = begin + Duration::from_secs(second);
            namespaces.judge(now, &file, std::iter::empty());
        }
        assert!(namespaces.is_free("shop-a") && namespaces.of.is_empty());
    }

    /// A process id may be reused, and a new attach has new threads.
    #[test]
    fn less_than_before_is_a_new_target() {
        let (file, now) = (file(), Instant::now());
        let mut namespaces = Namespaces::default();
        for (second, used) in [(0, 4000), (1, 100), (2, 200)] {
            let targets = [(7, "shop-a", Duration::from_millis(used))];
            namespaces.judge(
                now + Duration::from_secs(second),
                &file,
                targets.into_iter(),
            );
        }
        let used = namespaces.of["shop-a"].used;
        assert_eq!(used, Duration::from_millis(4000 + 100 + 100));
    }
}
