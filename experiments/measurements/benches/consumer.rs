//! Throughput of the drain and the ledger in events per second of processor time, and memory per live block. The
//! producer's work is not timed.
//!
//! `cargo measure consumer`

#![allow(missing_docs)] // criterion's macros make public functions without

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use memhook_ledger::{Ledger, LedgerOptions};
use memhook_measurements::{
    Churn, Conditions, Feeder, Machine, Pairs, Phase, Stream, ToLedger, output_folder, placement,
    timed,
};
use memhook_stream::Drain;
use std::time::Duration;

const RING_BYTES: usize = 1 << 20;
/// Number of events in a pass: half a ring.
const PASS_EVENTS: usize = RING_BYTES / 16 / 2;

/// Returns the bytes of the ledger's tables.
fn measure(
    c: &mut Criterion,
    group: &str,
    id: &str,
    stream: &mut dyn Stream,
    warm: usize,
) -> usize {
    let mut feeder = Feeder::new(RING_BYTES);
    let mut drain = Drain::new();
    let mut ledger = Ledger::new(LedgerOptions::default());
    let mut events = Vec::new();
    let mut pass = |stream: &mut dyn Stream| {
        stream.next(&mut events, PASS_EVENTS);
        feeder.publish(&events);
        let (time, stats) = timed(|| drain.pass(&feeder.region, &mut ToLedger(&mut ledger)));
        assert_eq!(stats.events, PASS_EVENTS as u64);
        time
    };
    for _ in 0..warm.div_ceil(PASS_EVENTS) {
        pass(stream);
    }
    let mut group = c.benchmark_group(format!("consumer/{group}"));
    group.throughput(Throughput::Elements(PASS_EVENTS as u64));
    group.sample_size(20);
    group.bench_function(BenchmarkId::from_parameter(id), |b| {
        b.iter_custom(|passes| (0..passes).map(|_| pass(stream)).sum::<Duration>());
    });
    group.finish();
    ledger.table_bytes()
}

fn consumer(c: &mut Criterion) {
    for sites in [1, 300, 100_000] {
        let id = format!("{sites}_sites");
        measure(c, "pairs", &id, &mut Pairs::new(sites), 0);
    }
    let mut conditions = Conditions {
        machine: Machine::here(),
        phase: Phase::now(&placement()),
        ..Conditions::default()
    };
    for live in [10_000, 1_000_000, 10_000_000] {
        let id = format!("{live}_live");
        let mut churn = Churn::new(live, 10_000);
        let bytes = measure(c, "churn", &id, &mut churn, live + live / 2);
        conditions.set_fact(
            &format!("ledger with {live} live blocks"),
            &format!("{:.1} bytes a block", bytes as f64 / live as f64),
        );
    }
    conditions.write("consumer");
}

/// Measures reports with a million sites and a million live blocks.
fn queries(c: &mut Criterion) {
    let live = 1_000_000;
    let mut stream = Churn::new(live, 4_000_000);
    let mut events = Vec::new();
    let mut ledger = Ledger::new(LedgerOptions::default());
    stream.next(&mut events, 2 * live);
    ledger.begin_ring(0, 1);
    for event in events.iter().filter_map(|raw| raw.unpack()) {
        ledger.event(event, u64::from(event.size), 0);
    }
    ledger.end_pass(0);
    let mut group = c.benchmark_group(format!("consumer/queries, {} sites", ledger.sites().len()));
    group.sample_size(10);
    group.bench_function("live_by", |b| b.iter(|| ledger.live_by(None)));
    group.bench_function("sites", |b| b.iter(|| ledger.sites()));
    group.bench_function("totals", |b| b.iter(|| ledger.totals()));
    group.finish();
}

fn settings() -> Criterion {
    Criterion::default()
        .output_directory(&output_folder())
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
}

criterion_group! {
    name = benches;
    config = settings();
    targets = consumer, queries
}
criterion_main!(benches);
