//! Targets that are not traced: their memory is copied now and then and searched for blocks that nothing reaches.

use crate::board::{Growth, Identity, Link, Numbers, Pin};
use crate::config::Rule;
use crate::facts::executable_of;
use crate::said::chain;
use crate::worker::Ended;
use memhook_heap::{Captured, Heap, Limits, MarkOptions, Request, Scan, account_of, capture};
use memhook_process::{has_ended, resident_counters, thread_start_time};
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

/// Number of classes of blocks that are reported with what they pin; each becomes two series.
const MOST_PINS: usize = 10;
/// Pause between two checks whether another scan is over.
const TURN: Duration = Duration::from_millis(100);

/// Scans a process until it ends, or the target is asked back, or a scan fails. `memory`: what a copy may take.
/// `one_at_a_time`: all copies together would take more.
pub fn scan_periodically(
    identity: &Identity,
    rule: &Rule,
    memory: u64,
    link: &Link,
    one_at_a_time: &Mutex<()>,
) -> Ended {
    let _chosen = match identity.chosen().keep() {
        Ok(kept) => kept,
        Err(replaced) => return Ended::Refused(replaced.to_string()),
    };
    let (begin, mut growth) = (Instant::now(), Growth::default());
    let mut numbers = Numbers::default();
    let executable = executable_of(identity.pid);
    // It has ended, or executes another program, which may fall under another rule.
    let has_gone = || {
        let pid = identity.pid;
        let is_the_same = thread_start_time(pid, pid) == Some(identity.started);
        has_ended(pid) || !is_the_same || executable_of(pid) != executable
    };
    link.tell_attached();
    loop {
        let next = Instant::now() + rule.interval.get_ref().0;
        let turn = loop {
            if link.is_asked_back() {
                return Ended::Left;
            }
            match one_at_a_time.try_lock() {
                Ok(turn) => break turn,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => std::thread::sleep(TURN),
            }
        };
        let found = scan(identity.pid, rule, memory, &mut numbers);
        drop(turn);
        if has_gone() {
            return Ended::Gone;
        }
        if let Err(why) = found {
            return Ended::Refused(why);
        }
        numbers.growth_per_minute = growth.next(begin.elapsed(), numbers.live.0);
        link.tell(&numbers);
        while Instant::now() < next {
            if link.is_asked_back() {
                return Ended::Left;
            }
            if has_gone() {
                return Ended::Gone;
            }
            let rest = next.saturating_duration_since(Instant::now());
            let _ = link.calls().recv_timeout(rest.min(Duration::from_secs(1)));
        }
    }
}

/// One scan.
fn scan(pid: i32, rule: &Rule, memory: u64, numbers: &mut Numbers) -> Result<(), String> {
    let limits = Limits {
        hold: rule
            .max_hold
            .map_or(Limits::default().hold, |hold| Some(hold.0)),
        memory: Some(memory),
    };
    let has_account = rule.resident || rule.pins;
    let request = Request {
        limits,
        with_residency: has_account,
        ..Request::to_search()
    };
    let captured = capture(pid, request).map_err(|error| chain(&error))?;
    let snapshot = &captured.snapshot;
    let options = MarkOptions {
        ignore_half_overwritten: true,
        ..MarkOptions::default()
    };
    let scan = Scan::of(snapshot, options).map_err(|error| chain(&error))?;
    if !scan.heap.is_whole() {
        return Err("its heap could not be read whole, so what is lost in it is not known".into());
    }
    let blocks = &scan.heap.blocks;
    let live = blocks.iter().map(|(_, block)| block.bytes).sum();
    let lost = scan.leaks.iter();
    let lost_bytes = lost.map(|leak| blocks.get(leak.block).bytes).sum();
    numbers.live = (live, u64::from(blocks.len()));
    numbers.unreachable = Some((lost_bytes, scan.leaks.len() as u64));
    numbers.scans += 1;
    numbers.scan_held += snapshot.meta.held_ms / 1e3;
    let counters = resident_counters(pid);
    numbers.resident = counters.map_or(numbers.resident, |counters| counters.resident());
    if has_account {
        account(rule, &captured, &scan.heap, numbers)?;
    }
    Ok(())
}

/// What is resident of a process that was copied, and which blocks hold it.
fn account(
    rule: &Rule,
    captured: &Captured,
    heap: &Heap,
    numbers: &mut Numbers,
) -> Result<(), String> {
    let account = account_of(captured, Some(heap), rule.pins).map_err(|error| chain(&error))?;
    if rule.resident {
        numbers.resident = account.memory.rss;
        let parts = account.parts.into_iter();
        numbers.resident_parts = parts.map(|(part, bytes)| (part.name(), bytes)).collect();
    }
    let pins = account.pins.into_iter().take(MOST_PINS);
    let pins = pins.map(|(class, pinned)| Pin {
        name: class.name,
        own_blocks: pinned.blocks,
        own_bytes: pinned.own_bytes,
        pinned_bytes: pinned.pinned_bytes,
    });
    numbers.pins = pins.collect();
    Ok(())
}
