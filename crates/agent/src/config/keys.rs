//! The keys of a configuration file, as they are written. docs/fleet.md describes each of them, and
//! a test compares the two.

use super::values::{Every, MemoryLimit, Overhead, Pattern, Period, Share, Size};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use toml::Spanned;

/// The whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Included files, which have already been read.
    #[serde(default, rename = "include")]
    pub _include: Vec<String>,
    #[serde(default)]
    pub agent: Agent,
    #[serde(default)]
    pub http: Http,
    #[serde(default)]
    pub symbols: Symbols,
    pub labels: Option<Spanned<BTreeMap<String, String>>>,
    #[serde(default)]
    pub rule: Vec<Spanned<Rule>>,
    pub files: Option<Files>,
    pub pyroscope: Option<Spanned<Store>>,
    pub otlp: Option<Spanned<Store>>,
    pub kubernetes: Option<Spanned<Kubernetes>>,
}

/// `[agent]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Agent {
    pub state: PathBuf,
    pub max_targets: Spanned<u32>,
    pub max_cpu: Share,
    pub max_memory: MemoryLimit,
    pub never: Vec<Pattern>,
    pub scan: Period,
    pub retry: Period,
    pub redact: bool,
    pub experimental_otlp: bool,
}

impl Default for Agent {
    fn default() -> Agent {
        Agent {
            state: "/var/lib/memhook-rs".into(),
            max_targets: Spanned::new(0..0, 20),
            max_cpu: Share(0.02),
            max_memory: MemoryLimit::Share(Share(0.02)),
            never: Vec::new(),
            scan: Period(std::time::Duration::from_secs(1)),
            retry: Period(std::time::Duration::from_secs(10)),
            redact: false,
            experimental_otlp: false,
        }
    }
}

/// `[http]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Http {
    pub listen: Option<SocketAddr>,
    /// Host names that clients may use in requests, in addition to addresses, `localhost` and the
    /// host's own name.
    pub hosts: Vec<String>,
    pub per_process: bool,
}

impl Default for Http {
    fn default() -> Http {
        Http {
            listen: None,
            hosts: Vec::new(),
            per_process: true,
        }
    }
}

/// `[symbols]`
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Symbols {
    pub names: Names,
}

/// Place where the names of functions, source files and lines are looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Names {
    /// The agent looks them up, in the files of its targets.
    #[default]
    Agent,
    /// The profile store looks them up, or anyone who has the files. Profiles contain only
    /// addresses and build-ids.
    Store,
}

/// `[[rule]]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    pub name: Spanned<String>,
    pub executable: Option<Pattern>,
    pub process: Option<Pattern>,
    pub cgroup: Option<String>,
    pub container: Option<Pattern>,
    pub pod: Option<Pattern>,
    pub namespace: Option<Pattern>,
    pub workload: Option<Spanned<Pattern>>,
    #[serde(default)]
    pub opt_in: bool,
    pub memory_above: Option<Size>,
    pub uid: Option<u32>,
    #[serde(default)]
    pub mode: Mode,
    pub sample: Option<Spanned<Size>>,
    pub overhead: Option<Spanned<Overhead>>,
    pub depth: Option<Spanned<u32>>,
    #[serde(default)]
    pub send: Vec<Spanned<Destination>>,
    #[serde(default = "default_interval")]
    pub interval: Spanned<Period>,
    pub service: Option<String>,
    pub version: Option<String>,
    #[serde(default)]
    pub resident: bool,
    #[serde(default)]
    pub pins: bool,
    pub reclaim: Option<Spanned<Reclaim>>,
    pub advise: Option<Spanned<Every>>,
    #[serde(default)]
    pub blackbox: bool,
    pub max_hold: Option<Period>,
    #[serde(default = "yes")]
    pub follow_forks: bool,
    pub max_targets: Option<u32>,
    pub duration: Option<Period>,
}

fn yes() -> bool {
    true
}

fn default_interval() -> Spanned<Period> {
    Spanned::new(0..0, Period(std::time::Duration::from_secs(15)))
}

/// Extent of the recording of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A sample of the allocations, with call stacks.
    #[default]
    Sampled,
    /// Every allocation, with call stacks.
    Exact,
    /// A sample of the allocations, as sums only. No profiles are made.
    Summary,
    /// No allocations. Instead, a copy of the process's memory is regularly searched for
    /// unreachable blocks.
    Scan,
}

impl Mode {
    /// Returns the mode's name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Sampled => "sampled",
            Mode::Exact => "exact",
            Mode::Summary => "summary",
            Mode::Scan => "scan",
        }
    }
}

/// Treatment of a process's unreachable blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reclaim {
    /// Only report what could be freed.
    ReportOnly,
    /// Make the process free the blocks that `scan --reclaim` would make it free.
    Free,
}

impl Reclaim {
    /// Returns the treatment's name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Reclaim::ReportOnly => "report-only",
            Reclaim::Free => "free",
        }
    }
}

/// Destination of profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Destination {
    /// Files in a directory.
    Files,
    /// Grafana Pyroscope.
    Pyroscope,
    /// An OpenTelemetry collector.
    Otlp,
}

impl Destination {
    /// Returns the destination's name in the file.
    pub fn name(self) -> &'static str {
        match self {
            Destination::Files => "files",
            Destination::Pyroscope => "pyroscope",
            Destination::Otlp => "otlp",
        }
    }

    /// All destinations.
    pub const ALL: [Destination; 3] = [
        Destination::Files,
        Destination::Pyroscope,
        Destination::Otlp,
    ];
}

/// `[files]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Files {
    pub directory: PathBuf,
    #[serde(default = "default_keep")]
    pub keep: u32,
    #[serde(default = "default_max_bytes")]
    pub max_bytes: Size,
}

fn default_keep() -> u32 {
    1000
}

fn default_max_bytes() -> Size {
    Size(1 << 30)
}

/// `[pyroscope]` and `[otlp]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Store {
    pub url: Spanned<String>,
    /// Protocol, which can only be `"http"`, and only for `[otlp]`.
    pub protocol: Option<Spanned<String>>,
    pub tenant: Option<Spanned<String>>,
    pub username: Option<Spanned<String>>,
    pub password_file: Option<PathBuf>,
    pub token_file: Option<PathBuf>,
    pub ca: Option<PathBuf>,
    #[serde(default = "default_timeout")]
    pub timeout: Period,
    #[serde(default = "default_queue")]
    pub queue: Size,
    #[serde(default = "default_max_age")]
    pub max_age: Period,
}

fn default_timeout() -> Period {
    Period(std::time::Duration::from_secs(10))
}

fn default_queue() -> Size {
    Size(64 << 20)
}

fn default_max_age() -> Period {
    Period(std::time::Duration::from_secs(3600))
}

/// `[kubernetes]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kubernetes {
    /// Address of this machine's kubelet.
    pub kubelet: Spanned<String>,
    pub token_file: Option<PathBuf>,
    pub ca: Option<PathBuf>,
    #[serde(default = "yes")]
    pub verify: bool,
    #[serde(default = "default_refresh")]
    pub refresh: Spanned<Period>,
    #[serde(default = "default_timeout")]
    pub timeout: Period,
    /// Limits of namespaces. The first match counts.
    #[serde(default)]
    pub namespace: Vec<Spanned<Namespace>>,
}

fn default_refresh() -> Spanned<Period> {
    Spanned::new(0..0, Period(std::time::Duration::from_secs(30)))
}

/// `[[kubernetes.namespace]]`: limits for the targets of each matching namespace.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Namespace {
    pub name: Spanned<Pattern>,
    pub max_targets: Option<u32>,
    pub max_cpu: Option<Share>,
}
