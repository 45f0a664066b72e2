//! Leaks and remaining blocks of one heap, and the limits that they exceed.

use crate::described::HeapEvidence;
use crate::evidence::{Evidence, Sum};
use crate::verdict::{HeapVerdict, Outcome, Violation};
use crate::{AllocationSite, Limits};
use memhook_report::{MAIN_HEAP, bytes, count, counted};

/// Sums of one heap.
pub(crate) struct HeapSums {
    name: String,
    pub leaked: Sum,
    pub suppressed: Sum,
    pub known: Sum,
    reachable: Sum,
    /// Number of groups of findings that count.
    pub leaks: u64,
    peak_bytes: u64,
    allocations: u64,
}

impl HeapSums {
    /// Returns the sums of all blocks outside described heaps.
    pub fn of_malloc(evidence: &Evidence) -> HeapSums {
        HeapSums::of_described(&HeapEvidence {
            name: MAIN_HEAP.to_owned(),
            reachable: evidence.reachable,
            peak_bytes: evidence.peak_bytes,
            allocations: evidence.allocations,
        })
    }

    /// Returns the sums of a described heap before anything has leaked.
    pub fn of_described(heap: &HeapEvidence) -> HeapSums {
        HeapSums {
            name: heap.name.clone(),
            leaked: Sum::default(),
            suppressed: Sum::default(),
            known: Sum::default(),
            reachable: heap.reachable,
            leaks: 0,
            peak_bytes: heap.peak_bytes,
            allocations: heap.allocations,
        }
    }

    fn live(&self) -> Sum {
        let mut live = self.reachable;
        for sum in [self.leaked, self.suppressed, self.known] {
            live.add(sum);
        }
        live
    }

    /// Returns the sums with their outcome.
    pub fn verdict(&self, outcome: Outcome) -> HeapVerdict {
        HeapVerdict {
            name: self.name.clone(),
            outcome,
            leaked: self.leaked,
            suppressed: self.suppressed,
            known: self.known,
            reachable: self.reachable,
            peak_bytes: self.peak_bytes,
            allocations: self.allocations,
        }
    }

    /// Returns the limits that this heap exceeds. If `has_several` is true, there are other heaps,
    /// so this heap is named.
    pub fn violations(
        &self,
        evidence: &Evidence,
        limits: &Limits,
        has_several: bool,
    ) -> Vec<Violation> {
        let leaked = self.leaked;
        let mut found = Vec::new();
        let mut check =
            |option, is: u64, limit: Option<u64>, text: &dyn Fn(u64) -> String| match limit {
                Some(limit) if is > limit => {
                    let mut text = text(limit);
                    if has_several {
                        text = format!("heap {}: {text}", self.name);
                    }
                    found.push(Violation { option, text });
                    true
                }
                _ => false,
            };
        let in_words = format!(
            "{}, {} in {}",
            counted(self.leaks, evidence.subject.noun()),
            bytes(leaked.bytes),
            counted(leaked.blocks, "block")
        );
        let of_bytes = |limit: u64| match limit {
            0 => format!("{in_words} (limit 0)"),
            limit => format!("{in_words} (limit {})", bytes(limit)),
        };
        let exceeded = check(
            "--fail-on leaked",
            leaked.bytes,
            limits.leaked_bytes,
            &of_bytes,
        );
        if !exceeded {
            // A leaked block of 0 bytes is a leak too.
            let of_blocks = |limit: u64| format!("{in_words} (limit {})", counted(limit, "block"));
            check(
                "--fail-on leaked-blocks",
                leaked.blocks,
                limits.leaked_blocks,
                &of_blocks,
            );
        }
        let sum = |what: &'static str, is: u64| {
            move |limit: u64| format!("{what} {} (limit {})", bytes(is), bytes(limit))
        };
        let live = self.live().bytes;
        check(
            "--fail-on live",
            live,
            limits.live_bytes,
            &sum("live at the end", live),
        );
        let peak = self.peak_bytes;
        check(
            "--fail-on peak",
            peak,
            limits.peak_bytes,
            &sum("peak", peak),
        );
        let made = self.allocations;
        check(
            "--fail-on allocations",
            made,
            limits.allocations,
            &|limit| format!("{} (limit {})", counted(made, "allocation"), count(limit)),
        );
        for limit in &limits.sites {
            let is_own = |site: &&AllocationSite| {
                !has_several || site.heap.as_deref() == Some(self.name.as_str())
            };
            let sites = evidence.sites.iter().filter(is_own);
            let sites = sites.filter(|site| limit.is_about(site));
            let is: u64 = sites.map(|site| site.live.bytes).sum();
            check("--fail-on site", is, Some(limit.bytes), &|most| {
                format!(
                    "sites of {} keep {} (limit {})",
                    limit.pattern,
                    bytes(is),
                    bytes(most)
                )
            });
        }
        found
    }
}
