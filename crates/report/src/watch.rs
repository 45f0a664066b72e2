//! What is kept of a process that runs out of memory.

use crate::rss::RssReport;
use crate::units::{change, milliseconds};
use crate::{Document, ReportModel, Style};
use memhook_foreign::visible;
use serde::Serialize;

/// Name of the JSON schema.
const SCHEMA: &str = "memhook-rs/watch/1";

/// One report.
#[derive(Serialize)]
pub struct WatchReport {
    /// Name of the schema.
    pub schema: &'static str,
    /// Process id.
    pub pid: i32,
    /// `limit`, `growth`, `rss`, `pressure` or `end`.
    pub reason: &'static str,
    /// The reason as a sentence.
    pub explanation: String,
    /// Seconds since 1970.
    pub time_s: u64,
    /// How the process ended, in the last report.
    pub death: Option<Death>,
    /// What was resident, by mappings; not when the process has ended.
    pub account: Option<RssReport>,
    /// The last minutes, the oldest moment first.
    pub history: Vec<WatchMoment>,
    /// The live blocks by call stack.
    pub report: ReportModel,
}

/// What a process used at a moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WatchMoment {
    /// Seconds since the attach.
    pub time_s: f64,
    /// Resident bytes.
    pub rss_bytes: u64,
    /// Bytes of live blocks, an estimate where allocations are sampled.
    pub live_bytes: u64,
}

/// The end of a process.
#[derive(Clone, Debug, Serialize)]
pub struct Death {
    /// The kernel has killed a process of its group for want of memory while it was watched.
    pub out_of_memory: bool,
    /// How many it has killed there since the watch began; none where it does not say.
    pub kills: Option<u64>,
    /// The signal that ended the process, if that is known.
    pub signal: Option<i32>,
    /// Its exit status, if that is known.
    pub status: Option<i32>,
}

impl Death {
    /// In words.
    pub fn explanation(&self) -> String {
        let how = match (self.signal, self.status) {
            (Some(signal), _) => format!("ended by signal {signal}"),
            (None, Some(status)) => format!("ended with status {status}"),
            (None, None) => "ended".to_owned(),
        };
        let killed = match self.kills {
            Some(0) => "no process",
            Some(1) => "a process",
            Some(_) => "several processes",
            None => return format!("{how}; whether for want of memory is not known"),
        };
        format!("{how}; the kernel has killed {killed} of its memory cgroup for want of memory")
    }
}

impl WatchReport {
    /// A report of this moment.
    pub fn new(
        pid: i32,
        reason: &'static str,
        explanation: String,
        account: Option<RssReport>,
        report: ReportModel,
    ) -> WatchReport {
        let now = std::time::SystemTime::now();
        let since = now.duration_since(std::time::UNIX_EPOCH);
        WatchReport {
            schema: SCHEMA,
            pid,
            reason,
            explanation,
            time_s: since.map_or(0, |time| time.as_secs()),
            death: None,
            account,
            history: Vec::new(),
            report,
        }
    }

    /// Replaces the report of the live blocks by one that has more names.
    pub fn with_report(self, report: ReportModel) -> WatchReport {
        WatchReport { report, ..self }
    }

    /// Adds the history before.
    pub fn with_history(self, history: Vec<WatchMoment>) -> WatchReport {
        WatchReport { history, ..self }
    }

    /// Adds how the process ended.
    pub fn with_death(self, death: Option<Death>) -> WatchReport {
        WatchReport { death, ..self }
    }
}

impl Document for WatchReport {
    fn text(&self, style: Style) -> String {
        let mut out = format!("Process {}: {}\n", self.pid, visible(&self.explanation));
        if let (Some(first), Some(last)) = (self.history.first(), self.history.last()) {
            let change = |before: u64, after: u64| change(after as i64 - before as i64);
            out += &format!(
                "In the last {}: {} resident, {} live\n",
                milliseconds(((last.time_s - first.time_s) * 1e3) as u64),
                change(first.rss_bytes, last.rss_bytes),
                change(first.live_bytes, last.live_bytes),
            );
        }
        out.push('\n');
        out += &self.report.text(style);
        if let Some(account) = &self.account {
            out += "\n";
            out += &account.text(style);
        }
        out
    }
}
