//! Turns evidence into a verdict.

use crate::evidence::{Evidence, Leak, Sum};
use crate::heap_sums::HeapSums;
use crate::verdict::{Finding, Outcome, Standing, Verdict, Violation};
use crate::{AllocationSite, Baseline, Limits, Suppressions, Wrappers};
use memhook_report::MAIN_HEAP;
use std::cmp::Reverse;
use std::collections::HashMap;

/// Accepted leaks and frames to skip.
#[derive(Debug, Default)]
pub struct Exceptions {
    /// Known and accepted leaks.
    pub suppressions: Suppressions,
    /// Leaks of an earlier run.
    pub baseline: Option<Baseline>,
    /// Functions that only pass on the result of an allocator.
    pub wrappers: Wrappers,
}

/// Judges the evidence of several processes separately.
pub fn judge_each(
    evidence: Vec<Evidence>,
    limits: &Limits,
    exceptions: &mut Exceptions,
    allow_partial: bool,
) -> Vec<Verdict> {
    let one = |evidence| judge(evidence, limits, exceptions, allow_partial);
    let mut verdicts: Vec<Verdict> = evidence.into_iter().map(one).collect();
    // The last verdict lists the rules that none of the processes has used.
    let last = verdicts.len().saturating_sub(1);
    for verdict in &mut verdicts[..last] {
        verdict.unused_suppressions.clear();
    }
    verdicts
}

/// Judges the evidence. If `allow_partial` is set, gaps in the evidence do not matter.
pub fn judge(
    mut evidence: Evidence,
    limits: &Limits,
    exceptions: &mut Exceptions,
    allow_partial: bool,
) -> Verdict {
    for frame in evidence.sites.iter_mut().flat_map(|site| &mut site.stack) {
        frame.wrapper = exceptions.wrappers.has(frame);
    }
    let mut heaps = vec![HeapSums::of_malloc(&evidence)];
    heaps.extend(evidence.heaps.iter().map(HeapSums::of_described));
    let has_several = heaps.len() > 1;
    if has_several {
        for site in &mut evidence.sites {
            site.heap.get_or_insert_with(|| MAIN_HEAP.to_owned());
        }
    }
    let heap_of = |site: &AllocationSite| {
        let mut heaps = evidence.heaps.iter();
        let number = heaps.position(|heap| site.heap.as_ref() == Some(&heap.name));
        number.map_or(0, |number| number + 1)
    };
    let leaks = std::mem::take(&mut evidence.leaks);
    let mut findings = Vec::new();
    for mut leak in leaks {
        let (standing, before, apart) = stand(&mut leak, &evidence, limits, exceptions);
        let sums = &mut heaps[heap_of(&evidence.sites[leak.site])];
        sums.suppressed.add(apart);
        match standing {
            Standing::Counted => &mut sums.leaked,
            Standing::Suppressed => &mut sums.suppressed,
            Standing::Known => &mut sums.known,
        }
        .add(leak.total());
        findings.push(Finding {
            leak,
            standing,
            before,
            group: 0,
        });
    }
    group(&mut findings, &evidence);
    let mut last_group = None;
    for finding in findings.iter().filter(|f| f.standing == Standing::Counted) {
        if last_group.replace(finding.group) != Some(finding.group) {
            heaps[heap_of(&evidence.sites[finding.leak.site])].leaks += 1;
        }
    }
    // A block that seems live may have been released unseen, and its address may belong to another
    // block.
    let is_blind = evidence.is_blind && !allow_partial;
    let is_sound = evidence.gaps.is_empty() || allow_partial;
    let outcome = |violations: &[Violation]| match (violations.is_empty(), is_sound) {
        (false, _) => Outcome::Failed,
        (true, true) => Outcome::Passed,
        (true, false) => Outcome::Unsound,
    };
    let mut violations = Vec::new();
    let mut of_heaps = Vec::new();
    for sums in &heaps {
        let mut of_heap = if is_blind {
            Vec::new()
        } else {
            sums.violations(&evidence, limits, has_several)
        };
        of_heaps.push(sums.verdict(outcome(&of_heap)));
        violations.append(&mut of_heap);
    }
    if !is_blind {
        violations.extend(violated_scores(&evidence, limits));
    }
    if !has_several {
        of_heaps.clear();
    }
    evidence.leaks = findings.iter().map(|f| f.leak.clone()).collect();
    let HeapSums {
        leaked,
        suppressed,
        known,
        ..
    } = heaps.swap_remove(0);
    Verdict {
        outcome: outcome(&violations),
        violations,
        leaked,
        suppressed,
        known,
        heaps: of_heaps,
        findings,
        unused_suppressions: exceptions.suppressions.unused(),
        evidence,
    }
}

/// Decides whether a leak counts, how large it was in the baseline, and which part of its indirect
/// blocks has its own suppression. The suppressed part is removed from the leak.
fn stand(
    leak: &mut Leak,
    evidence: &Evidence,
    limits: &Limits,
    exceptions: &mut Exceptions,
) -> (Standing, Option<Sum>, Sum) {
    let suppressions = &mut exceptions.suppressions;
    let site = &evidence.sites[leak.site];
    let mut apart = Sum::default();
    if suppressions.suppresses(site) {
        return (Standing::Suppressed, None, apart);
    }
    leak.indirect.retain(|(site, sum)| {
        let is_suppressed = suppressions.suppresses(&evidence.sites[*site]);
        if is_suppressed {
            apart.add(*sum);
        }
        !is_suppressed
    });
    let Some(baseline) = &exceptions.baseline else {
        return (Standing::Counted, None, apart);
    };
    let identity = site.identity();
    if baseline.covers(&identity, leak.total(), limits.tolerance_percent) {
        return (Standing::Known, None, apart);
    }
    (Standing::Counted, baseline.sum(&identity), apart)
}

/// Numbers the groups of leaks, and puts the leaks of a group together, the largest first.
fn group(findings: &mut [Finding], evidence: &Evidence) {
    let key = |finding: &Finding| {
        let site = &evidence.sites[finding.leak.site];
        (finding.standing, site.leak_key())
    };
    let mut bytes: HashMap<_, u64> = HashMap::new();
    for finding in &*findings {
        *bytes.entry(key(finding)).or_default() += finding.leak.total().bytes;
    }
    let mut keys: Vec<_> = bytes.keys().cloned().collect();
    // Groups of equal size are sorted by key, so that the next run has them in the same order.
    keys.sort_by_cached_key(|key| (Reverse(bytes[key]), format!("{key:?}")));
    let numbers: HashMap<_, _> = keys.into_iter().zip(0..).collect();
    for finding in &mut *findings {
        finding.group = numbers[&key(finding)];
    }
    findings.sort_by_key(|f| (f.group, Reverse(f.leak.total().bytes)));
}

fn violated_scores(evidence: &Evidence, limits: &Limits) -> Vec<Violation> {
    let mut found = Vec::new();
    let lifetime = evidence.scores.and_then(|run| run.scores.lifetime);
    if let (Some(is), Some(least)) = (lifetime, limits.lifetime_score)
        && is < least
    {
        found.push(Violation {
            option: "--fail-on lifetime-score",
            text: format!("lifetime score {is:.3} (limit {least})"),
        });
    }
    if let Some(least) = limits.usage_score {
        let usage = evidence.scores.and_then(|run| run.scores.usage);
        let is = match usage {
            Some(is) if is >= least => return found,
            Some(is) => format!("{is:.3}"),
            None => "unknown".to_owned(),
        };
        found.push(Violation {
            option: "--fail-on usage-score",
            text: format!("usage score {is} (limit {least})"),
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AllocationSite, SiteLimit, SourceFrame};
    use proptest::prelude::*;

    fn sum(blocks: u64, bytes: u64) -> Sum {
        Sum { blocks, bytes }
    }

    fn evidence(leaks: &[(&str, u64, u64)]) -> Evidence {
        let mut evidence = Evidence {
            reachable: sum(1, 1000),
            peak_bytes: 5000,
            allocations: 50,
            ..Evidence::default()
        };
        for (i, &(name, blocks, bytes)) in leaks.iter().enumerate() {
            let frame = SourceFrame {
                function: Some(name.into()),
                ..SourceFrame::default()
            };
            evidence.sites.push(AllocationSite {
                kind: "malloc".into(),
                symbol: Some("malloc".into()),
                stack: vec![frame],
                live: sum(blocks, bytes),
                ..AllocationSite::default()
            });
            evidence.leaks.push(Leak {
                site: i,
                direct: sum(blocks, bytes),
                ..Leak::default()
            });
        }
        evidence
    }

    fn plain(evidence: Evidence, limits: &Limits) -> Verdict {
        judge(evidence, limits, &mut Exceptions::default(), false)
    }

    #[test]
    fn limits_hold() {
        let two = || evidence(&[("f", 1, 100), ("g", 2, 300)]);
        let failed = plain(two(), &Limits::default());
        assert_eq!(failed.outcome, Outcome::Failed);
        assert_eq!(
            failed.violations[0].text,
            "2 leaks, 400 B in 3 blocks (limit 0)"
        );
        assert_eq!(failed.findings[0].leak.site, 1, "largest first");
        let open = Limits {
            leaked_bytes: None,
            leaked_blocks: None,
            ..Limits::default()
        };
        assert_eq!(plain(two(), &open).outcome, Outcome::Passed);
        let one = |change: fn(&mut Limits)| {
            let mut limits = open.clone();
            change(&mut limits);
            plain(two(), &limits).outcome
        };
        assert_eq!(one(|l| l.leaked_bytes = Some(400)), Outcome::Passed);
        assert_eq!(one(|l| l.leaked_bytes = Some(399)), Outcome::Failed);
        assert_eq!(one(|l| l.leaked_blocks = Some(3)), Outcome::Passed);
        assert_eq!(one(|l| l.leaked_blocks = Some(2)), Outcome::Failed);
        assert_eq!(one(|l| l.live_bytes = Some(1400)), Outcome::Passed);
        assert_eq!(one(|l| l.live_bytes = Some(1399)), Outcome::Failed);
        assert_eq!(one(|l| l.peak_bytes = Some(5000)), Outcome::Passed);
        assert_eq!(one(|l| l.peak_bytes = Some(4999)), Outcome::Failed);
        assert_eq!(one(|l| l.allocations = Some(49)), Outcome::Failed);
        let scored = |least| {
            let mut evidence = two();
            evidence.scores = Some(memhook_report::RunScores {
                scores: memhook_report::Scores::of_lifetime(Some(0.5)),
                ..Default::default()
            });
            let limits = Limits {
                lifetime_score: Some(least),
                ..open.clone()
            };
            plain(evidence, &limits)
        };
        assert_eq!(scored(0.5).outcome, Outcome::Passed);
        let text = "lifetime score 0.500 (limit 0.51)";
        assert_eq!(scored(0.51).violations[0].text, text);
        let site = |bytes| Limits {
            sites: vec![SiteLimit {
                bytes,
                pattern: "^g$".into(),
            }],
            ..open.clone()
        };
        assert_eq!(plain(two(), &site(300)).outcome, Outcome::Passed);
        assert_eq!(plain(two(), &site(299)).outcome, Outcome::Failed);
    }

    #[test]
    fn what_was_not_seen() {
        let mut partial = evidence(&[]);
        partial.gaps.push("5 events lost".into());
        let limits = Limits::default();
        assert_eq!(plain(partial.clone(), &limits).outcome, Outcome::Unsound);
        let none = &mut Exceptions::default();
        assert_eq!(judge(partial, &limits, none, true).outcome, Outcome::Passed);
        let mut leaks = evidence(&[("f", 1, 1)]);
        leaks.gaps.push("5 events lost".into());
        assert_eq!(
            plain(leaks, &limits).outcome,
            Outcome::Failed,
            "a leak is a leak"
        );
    }

    #[test]
    fn stacks_of_one_bug_are_one_leak() {
        let frame = |name: &str, line| SourceFrame {
            function: Some(name.into()),
            line: Some(line),
            ..SourceFrame::default()
        };
        let mut many = evidence(&[
            ("", 1, 10),
            ("", 1, 30),
            ("", 1, 20),
            ("", 1, 5),
            ("", 1, 1),
        ]);
        let stacks = [
            vec![frame("xmalloc", 3), frame("parse", 7), frame("a", 1)],
            vec![frame("xmalloc", 3), frame("parse", 7), frame("b", 1)],
            vec![frame("xmalloc", 3), frame("read", 7), frame("a", 1)],
            vec![frame("xmalloc", 3), frame("parse", 8), frame("a", 1)],
            vec![
                frame("xmalloc", 3),
                frame("std::vector<int>::push_back(int)", 9),
            ],
        ];
        for (site, stack) in many.sites.iter_mut().zip(stacks) {
            site.stack = stack;
        }
        let verdict = plain(many, &Limits::default());
        assert_eq!(
            verdict.violations[0].text,
            "4 leaks, 66 B in 5 blocks (limit 0)"
        );
        let groups = verdict.counted();
        let sites = |g: &crate::Group<'_>| g.0.iter().map(|f| f.leak.site).collect::<Vec<_>>();
        let sites: Vec<_> = groups.iter().map(sites).collect();
        assert_eq!(sites, [vec![1, 0], vec![2], vec![3], vec![4]]);
        assert_eq!(groups[0].total(), sum(2, 40));
        let options = memhook_report::FormatOptions {
            top: 10,
            ..Default::default()
        };
        let text = crate::formats::rendered("text", &vec![verdict].into(), &options).unwrap();
        assert!(text.contains("#1 40 B in 2 blocks leaked"), "{text}");
        assert!(text.contains("... and by 1 other way to parse"), "{text}");
    }

    #[test]
    fn a_block_of_no_bytes_leaks() {
        assert_eq!(
            plain(evidence(&[("f", 1, 0)]), &Limits::default()).outcome,
            Outcome::Failed
        );
    }

    #[test]
    fn what_hangs_on_a_suppressed_leak_is_suppressed() {
        let mut leaks = evidence(&[("f", 1, 100), ("g", 1, 50)]);
        leaks.leaks.truncate(1);
        leaks.leaks[0].indirect.push((1, sum(1, 50)));
        let run = |pattern: &str| {
            let mut exceptions = Exceptions::default();
            exceptions.suppressions.add(pattern);
            judge(leaks.clone(), &Limits::default(), &mut exceptions, false)
        };
        let of_f = run("^f$");
        assert_eq!(
            (of_f.outcome, of_f.suppressed),
            (Outcome::Passed, sum(2, 150))
        );
        let of_g = run("^g$");
        assert_eq!((of_g.outcome, of_g.leaked), (Outcome::Failed, sum(1, 100)));
        assert_eq!(of_g.suppressed, sum(1, 50));
    }

    proptest! {
        #[test]
        fn a_run_is_within_its_own_baseline(
            leaks in prop::collection::btree_map("[a-e]", (1u64..9, 0u64..999), 0..5))
        {
            let leaks: Vec<_> = leaks.iter().map(|(n, &(k, b))| (n.as_str(), k, b)).collect();
            let evidence = evidence(&leaks);
            let baseline = Baseline::of(&evidence, evidence.leaks.iter());
            let known = &mut Exceptions { baseline: Some(baseline), ..Exceptions::default() };
            let same = judge(evidence.clone(), &Limits::default(), known, false);
            prop_assert_eq!(same.outcome, Outcome::Passed);
            let mut more = evidence.clone();
            if let Some(leak) = more.leaks.first_mut() {
                leak.direct.blocks += 1;
                let grown = judge(more, &Limits::default(), known, false);
                prop_assert_eq!(grown.outcome, Outcome::Failed);
                prop_assert!(grown.counted()[0].before().is_some());
            }
        }

        #[test]
        fn every_block_is_in_one_sum(
            leaks in prop::collection::btree_map("[a-e]", (1u64..9, 0u64..999), 0..5),
            pattern in "[a-e]")
        {
            let leaks: Vec<_> = leaks.iter().map(|(n, &(k, b))| (n.as_str(), k, b)).collect();
            let mut exceptions = Exceptions::default();
            exceptions.suppressions.add(&format!("^{pattern}$"));
            let v = judge(evidence(&leaks), &Limits::default(), &mut exceptions, false);
            let mut all = v.leaked;
            all.add(v.suppressed);
            all.add(v.known);
            prop_assert_eq!(all.blocks, leaks.iter().map(|l| l.1).sum::<u64>());
            prop_assert_eq!(all.bytes, leaks.iter().map(|l| l.2).sum::<u64>());
        }
    }
}
