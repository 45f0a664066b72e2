//! The document of `/targets`: memhook-rs/targets/1 (docs/schemas/targets-1.json).

use crate::board::{Advised, Board, Phase, Pin, Reclaimed};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Serialize)]
struct Targets {
    schema: &'static str,
    /// Targets, sorted by process id.
    targets: Vec<Target>,
    held_back: Vec<&'static str>,
    configuration_refused: bool,
    process_events: bool,
}

#[derive(Serialize)]
struct Target {
    pid: i32,
    rule: String,
    mode: &'static str,
    service: String,
    process: String,
    version: Option<String>,
    namespace: Option<String>,
    pod: Option<String>,
    pod_uid: Option<String>,
    container: Option<String>,
    container_name: Option<String>,
    workload_type: Option<String>,
    workload: Option<String>,
    phase: &'static str,
    why: Option<String>,
    numbers: Option<Measured>,
}

#[derive(Serialize)]
struct Measured {
    live_bytes: u64,
    live_blocks: u64,
    allocated_bytes: u64,
    allocations: u64,
    live_error_bytes: Option<u64>,
    allocated_error_bytes: Option<u64>,
    growth_bytes_per_minute: f64,
    sample_bytes: u64,
    lost_events: u64,
    unwatched_libraries: u64,
    gaps: u64,
    gap_seconds: f64,
    attach_ms: f64,
    held_ms: f64,
    resident_bytes: u64,
    resident_parts: BTreeMap<&'static str, u64>,
    pins: Vec<Pin>,
    unreachable_bytes: Option<u64>,
    unreachable_blocks: Option<u64>,
    scans: u64,
    scan_held_ms: f64,
    reclaim: Option<Reclaim>,
    advice: Option<Advice>,
    memory_limit_bytes: u64,
    memory_free_bytes: u64,
    profiles: u64,
}

#[derive(Serialize)]
struct Reclaim {
    rule: &'static str,
    attempts: u64,
    reclaimable_bytes: u64,
    reclaimable_blocks: u64,
    freed_bytes: u64,
    freed_blocks: u64,
    holds: u64,
    held_ms: f64,
    longest_hold_ms: f64,
    refusals: BTreeMap<&'static str, u64>,
    refused: Option<String>,
}

#[derive(Serialize)]
struct Advice {
    every_seconds: f64,
    attempts: u64,
    given: u64,
    age_seconds: Option<f64>,
    made_unix_ms: Option<u64>,
    answer: Option<String>,
    gain_bytes: BTreeMap<String, u64>,
    held_ms: f64,
    refusals: BTreeMap<&'static str, u64>,
    refused: Option<String>,
    document: Option<String>,
}

impl Advice {
    fn new(pid: i32, of: Advised) -> Advice {
        let last = of.last.as_deref();
        let gains = last.map(|last| last.gains.iter());
        let gains = gains.into_iter().flatten();
        Advice {
            every_seconds: of.every.as_secs_f64(),
            attempts: of.attempts,
            given: of.given,
            age_seconds: last.map(|last| last.made.age().as_secs_f64()),
            made_unix_ms: last.map(|last| last.made.unix_ms),
            answer: last.and_then(|last| last.answer.clone()),
            gain_bytes: gains.map(|(kind, (now, _))| (kind.clone(), *now)).collect(),
            held_ms: of.held.as_secs_f64() * 1e3,
            refusals: of.refusals,
            refused: of.refused,
            document: last
                .filter(|last| last.document.is_some())
                .map(|_| format!("/advice/{pid}")),
        }
    }
}

/// Returns the last advice on a process, a document of memhook-rs/advice/1.
pub fn advice(board: &Board, pid: &str) -> Option<String> {
    let pid: i32 = pid.parse().ok()?;
    let rows = board.rows();
    let row = rows.iter().find(|row| row.identity.pid == pid)?;
    let advised = row.numbers.as_ref()?.advised.as_ref()?;
    advised.last.as_ref()?.document.clone()
}

impl From<Reclaimed> for Reclaim {
    fn from(of: Reclaimed) -> Reclaim {
        Reclaim {
            rule: of.how,
            attempts: of.rounds,
            reclaimable_bytes: of.reclaimable.0,
            reclaimable_blocks: of.reclaimable.1,
            freed_bytes: of.freed.0,
            freed_blocks: of.freed.1,
            holds: of.holds,
            held_ms: of.held.as_secs_f64() * 1e3,
            longest_hold_ms: of.longest_hold.as_secs_f64() * 1e3,
            refusals: of.refusals,
            refused: of.refused,
        }
    }
}

fn known(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Returns the document, as JSON.
pub fn json(board: &Board) -> serde_json::Result<String> {
    let agent = board.agent().clone();
    let rows = board.rows().into_iter().map(|row| {
        let identity = Arc::unwrap_or_clone(row.identity);
        Target {
            pid: identity.pid,
            rule: identity.rule,
            mode: row.mode.name(),
            service: identity.service,
            process: identity.process,
            version: known(identity.version),
            namespace: known(identity.namespace),
            pod: known(identity.pod),
            pod_uid: known(identity.pod_uid),
            container: known(identity.container),
            container_name: known(identity.container_name),
            workload_type: known(identity.workload_type),
            workload: known(identity.workload),
            phase: row.phase.name(),
            why: match row.phase {
                Phase::Refused(why) | Phase::Left(why) => Some(why),
                _ => None,
            },
            numbers: row.numbers.map(|n| Measured {
                live_bytes: n.live.0,
                live_blocks: n.live.1,
                allocated_bytes: n.allocated.0,
                allocations: n.allocated.1,
                live_error_bytes: n.errors.map(|errors| errors.0),
                allocated_error_bytes: n.errors.map(|errors| errors.1),
                growth_bytes_per_minute: n.growth_per_minute,
                sample_bytes: n.sample_bytes,
                lost_events: n.lost,
                unwatched_libraries: n.unwatched_libraries,
                gaps: n.gaps.0,
                gap_seconds: n.gaps.1,
                attach_ms: n.attach.0 * 1e3,
                held_ms: n.attach.1 * 1e3,
                resident_bytes: n.resident,
                resident_parts: n.resident_parts.into_iter().collect(),
                pins: n.pins,
                unreachable_bytes: n.unreachable.map(|found| found.0),
                unreachable_blocks: n.unreachable.map(|found| found.1),
                scans: n.scans,
                scan_held_ms: n.scan_held * 1e3,
                reclaim: n.reclaimed.map(Reclaim::from),
                advice: n.advised.map(|advised| Advice::new(identity.pid, advised)),
                memory_limit_bytes: n.limit.0,
                memory_free_bytes: n.limit.1,
                profiles: n.profiles,
            }),
        }
    });
    let document = Targets {
        schema: "memhook-rs/targets/1",
        targets: rows.collect(),
        held_back: agent.held_back.iter().map(|scarce| scarce.name()).collect(),
        configuration_refused: agent.has_refused_configuration,
        process_events: agent.has_events,
    };
    serde_json::to_string(&document)
}
