//! Events a second through drain and ledger, on one core. The producer's work is not timed.
//!
//! `cargo bench -p memhook-benches --bench consumer`

#![allow(missing_docs)] // criterion's macros make public functions without

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use memhook_benches::{Churn, Feeder, Pairs, Stream, ToLedger};
use memhook_ledger::{Ledger, LedgerOptions};
use memhook_stream::Drain;
use std::time::{Duration, Instant};

const RING_BYTES: usize = 1 << 20;
/// A pass takes half a ring.
const PASS_EVENTS: usize = RING_BYTES / 16 / 2;

fn measure(c: &mut Criterion, group: &str, id: &str, stream: &mut dyn Stream, warm: usize) {
    let mut feeder = Feeder::new(RING_BYTES);
    let mut drain = Drain::new();
    let mut ledger = Ledger::new(LedgerOptions::default());
    let mut events = Vec::new();
    let mut pass = |stream: &mut dyn Stream| {
        stream.next(&mut events, PASS_EVENTS);
        feeder.publish(&events);
        let start = Instant::now();
        let stats = drain.pass(&feeder.region, &mut ToLedger(&mut ledger));
        let time = start.elapsed();
        assert_eq!(stats.events, PASS_EVENTS as u64);
        time
    };
    for _ in 0..warm.div_ceil(PASS_EVENTS) {
        pass(stream);
    }
    let mut group = c.benchmark_group(group);
    group.throughput(Throughput::Elements(PASS_EVENTS as u64));
    group.sample_size(20);
    group.bench_function(BenchmarkId::from_parameter(id), |b| {
        b.iter_custom(|passes| (0..passes).map(|_| pass(stream)).sum::<Duration>());
    });
    group.finish();
}

fn consumer(c: &mut Criterion) {
    for sites in [1, 300, 100_000] {
        let id = format!("{sites}_sites");
        measure(c, "pairs", &id, &mut Pairs::new(sites), 0);
    }
    for live in [10_000, 1_000_000, 5_000_000] {
        let id = format!("{live}_live");
        let mut churn = Churn::new(live, 10_000);
        measure(c, "churn", &id, &mut churn, live + live / 2);
    }
}

criterion_group!(benches, consumer);
criterion_main!(benches);
