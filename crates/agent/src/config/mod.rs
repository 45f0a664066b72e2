//! The configuration of the agent. It is read from a TOML file and checked as a whole. A refusal
//! names the line and column of the mistake.

mod checks;
mod environment;
mod keys;
mod rule;
mod sources;
mod values;
mod warnings;

pub use keys::{
    Destination, File, Files, Http, Kubernetes, Mode, Names, Namespace, Reclaim, Rule, Store,
};
pub use values::Pattern;
use values::Period;

use serde::Deserialize;
use sources::Sources;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum size of a configuration file.
const MOST_BYTES: u64 = 1 << 20;
/// Default mean bytes between samples.
pub const SAMPLE_BYTES: u64 = 512 << 10;
/// Default interval of rules that copy and search the memory each time.
const SCAN_INTERVAL: Duration = Duration::from_secs(600);

/// Experimental features that are permitted in addition to the configuration's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Experiments {
    /// True to permit sending profiles by OTLP.
    pub otlp: bool,
}

/// Reason why a configuration is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The configuration cannot be read.
    #[error("cannot read the configuration {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        source: std::io::Error,
    },
    /// The configuration contains a mistake.
    #[error("{}:{line}:{column}: {why}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1 on.
        line: usize,
        /// Position in the line in characters, from 1 on.
        column: usize,
        /// Mistake, and its correction.
        why: String,
    },
}

/// Reads and checks a configuration. `experiments` permits experimental features in addition to
/// those that the file permits.
pub fn read(path: &Path, experiments: Experiments) -> Result<File, ConfigError> {
    read_with_sources(path, experiments).map(|(file, _)| file)
}

/// Reads and checks a configuration. Also returns warnings about likely mistakes, one line each
/// with its place.
pub fn read_with_warnings(
    path: &Path,
    experiments: Experiments,
) -> Result<(File, Vec<String>), ConfigError> {
    let (file, sources) = read_with_sources(path, experiments)?;
    let warnings = warnings::warnings(&file).into_iter().map(|(span, why)| {
        let (path, line, column) = sources.place(span.start);
        format!("{}:{line}:{column}: {why}", path.display())
    });
    let warnings = warnings.collect();
    Ok((file, warnings))
}

fn read_with_sources(
    path: &Path,
    experiments: Experiments,
) -> Result<(File, Sources), ConfigError> {
    let sources = Sources::read(path)?;
    match parse(&sources.text, experiments) {
        Ok(file) => Ok((file, sources)),
        Err(fault) => Err(sources.wrong(fault)),
    }
}

/// Returns line and column of a byte, from 1 on.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

/// A fault, and its place in bytes.
type Fault = (Range<usize>, String);

fn parse(text: &str, experiments: Experiments) -> Result<File, Fault> {
    let fault = |error: toml::de::Error| {
        let span = error.span().unwrap_or(0..0);
        (span, error.message().replace('\n', "; "))
    };
    let mut table = toml::de::DeTable::parse(text).map_err(fault)?;
    environment::put_in(text, table.get_mut(), &|name| std::env::var(name))?;
    let mut file = File::deserialize(toml::Deserializer::from(table)).map_err(fault)?;
    file.agent.experimental_otlp |= experiments.otlp;
    for rule in &mut file.rule {
        let rule = rule.get_mut();
        // The file does not contain values that were left out.
        if rule.mode == Mode::Scan && rule.interval.span().is_empty() {
            *rule.interval.get_mut() = Period(SCAN_INTERVAL);
        }
    }
    checks::check(&file)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<File, Fault> {
        super::parse(text, Experiments::default())
    }

    const RULE: &str = "[[rule]]\nname = \"web\"\nprocess = \"nginx\"\n";

    fn fault(text: &str) -> (usize, usize, String) {
        let (span, why) = parse(text).expect_err("it is wrong");
        let (line, column) = place(text, span.start);
        (line, column, why)
    }

    #[test]
    fn a_rule_is_enough() {
        let file = parse(RULE).expect("it is right");
        let rule = file.rule[0].get_ref();
        let tracing = rule.tracing(1 << 20);
        assert_eq!(
            (tracing.sample_bytes, tracing.depth),
            (Some(SAMPLE_BYTES), memhook_attach::DEPTH_TO_ROOTS)
        );
        assert!(tracing.check().is_ok());
        assert!(rule.follow_forks && *file.agent.max_targets.get_ref() == 20);
    }

    #[test]
    fn what_is_wrong_is_placed() {
        let with = |more: &str| format!("{RULE}{more}");
        for (text, line, column, says) in [
            (with("tpyo = 1\n"), 4, 1, "unknown field `tpyo`"),
            (with("interval = \"5x\"\n"), 4, 12, "is not a time"),
            (with("interval = 5\n"), 4, 12, "expected a time"),
            (with("mode = \"all\"\n"), 4, 8, "unknown variant `all`"),
            (
                with("mode = \"scan\"\ndepth = 8\n"),
                5,
                9,
                "leave sample and depth out",
            ),
            (
                with("mode = \"scan\"\nsend = [\"files\"]\n"),
                5,
                9,
                "makes no profiles",
            ),
            (
                with("mode = \"scan\"\ninterval = \"1s\"\n"),
                5,
                12,
                "\"5s\"",
            ),
            (with("pins = true\n"), 1, 1, "needs a copy of the memory"),
            (
                with("mode = \"scan\"\nreclaim = \"all\"\n"),
                5,
                11,
                "unknown variant `all`, expected `report-only` or `free`",
            ),
            (with("reclaim = \"free\"\n"), 4, 11, "needs mode = \"scan\""),
            (with("advise = \"daily\"\n"), 4, 10, "needs mode = \"scan\""),
            (
                with("mode = \"scan\"\nadvise = \"9m\"\n"),
                5,
                10,
                "must be at least \"10m\"",
            ),
            (
                with("mode = \"scan\"\nadvise = \"weekly\"\n"),
                5,
                10,
                "\"weekly\" is not \"daily\", \"hourly\" or a time",
            ),
            (
                with("mode = \"scan\"\nreclaim = \"report-only\"\ninterval = \"59s\"\n"),
                6,
                12,
                "\"1m\"",
            ),
            (
                "[[rule]]\nname = \"x\"\nuid = 7\nmode = \"scan\"\nreclaim = \"free\"\n".into(),
                5,
                11,
                "needs executable or process",
            ),
            (
                with(
                    "opt_in = true\nmode = \"scan\"\nreclaim = \"free\"\n[kubernetes]\nkubelet = \"https://x\"\n",
                ),
                6,
                11,
                "leave opt_in out",
            ),
            (
                with("mode = \"summary\"\nblackbox = true\n"),
                1,
                1,
                "leave blackbox out",
            ),
            (with("max_hold = \"1s\"\n"), 1, 1, "is for mode = \"scan\""),
            (
                with("mode = \"exact\"\nsample = \"1K\"\n"),
                5,
                10,
                "leave sample out",
            ),
            (
                with("overhead = \"60%\"\n"),
                4,
                12,
                "above 0% and at most 50%",
            ),
            (
                with("mode = \"exact\"\noverhead = \"1%\"\n"),
                5,
                12,
                "is for mode = \"sampled\"",
            ),
            (
                with("overhead = \"1%\"\nsample = \"1K\"\n"),
                4,
                12,
                "leave sample out",
            ),
            (with("depth = 200\n"), 4, 9, "1 to 128"),
            (with("send = [\"files\"]\n"), 4, 9, "there is no [files]"),
            (with("interval = \"10ms\"\n"), 4, 12, "shortest"),
            (
                with("[agent]\nmax_cpu = \"200%\"\n"),
                5,
                11,
                "is not a share",
            ),
            (with("[agent]\nmax_targets = 0\n"), 5, 15, "from 1 to"),
            (with("[pyroscope]\nurl = \"ftp://x\"\n"), 5, 7, "http://"),
            (
                with("[otlp]\nurl = \"http://x\"\n"),
                4,
                1,
                "experimental_otlp = true",
            ),
            (
                with(
                    "[agent]\nexperimental_otlp = true\n[otlp]\nurl = \"http://x:4317\"\nprotocol = \"grpc\"\n",
                ),
                8,
                12,
                "over HTTP only",
            ),
            (
                with("[pyroscope]\nurl = \"http://x\"\nprotocol = \"grpc\"\n"),
                6,
                12,
                "a key of [otlp]",
            ),
            (with("[http]\nlisten = \"here\"\n"), 5, 10, "socket address"),
            (with(RULE), 5, 8, "two rules"),
            (with("opt_in = true\n"), 1, 1, "there is no [kubernetes]"),
            (
                with("workload = \"web\"\n"),
                4,
                12,
                "there is no [kubernetes]",
            ),
            (
                with("[kubernetes]\nkubelet = \"10.0.0.1:10250\"\n"),
                5,
                11,
                "begins with http:// or https://",
            ),
            (
                with("[kubernetes]\nkubelet = \"https://x\"\nrefresh = \"1s\"\n"),
                6,
                11,
                "at least \"5s\"",
            ),
            (
                with(
                    "[kubernetes]\nkubelet = \"https://x\"\n[[kubernetes.namespace]]\nname = \"shop\"\n",
                ),
                7,
                8,
                "max_targets, max_cpu or both",
            ),
            (
                with("[kubernetes]\nkubelet = \"https://x\"\nverify = false\nca = \"/x\"\n"),
                4,
                1,
                "leave ca out",
            ),
            ("[[rule]]\nname = \"all\"\n".into(), 1, 1, "every process"),
            ("x = = 1\n".into(), 1, 5, ""),
            (String::new(), 1, 1, "no [[rule]]"),
        ] {
            let found = fault(&text);
            assert!(found.2.contains(says), "{text}: {found:?}");
            assert!(!found.2.contains('\n'), "{found:?}");
            assert_eq!((found.0, found.1), (line, column), "{text}: {found:?}");
        }
    }

    #[test]
    fn searches_are_further_apart_than_profiles() {
        let interval = |more: &str| {
            let file = parse(&format!("{RULE}{more}")).expect("right");
            file.rule[0].get_ref().interval.get_ref().0
        };
        assert_eq!(interval(""), Duration::from_secs(15));
        assert_eq!(interval("mode = \"scan\"\n"), SCAN_INTERVAL);
        assert_eq!(
            interval("mode = \"scan\"\ninterval = \"7s\"\n"),
            Duration::from_secs(7)
        );
    }

    #[test]
    fn an_overhead_takes_the_place_of_a_distance_between_samples() {
        let file = parse(&format!("{RULE}overhead = \"2%\"\n")).expect("right");
        let tracing = file.rule[0].get_ref().tracing(1 << 20);
        assert_eq!((tracing.sample_bytes, tracing.overhead), (None, Some(0.02)));
        assert!(tracing.check().is_ok());
        let plain = parse(RULE).expect("right");
        assert!(!plain.rule[0].get_ref().is_same(file.rule[0].get_ref()));
    }

    /// A process that matches a rule through its parent runs a program that the rule does not name.
    #[test]
    fn only_programs_that_a_rule_names_are_reclaimed() {
        let of = |more: &str, is_inherited| {
            let file = parse(&format!("{RULE}mode = \"scan\"\n{more}")).expect("right");
            file.rule[0].get_ref().reclaim_of(is_inherited)
        };
        assert_eq!(of("", false), None);
        let free = "reclaim = \"free\"\n";
        assert_eq!(of(free, false), Some(Reclaim::Free));
        assert_eq!(of(free, true), Some(Reclaim::ReportOnly));
        let report = "reclaim = \"report-only\"\n";
        assert_eq!(of(report, false), Some(Reclaim::ReportOnly));
        let parsed = |more: &str| parse(&format!("{RULE}mode = \"scan\"\n{more}")).expect("right");
        let (one, other) = (parsed(free), parsed(report));
        assert!(!one.rule[0].get_ref().is_same(other.rule[0].get_ref()));
    }

    #[test]
    fn a_rule_that_only_moved_is_the_same() {
        let one = parse(RULE).expect("right");
        let moved = format!("\n\n{RULE}");
        let two = parse(&moved).expect("right");
        let other = parse(&format!("{RULE}mode = \"exact\"\n")).expect("right");
        assert!(one.rule[0].get_ref().is_same(two.rule[0].get_ref()));
        assert!(!one.rule[0].get_ref().is_same(other.rule[0].get_ref()));
    }
}
