//! Memory of the ledger by number of live blocks, and the longest pass (in processor time) while
//! the ledger grows.
//!
//! `cargo run --release --manifest-path experiments/Cargo.toml --example consumer_memory`

use memhook_ledger::{Ledger, LedgerOptions};
use memhook_measurements::{Churn, Stream, timed};
use std::time::Duration;

const PASS_EVENTS: usize = 32_768;

/// Returns current and peak resident memory of this process in bytes (proc_pid_status(5)).
fn resident() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find(|l| l.starts_with(name));
        let kib = line.and_then(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok());
        kib.unwrap_or(0) * 1024
    };
    (field("VmRSS:"), field("VmHWM:"))
}

fn main() {
    println!("live blocks   table B/block   resident B/block   peak B/block   longest pass   mean");
    for live in [10_000, 100_000, 1_000_000, 3_000_000, 10_000_000] {
        let mut churn = Churn::new(live, 10_000);
        let mut events = Vec::with_capacity(PASS_EVENTS);
        let mut ledger = Ledger::new(LedgerOptions::default());
        // The stream's own memory is allocated already, but touched only as the stream grows, so its known size is
        // subtracted below.
        let before = resident().0;
        std::fs::write("/proc/self/clear_refs", "5").ok(); // resets the peak
        let (mut longest, mut total, mut passes) = (Duration::ZERO, Duration::ZERO, 0);
        let mut given = 0;
        while given < live {
            let count = PASS_EVENTS.min(live - given);
            churn.next(&mut events, count);
            given += count;
            let (time, ()) = timed(|| {
                ledger.begin_ring(0, 1);
                for event in events.iter().filter_map(|raw| raw.unpack()) {
                    ledger.event(event, u64::from(event.size), 0);
                }
                ledger.end_pass(0);
            });
            longest = longest.max(time);
            total += time;
            passes += 1;
        }
        let (now, peak) = resident();
        let streams = 8 * live as u64 + 16 * PASS_EVENTS as u64;
        let per_block = |bytes: u64| bytes as f64 / live as f64;
        println!(
            "{live:>11} {:>15.1} {:>18.1} {:>14.1} {:>14.1?} {:>6.1?}",
            per_block(ledger.table_bytes() as u64),
            per_block(now.saturating_sub(before + streams)),
            per_block(peak.saturating_sub(before + streams)),
            longest,
            total / passes,
        );
    }
}
