//! Known and accepted leaks.

use crate::error::text_of;
use crate::evidence::AllocationSite;
use crate::pattern::template_matches;
use crate::{Error, valgrind};
use std::path::PathBuf;

/// A suppression.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    /// LeakSanitizer's kind: the function, file or module of any frame matches.
    Template(String),
    /// Valgrind's kind: frames in order.
    Frames(valgrind::Suppression),
}

/// All suppressions, with the number of uses of each.
#[derive(Clone, Debug, Default)]
pub struct Suppressions {
    rules: Vec<(Rule, u64)>,
}

impl Suppressions {
    /// Reads suppressions from files and patterns.
    ///
    /// # Errors
    /// Fails if a file cannot be read, or contains anything else.
    pub fn of(files: &[PathBuf], patterns: &[String]) -> Result<Suppressions, Error> {
        let mut all = Suppressions::default();
        for path in files {
            all.read(&path.display().to_string(), &text_of(path)?)?;
        }
        patterns.iter().for_each(|pattern| all.add(pattern));
        Ok(all)
    }

    /// Parses a file in LeakSanitizer's syntax, or in Valgrind's, whose suppressions are in braces.
    pub fn read(&mut self, file: &str, text: &str) -> Result<(), Error> {
        let mut lines = text.lines().enumerate().map(|(i, l)| (i + 1, l.trim()));
        let bad = |line: usize, problem: String| Error::Suppression {
            file: file.to_owned(),
            line,
            problem,
        };
        while let Some((number, line)) = lines.next() {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if line == "{" {
                let read = valgrind::read(&mut lines);
                let read = read.map_err(|(at, problem)| bad(at.unwrap_or(number), problem))?;
                if let Some(suppression) = read {
                    self.rules.push((Rule::Frames(suppression), 0));
                }
                continue;
            }
            match line.split_once(':') {
                Some(("leak", pattern)) if !pattern.is_empty() => self.add(pattern),
                // A file may contain suppressions for other sanitizers besides LeakSanitizer's.
                Some((kind, _)) if is_other_sanitizers(kind) => {}
                _ => {
                    let problem = format!(
                        "{line:?} is not a suppression: expected leak:PATTERN, or one of Valgrind's in braces"
                    );
                    return Err(bad(number, problem));
                }
            }
        }
        Ok(())
    }

    /// Adds the pattern of a `leak:` line.
    pub fn add(&mut self, pattern: &str) {
        let pattern = pattern.strip_prefix("leak:").unwrap_or(pattern);
        self.rules.push((Rule::Template(pattern.to_owned()), 0));
    }

    /// Returns true if a leak of this site is suppressed, and counts the use of the rule.
    pub fn suppresses(&mut self, site: &AllocationSite) -> bool {
        let found = self.rules.iter_mut().find(|(rule, _)| rule.matches(site));
        match found {
            Some((_, uses)) => {
                *uses += 1;
                true
            }
            None => false,
        }
    }

    /// Returns the rules that suppressed nothing, as they were written or named.
    pub fn unused(&self) -> Vec<String> {
        let unused = self.rules.iter().filter(|(_, uses)| *uses == 0);
        unused.map(|(rule, _)| rule.name()).collect()
    }
}

fn is_other_sanitizers(kind: &str) -> bool {
    const KINDS: [&str; 12] = [
        "race",
        "race_top",
        "thread",
        "mutex",
        "signal",
        "deadlock",
        "called_from_lib",
        "interceptor_name",
        "interceptor_via_fun",
        "interceptor_via_lib",
        "odr_violation",
        "alloc_dealloc_mismatch",
    ];
    KINDS.contains(&kind)
}

impl Rule {
    fn matches(&self, site: &AllocationSite) -> bool {
        match self {
            Rule::Frames(suppression) => suppression.matches(site),
            Rule::Template(pattern) => {
                let matches = |text: &Option<String>| {
                    text.as_ref().is_some_and(|t| template_matches(pattern, t))
                };
                let own = template_matches(pattern, &site.kind);
                own || site
                    .stack
                    .iter()
                    .any(|f| matches(&f.function) || matches(&f.file) || matches(&f.module))
            }
        }
    }

    fn name(&self) -> String {
        match self {
            Rule::Template(pattern) => format!("leak:{pattern}"),
            Rule::Frames(suppression) => suppression.name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SourceFrame;
    use proptest::prelude::*;

    fn site(functions: &[&str]) -> AllocationSite {
        let frame = |f: &&str| SourceFrame {
            function: Some((*f).to_owned()),
            file: Some("src/a.cc".into()),
            module: Some("/usr/lib/libfoo.so.1".into()),
            ..SourceFrame::default()
        };
        AllocationSite {
            symbol: Some("malloc".into()),
            kind: "malloc".into(),
            stack: functions.iter().map(frame).collect(),
            ..AllocationSite::default()
        }
    }

    fn suppresses(text: &str, functions: &[&str]) -> bool {
        let mut all = Suppressions::default();
        all.read("x", text).unwrap();
        all.suppresses(&site(functions))
    }

    #[test]
    fn as_leak_sanitizer_does() {
        let stack = ["make(int)", "Widget::grow()", "main"];
        assert!(suppresses("# why\nleak:Widget\n", &stack));
        assert!(suppresses("leak:^main$", &stack));
        assert!(suppresses("leak:libfoo.so", &stack));
        assert!(suppresses("leak:src/*.cc", &stack));
        assert!(!suppresses("leak:^Widget$", &stack));
        assert!(!suppresses("race:Widget", &stack));
    }

    #[test]
    fn as_valgrind_does() {
        let stack = ["make(int)", "Widget::grow()", "main"];
        let block = |lines: &str| format!("{{\n  a name\n  Memcheck:Leak\n{lines}\n}}\n");
        assert!(suppresses(&block("fun:malloc\nfun:make*"), &stack));
        assert!(suppresses(
            &block("match-leak-kinds: definite\n...\nfun:main"),
            &stack
        ));
        assert!(suppresses(&block("fun:malloc\nfun:_Z4makei"), &stack));
        assert!(suppresses(&block("fun:malloc\nobj:*/libfoo.so*"), &stack));
        assert!(!suppresses(&block("fun:malloc\nfun:main"), &stack));
        assert!(!suppresses(
            &block("match-leak-kinds: reachable\nfun:malloc"),
            &stack
        ));
        let other = "{\n n\n Memcheck:Cond\n fun:malloc\n}\n";
        assert!(!suppresses(other, &stack));
        assert!(suppresses(&format!("{other}leak:make"), &stack));
    }

    #[test]
    fn unused_ones_are_named() {
        let mut all = Suppressions::default();
        all.read(
            "x",
            "leak:make\nleak:other\n{\n old\n Memcheck:Leak\n fun:x\n}",
        )
        .unwrap();
        assert!(all.suppresses(&site(&["make"])));
        assert_eq!(all.unused(), ["leak:other", "old"]);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let fail = |text: &str| {
            Suppressions::default()
                .read("f", text)
                .unwrap_err()
                .to_string()
        };
        assert!(fail("leak:a\nleek:b").starts_with("f:2: \"leek:b\""));
        assert!(fail("{\n name\n Memcheck:Leak\n fun:a").starts_with("f:"));
        assert!(fail("{\n name\n Memcheck:Leak\n fnu:a\n}").contains("fnu:a"));
    }

    proptest! {
        #[test]
        fn never_panics(text in "([{}a-z:*.\\n #]|Memcheck:Leak|fun:|leak:){0,60}") {
            let mut all = Suppressions::default();
            if all.read("x", &text).is_ok() {
                all.suppresses(&site(&["make", "main"]));
                all.unused();
            }
        }
    }
}
