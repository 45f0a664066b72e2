//! The numbers of the board as OpenMetrics. The text is rebuilt for each scrape, so a target that
//! is gone leaves no series behind. The number of series is at most the number of targets times the
//! number of metrics.

mod advice;
mod reclaims;
mod targets;

use crate::board::{Board, Identity, Numbers, Phase, Row};
use crate::budget::Scarce;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt::{Debug, Error, Formatter};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Maximum length of a label's value. Values are names that others choose.
const MOST_OF_A_LABEL: usize = 128;

/// Returns the text of a scrape.
pub fn text(board: &Arc<Board>, per_process: bool) -> Result<String, Error> {
    let mut registry = Registry::with_prefix("memhook");
    registry.register_collector(Box::new(Scrape {
        board: Arc::clone(board),
        per_process,
    }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

type Labels = Vec<(&'static str, String)>;

struct Scrape {
    board: Arc<Board>,
    per_process: bool,
}

impl Debug for Scrape {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result<(), Error> {
        f.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let rows = self.board.rows();
        let shown = rows.iter().filter_map(|row| {
            let labels = labels(&row.identity, row.mode.name(), self.per_process);
            Some((labels, row.numbers.as_ref()?))
        });
        let shown: Vec<(Labels, &Numbers)> = shown.collect();
        targets::encode(&mut encoder, &shown)?;
        reclaims::encode(&mut encoder, &shown)?;
        advice::encode(&mut encoder, &shown)?;
        self.agent(&mut encoder, &rows)
    }
}

impl Scrape {
    fn agent(&self, encoder: &mut DescriptorEncoder<'_>, rows: &[Row]) -> Result<(), Error> {
        let agent = self.board.agent().clone();
        let phases = Phase::NAMES.map(|name| {
            let count = rows.iter().filter(|row| row.phase.name() == name).count();
            (vec![("phase", name.to_owned())], count as f64)
        });
        family(
            encoder,
            "agent_targets",
            "Processes that rules have chosen",
            MetricType::Gauge,
            phases,
        )?;
        let held_back = Scarce::ALL.map(|scarce| {
            let is_held = agent.held_back.contains(&scarce);
            (
                vec![("by", scarce.name().to_owned())],
                f64::from(u8::from(is_held)),
            )
        });
        family(
            encoder,
            "agent_held_back",
            "1 if processes wait to be traced, by the limit that they wait for",
            MetricType::Gauge,
            held_back,
        )?;
        let version = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
        family(
            encoder,
            "agent_build",
            "The version of the agent",
            MetricType::Gauge,
            [(version, 1.0)],
        )?;
        let refused = f64::from(u8::from(agent.has_refused_configuration));
        let ones = [
            (
                "agent_cpu_seconds",
                "Processor time that the agent has used",
                MetricType::Counter,
                agent.used.cpu_seconds,
            ),
            (
                "agent_resident_bytes",
                "Resident memory of the agent in bytes",
                MetricType::Gauge,
                agent.used.resident as f64,
            ),
            (
                "agent_uptime_seconds",
                "How long the agent has run",
                MetricType::Gauge,
                self.board.age().as_secs_f64(),
            ),
            (
                "agent_attach_failures",
                "Attaches that failed",
                MetricType::Counter,
                agent.failures as f64,
            ),
            (
                "agent_shed_targets",
                "Targets that the agent detached from to stay within the budget",
                MetricType::Counter,
                agent.shed as f64,
            ),
            (
                "agent_configuration_refused",
                "1 if the last configuration was refused",
                MetricType::Gauge,
                refused,
            ),
            (
                "agent_refused_configurations",
                "Configurations that were refused",
                MetricType::Counter,
                agent.refused_configurations as f64,
            ),
            (
                "agent_silent_files",
                "Reads of files of processes that were abandoned because nothing answered",
                MetricType::Counter,
                agent.silent_files as f64,
            ),
            (
                "agent_hung_readers",
                "Threads that are blocked on files that do not answer",
                MetricType::Gauge,
                agent.hung_readers as f64,
            ),
            (
                "agent_process_events",
                "1 if the kernel reports new processes",
                MetricType::Gauge,
                f64::from(u8::from(agent.has_events)),
            ),
        ];
        for (name, help, kind, value) in ones {
            family(encoder, name, help, kind, [(Labels::new(), value)])?;
        }
        let kept = agent.kept_profiles.iter();
        let kept = kept.map(|(reason, count)| (vec![("reason", (*reason).into())], *count as f64));
        family(
            encoder,
            "agent_blackbox_profiles",
            "Profiles that were kept because memory was about to run out, or had run out",
            MetricType::Counter,
            kept,
        )?;
        self.pods(encoder)?;
        self.deliveries(encoder)
    }

    fn pods(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let agent = self.board.agent().clone();
        let Some(pods) = agent.pods else {
            return Ok(());
        };
        let ones = [
            (
                "agent_pods",
                "Pods of this machine that the kubelet has listed",
                MetricType::Gauge,
                pods,
            ),
            (
                "agent_pod_lists",
                "How often the kubelet has listed its pods",
                MetricType::Counter,
                agent.pod_lists,
            ),
            (
                "agent_pod_list_failures",
                "How often the kubelet did not list its pods",
                MetricType::Counter,
                agent.pod_list_failures,
            ),
        ];
        for (name, help, kind, value) in ones {
            family(encoder, name, help, kind, [(Labels::new(), value as f64)])?;
        }
        Ok(())
    }

    fn deliveries(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), Error> {
        let to = |name: &str| vec![("destination", name.to_owned())];
        let all = || self.board.all_deliveries();
        let sent = all().map(|(of, d)| (to(of.name()), d.sent.load(Relaxed) as f64));
        family(
            encoder,
            "agent_sent_profiles",
            "Profiles that were delivered",
            MetricType::Counter,
            sent,
        )?;
        let retries = all().map(|(of, d)| (to(of.name()), d.retries.load(Relaxed) as f64));
        family(
            encoder,
            "agent_send_retries",
            "Requests that have to be repeated",
            MetricType::Counter,
            retries,
        )?;
        let waiting = all().map(|(of, d)| (to(of.name()), d.waiting_bytes.load(Relaxed) as f64));
        family(
            encoder,
            "agent_queue_bytes",
            "Bytes on the disk that wait to be sent",
            MetricType::Gauge,
            waiting,
        )?;
        let dropped = all().flat_map(|(of, d)| {
            let reasons = d.dropped().into_iter();
            reasons.map(move |(reason, count)| {
                let labels = vec![
                    ("destination", of.name().to_owned()),
                    ("reason", reason.to_owned()),
                ];
                (labels, count as f64)
            })
        });
        family(
            encoder,
            "agent_dropped_profiles",
            "Profiles that were dropped",
            MetricType::Counter,
            dropped,
        )
    }
}

fn family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    kind: MetricType,
    values: impl IntoIterator<Item = (Labels, f64)>,
) -> Result<(), Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, kind)?;
    let one = |value, of: MetricEncoder<'_>| match kind {
        MetricType::Counter => ConstCounter::new(value).encode(of),
        _ => ConstGauge::new(value).encode(of),
    };
    for (labels, value) in values {
        if labels.is_empty() {
            return one(value, metric);
        }
        one(value, metric.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Returns the labels that identify a series, without empty ones.
fn labels(identity: &Identity, mode: &'static str, per_process: bool) -> Labels {
    let pid = per_process.then(|| identity.pid.to_string());
    let all = [
        ("rule", identity.rule.clone()),
        ("mode", mode.to_owned()),
        ("service", identity.service.clone()),
        ("process", identity.process.clone()),
        ("namespace", identity.namespace.clone()),
        ("pod", identity.pod.clone()),
        ("container", identity.container_name.clone()),
        ("workload", identity.workload.clone()),
        ("workload_type", identity.workload_type.clone()),
        ("pid", pid.unwrap_or_default()),
    ];
    let kept = all.into_iter().filter(|(_, value)| !value.is_empty());
    kept.map(|(name, value)| (name, value.chars().take(MOST_OF_A_LABEL).collect()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::{Advised, Reclaimed};
    use crate::config::Mode;
    use crate::kept_advice::Given;
    use crate::moment::Moment;
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn row(pid: i32, live: u64) -> Row {
        Row {
            identity: Arc::new(Identity {
                pid,
                rule: "web".into(),
                service: "a \"b\"\n".into(),
                process: "nginx".into(),
                ..Identity::default()
            }),
            mode: Mode::Exact,
            phase: Phase::Traced,
            numbers: Some(Numbers {
                live: (live, 1),
                allocated: (live + 10, 3),
                resident_parts: vec![("live heap", live), ("stacks", 4096)],
                reclaimed: Some(Reclaimed {
                    how: "free",
                    freed: (live, 2),
                    longest_hold: Duration::from_millis(live),
                    refusals: BTreeMap::from([("heap", 1)]),
                    ..Reclaimed::default()
                }),
                advised: Some(Advised {
                    attempts: 3,
                    given: 2,
                    last: Some(Arc::new(Given {
                        made: Moment::now(),
                        answer: None,
                        gains: BTreeMap::from([("leak".into(), (live, 2 * live))]),
                        document: None,
                    })),
                    refusals: BTreeMap::from([("traced", 1)]),
                    ..Advised::default()
                }),
                ..Numbers::default()
            }),
        }
    }

    #[test]
    fn series_are_of_processes_or_of_services() {
        let board = Board::new();
        board.set_rows(vec![row(7, 100), row(8, 50)]);
        let each = text(&board, true).expect("text");
        let labels = r#"{rule="web",mode="exact",service="a \"b\"\n",process="nginx""#;
        for line in [
            format!("memhook_target_live_bytes{labels},pid=\"7\"}} 100.0"),
            format!("memhook_target_live_bytes{labels},pid=\"8\"}} 50.0"),
            format!("memhook_target_allocations_total{labels},pid=\"8\"}} 3.0"),
            format!(
                "memhook_target_resident_part_bytes{labels},pid=\"8\",part=\"live heap\"}} 50.0"
            ),
            "memhook_agent_targets{phase=\"traced\"} 2.0".to_owned(),
            "memhook_agent_process_events 0.0".to_owned(),
            "memhook_agent_held_back{by=\"processor\"} 0.0".to_owned(),
        ] {
            assert!(each.lines().any(|found| found == line), "{line} in {each}");
        }
        assert!(each.ends_with("# EOF\n"));
        let all = text(&board, false).expect("text");
        assert!(
            all.contains(&format!("memhook_target_live_bytes{labels}}} 150.0\n")),
            "{all}"
        );
        let stacks =
            format!("memhook_target_resident_part_bytes{labels},part=\"stacks\"}} 8192.0\n");
        assert!(all.contains(&stacks), "{all}");
        assert!(!all.contains("pid="));
        // Bytes are added up. For holds, the longest counts.
        for (name, value) in [
            ("reclaimed_bytes_total", "150.0"),
            ("reclaim_longest_hold_seconds", "0.1"),
        ] {
            let line = format!("memhook_target_{name}{labels},reclaim=\"free\"}} {value}\n");
            assert!(all.contains(&line), "{line} in {all}");
        }
        for (name, more, value) in [
            ("advice_attempts_total", "", "6.0"),
            ("advices_total", "", "4.0"),
            ("advice_gain_bytes", ",finding=\"leak\"", "150.0"),
            ("advice_gain_bytes_per_hour", ",finding=\"leak\"", "300.0"),
            ("advice_refusals_total", ",reason=\"traced\"", "2.0"),
        ] {
            let line = format!("memhook_target_{name}{labels}{more}}} {value}\n");
            assert!(all.contains(&line), "{line} in {all}");
        }
        let refused = format!("{labels},reclaim=\"free\",reason=\"heap\"}} 2.0\n");
        assert!(all.contains(&refused), "{all}");
        // Targets that are gone leave no series behind.
        board.set_rows(Vec::new());
        assert!(!text(&board, true).expect("text").contains("nginx"));
    }
}
