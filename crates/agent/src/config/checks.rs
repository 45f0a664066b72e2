//! Checks of rules between keys.

use super::Fault;
use super::keys::{Destination, File, Kubernetes, Mode, Reclaim, Rule, Store};
use super::values::Every;
use memhook_attach::DEPTHS;
use std::collections::BTreeSet;
use std::time::Duration;

/// Minimum interval of profiles. Shorter intervals cost more than they reveal.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum interval if memory is copied and searched each time.
const SHORTEST_SCAN_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum interval if blocks are freed, or would be.
const SHORTEST_RECLAIM_INTERVAL: Duration = Duration::from_secs(60);
/// Minimum time from one advice on a process to the next.
const SHORTEST_ADVICE_INTERVAL: Duration = Duration::from_secs(600);
/// Maximum number of targets. Higher numbers of targets on one machine have never been tested.
const MOST_TARGETS: u32 = 1000;
/// Labels that only the agent sets.
const OWN_LABELS: [&str; 9] = [
    "service_name",
    "namespace",
    "pod",
    "container",
    "workload",
    "workload_type",
    "host",
    "version",
    "pid",
];
/// Minimum time between two requests to a kubelet without a new reason.
const SHORTEST_REFRESH: Duration = Duration::from_secs(5);

/// Checks constraints between keys, which the type of a single key cannot express.
pub(super) fn check(file: &File) -> Result<(), Fault> {
    let most = &file.agent.max_targets;
    if !(1..=MOST_TARGETS).contains(most.get_ref()) {
        let why = format!("max_targets must be from 1 to {MOST_TARGETS}");
        return Err((most.span(), why));
    }
    for (name, labels) in file.labels.iter().flat_map(|labels| {
        let names = labels.get_ref().keys();
        names.map(move |name| (name, labels))
    }) {
        if !is_label(name) {
            let why = format!(
                "the label \"{name}\" is not allowed: use letters, digits and _, and begin with neither a digit nor __"
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
    if let Some(kubernetes) = &file.kubernetes {
        check_kubernetes(kubernetes)?;
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
        rule.namespace.is_some(),
        rule.workload.is_some(),
        rule.opt_in,
        rule.memory_above.is_some(),
        rule.uid.is_some(),
    ];
    if !chooses.contains(&true) {
        let why = "the rule chooses every process of the machine: give at least one of executable, process, cgroup, container, pod, namespace, workload, opt_in, memory_above, uid";
        return Err((spanned.span(), why.into()));
    }
    if file.kubernetes.is_none() {
        let why = |key: &str| {
            format!(
                "{key} is known only by the kubelet, and there is no [kubernetes] that says where it answers"
            )
        };
        if let Some(workload) = &rule.workload {
            return Err((workload.span(), why("the workload")));
        }
        if rule.opt_in {
            return Err((spanned.span(), why("who opts in")));
        }
    }
    if let Some(sample) = &rule.sample {
        if rule.mode == Mode::Exact {
            let why = "mode = \"exact\" records every allocation: leave sample out";
            return Err((sample.span(), why.into()));
        }
        if !(1..=1 << 30).contains(&sample.get_ref().0) {
            let why = "sample must be from 1 byte to 1G; try \"512K\"";
            return Err((sample.span(), why.into()));
        }
    }
    if let Some(overhead) = &rule.overhead {
        if rule.mode != Mode::Sampled && rule.reclaim.is_none() && rule.advise.is_none() {
            let mode = rule.mode.name();
            let why = format!(
                "overhead is for mode = \"sampled\", which this rule's is not (\"{mode}\"), for reclaim and for advise: leave it out"
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
        return Err((depth.span(), "depth must be from 1 to 128".into()));
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
    if let Some(reclaim) = &rule.reclaim {
        check_reclaim(rule, reclaim)?;
    }
    if let Some(advise) = &rule.advise {
        check_advise(rule, advise)?;
    }
    if rule.blackbox && matches!(rule.mode, Mode::Summary | Mode::Scan) {
        let mode = rule.mode.name();
        let why = format!("mode = \"{mode}\" makes no profiles: leave blackbox out");
        return Err((spanned.span(), why));
    }
    for destination in &rule.send {
        let is_advice = rule.advise.is_some() && *destination.get_ref() == Destination::Files;
        if matches!(rule.mode, Mode::Summary | Mode::Scan) && !is_advice {
            let mode = rule.mode.name();
            let why = format!(
                "mode = \"{mode}\" makes no profiles: leave send out, or choose \"files\" with advise"
            );
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

/// Checks a rule that traces nothing.
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

/// Checks a rule that frees blocks, or reports which blocks could be freed.
fn check_reclaim(rule: &Rule, reclaim: &toml::Spanned<Reclaim>) -> Result<(), Fault> {
    let name = reclaim.get_ref().name();
    if rule.mode != Mode::Scan {
        let why = format!(
            "reclaim = \"{name}\" needs mode = \"scan\", because a trace would not see blocks go: choose that mode, or leave reclaim out"
        );
        return Err((reclaim.span(), why));
    }
    if rule.interval.get_ref().0 < SHORTEST_RECLAIM_INTERVAL {
        let why =
            "each time the heap is copied twice: the shortest interval with reclaim is \"1m\"";
        return Err((rule.interval.span(), why.into()));
    }
    if *reclaim.get_ref() != Reclaim::Free {
        return Ok(());
    }
    if rule.opt_in {
        let why = "with opt_in = true, whoever writes a pod's annotations would have its blocks freed: leave opt_in out, or choose reclaim = \"report-only\"";
        return Err((reclaim.span(), why.into()));
    }
    if rule.executable.is_none() && rule.process.is_none() {
        let why = "reclaim = \"free\" needs executable or process: whether a program hides pointers is known only of those that are named; or choose \"report-only\"";
        return Err((reclaim.span(), why.into()));
    }
    Ok(())
}

/// Checks a rule that advises on the memory of its processes.
fn check_advise(rule: &Rule, advise: &toml::Spanned<Every>) -> Result<(), Fault> {
    if rule.mode != Mode::Scan {
        let why = "advise needs mode = \"scan\", because it traces a process in its own way for a minute, and none is traced twice: choose that mode, or leave advise out";
        return Err((advise.span(), why.into()));
    }
    if advise.get_ref().0 < SHORTEST_ADVICE_INTERVAL {
        let why = "each advice traces the process for a minute: advise must be at least \"10m\"";
        return Err((advise.span(), why.into()));
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
    check_url("the url of a store", url)?;
    for header in [tenant, username].into_iter().flatten() {
        if header.get_ref().is_empty() || !header.get_ref().chars().all(|c| c.is_ascii_graphic()) {
            let why = "only printable ASCII characters without spaces are allowed here";
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

fn check_url(what: &str, url: &toml::Spanned<String>) -> Result<(), Fault> {
    let host = url.get_ref().strip_prefix("http://");
    let host = host.or_else(|| url.get_ref().strip_prefix("https://"));
    let is_plain = |c: char| c.is_ascii_graphic() && !"@?#\"".contains(c);
    let is_host =
        |host: &str| !host.is_empty() && !host.starts_with('/') && host.chars().all(is_plain);
    if host.is_some_and(is_host) {
        return Ok(());
    }
    let why = format!(
        "{what} begins with http:// or https://, followed by a host; a user or a password does not belong there"
    );
    Err((url.span(), why))
}

fn check_kubernetes(spanned: &toml::Spanned<Kubernetes>) -> Result<(), Fault> {
    let kubernetes = spanned.get_ref();
    check_url("the address of the kubelet", &kubernetes.kubelet)?;
    if kubernetes.refresh.get_ref().0 < SHORTEST_REFRESH {
        let why = "refresh must be at least \"5s\": new pods are looked up at once anyway";
        return Err((kubernetes.refresh.span(), why.into()));
    }
    if !kubernetes.verify && kubernetes.ca.is_some() {
        let why = "verify = false trusts any certificate: leave ca out, or verify";
        return Err((spanned.span(), why.into()));
    }
    for namespace in &kubernetes.namespace {
        let limits = namespace.get_ref();
        if limits.max_targets.is_none() && limits.max_cpu.is_none() {
            let why = "a namespace needs max_targets, max_cpu or both";
            return Err((limits.name.span(), why.into()));
        }
    }
    Ok(())
}

/// Returns true for names that Prometheus and Pyroscope accept. Names that begin with two
/// underscores are reserved for them.
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
