//! Findings about one process: leak, fragmentation or retention, and the remedies.
//!
//! Everything comes from a recording of the process: its sites over time, unreachable blocks at its
//! end (`attach --leaks`), resident memory at the end (`attach --rss`), and for `advise` also
//! resident memory at the start. A finding states how many bytes would be returned, by which
//! remedy, and with what evidence. Parts that were not examined give no finding, and a note says
//! so.
//!
//! The [balance] comes first: a site counts as growing only if the heap, or the resident memory,
//! has grown. Then each site gets a class by its [course](memhook_report::course).
//!
//! This crate does not handle processes, recordings or options.

mod allocator;
mod answer;
mod balance;
mod leaks;
mod managed;
mod page;
mod site;
mod sites;
mod text;

pub use sites::{Class, ClassedSite};

use memhook_report::{
    Document, Leaks, Profile, ResidentPoint, RssReport, StaleReport, Style, bytes,
};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Name of the JSON schema.
const SCHEMA: &str = "memhook-rs/advice/1";
/// Minimum bytes that a finding must return.
const LEAST_BYTES: u64 = 1 << 20;
/// Maximum number of findings that are shown.
const MOST_FINDINGS: usize = 5;
/// Minimum share of the resident memory that the remedy of a finding must return.
const LEAST_SHARE: f64 = 0.02;
/// Gap in the evidence about an untraced process.
const NOT_TRACED: &str = "nothing was traced, so it is not known what grows, which call stacks allocated the blocks, \
                          and which blocks nobody touches";

/// Known facts about a process.
pub struct Facts<'a> {
    /// Activity of the process's sites.
    pub profile: &'a Profile,
    /// Resident memory at the end; `None` if not examined.
    pub account: Option<&'a RssReport>,
    /// Untouched memory; `None` if not watched.
    pub stale: Option<&'a StaleReport>,
    /// True if the process still runs, so that commands may name it.
    pub is_running: bool,
    /// True if the process was traced. Otherwise the profile has neither sites nor a time.
    pub is_traced: bool,
    /// The largest descendant of the process, if it holds more memory than the process.
    pub larger_child: Option<Child>,
}

/// A process that a process has started, directly or not.
#[derive(Clone, Debug)]
pub struct Child {
    /// Process id.
    pub pid: i32,
    /// Name of the process, as `ps` shows it.
    pub name: String,
    /// Resident bytes.
    pub rss_bytes: u64,
}

/// Advice about a process, with reasons.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// Always `memhook-rs/advice/1`.
    pub schema: &'static str,
    /// Process id.
    pub pid: i32,
    /// Name of the process, as `ps` shows it.
    pub name: String,
    /// Seconds for which the process was observed.
    pub seconds: f64,
    /// Resident bytes at the end; `None` if not examined.
    pub rss_bytes: Option<u64>,
    /// Class of the process: the kind of the first finding, `nothing`, or `unsure`.
    pub class: &'static str,
    /// Resident bytes that belong to no known part, if there are enough of them to cast doubt on
    /// the findings.
    pub unexplained_bytes: Option<u64>,
    /// The answer in one line: the largest part of the bytes that can be returned; `None` if there
    /// is nothing to do.
    pub answer: Option<String>,
    /// Number of additional seconds of observation that are needed; `None` if the observation was
    /// long enough.
    pub more_seconds: Option<u64>,
    /// The site that must be observed for longer, and its growth.
    pub unsure_site: Option<String>,
    /// Reason why an answer without findings is not certain; `None` if everything necessary was
    /// examined, or if there are findings.
    pub not_examined: Option<String>,
    /// Parts of the memory.
    pub lines: Vec<Line>,
    /// Findings, with the most bytes to be returned first.
    pub findings: Vec<Finding>,
    /// Effect of the first finding's remedy, if it was tried.
    pub tried: Option<Tried>,
    /// Most active sites, with their classes.
    pub sites: Vec<ClassedSite>,
    /// Resident memory over time; empty if not followed.
    pub resident: Vec<ResidentPoint>,
    /// Parts that were not examined, or not with certainty.
    pub notes: Vec<String>,
}

/// A remedy that was tried in the process.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// The call that the process made.
    pub call: &'static str,
    /// Predicted bytes to be returned; `None` if no prediction was possible.
    pub predicted_bytes: Option<u64>,
    /// Resident bytes that the process lost through the call.
    pub given_back_bytes: u64,
    /// Time for which a thread was held, in ms.
    pub held_ms: f64,
}

/// One part of the memory.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Name of the part.
    pub what: &'static str,
    /// Current bytes.
    pub bytes: u64,
    /// Bytes at the start; `None` if not examined.
    pub bytes_before: Option<u64>,
    /// Predicted growth in an hour; `None` if the growth was not observed.
    pub bytes_an_hour: Option<i64>,
    /// Certainty: exact or estimated.
    pub certainty: &'static str,
    /// Command that shows the part.
    pub evidence: String,
}

impl Line {
    /// Returns the predicted growth in an hour if the part grows. A fall does not continue for an hour: the part would
    /// soon be empty.
    fn growth_an_hour(&self) -> Option<i64> {
        self.bytes_an_hour.filter(|&bytes| bytes > 0)
    }
}

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The blocks of a site are unreachable.
    Leak,
    /// A site keeps a growing number of reachable blocks.
    Growth,
    /// The blocks of a site are reachable but untouched.
    Untouched,
    /// Free memory of the allocator that it could return immediately.
    Retention,
    /// Free memory that a few live blocks pin.
    Fragmentation,
    /// Free memory in many arenas.
    Arenas,
    /// Free blocks in the caches of threads.
    ThreadCaches,
    /// Huge pages of which only small parts were ever written.
    HugePages,
    /// Stacks of threads.
    Stacks,
    /// Growing mappings outside the heap.
    Mappings,
    /// The heap of a language's runtime.
    Managed,
}

impl Kind {
    /// Returns true if such memory grows.
    fn grows(self) -> bool {
        matches!(self, Kind::Leak | Kind::Growth | Kind::Mappings)
    }
}

/// A finding with a remedy.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Kind of the finding.
    pub kind: Kind,
    /// Description of the finding, as a sentence.
    pub found: String,
    /// The site, or the blocks that pin the memory; `None` if unknown, or if there are several
    /// places.
    pub place: Option<String>,
    /// Bytes that would be returned now.
    pub gain_bytes: u64,
    /// Bytes of growth that would be avoided in an hour; `None` if unknown.
    pub gain_bytes_an_hour: Option<u64>,
    /// Certainty: exact, tested, estimated.
    pub certainty: &'static str,
    /// The remedy.
    pub remedy: String,
    /// Cost of the remedy.
    pub cost: &'static str,
    /// Command that shows the finding.
    pub evidence: String,
}

/// Returns the change of the live bytes allocated since the attach.
fn grown_live(profile: &Profile) -> f64 {
    let sites = profile.sites.iter();
    sites
        .map(|site| site.measures.live.bytes as f64 - site.before.bytes as f64)
        .sum()
}

impl Facts<'_> {
    /// Returns the resident memory at the start.
    fn before(&self) -> Option<&RssReport> {
        self.profile.looks.as_ref().map(|looks| &looks.first)
    }

    /// Returns true if blocks must not be released from outside.
    fn has_damaged_heap(&self) -> bool {
        let mut gaps = self.profile.leaks.iter().flat_map(|leaks| &leaks.gaps);
        gaps.any(|gap| gap.starts_with("the heap does not parse"))
    }

    fn seconds(&self) -> f64 {
        (self.profile.to_ns.saturating_sub(self.profile.from_ns)) as f64 / 1e9
    }

    /// Extrapolates a change during the observation to an hour.
    fn an_hour(&self, change: f64) -> i64 {
        (change * 3600.0 / self.seconds().max(1e-3)).round() as i64
    }

    /// Returns the certainty of a search for unreachable blocks. A copy taken by a command that
    /// only reads the process may lack pointers to a block.
    fn of_search(&self, leaks: &Leaks) -> &'static str {
        match self.is_traced || leaks.gaps.is_empty() {
            true => "exact",
            false => "estimated",
        }
    }

    /// Returns the name of the process in commands.
    fn target(&self) -> String {
        match self.is_running {
            true => self.profile.target.pid.to_string(),
            false => "PID".to_owned(),
        }
    }

    /// Returns the minimum bytes that are worth a change.
    fn least(&self) -> u64 {
        let live = self.profile.totals.live_bytes;
        let all = self.account.map_or(live, |account| account.rss_bytes);
        LEAST_BYTES.max((all as f64 * LEAST_SHARE) as u64)
    }
}

/// Collects the findings about a process.
pub fn advise(facts: &Facts<'_>) -> Advice {
    let profile = facts.profile;
    let judged = sites::judge(facts);
    let mut findings = judged.findings;
    let mut notes = Vec::new();
    if let Some(account) = facts.account {
        findings.extend(allocator::findings(facts, account));
        let managed = managed::heap(facts, account);
        let mappings = || allocator::mappings(facts);
        // A heap that was not walked appears among the mappings. Its allocation sites say more than
        // the mappings.
        let is_heap = |one: &Finding| 2.0 * judged.elsewhere > one.gain_bytes as f64;
        findings.extend(managed.or_else(|| mappings().filter(|one| !is_heap(one))));
    }
    notes.extend(unseen(facts));
    findings.sort_by_key(|finding| Reverse((is_certain(finding), rank(finding))));
    if let Some(account) = facts.account {
        managed::put_before_smaller(&mut findings, account);
    }
    findings.truncate(MOST_FINDINGS);
    // While the cause of the growth is uncertain, the answer cannot be that nothing leaks.
    let unsure = judged.unsure.filter(|site| match findings.first() {
        Some(first) => !first.kind.grows() && site.grown_bytes > first.gain_bytes,
        None => true,
    });
    let more_seconds = unsure
        .as_ref()
        .map(|_| (2.0 * facts.seconds()).ceil() as u64);
    let not_examined = failed_search(facts).or_else(|| of_child(facts));
    let not_examined = not_examined.filter(|_| findings.is_empty() && unsure.is_none());
    // The first line has it.
    notes.retain(|note| Some(note) != not_examined.as_ref());
    Advice {
        schema: SCHEMA,
        pid: profile.target.pid,
        name: profile.target.name.clone(),
        seconds: facts.seconds(),
        rss_bytes: facts.account.map(|account| account.rss_bytes),
        class: match findings.first() {
            _ if unsure.is_some() || not_examined.is_some() => "unsure",
            Some(first) => class(first.kind),
            None => "nothing",
        },
        unexplained_bytes: facts.account.and_then(balance::unexplained),
        answer: match unsure {
            Some(_) => None,
            None => findings
                .first()
                .map(|first| answer::answer(first, facts.account)),
        },
        unsure_site: unsure.map(|site| {
            let grown = bytes(site.grown_bytes);
            format!("{}: {grown} more than at the beginning", site.name)
        }),
        more_seconds,
        not_examined,
        lines: lines(facts, judged.elsewhere),
        findings,
        tried: None,
        sites: judged.classed,
        resident: profile.resident.clone(),
        notes,
    }
}

/// Returns the class of a process whose first finding is of this kind.
fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Leak => "leak",
        Kind::Growth => "unbounded",
        Kind::Untouched => "retained",
        Kind::Retention | Kind::Arenas | Kind::ThreadCaches | Kind::HugePages => "allocator",
        Kind::Fragmentation => "fragmentation",
        Kind::Stacks => "stacks",
        Kind::Mappings => "mappings",
        Kind::Managed => "managed",
    }
}

/// Returns true if a finding is more than an estimate: its bytes were counted, or it has passed a
/// test.
fn is_certain(finding: &Finding) -> bool {
    finding.certainty != "estimated"
}

/// Returns the balance, supplemented by the trace and the search. `elsewhere` is the growth of
/// blocks that the walks did not find.
fn lines(facts: &Facts<'_>, elsewhere: f64) -> Vec<Line> {
    let profile = facts.profile;
    let target = facts.target();
    let mut lines = Vec::new();
    lines.extend(facts.is_traced.then(|| Line {
        what: "live blocks since the attach",
        bytes: profile.totals.live_bytes,
        bytes_before: None,
        bytes_an_hour: match balance::live(facts) {
            // Only a comparison of two looks includes the releases of older blocks.
            Some(grown) => Some(facts.an_hour(grown + elsewhere)),
            None => Some(facts.an_hour(grown_live(profile))),
        },
        // Sums of samples are estimates.
        certainty: match profile.sampling {
            Some(_) => "estimated",
            None => "exact",
        },
        evidence: format!("memhook-rs attach {target} -d 60s"),
    }));
    let leaks = profile.leaks.as_ref();
    lines.extend(
        leaks
            .filter(|_| profile.knows_unreachable())
            .map(|leaks| Line {
                what: "of all blocks, unreachable",
                bytes: leaks.totals.leaked_bytes,
                bytes_before: None,
                bytes_an_hour: None,
                certainty: facts.of_search(leaks),
                evidence: format!("memhook-rs scan {target}"),
            }),
    );
    lines.extend(facts.stale.map(|watched| Line {
        what: "of those since the attach, reachable and not touched",
        bytes: watched.sites.iter().map(sites::reachable_stale).sum(),
        bytes_before: None,
        bytes_an_hour: None,
        certainty: "estimated",
        evidence: format!("memhook-rs stale {target} --older 10m"),
    }));
    lines.extend(
        facts
            .account
            .into_iter()
            .flat_map(|account| balance::lines(facts, account)),
    );
    lines
}

/// Returns the reason why the search for unreachable blocks failed, if it did.
fn failed_search(facts: &Facts<'_>) -> Option<String> {
    let leaks = facts.profile.leaks.as_ref();
    let failed = leaks.filter(|_| !facts.profile.knows_unreachable())?;
    Some(format!(
        "the search for leaks failed: {}",
        failed.gaps.join("; ")
    ))
}

/// Returns a sentence about a child with more memory.
fn of_child(facts: &Facts<'_>) -> Option<String> {
    let child = facts.larger_child.as_ref()?;
    Some(format!(
        "its child process {0} ({1}) holds more memory ({2}) and was not examined: memhook-rs advise {0}",
        child.pid,
        child.name,
        bytes(child.rss_bytes)
    ))
}

/// Lists parts that were not examined, or not with certainty.
fn unseen(facts: &Facts<'_>) -> Vec<String> {
    let profile = facts.profile;
    let mut notes = Vec::new();
    match facts.account {
        Some(account) => notes.extend(account.notes.iter().cloned()),
        // Then there is a note about the search.
        None if failed_search(facts).is_some() => {}
        None => notes.push("resident memory was not examined: record with attach --rss".into()),
    }
    notes.extend(match &profile.leaks {
        Some(leaks) if profile.knows_unreachable() => leaks.gaps.clone(),
        Some(_) => Vec::from_iter(failed_search(facts)),
        None => vec!["unreachable blocks were not searched for: record with attach --leaks".into()],
    });
    match facts.stale {
        Some(watched) => notes.extend(watched.notes.iter().cloned()),
        None if facts.is_traced => {
            notes.push("accesses were not watched: record with attach --stale".into())
        }
        None => notes.push(NOT_TRACED.into()),
    }
    notes.extend(of_child(facts));
    if profile.sampling.is_some() {
        notes.push("allocations were sampled, so the sums of sites are estimates".into());
    }
    let mut known = BTreeSet::new();
    notes.retain(|note| known.insert(note.clone()));
    notes
}

/// Returns the rank of a finding. An hour of growth counts as much as present bytes.
fn rank(finding: &Finding) -> u64 {
    let gain = finding
        .gain_bytes
        .max(finding.gain_bytes_an_hour.unwrap_or(0));
    match finding.kind {
        // A trim also returns most of the memory in many arenas, but that memory would grow again.
        // The trim may even return more, because it includes the arenas that would remain.
        Kind::Arenas => gain.saturating_mul(2),
        _ => gain,
    }
}

impl Advice {
    /// Returns true if the remedy of the first finding can be tried from outside, because the
    /// allocator can be asked to return its free memory.
    pub fn can_be_tried(&self) -> bool {
        let first = self.findings.first().filter(|_| self.answer.is_some());
        first.is_some_and(|first| {
            first.kind == Kind::Retention && first.remedy.starts_with(allocator::TRIM)
        })
    }

    /// Returns the length of the observation, in words.
    fn time(&self) -> String {
        match self.seconds > 0.0 {
            true => format!("observed for {:.0} s", self.seconds),
            false => "looked at once".to_owned(),
        }
    }

    /// Returns a page that needs no network and no script (HTML).
    pub fn page(&self) -> String {
        page::page(self)
    }
}

impl Finding {
    /// Returns the heading of a finding with its gain.
    fn heading(&self, number: usize) -> String {
        let rate = self
            .gain_bytes_an_hour
            .map_or(String::new(), |rate| format!(", {} an hour", bytes(rate)));
        format!("#{number} {}{rate}", bytes(self.gain_bytes))
    }
}

impl Document for Advice {
    fn text(&self, style: Style) -> String {
        text::text(self, style)
    }
}
