//! Suppressions for what was found, to start a file from.

use super::{sentence, site_of};
use crate::evidence::{AllocationSite, SourceFrame};
use crate::{Group, Suppressions, Verdict};
use memhook_report::{Format, FormatOptions};
use std::collections::{BTreeSet, HashSet};
use std::io::{Result, Write};

/// A suppression for each leak that counts, and for nothing else that leaked.
pub struct SuppressionFile;

impl Format<[Verdict]> for SuppressionFile {
    fn name(&self) -> &'static str {
        "suppressions"
    }

    fn write(&self, verdicts: &[Verdict], _: &FormatOptions, out: &mut dyn Write) -> Result<()> {
        let mut written = HashSet::new();
        for verdict in verdicts {
            for group in verdict.counted() {
                let rule = suppression(verdicts, verdict, &group);
                if written.insert(rule.clone()) && !rule.is_empty() {
                    writeln!(out, "# {}\n{rule}", sentence(verdict, &group))?;
                }
            }
        }
        Ok(())
    }
}

/// What suppresses this group and no other: the function that is to blame, where no other leak has it
/// in its stack; else the innermost frames, as many as it takes. Empty where there is no stack to tell it by.
fn suppression(verdicts: &[Verdict], verdict: &Verdict, group: &Group<'_>) -> String {
    let site = site_of(verdict, group);
    let Some(blamed) = site.frames_to_blame().last() else {
        return String::new();
    };
    let name = match &blamed.function {
        Some(function) => format!("leak:^{function}$\n"),
        None => format!("leak:{}\n", blamed.module_name().unwrap_or_default()),
    };
    let sites = group.0.iter().map(|f| &verdict.evidence.sites[f.leak.site]);
    let framed = |with_line| {
        let rules: BTreeSet<String> = sites.clone().map(|s| framed(s, with_line)).collect();
        rules.into_iter().collect()
    };
    let rules: [String; 3] = [name, framed(false), framed(true)];
    let mut precise = rules
        .into_iter()
        .filter(|r| is_only_about(r, verdicts, site));
    precise
        .next()
        .unwrap_or_else(|| "# (no pattern tells this leak from the others)\n".to_owned())
}

/// In Valgrind's syntax, which takes the frames in their order. `with_line`: the last one by its source line, not
/// by its function.
fn framed(site: &AllocationSite, with_line: bool) -> String {
    let frames = site.frames_to_blame();
    let allocator = site.symbol.as_deref().unwrap_or("*");
    let mut out = format!(
        "{{\n   leak in {}\n   Memcheck:Leak\n   fun:{allocator}\n",
        frames.last().map(SourceFrame::name).unwrap_or_default()
    );
    for (number, frame) in frames.iter().enumerate() {
        let is_last = number + 1 == frames.len();
        out += &match (&frame.function, &frame.file, frame.line) {
            (_, Some(file), Some(line)) if with_line && is_last => {
                format!("   src:{file}:{line}\n")
            }
            (Some(function), ..) => format!("   fun:{function}\n"),
            _ => format!("   obj:{}\n", frame.module.as_deref().unwrap_or("*")),
        };
    }
    out + "}\n"
}

/// Whether a rule suppresses every leak for which the same line is to blame as for this one, and nothing else
/// that any process leaked.
fn is_only_about(rule: &str, verdicts: &[Verdict], site: &AllocationSite) -> bool {
    let mut rules = Suppressions::default();
    if rules.read("", rule).is_err() {
        return false;
    }
    let key = site.leak_key();
    verdicts.iter().all(|verdict| {
        let sites = &verdict.evidence.sites;
        verdict.findings.iter().all(|finding| {
            let leak = &finding.leak;
            if sites[leak.site].leak_key() == key {
                // What only this leak reaches is suppressed with it.
                return rules.suppresses(&sites[leak.site]);
            }
            let indirect = leak.indirect.iter().map(|(site, _)| *site);
            let mut others = std::iter::once(leak.site).chain(indirect);
            !others.any(|other| rules.suppresses(&sites[other]))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Evidence, Exceptions, Leak, Limits, Sum, judge, rendered};

    fn verdict(stacks: &[&[(&str, u32)]], exceptions: &mut Exceptions) -> Verdict {
        let mut evidence = Evidence::default();
        for (number, stack) in (0u64..).zip(stacks) {
            let frame = |&(function, line): &(&str, u32)| SourceFrame {
                function: Some(function.into()),
                file: Some("a.c".into()),
                line: Some(line),
                ..SourceFrame::default()
            };
            evidence.leaks.push(Leak {
                site: evidence.sites.len(),
                direct: Sum {
                    blocks: 1,
                    bytes: 1 << number,
                },
                ..Leak::default()
            });
            evidence.sites.push(AllocationSite {
                symbol: Some("malloc".into()),
                kind: "malloc".into(),
                stack: stack.iter().map(frame).collect(),
                ..AllocationSite::default()
            });
        }
        judge(evidence, &Limits::default(), exceptions, false)
    }

    #[test]
    fn each_is_about_one_leak_only() {
        let stacks: [&[(&str, u32)]; 8] = [
            // The name suffices.
            &[("yaml_malloc", 1), ("lonely", 5), ("main", 9)],
            // Another leak passes through this function.
            &[("yaml_malloc", 1), ("parse", 5), ("main", 9)],
            &[("yaml_malloc", 1), ("token", 5), ("parse", 6), ("main", 9)],
            // Two lines of one function.
            &[("twice", 3), ("main", 9)],
            &[("twice", 2), ("main", 9)],
            // One bug, two ways to it.
            &[("both", 5), ("left", 5), ("main", 9)],
            &[("both", 5), ("right", 5), ("main", 9)],
            &[("std::f()", 1), ("both", 5), ("right", 5), ("main", 9)],
        ];
        let found = verdict(&stacks, &mut Exceptions::default());
        let text = rendered("suppressions", &[found], &FormatOptions::default()).unwrap();
        assert!(text.contains("leak:^lonely$\n"), "{text}");
        assert!(
            !text.contains("leak:^parse$") && !text.contains("leak:^yaml"),
            "{text}"
        );
        // Comments are sentences, and rules are separated by empty lines.
        let rules: Vec<&str> = text.split("\n\n").filter(|r| !r.is_empty()).collect();
        assert_eq!(rules.len(), 6, "{text}");
        let mut suppressed = Vec::new();
        for rule in rules {
            let mut exceptions = Exceptions::default();
            exceptions.suppressions.read("x", rule).unwrap();
            let verdict = verdict(&stacks, &mut exceptions);
            suppressed.push(verdict.suppressed.bytes);
        }
        suppressed.sort_unstable();
        assert_eq!(suppressed, [1, 2, 4, 8, 16, 32 + 64 + 128], "{text}");
    }
}
