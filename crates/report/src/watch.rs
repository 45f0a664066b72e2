//! Evidence about a process that runs out of memory.

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
    /// Reason: `limit`, `growth`, `rss`, `pressure` or `end`.
    pub reason: &'static str,
    /// The reason as a sentence.
    pub explanation: String,
    /// Time in seconds since 1970.
    pub time_s: u64,
    /// End of the process, in the last report.
    pub death: Option<Death>,
    /// Processes that the kernel killed during the watch; only in the last report.
    pub killed: Vec<KilledProcess>,
    /// Resident memory by mappings; absent after the process has ended.
    pub account: Option<RssReport>,
    /// Memory over the last minutes, oldest moment first.
    pub history: Vec<WatchMoment>,
    /// Live blocks by call stack; absent without a trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<ReportModel>,
}

/// Memory of a process at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct WatchMoment {
    /// Seconds since the attach.
    pub time_s: f64,
    /// Resident bytes.
    pub rss_bytes: u64,
    /// Bytes of live blocks, estimated if allocations are sampled.
    pub live_bytes: u64,
}

/// Processes that the kernel killed in a process's memory cgroup for lack of memory, during the
/// watch.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Kills {
    /// Number of processes; `None` if the kernel does not report it.
    pub count: Option<u64>,
    /// Processes that the kernel's messages name. Not every user may read these messages.
    pub processes: Vec<KilledProcess>,
}

/// A process that the kernel has killed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KilledProcess {
    /// Process id.
    pub pid: i32,
    /// Name of the process.
    pub name: String,
}

impl Kills {
    fn of(&self, pid: i32) -> bool {
        self.processes.iter().any(|killed| killed.pid == pid)
    }

    /// Returns true if a process was killed.
    fn any(&self) -> bool {
        self.count.is_some_and(|count| count > 0) || !self.processes.is_empty()
    }

    /// Describes the other processes, in words that follow those about process `pid`.
    fn words(&self, pid: i32) -> String {
        const MOST: usize = 4;
        let others = self.processes.iter().filter(|killed| killed.pid != pid);
        let mut named: Vec<String> = others
            .map(|killed| format!("{} ({})", killed.pid, killed.name))
            .collect();
        let more = named.len().saturating_sub(MOST);
        named.truncate(MOST);
        let named = named.join(", ");
        let who = match (named.is_empty(), more, self.count) {
            (false, 0, _) => format!("process {named}"),
            (false, more, _) => format!("process {named} and {more} more"),
            (true, ..) if self.of(pid) => return String::new(),
            (true, _, Some(0)) => "no process".into(),
            (true, _, Some(1)) => "a process".into(),
            (true, _, Some(_)) => "several processes".into(),
            (true, _, None) => return "; it is not known whether memory ran out".into(),
        };
        format!("; the kernel has killed {who} of its memory cgroup because memory ran out")
    }

    /// Describes the end of a watch whose process continues.
    pub fn beside_living(&self, pid: i32) -> String {
        let others = if self.any() {
            self.words(pid)
        } else {
            String::new()
        };
        format!("the watch was ended, and the process continues{others}")
    }
}

/// The end of a process.
#[derive(Clone, Debug, Serialize)]
pub struct Death {
    /// True if the kernel killed the process for lack of memory. If the kernel's messages cannot be
    /// read, true if the kernel killed some process of the group during the watch.
    pub out_of_memory: bool,
    /// Number of processes that the kernel killed in the group since the watch began; `None` if the
    /// kernel does not report it.
    pub kills: Option<u64>,
    /// Signal that ended the process, if known.
    pub signal: Option<i32>,
    /// Exit status of the process, if known.
    pub status: Option<i32>,
}

impl Death {
    /// Describes the end of process `pid`, with its wait status if known.
    pub fn new(pid: i32, wait_status: Option<i32>, kills: &Kills) -> Death {
        let signal = wait_status.map(|status| status & 0x7f);
        let is_named = !kills.processes.is_empty();
        Death {
            out_of_memory: if is_named { kills.of(pid) } else { kills.any() },
            kills: kills.count,
            signal: signal.filter(|&signal| signal != 0),
            status: wait_status
                .filter(|status| status & 0x7f == 0)
                .map(|status| status >> 8 & 0xff),
        }
    }

    /// Returns the end in words.
    pub fn explanation(&self, pid: i32, kills: &Kills) -> String {
        let how = match (self.signal, self.status) {
            _ if kills.of(pid) => "killed by the kernel because memory ran out".to_owned(),
            (Some(signal), _) => format!("ended by signal {signal}"),
            (None, Some(status)) => format!("ended with status {status}"),
            (None, None) => "ended".to_owned(),
        };
        how + &kills.words(pid)
    }
}

impl WatchReport {
    /// Creates a report of this moment.
    pub fn new(
        pid: i32,
        reason: &'static str,
        explanation: String,
        account: Option<RssReport>,
        report: impl Into<Option<ReportModel>>,
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
            killed: Vec::new(),
            account,
            history: Vec::new(),
            report: report.into(),
        }
    }

    /// Replaces the report of the live blocks by one with more names.
    pub fn with_report(self, report: ReportModel) -> WatchReport {
        WatchReport {
            report: Some(report),
            ..self
        }
    }

    /// Adds the preceding history.
    pub fn with_history(self, history: Vec<WatchMoment>) -> WatchReport {
        WatchReport { history, ..self }
    }

    /// Adds the end of the process, and the processes that the kernel killed.
    pub fn with_death(self, death: Option<Death>, kills: Kills) -> WatchReport {
        WatchReport {
            death,
            killed: kills.processes,
            ..self
        }
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
        if let Some(report) = &self.report {
            out += &report.text(style);
        }
        if let Some(account) = &self.account {
            out += "\n";
            out += &account.text(style);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kills(count: Option<u64>, pids: &[i32]) -> Kills {
        let process = |&pid: &i32| KilledProcess {
            pid,
            name: "leaker".into(),
        };
        Kills {
            count,
            processes: pids.iter().map(process).collect(),
        }
    }

    #[test]
    fn the_heading_says_who_was_killed() {
        let of = |status, kills: &Kills| {
            let death = Death::new(7, status, kills);
            (death.out_of_memory, death.explanation(7, kills))
        };
        let killed = kills(Some(1), &[7]);
        let text = "killed by the kernel because memory ran out";
        assert_eq!(of(Some(9), &killed), (true, text.into()));
        assert_eq!(of(None, &killed), (true, text.into()));
        let (out_of_memory, text) = of(Some(0x100), &kills(Some(1), &[8]));
        assert!(!out_of_memory);
        assert_eq!(
            text,
            "ended with status 1; the kernel has killed process 8 (leaker) of its memory cgroup because memory ran out"
        );
        // Without the kernel's messages, only the counts of the group are known.
        let (out_of_memory, text) = of(Some(9), &kills(Some(1), &[]));
        assert!(
            out_of_memory && text.contains("signal 9; the kernel has killed a process"),
            "{text}"
        );
        assert!(of(Some(9), &kills(None, &[])).1.contains("not known"));
        let living = kills(Some(6), &[8, 9, 10, 11, 12]).beside_living(7);
        assert!(
            living.contains("continues; the kernel has killed process 8 (leaker), 9"),
            "{living}"
        );
        assert!(living.contains("and 1 more"), "{living}");
        let nobody = kills(Some(0), &[]).beside_living(7);
        assert_eq!(nobody, "the watch was ended, and the process continues");
    }
}
