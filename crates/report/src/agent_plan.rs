//! Plan of `agent --plan`: the processes that would be traced, and their cost.

use crate::units::{bytes, count, duration};
use crate::wrap::wrapped;
use crate::{Document, Style};
use memhook_foreign::visible;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Width of the text if the caller gives none.
const COLUMNS: usize = 100;
/// Columns of the table of targets.
const COLUMNS_OF_TABLE: usize = 9;

/// The plan.
#[derive(Clone, Debug, Serialize)]
pub struct AgentPlan {
    /// `memhook-rs/agent-plan/1`.
    pub schema: &'static str,
    /// Upper bound on the number of processes that are traced simultaneously.
    pub max_targets: u32,
    /// Upper bound on the processors that the agent uses.
    pub max_processors: f64,
    /// Limit of the agent's memory.
    pub max_memory_bytes: u64,
    /// Result of querying this machine's kubelet; `None` if the agent does not query it.
    pub kubelet: Option<PlannedKubelet>,
    /// Processes selected by rules, in the order in which the agent attaches to them.
    pub targets: Vec<PlannedTarget>,
    /// The other processes, the oldest first.
    pub unchosen: Vec<UnchosenProcess>,
    /// Number of processes that this user may not examine.
    pub hidden: u64,
}

/// Answer of a kubelet.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedKubelet {
    /// Number of pods in the kubelet's list.
    pub pods: u64,
    /// Reason why the kubelet listed no pods.
    pub error: Option<String>,
}

/// A process that a rule chooses.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedTarget {
    /// Process id.
    pub pid: i32,
    /// Name of the process's program.
    pub process: String,
    /// Namespace of the process's pod.
    pub namespace: Option<String>,
    /// Name of the process's pod.
    pub pod: Option<String>,
    /// Name of the process's container.
    pub container_name: Option<String>,
    /// Owner of the process's pod, such as `deployment/web`.
    pub workload: Option<String>,
    /// Name of the rule.
    pub rule: String,
    /// True if the rule fits only the parent of the process.
    pub inherited: bool,
    /// Mode of the rule.
    pub mode: &'static str,
    /// Mean bytes between samples; `None` if the agent records every allocation or no allocations.
    pub sample_bytes: Option<u64>,
    /// Share of the process's time that tracing may cost, if the rule sets a budget.
    pub overhead: Option<f64>,
    /// Number of frames recorded per call stack; `None` if the process is not traced.
    pub depth: Option<u32>,
    /// Treatment of unreachable blocks; `None` if the agent does not search for them or does not act on them.
    pub reclaim: Option<&'static str>,
    /// Interval in seconds between advice reports on the process; `None` if advice is off.
    pub advise_seconds: Option<f64>,
    /// Seconds between two profiles or searches.
    pub interval_seconds: f64,
    /// Destinations of the profiles.
    pub send: Vec<&'static str>,
    /// Resident bytes at the time of the plan.
    pub resident_bytes: u64,
    /// Approximate number of blocks in the ledger once the process has replaced all its current memory with new
    /// allocations. Set for sampled traces.
    pub expected_blocks: Option<u64>,
    /// Memory limit of the process's ledger; `None` if the process is not traced.
    pub ledger_limit_bytes: Option<u64>,
    /// `attaches`, `waits` or `refused`.
    pub phase: &'static str,
    /// Reason why the agent does not attach to the process.
    pub why: Option<String>,
}

/// A process that no rule chooses.
#[derive(Clone, Debug, Serialize)]
pub struct UnchosenProcess {
    /// Process id.
    pub pid: i32,
    /// Name of the process's program.
    pub process: String,
    /// Namespace of the process's pod.
    pub namespace: Option<String>,
    /// Name of the process's pod.
    pub pod: Option<String>,
    /// Reason why no rule chooses the process.
    pub why: &'static str,
}

impl AgentPlan {
    /// The schema of the JSON form.
    pub const SCHEMA: &'static str = "memhook-rs/agent-plan/1";
}

impl PlannedTarget {
    /// Returns the cells of the target's row.
    fn cells(&self) -> [String; COLUMNS_OF_TABLE] {
        let recorded = match (self.mode, self.sample_bytes, self.overhead) {
            ("scan", ..) => "nothing".to_owned(),
            (_, _, Some(share)) => format!("at {:.1} % of its time", 100.0 * share),
            (_, Some(mean), _) => format!("each {}", bytes(mean)),
            _ => "all".to_owned(),
        };
        let interval = duration(self.interval_seconds);
        let sent = match (self.mode, &self.send[..]) {
            ("scan", _) => format!("searches each {interval}"),
            (_, []) => "numbers".to_owned(),
            (_, send) => format!("{} each {interval}", send.join(", ")),
        };
        let rule = visible(&self.rule).into_owned();
        let expected = self.expected_blocks;
        [
            self.pid.to_string(),
            visible(&self.process).into_owned(),
            self.place(),
            if self.inherited {
                rule + " (of its parent)"
            } else {
                rule
            },
            self.mode.to_owned(),
            recorded,
            expected.map_or("-".into(), |blocks| format!("~ {}", count(blocks))),
            self.ledger_limit_bytes.map_or("-".into(), bytes),
            sent,
        ]
    }
}

impl PlannedTarget {
    /// Returns the namespace, pod and container, if they are known.
    fn place(&self) -> String {
        let known = [&self.namespace, &self.pod, &self.container_name];
        let known: Vec<&str> = known.into_iter().flatten().map(String::as_str).collect();
        visible(&known.join("/")).into_owned()
    }
}

impl Document for AgentPlan {
    fn text(&self, style: Style) -> String {
        let width = style.width.unwrap_or(COLUMNS);
        let of_phase = |phase| self.targets.iter().filter(move |t| t.phase == phase);
        let all = (self.targets.len() + self.unchosen.len()) as u64;
        let mut out = String::new();
        let _ = writeln!(
            out,
            "The agent would trace {} of {} now; it takes at most {:.2} processors and {}.",
            count(of_phase("attaches").count() as u64),
            match all {
                1 => "1 process".to_owned(),
                _ => format!("{} processes", count(all)),
            },
            self.max_processors,
            bytes(self.max_memory_bytes)
        );
        match &self.kubelet {
            None => {}
            Some(PlannedKubelet {
                error: Some(why), ..
            }) => {
                let line = format!(
                    "The kubelet does not list its pods, so no process in a pod would be traced: {}",
                    visible(why)
                );
                let _ = writeln!(out, "{}", wrapped(&line, width).trim_end());
            }
            Some(kubelet) => {
                let _ = writeln!(
                    out,
                    "The kubelet lists {} of this machine.",
                    match kubelet.pods {
                        1 => "1 pod".to_owned(),
                        pods => format!("{} pods", count(pods)),
                    }
                );
            }
        }
        let heading = [
            "PID", "PROCESS", "POD", "RULE", "MODE", "RECORDS", "BLOCKS", "LEDGER", "SENDS",
        ];
        let rows: Vec<_> = of_phase("attaches").map(PlannedTarget::cells).collect();
        if !rows.is_empty() {
            out.push('\n');
            table(&mut out, &heading.map(str::to_owned), &rows);
            let _ = writeln!(
                out,
                "BLOCKS: how many blocks the ledger would hold if all of what is in memory now came after the\n\
                 attach. LEDGER: the most that it may take of the agent's memory."
            );
            for (how, does) in [
                ("free", "frees unreachable blocks of these processes"),
                (
                    "report-only",
                    "reports which unreachable blocks of these processes could be freed",
                ),
            ] {
                let meant = of_phase("attaches").filter(|target| target.reclaim == Some(how));
                let pids: Vec<String> = meant.map(|target| target.pid.to_string()).collect();
                if !pids.is_empty() {
                    let line = format!("The agent {does}: {}", pids.join(", "));
                    let _ = writeln!(out, "{}", wrapped(&line, width).trim_end());
                }
            }
        }
        let advised = of_phase("attaches").filter_map(|target| {
            let every = duration(target.advise_seconds?);
            Some(format!("{} (once in {every})", target.pid))
        });
        let advised: Vec<String> = advised.collect();
        if !advised.is_empty() {
            let line = format!(
                "The agent traces these processes for a minute now and then, and says what to do about their memory: {}",
                advised.join(", ")
            );
            let _ = writeln!(out, "{}", wrapped(&line, width).trim_end());
        }
        for (phase, heading) in [("waits", "Waiting"), ("refused", "Refused")] {
            for (at, target) in of_phase(phase).enumerate() {
                if at == 0 {
                    let _ = writeln!(out, "\n{heading}:");
                }
                let _ = writeln!(
                    out,
                    "  {} {}{} (rule {}): {}",
                    target.pid,
                    visible(&target.process),
                    match &*target.place() {
                        "" => String::new(),
                        place => format!(" in {place}"),
                    },
                    visible(&target.rule),
                    visible(target.why.as_deref().unwrap_or_default())
                );
            }
        }
        let mut by_why = BTreeMap::<&str, BTreeMap<&str, u64>>::new();
        for process in &self.unchosen {
            *by_why
                .entry(process.why)
                .or_default()
                .entry(&process.process)
                .or_default() += 1;
        }
        for (why, names) in by_why {
            let named = names.iter().map(|(name, times)| match times {
                1 => visible(name).into_owned(),
                _ => format!("{} ({times})", visible(name)),
            });
            let named = named.collect::<Vec<_>>().join(", ");
            let line = format!("Not chosen, {why}: {named}");
            let _ = write!(out, "\n{}", wrapped(&line, width).trim_end());
            out.push('\n');
        }
        if self.hidden > 0 {
            let _ = writeln!(
                out,
                "\n{} cannot be looked at: run this as the agent's user",
                match self.hidden {
                    1 => "1 more process".to_owned(),
                    more => format!("{} more processes", count(more)),
                }
            );
        }
        out
    }
}

/// Lays out rows in columns as wide as their widest cell, and omits empty columns. The first column is right-aligned.
fn table(
    out: &mut String,
    heading: &[String; COLUMNS_OF_TABLE],
    rows: &[[String; COLUMNS_OF_TABLE]],
) {
    let width = |column: usize| {
        let cells = rows
            .iter()
            .chain([heading])
            .map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    for row in [heading].into_iter().chain(rows) {
        let mut line = format!("{:>1$}", row[0], width(0));
        for (column, cell) in row.iter().enumerate().skip(1) {
            if rows.iter().all(|row| row[column].is_empty()) {
                continue;
            }
            let _ = write!(line, "  {cell:<0$}", width(column));
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(pid: i32, phase: &'static str) -> PlannedTarget {
        PlannedTarget {
            pid,
            process: "ng\u{1b}inx".into(),
            namespace: (pid != 7).then(|| "shop".into()),
            pod: (pid != 7).then(|| "web-1".into()),
            container_name: (pid == 8).then(|| "app".into()),
            workload: (pid != 7).then(|| "deployment/web".into()),
            rule: "web".into(),
            inherited: pid == 8,
            mode: "sampled",
            sample_bytes: Some(512 << 10),
            overhead: None,
            depth: Some(64),
            reclaim: (pid == 7).then_some("free"),
            advise_seconds: (pid == 8).then_some(3600.0),
            interval_seconds: 15.0,
            send: vec!["files"],
            resident_bytes: 8 << 20,
            expected_blocks: Some(16),
            ledger_limit_bytes: Some(4 << 20),
            phase,
            why: (phase != "attaches").then(|| "it is full".into()),
        }
    }

    #[test]
    fn a_plan_is_a_table_and_the_rest_in_words() {
        let unchosen = |pid, process: &str, why| UnchosenProcess {
            pid,
            process: process.into(),
            namespace: None,
            pod: None,
            why,
        };
        let plan = AgentPlan {
            schema: AgentPlan::SCHEMA,
            max_targets: 20,
            max_processors: 0.04,
            max_memory_bytes: 320 << 20,
            kubelet: None,
            targets: vec![
                target(7, "attaches"),
                target(8, "attaches"),
                target(9, "refused"),
            ],
            unchosen: vec![
                unchosen(1, "init", "never attached to"),
                unchosen(20, "sh", "no rule fits"),
                unchosen(21, "sh", "no rule fits"),
            ],
            hidden: 1,
        };
        let text = plan.text(Style::default());
        for line in [
            "The agent would trace 2 of 6 processes now; it takes at most 0.04 processors and 320.0 MiB.",
            "The agent frees unreachable blocks of these processes: 7",
            "The agent traces these processes for a minute now and then, and says what to do about their memory:",
            "    8 (once in 1 h 00 min)",
            "Not chosen, no rule fits: sh (2)",
            "Not chosen, never attached to: init",
            "1 more process cannot be looked at: run this as the agent's user",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(
            text.contains("web (of its parent)") && text.contains("each 512.0 KiB"),
            "{text}"
        );
        assert!(
            text.contains("(rule web): it is full") && !text.contains('\u{1b}'),
            "{text}"
        );
    }
}
