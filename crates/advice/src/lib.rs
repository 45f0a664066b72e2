//! Leak, fragmentation or retention, and what to do about it: findings about one process.
//!
//! Everything comes from what a recording of the process holds: its sites over time, what nothing reached at its end
//! (`attach --leaks`), and what was resident then (`attach --rss`). A finding says how many bytes would come back, what
//! brings them back, and what shows it. What was not looked at gives no finding, and a note says so.
//!
//! Not here: processes, recordings, options.

mod allocator;
mod page;
mod site;
mod sites;
mod text;

use memhook_gate::Evidence;
use memhook_report::{Document, Leaks, Profile, RssReport, StaleReport, Style, bytes};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Name of the JSON schema.
const SCHEMA: &str = "memhook-rs/advice/1";
/// What would bring back less than this is not worth a change.
const LEAST_BYTES: u64 = 1 << 20;
/// Nor what would bring back less than this share of the resident memory.
const LEAST_SHARE: f64 = 0.02;
/// What is missing of a process that was not traced.
const NOT_TRACED: &str = "nothing was traced, so it is not known what grows, which call stacks the blocks come from, and \
                          what nobody touches";

/// What is known of a process.
pub struct Facts<'a> {
    /// What its sites did.
    pub profile: &'a Profile,
    /// What was resident at the end; `None` if that was not looked at.
    pub account: Option<&'a RssReport>,
    /// The trend test over its sites; `None` if it could not be made.
    pub growth: Option<&'a Evidence>,
    /// What nobody touched; `None` if that was not watched.
    pub stale: Option<&'a StaleReport>,
    /// Whether the process is still there, so that commands may name it.
    pub is_running: bool,
    /// Whether it was traced; else the profile has neither sites nor a time.
    pub is_traced: bool,
}

/// What to do, and why.
#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    /// Always `memhook-rs/advice/1`.
    pub schema: &'static str,
    /// Process id.
    pub pid: i32,
    /// Name, as `ps` shows it.
    pub name: String,
    /// For how long it was looked at, in seconds.
    pub seconds: f64,
    /// Resident bytes at the end; `None` if that was not looked at.
    pub rss_bytes: Option<u64>,
    /// The answer in a line: what most of what would come back is; `None` if there is nothing to do.
    pub answer: Option<String>,
    /// Where they are.
    pub lines: Vec<Line>,
    /// What would help, that which brings back most first.
    pub findings: Vec<Finding>,
    /// What was not looked at, or not surely.
    pub notes: Vec<String>,
}

/// One part of the memory.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// What it is.
    pub what: &'static str,
    /// Bytes now.
    pub bytes: u64,
    /// How much more it would be in an hour; `None` if that was not followed.
    pub bytes_an_hour: Option<i64>,
    /// How sure it is: exact or estimated.
    pub certainty: &'static str,
    /// The command that shows it.
    pub evidence: String,
}

/// Kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Nothing points to the blocks of a site any more.
    Leak,
    /// A site keeps more and more blocks, and something points to them.
    Growth,
    /// Something points to the blocks of a site, and nobody has touched them.
    Untouched,
    /// Free memory of the allocator that it could give back at once.
    Retention,
    /// Free memory that a few live blocks hold.
    Fragmentation,
    /// Free memory in many arenas.
    Arenas,
    /// Free blocks in caches of threads.
    ThreadCaches,
    /// Huge pages of which little was ever written.
    HugePages,
    /// Stacks of threads.
    Stacks,
    /// Memory that was mapped beside the heap grows.
    Mappings,
}

/// Something that would help.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// What it is.
    pub kind: Kind,
    /// What was found, as a sentence.
    pub found: String,
    /// Bytes that would come back now.
    pub gain_bytes: u64,
    /// Bytes that would not be added in an hour; `None` if that is not known.
    pub gain_bytes_an_hour: Option<u64>,
    /// How sure it is: exact, tested, estimated.
    pub certainty: &'static str,
    /// What to do.
    pub remedy: String,
    /// What that costs.
    pub cost: &'static str,
    /// The command that shows it.
    pub evidence: String,
}

impl Facts<'_> {
    fn seconds(&self) -> f64 {
        (self.profile.to_ns.saturating_sub(self.profile.from_ns)) as f64 / 1e9
    }

    /// What a change within the time comes to in an hour.
    fn an_hour(&self, change: f64) -> i64 {
        (change * 3600.0 / self.seconds().max(1e-3)).round() as i64
    }

    /// How sure it is what nothing reaches. A copy that only looks does not know all that may point to a block.
    fn of_search(&self, leaks: &Leaks) -> &'static str {
        match self.is_traced || leaks.gaps.is_empty() {
            true => "exact",
            false => "estimated",
        }
    }

    /// How the process is named in commands.
    fn target(&self) -> String {
        match self.is_running {
            true => self.profile.target.pid.to_string(),
            false => "PID".to_owned(),
        }
    }

    /// What is too little to be worth a change.
    fn least(&self) -> u64 {
        let live = self.profile.totals.live_bytes;
        let all = self.account.map_or(live, |account| account.rss_bytes);
        LEAST_BYTES.max((all as f64 * LEAST_SHARE) as u64)
    }
}

/// What is found of a process.
pub fn advise(facts: &Facts<'_>) -> Advice {
    let profile = facts.profile;
    let mut findings = sites::findings(facts);
    // Of samples, sums are estimates.
    let of_blocks = match profile.sampling {
        Some(_) => "estimated",
        None => "exact",
    };
    let mut lines = Vec::new();
    if facts.is_traced {
        lines.push(Line {
            what: "live blocks since the attach",
            bytes: profile.totals.live_bytes,
            bytes_an_hour: Some(facts.an_hour(sites::growth(profile))),
            certainty: of_blocks,
            evidence: format!("memhook-rs attach {} -d 60s", facts.target()),
        });
    }
    if let Some(leaks) = profile
        .leaks
        .as_ref()
        .filter(|_| profile.knows_unreachable())
    {
        lines.push(Line {
            what: "of all blocks, unreachable",
            bytes: leaks.totals.leaked_bytes,
            bytes_an_hour: None,
            certainty: facts.of_search(leaks),
            evidence: format!("memhook-rs scan {}", facts.target()),
        });
    }
    if let Some(watched) = facts.stale {
        lines.push(Line {
            what: "of those since the attach, reachable and not touched",
            bytes: watched.sites.iter().map(sites::reachable_stale).sum(),
            bytes_an_hour: None,
            certainty: "estimated",
            evidence: format!("memhook-rs stale {} --older 10m", facts.target()),
        });
    }
    let mut notes = Vec::new();
    match facts.account {
        Some(account) => {
            findings.extend(allocator::findings(facts, account));
            lines.extend(allocator::lines(facts, account));
            notes.extend(account.notes.iter().cloned());
        }
        None => notes.push("what is resident was not looked at: record with attach --rss".into()),
    }
    findings.extend(allocator::mappings(facts));
    notes.extend(match &profile.leaks {
        Some(leaks) if profile.knows_unreachable() => leaks.gaps.clone(),
        Some(leaks) => vec![format!(
            "the search for leaks failed: {}",
            leaks.gaps.join("; ")
        )],
        None => vec!["what is unreachable was not looked for: record with attach --leaks".into()],
    });
    match facts.stale {
        Some(watched) => notes.extend(watched.notes.iter().cloned()),
        None if facts.is_traced => {
            notes.push("what nobody touches was not watched: record with attach --stale".into())
        }
        None => {}
    }
    match facts.growth {
        Some(evidence) => notes.extend(evidence.gaps.iter().cloned()),
        None if facts.is_traced => notes.push(
            "allocations were sampled, so growth is an estimate that was not tested: trace with a larger --overhead".into(),
        ),
        None => notes.push(NOT_TRACED.into()),
    }
    let mut known = BTreeSet::new();
    notes.retain(|note| known.insert(note.clone()));
    findings.sort_by_key(|finding| Reverse(rank(finding)));
    Advice {
        schema: SCHEMA,
        pid: profile.target.pid,
        name: profile.target.name.clone(),
        seconds: facts.seconds(),
        rss_bytes: facts.account.map(|account| account.rss_bytes),
        answer: findings.first().map(|first| answer(first, facts.account)),
        lines,
        findings,
        notes,
    }
}

/// What goes on for an hour counts as much as what is there.
fn rank(finding: &Finding) -> u64 {
    let gain = finding
        .gain_bytes
        .max(finding.gain_bytes_an_hour.unwrap_or(0));
    match finding.kind {
        // What many arenas hold is mostly what a trim gives back, too, but would be there again. The trim may give back
        // more, that of the arenas that stay.
        Kind::Arenas => gain.saturating_mul(2),
        _ => gain,
    }
}

/// The question is which of them it is.
fn answer(first: &Finding, account: Option<&RssReport>) -> String {
    let what = match first.kind {
        Kind::Leak => "A leak",
        Kind::Growth => "Growth, by blocks that are still in use",
        Kind::Untouched => "Blocks that are in use for no visible purpose: nobody touches them",
        Kind::Retention => "No leak: free memory that the allocator keeps",
        Kind::Fragmentation => "No leak: fragmentation",
        Kind::Arenas => "No leak: free memory in many arenas",
        Kind::ThreadCaches => "No leak: free blocks in caches of threads",
        Kind::HugePages => "No leak: huge pages that are hardly used",
        Kind::Stacks => "Not the heap: stacks of threads",
        Kind::Mappings => "Not the heap: memory that is mapped beside it",
    };
    let of = account.map_or(String::new(), |account| {
        format!(" of {} resident", bytes(account.rss_bytes))
    });
    format!("{what} ({}{of})", bytes(first.gain_bytes))
}

impl Advice {
    /// The answer in a line, also where there is nothing to do.
    fn answer(&self) -> &str {
        let answer = self.answer.as_deref();
        answer.unwrap_or("Nothing to do: no change that could be computed would bring back much")
    }

    /// For how long it was looked at, in words.
    fn time(&self) -> String {
        match self.seconds > 0.0 {
            true => format!("looked at for {:.0} s", self.seconds),
            false => "looked at once".to_owned(),
        }
    }

    /// A page that needs no network and no script (HTML).
    pub fn page(&self) -> String {
        page::page(self)
    }
}

impl Finding {
    /// What it would bring back.
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
