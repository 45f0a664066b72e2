//! Suppressions for the findings of a run, as a starting point for a suppressions file.

use super::{relative, sentence, site_of};
use crate::evidence::{AllocationSite, SourceFrame};
use crate::{Group, Judgement, Suppressions, Verdict};
use memhook_report::{Format, FormatOptions};
use std::collections::{BTreeSet, HashSet};
use std::io::{Result, Write};

/// A suppression for each leak that counts towards the verdict, and for no other leak.
pub struct SuppressionFile;

impl Format<Judgement> for SuppressionFile {
    fn name(&self) -> &'static str {
        "suppressions"
    }

    fn write(
        &self,
        verdicts: &Judgement,
        options: &FormatOptions,
        out: &mut dyn Write,
    ) -> Result<()> {
        let root = &options.source_root;
        let mut written = HashSet::new();
        for verdict in verdicts.iter() {
            for group in verdict.counted() {
                let rule = suppression(verdicts, verdict, &group, root);
                if written.insert(rule.clone()) && !rule.is_empty() {
                    writeln!(out, "# {}\n{rule}", sentence(verdict, &group))?;
                }
            }
        }
        Ok(())
    }
}

/// Returns a rule that suppresses this group and no other group. It names the function to blame if
/// no other leak has that function in its stack, otherwise as many of the innermost frames as
/// needed. The text is empty if there is no stack to match.
fn suppression(verdicts: &[Verdict], verdict: &Verdict, group: &Group<'_>, root: &str) -> String {
    let site = site_of(verdict, group);
    let Some(blamed) = site.frames_to_blame().last() else {
        return String::new();
    };
    let name = match &blamed.function {
        // The rule would suppress any future leak of the program.
        Some(_) if is_outermost(site) => None,
        Some(function) => Some(format!("leak:^{function}$\n")),
        None => Some(format!(
            "leak:{}\n",
            blamed.module_name().unwrap_or_default()
        )),
    };
    let sites = group.0.iter().map(|f| &verdict.evidence.sites[f.leak.site]);
    let framed = |with_line| {
        let rules = sites.clone().map(|s| framed(s, with_line, root));
        let rules: BTreeSet<String> = rules.collect();
        rules.into_iter().collect()
    };
    let rules: [Option<String>; 3] = [name, Some(framed(false)), Some(framed(true))];
    let mut precise = rules
        .into_iter()
        .flatten()
        .filter(|r| is_only_about(r, verdicts, site));
    precise
        .next()
        .unwrap_or_else(|| "# (no pattern distinguishes this leak from the others)\n".to_owned())
}

/// Returns true if the function to blame is `main`, or the start function of a thread. Every leak
/// may have such a function in its stack.
fn is_outermost(site: &AllocationSite) -> bool {
    let outer = &site.stack[site.frames_to_blame().len()..];
    let starts_programs = |frame: &SourceFrame| frame.function.as_deref() == Some("_start");
    !site.truncated && outer.iter().all(|f| f.wrapper || starts_programs(f))
}

/// Returns a rule in Valgrind's syntax, which lists the frames in order. With `with_line`, the last
/// frame is identified by its source line instead of its function. The rule never names a directory
/// outside `root`, because the directory could be different where the suppression is used.
fn framed(site: &AllocationSite, with_line: bool, root: &str) -> String {
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
                let below = relative(file, root);
                let file = match below.strip_prefix('/') {
                    Some(outside) => outside.rsplit('/').next().unwrap_or(outside),
                    None => below,
                };
                format!("   src:*{file}:{line}\n")
            }
            (Some(function), ..) => format!("   fun:{function}\n"),
            _ => format!("   obj:*{}\n", frame.module_name().unwrap_or_default()),
        };
    }
    out + "}\n"
}

/// Returns true if a rule suppresses exactly the leaks that are blamed on this line, in every
/// process.
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
                // Blocks that only this leak reaches are suppressed with it.
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
    use crate::formats::rendered;
    use crate::{Evidence, Exceptions, Leak, Limits, Sum, judge};

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
            // The function's name is enough.
            &[("yaml_malloc", 1), ("lonely", 5), ("main", 9)],
            // Another leak passes through this function.
            &[("yaml_malloc", 1), ("parse", 5), ("main", 9)],
            &[("yaml_malloc", 1), ("token", 5), ("parse", 6), ("main", 9)],
            // Two lines in one function.
            &[("twice", 3), ("main", 9)],
            &[("twice", 2), ("main", 9)],
            // One bug is reached in two ways.
            &[("both", 5), ("left", 5), ("main", 9)],
            &[("both", 5), ("right", 5), ("main", 9)],
            &[("std::f()", 1), ("both", 5), ("right", 5), ("main", 9)],
        ];
        let found = verdict(&stacks, &mut Exceptions::default());
        let text = rendered(
            "suppressions",
            &vec![found].into(),
            &FormatOptions::default(),
        )
        .unwrap();
        assert!(text.contains("leak:^lonely$\n"), "{text}");
        assert!(
            !text.contains("leak:^parse$") && !text.contains("leak:^yaml"),
            "{text}"
        );
        // Comments are whole sentences, and empty lines separate the rules.
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

    /// Returns the only leak of a run with this stack of functions and their source files.
    fn of_one(stack: &[(&str, &str)]) -> Verdict {
        let frame = |&(function, file): &(&str, &str)| SourceFrame {
            function: Some(function.into()),
            file: Some(file.into()),
            line: Some(7),
            module: Some("/home/me/app/tests".into()),
            ..SourceFrame::default()
        };
        let mut evidence = Evidence::default();
        evidence.leaks.push(Leak {
            direct: Sum {
                blocks: 1,
                bytes: 9,
            },
            ..Leak::default()
        });
        evidence.sites.push(AllocationSite {
            symbol: Some("malloc".into()),
            kind: "malloc".into(),
            stack: stack.iter().map(frame).collect(),
            ..AllocationSite::default()
        });
        let exceptions = &mut Exceptions::default();
        judge(evidence, &Limits::default(), exceptions, false)
    }

    #[test]
    fn main_is_never_suppressed_by_its_name() {
        let options = FormatOptions::default();
        let of = |stack: &[(&str, &str)]| {
            rendered("suppressions", &vec![of_one(stack)].into(), &options).expect("text")
        };
        let text = of(&[("new_alloc", "a.c"), ("main", "a.c"), ("_start", "")]);
        assert!(!text.contains("leak:"), "{text}");
        assert!(text.contains("fun:new_alloc\n   fun:main\n}"), "{text}");
        let text = of(&[("load", "a.c"), ("main", "a.c"), ("_start", "")]);
        assert!(text.contains("leak:^load$\n"), "{text}");
    }

    #[test]
    fn a_source_line_is_the_same_in_another_checkout() {
        let found = |root: &str| {
            let file = |name: &str| format!("{root}/{name}");
            let stack = [
                [("f", file("src/a.c")), ("main", file("m.c"))],
                [("f", "/usr/include/b.h".to_owned()), ("main", file("m.c"))],
            ];
            let one = stack.each_ref().map(|stack| {
                let stack = stack.each_ref().map(|(f, file)| (*f, file.as_str()));
                of_one(&stack)
            });
            (one, file(""))
        };
        let ([here, other], root) = found("/home/me/app");
        let options = FormatOptions {
            source_root: root.trim_end_matches('/').into(),
            ..FormatOptions::default()
        };
        // Two leaks in one function differ only in their lines.
        let text = rendered("suppressions", &vec![here, other].into(), &options).expect("text");
        assert!(text.contains("src:*src/a.c:7\n"), "{text}");
        assert!(text.contains("src:*b.h:7\n"), "{text}");
        let mut known = Suppressions::default();
        known.read("x", &text).expect("readable");
        for verdict in found("/builds/17").0 {
            assert!(known.suppresses(&verdict.evidence.sites[0]), "{text}");
        }
    }
}
