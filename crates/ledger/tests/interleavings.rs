//! Tests every way in which the events of one address can arrive: all distributions over rings, all
//! legal distributions over passes, and all orders of rings within a pass.

use memhook_abi::{Op, RawEvent};
use memhook_ledger::{Ledger, LedgerOptions, Totals};

const ADDRESS: u64 = 0x7000_0000;

/// A step in the true history of the address.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Allocate,
    Release,
    /// Announces a call, whose failure or success follows on the same ring.
    Announce,
    Fail,
}
use Step::*;

struct Truth {
    live: Vec<u64>,
    totals: Totals,
}

/// Returns events with sequence numbers, and the final state that the ledger must report.
fn replay(history: &[Step], start: u32) -> (Vec<(RawEvent, u64)>, Truth) {
    let mut number = start;
    let mut events = Vec::new();
    let mut block = None;
    let mut announced = None;
    let mut t = Totals::default();
    for (i, step) in history.iter().enumerate() {
        let size = 100 + i as u64;
        match step {
            Allocate => {
                let event =
                    RawEvent::pack(Op::Allocation, ADDRESS, number, size as u32, i as u32 + 1);
                events.push((event, size));
                t.allocations += 1;
                t.allocated_bytes += size;
                block = Some(size);
            }
            Release | Announce => {
                number = (number + 1) & 0x3f_ffff;
                let op = if *step == Release {
                    Op::Release
                } else {
                    Op::ReallocRelease
                };
                events.push((RawEvent::pack(op, ADDRESS, number, 0, 0), 0));
                t.releases += 1;
                t.released_bytes += block.unwrap_or(0);
                t.unknown_releases += u64::from(block.is_none());
                announced = Some(block);
                block = None;
            }
            Fail => {
                events.push((RawEvent::pack(Op::ReallocFailed, ADDRESS, 0, 0, 0), 0));
                block = announced.take().unwrap();
                t.releases -= 1;
                t.released_bytes -= block.unwrap_or(0);
                t.unknown_releases -= u64::from(block.is_none());
            }
        }
    }
    t.live_bytes = block.unwrap_or(0);
    t.live_blocks = u64::from(block.is_some());
    let live = block.into_iter().collect();
    (events, Truth { live, totals: t })
}

fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![vec![]];
    }
    let mut all = Vec::new();
    for rest in permutations(n - 1) {
        for at in 0..n {
            let mut one = rest.clone();
            one.insert(at, n - 1);
            all.push(one);
        }
    }
    all
}

fn digits(mut code: usize, base: usize, count: usize) -> Vec<usize> {
    (0..count)
        .map(|_| {
            let digit = code % base;
            code /= base;
            digit
        })
        .collect()
}

/// Returns true if every event that happened before an event of pass k arrives by pass k + 1, and
/// the order within each ring is preserved.
fn is_legal(rings: &[usize], passes: &[usize], history: &[Step]) -> bool {
    (0..history.len()).all(|i| {
        (i + 1..history.len()).all(|j| passes[i] <= passes[j] + usize::from(rings[i] != rings[j]))
            && (history[i] != Fail || rings[i] == rings[i - 1])
    })
}

/// Runs all arrivals. Returns their number.
fn check_all(history: &[Step], ring_count: usize, pass_count: usize, start: u32) -> usize {
    let (events, truth) = replay(history, start);
    let n = history.len();
    let orders = permutations(ring_count);
    let mut runs = 0;
    for ring_code in 0..ring_count.pow(n as u32) {
        let rings = digits(ring_code, ring_count, n);
        for pass_code in 0..pass_count.pow(n as u32) {
            let passes = digits(pass_code, pass_count, n);
            if !is_legal(&rings, &passes, history) {
                continue;
            }
            for order_code in 0..orders.len().pow(pass_count as u32) {
                let order = digits(order_code, orders.len(), pass_count);
                let mut ledger = Ledger::new(LedgerOptions::default());
                for pass in 0..pass_count {
                    for &ring in &orders[order[pass]] {
                        let mine = |i: &usize| rings[*i] == ring && passes[*i] == pass;
                        for (k, i) in (0..n).filter(mine).enumerate() {
                            if k == 0 {
                                ledger.begin_ring(ring, ring as u32 + 1);
                            }
                            let (raw, size) = events[i];
                            ledger.event(raw.unpack().unwrap(), size, 0);
                        }
                    }
                    ledger.end_pass(0);
                }
                ledger.finish();
                let mut totals = ledger.totals();
                totals.peak_live_bytes = 0;
                let live: Vec<u64> = ledger.live_blocks().map(|b| b.size).collect();
                assert!(
                    totals == truth.totals && live == truth.live,
                    "history {history:?}\nrings {rings:?}\npasses {passes:?}\norder {:?}\n\
                     ledger {totals:?} {live:?}\ntruth  {:?} {:?}",
                    order.iter().map(|&o| &orders[o]).collect::<Vec<_>>(),
                    truth.totals,
                    truth.live,
                );
                runs += 1;
            }
        }
    }
    runs
}

#[test]
fn plain_histories_over_three_rings() {
    let mut runs = 0;
    for history in [
        &[Allocate, Release, Allocate, Release][..],
        &[Allocate, Release, Allocate, Release, Allocate],
        &[Release, Allocate, Release, Allocate],
    ] {
        runs += check_all(history, 3, 2, 0);
    }
    assert!(runs > 10_000, "only {runs} arrivals");
}

#[test]
fn plain_histories_over_two_rings_and_three_passes() {
    for start in [0, 0x3f_fffe] {
        check_all(
            &[Allocate, Release, Allocate, Release, Allocate, Release],
            2,
            3,
            start,
        );
        check_all(
            &[Release, Release, Allocate, Release, Allocate],
            2,
            3,
            start,
        );
    }
}

#[test]
fn reallocations_over_two_rings() {
    for history in [
        &[Allocate, Announce, Fail, Release, Allocate][..],
        &[Allocate, Announce, Fail, Release],
        &[Allocate, Announce, Fail, Announce, Fail],
        &[Announce, Fail, Release, Allocate],
        &[Announce, Allocate, Announce, Fail],
        &[Allocate, Announce, Allocate, Announce, Allocate],
        &[Release, Announce, Fail, Allocate, Release],
    ] {
        check_all(history, 2, 4, 0x3f_fffe);
    }
}

#[test]
fn reallocations_over_three_rings() {
    check_all(&[Allocate, Announce, Fail, Release, Allocate], 3, 2, 0);
    check_all(&[Allocate, Announce, Allocate, Announce, Fail], 3, 2, 0);
}
