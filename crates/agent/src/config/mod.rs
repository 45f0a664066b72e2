//! The configuration of the agent: read from a TOML file, checked as a whole, and refused with line and column.

mod environment;
mod keys;
mod values;
mod warnings;

pub use keys::{Destination, File, Files, Http, Mode, Rule, Store};
pub use values::Pattern;
use values::Period;

use memhook_attach::{ADAPTING_RING_BYTES, OnFull, USUAL_RING_BYTES};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Largest file that is read as a configuration.
const MOST_BYTES: u64 = 1 << 20;
/// Default mean bytes between samples.
pub const SAMPLE_BYTES: u64 = 512 << 10;
/// Default number of frames of a call stack.
const DEPTH: u32 = 64;
const DEPTHS: std::ops::RangeInclusive<u32> = 1..=128;
/// Shortest interval of profiles: shorter ones cost more than they show.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(500);
/// The same, and its default, where memory is copied and searched each time.
const SHORTEST_SCAN_INTERVAL: Duration = Duration::from_secs(5);
const SCAN_INTERVAL: Duration = Duration::from_secs(600);
/// Upper bound on targets: more on one machine were never tried.
const MOST_TARGETS: u32 = 1000;
/// Labels that only the agent sets.
const OWN_LABELS: [&str; 6] = ["service_name", "namespace", "pod", "host", "version", "pid"];

/// What is permitted beside what a configuration says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Experiments {
    /// Profiles are sent by OTLP.
    pub otlp: bool,
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// It cannot be read.
    #[error("cannot read the configuration {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Something in it is wrong.
    #[error("{}:{line}:{column}: {why}", path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The line, from 1 on.
        line: usize,
        /// The character in the line, from 1 on.
        column: usize,
        /// What is wrong, and what would be right.
        why: String,
    },
}

/// Reads a configuration and checks it. `experiments`: what is experimental may be used without a key that says so.
pub fn read(path: &Path, experiments: Experiments) -> Result<File, ConfigError> {
    read_with_text(path, experiments).map(|(file, _)| file)
}

/// Reads a configuration and checks it. Also returns what is hardly meant, one line each with its place.
pub fn read_with_warnings(
    path: &Path,
    experiments: Experiments,
) -> Result<(File, Vec<String>), ConfigError> {
    let (file, text) = read_with_text(path, experiments)?;
    let warnings = warnings::warnings(&file).into_iter().map(|(span, why)| {
        let (line, column) = place(&text, span.start);
        format!("{}:{line}:{column}: {why}", path.display())
    });
    let warnings = warnings.collect();
    Ok((file, warnings))
}

fn read_with_text(path: &Path, experiments: Experiments) -> Result<(File, String), ConfigError> {
    let failed = |source| ConfigError::Read {
        path: path.to_owned(),
        source,
    };
    let bytes = memhook_foreign::read_start(path, MOST_BYTES + 1).map_err(failed)?;
    if bytes.len() as u64 > MOST_BYTES {
        let why = std::io::Error::other("it is larger than 1 MiB");
        return Err(failed(why));
    }
    let text = String::from_utf8(bytes)
        .map_err(|_| failed(std::io::Error::other("it is not UTF-8 text")))?;
    match parse(&text, experiments) {
        Ok(file) => Ok((file, text)),
        Err((span, why)) => {
            let (line, column) = place(&text, span.start);
            let path = path.to_owned();
            Err(ConfigError::Wrong {
                path,
                line,
                column,
                why,
            })
        }
    }
}

/// Line and column of a byte, from 1 on.
fn place(text: &str, at: usize) -> (usize, usize) {
    let before = text.get(..at).unwrap_or(text);
    let line = before.rsplit('\n').next().unwrap_or_default();
    (before.matches('\n').count() + 1, line.chars().count() + 1)
}

/// A fault, and the bytes that it is in.
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
        // Only what was left out has no place in the file.
        if rule.mode == Mode::Scan && rule.interval.span().is_empty() {
            *rule.interval.get_mut() = Period(SCAN_INTERVAL);
        }
    }
    check(&file)?;
    Ok(file)
}

/// What holds between keys, which the type of no single one says.
fn check(file: &File) -> Result<(), Fault> {
    let most = &file.agent.max_targets;
    if !(1..=MOST_TARGETS).contains(most.get_ref()) {
        let why = format!("max_targets: from 1 to {MOST_TARGETS} are possible");
        return Err((most.span(), why));
    }
    for (name, labels) in file.labels.iter().flat_map(|labels| {
        let names = labels.get_ref().keys();
        names.map(move |name| (name, labels))
    }) {
        if !is_label(name) {
            let why = format!(
                "the label \"{name}\" is not possible: letters, digits and _ are, not beginning with a digit or __"
            );
            return Err((labels.span(), why));
        }
        if OWN_LABELS.contains(&name.as_str()) {
            let why = format!("the label \"{name}\" is set for each process: choose another name");
            return Err((labels.span(), why));
        }
    }
    if file.rule.is_empty() {
        return Err((
            0..0,
            "there is no [[rule]], so nothing would be traced".into(),
        ));
    }
    let mut names = BTreeSet::new();
    for rule in &file.rule {
        let name = &rule.get_ref().name;
        if !is_rule_name(name.get_ref()) {
            let why = "the name of a rule is 1 to 63 letters, digits, - or _".to_owned();
            return Err((name.span(), why));
        }
        if !names.insert(name.get_ref().as_str()) {
            let why = format!("two rules have the name \"{}\"", name.get_ref());
            return Err((name.span(), why));
        }
        check_rule(file, rule)?;
    }
    if let Some(store) = &file.pyroscope {
        check_store(store)?;
        if let Some(protocol) = &store.get_ref().protocol {
            return Err((protocol.span(), "protocol is a key of [otlp] only".into()));
        }
    }
    if let Some(store) = &file.otlp {
        check_store(store)?;
        check_otlp(file, store)?;
    }
    Ok(())
}

fn check_rule(file: &File, spanned: &toml::Spanned<Rule>) -> Result<(), Fault> {
    let rule = spanned.get_ref();
    let chooses = [
        rule.executable.is_some(),
        rule.process.is_some(),
        rule.cgroup.is_some(),
        rule.container.is_some(),
        rule.pod.is_some(),
        rule.memory_above.is_some(),
        rule.uid.is_some(),
    ];
    if !chooses.contains(&true) {
        let why = "the rule chooses every process of the machine: give at least one of executable, process, cgroup, container, pod, memory_above, uid";
        return Err((spanned.span(), why.into()));
    }
    if let Some(sample) = &rule.sample {
        if rule.mode == Mode::Exact {
            let why = "mode = \"exact\" records every allocation: leave sample out";
            return Err((sample.span(), why.into()));
        }
        if !(1..=1 << 30).contains(&sample.get_ref().0) {
            let why = "a sample every 1 byte to 1G is possible; try \"512K\"";
            return Err((sample.span(), why.into()));
        }
    }
    if let Some(overhead) = &rule.overhead {
        if rule.mode != Mode::Sampled {
            let mode = rule.mode.name();
            let why = format!(
                "overhead is for mode = \"sampled\", which this rule's is not (\"{mode}\"): leave it out"
            );
            return Err((overhead.span(), why));
        }
        if rule.sample.is_some() {
            let why = "overhead decides how far apart samples are: leave sample out";
            return Err((overhead.span(), why.into()));
        }
    }
    if let Some(depth) = &rule.depth
        && !DEPTHS.contains(depth.get_ref())
    {
        return Err((
            depth.span(),
            "a depth of 1 to 128 frames is possible".into(),
        ));
    }
    if rule.interval.get_ref().0 < SHORTEST_INTERVAL {
        let why = "the shortest interval is \"500ms\"";
        return Err((rule.interval.span(), why.into()));
    }
    if rule.mode == Mode::Scan {
        check_scans(spanned)?;
    } else if rule.max_hold.is_some() {
        let why = "max_hold is for mode = \"scan\": leave it out";
        return Err((spanned.span(), why.into()));
    }
    if rule.pins && rule.mode != Mode::Scan {
        let why = "pins = true needs a copy of the memory: choose mode = \"scan\", or leave it out";
        return Err((spanned.span(), why.into()));
    }
    for destination in &rule.send {
        if matches!(rule.mode, Mode::Summary | Mode::Scan) {
            let mode = rule.mode.name();
            let why = format!("mode = \"{mode}\" makes no profiles: leave send out");
            return Err((destination.span(), why));
        }
        let is_there = match destination.get_ref() {
            Destination::Files => file.files.is_some(),
            Destination::Pyroscope => file.pyroscope.is_some(),
            Destination::Otlp => file.otlp.is_some(),
        };
        if !is_there {
            let name = destination.get_ref().name();
            let why = format!("there is no [{name}], which says where to send to");
            return Err((destination.span(), why));
        }
    }
    Ok(())
}

/// Of a rule by which nothing is traced.
fn check_scans(spanned: &toml::Spanned<Rule>) -> Result<(), Fault> {
    let rule = spanned.get_ref();
    let sample = rule.sample.as_ref().map(toml::Spanned::span);
    let span = sample.or_else(|| rule.depth.as_ref().map(toml::Spanned::span));
    if let Some(span) = span {
        let why = "mode = \"scan\" records no allocations: leave sample and depth out";
        return Err((span, why.into()));
    }
    if rule.interval.get_ref().0 < SHORTEST_SCAN_INTERVAL {
        let why = "each scan copies the heap: the shortest interval of mode = \"scan\" is \"5s\"";
        return Err((rule.interval.span(), why.into()));
    }
    Ok(())
}

fn check_otlp(file: &File, store: &toml::Spanned<Store>) -> Result<(), Fault> {
    if !file.agent.experimental_otlp {
        let why = "profiles by OTLP are an alpha, whose messages may change: set experimental_otlp = true in [agent], or give --experimental-otlp";
        return Err((store.span(), why.into()));
    }
    if let Some(protocol) = &store.get_ref().protocol
        && protocol.get_ref() != "http"
    {
        let why = "profiles are sent to collectors over HTTP only: leave protocol out, and give the port for HTTP (4318 by default)";
        return Err((protocol.span(), why.into()));
    }
    Ok(())
}

fn check_store(store: &toml::Spanned<Store>) -> Result<(), Fault> {
    let Store {
        url,
        tenant,
        username,
        password_file,
        token_file,
        ..
    } = store.get_ref();
    let host = url.get_ref().strip_prefix("http://");
    let host = host.or_else(|| url.get_ref().strip_prefix("https://"));
    let is_plain = |c: char| c.is_ascii_graphic() && !"@?#\"".contains(c);
    if !host.is_some_and(|host| {
        !host.is_empty() && !host.starts_with('/') && host.chars().all(is_plain)
    }) {
        let why = "the url of a store begins with http:// or https://, followed by a host; a user or a password does not belong there";
        return Err((url.span(), why.into()));
    }
    for header in [tenant, username].into_iter().flatten() {
        if header.get_ref().is_empty() || !header.get_ref().chars().all(|c| c.is_ascii_graphic()) {
            let why = "only printable ASCII characters without spaces are possible here";
            return Err((header.span(), why.into()));
        }
    }
    if username.is_some() != password_file.is_some() {
        let why = "username and password_file belong together: give both, or token_file";
        return Err((store.span(), why.into()));
    }
    if username.is_some() && token_file.is_some() {
        let why = "give username and password_file, or token_file, not both";
        return Err((store.span(), why.into()));
    }
    Ok(())
}

/// Names that Prometheus and Pyroscope take; those that begin with two underscores are theirs.
fn is_label(name: &str) -> bool {
    let mut characters = name.chars();
    let begins = characters.next();
    begins.is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !name.starts_with("__")
}

fn is_rule_name(name: &str) -> bool {
    (1..64).contains(&name.len())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

impl Rule {
    /// The settings of a trace of a process that this rule has chosen.
    pub fn tracing(&self, ledger_bytes: u64) -> memhook_attach::TraceConfig {
        let depth = match self.mode {
            // Nobody asks for call stacks.
            Mode::Summary | Mode::Scan => 1,
            Mode::Sampled | Mode::Exact => {
                self.depth.as_ref().map_or(DEPTH, |depth| *depth.get_ref())
            }
        };
        let sample = self.sample.as_ref().map(|sample| sample.get_ref().0);
        let overhead = self.overhead.as_ref().map(|share| share.get_ref().0);
        let is_sampled = self.mode != Mode::Exact && overhead.is_none();
        let (on_full, ring_bytes) = if is_sampled || overhead.is_some() {
            (OnFull::Wait, USUAL_RING_BYTES)
        } else {
            (OnFull::Adapt, ADAPTING_RING_BYTES)
        };
        memhook_attach::TraceConfig {
            depth,
            on_full,
            ring_bytes,
            sample_bytes: is_sampled.then(|| sample.unwrap_or(SAMPLE_BYTES)),
            overhead,
            max_memory: Some(ledger_bytes),
            ..memhook_attach::TraceConfig::default()
        }
    }

    /// Whether a process that is traced by one of the two rules may go on to be traced by the other without a new attach.
    pub fn is_same(&self, other: &Rule) -> bool {
        format!("{:?}", Unplaced(self)) == format!("{:?}", Unplaced(other))
    }
}

/// A rule without where it is in its file.
struct Unplaced<'a>(&'a Rule);

impl std::fmt::Debug for Unplaced<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Rule {
            name,
            executable,
            process,
            cgroup,
            container,
            pod,
            memory_above,
            uid,
            mode,
            sample,
            overhead,
            depth,
            send,
            interval,
            service,
            version,
            resident,
            pins,
            max_hold,
            follow_forks,
            max_targets,
            duration,
        } = self.0;
        let send: Vec<_> = send.iter().map(toml::Spanned::get_ref).collect();
        let sample = sample.as_ref().map(toml::Spanned::get_ref);
        let overhead = overhead.as_ref().map(toml::Spanned::get_ref);
        let depth = depth.as_ref().map(toml::Spanned::get_ref);
        let choice = (
            executable,
            process,
            cgroup,
            container,
            pod,
            memory_above,
            uid,
        );
        let work = (
            mode,
            sample,
            overhead,
            depth,
            send,
            interval.get_ref(),
            service,
            version,
            resident,
            pins,
            max_hold,
        );
        let bounds = (follow_forks, max_targets, duration);
        write!(f, "{} {choice:?} {work:?} {bounds:?}", name.get_ref())
    }
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
            (Some(SAMPLE_BYTES), DEPTH)
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
    fn a_budget_takes_the_place_of_a_distance_between_samples() {
        let file = parse(&format!("{RULE}overhead = \"2%\"\n")).expect("right");
        let tracing = file.rule[0].get_ref().tracing(1 << 20);
        assert_eq!((tracing.sample_bytes, tracing.overhead), (None, Some(0.02)));
        assert!(tracing.check().is_ok());
        let plain = parse(RULE).expect("right");
        assert!(!plain.rule[0].get_ref().is_same(file.rule[0].get_ref()));
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
