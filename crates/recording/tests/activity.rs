//! A window's numbers for each site, compared with the ledger and with a separate count.

mod program;

use memhook_abi::{Op, flags};
use memhook_ledger::{Estimate, Ledger};
use memhook_recording::{Activity, Meta, Mode, Options, Recording, Writer};
use program::*;
use std::collections::BTreeMap;
use std::path::Path;

fn recorded(dir: &Dir, name: &str, calls: &[Call], options: &Options, every: usize) -> Recording {
    let meta = Meta {
        flags: flags::RELEASE_STACKS,
        ..Meta::default()
    };
    recorded_as(&meta, &dir.0.join(name), calls, options, every)
}

fn recorded_as(
    meta: &Meta,
    path: &Path,
    calls: &[Call],
    options: &Options,
    every: usize,
) -> Recording {
    let mut ledger = Ledger::new(program::options(true));
    let mut writer = Writer::create(path, meta, options).unwrap();
    record(calls, &mut writer, &mut ledger, every);
    writer.checkpoint(&ledger, find_stack);
    writer.finish();
    Recording::open(path).unwrap()
}

/// Returns blocks and bytes by stack.
fn by_stack(activity: &Activity, of: fn(&memhook_recording::SiteActivity) -> Estimate) -> Sums {
    let mut sums = Sums::new();
    for site in &activity.sites {
        let sum = sums.entry(site.stack).or_default();
        sum.0 += of(site).blocks as u64;
        sum.1 += of(site).bytes as u64;
    }
    sums.retain(|_, sum| *sum != (0, 0));
    sums
}

type Sums = BTreeMap<u32, (u64, u64)>;

fn amount(blocks: u64, bytes: u64) -> Estimate {
    Estimate {
        blocks: blocks as f64,
        bytes: bytes as f64,
        ..Estimate::default()
    }
}

#[test]
fn a_whole_run_adds_up_to_the_ledgers_sums() {
    let dir = Dir::new("activity");
    for seed in 0..30 {
        let calls = Program::new(900 + seed, 1 + seed as usize % 4).run(60, 200);
        let name = format!("{seed}.mhk");
        let recording = recorded(&dir, &name, &calls, &Options::default(), seed as usize % 7);
        let replay = recording.replay(recording.ledger_options()).unwrap();
        let totals = replay.totals();
        let activity = recording.activity(None, None, 50).unwrap();
        assert_eq!(activity.totals, totals, "seed {seed}");
        assert_eq!(activity.window_totals(), totals, "seed {seed}");
        let sum = &activity.sum;
        assert_eq!(sum.live, amount(totals.live_blocks, totals.live_bytes));
        assert_eq!(
            sum.allocated,
            amount(totals.allocations, totals.allocated_bytes)
        );
        let released = amount(
            totals.allocations - totals.live_blocks,
            totals.released_bytes,
        );
        assert_eq!(sum.released, released);
        assert_eq!(sum.peak.bytes as u64, totals.peak_live_bytes, "seed {seed}");
        let sites = replay.sites();
        let of_ledger = |blocks: fn(&memhook_ledger::SiteTotals) -> (u64, u64)| -> Sums {
            let sums = sites.iter().map(|site| (site.stack, blocks(site)));
            sums.filter(|(_, sum)| *sum != (0, 0)).collect()
        };
        assert_eq!(
            by_stack(&activity, |s| s.live),
            of_ledger(|s| (s.blocks, s.bytes))
        );
        assert_eq!(
            by_stack(&activity, |s| s.released),
            of_ledger(|s| (s.released_blocks, s.released_bytes))
        );
        let sum_of = |amounts: &[(u8, Estimate)]| amounts.iter().map(|(_, a)| a.bytes).sum::<f64>();
        assert_eq!(sum_of(&activity.allocated_sizes), sum.allocated.bytes);
        assert_eq!(sum_of(&activity.lifetimes), sum.released.bytes);
        let flows: f64 = activity.flows.iter().map(|flow| flow.amount.bytes).sum();
        assert_eq!(flows, sum.released.bytes);
        let sizes: f64 = activity.live_sizes.iter().map(|(_, a)| a.bytes).sum();
        assert_eq!(sizes, sum.live.bytes);
        let last = activity.timeline.last().unwrap();
        assert_eq!((last.live, last.allocated), (sum.live, sum.allocated));
        // The changes of the sites add up to their states at the end.
        let mut live = vec![Estimate::default(); activity.sites.len()];
        for change in &activity.changes {
            live[change.site as usize] = change.live;
        }
        let at_end: Vec<_> = activity.sites.iter().map(|site| site.live).collect();
        assert_eq!(live, at_end, "seed {seed}");
    }
}

#[test]
fn windows_put_together_are_the_run() {
    let dir = Dir::new("activity-windows");
    for seed in 0..20 {
        let calls = Program::new(300 + seed, 3).run(80, 100);
        let recording = recorded(&dir, &format!("{seed}.mhk"), &calls, &Options::default(), 5);
        let whole = recording.activity(None, None, 50).unwrap();
        let end = recording.span_ns().1;
        let cut = end * (seed + 1) / 22;
        let first = recording.activity(None, Some(cut), 50).unwrap();
        let second = recording.activity(Some(first.to_ns), None, 50).unwrap();
        assert_eq!(first.to_ns, second.from_ns);
        assert_eq!(
            by_stack(&second, |s| s.before),
            by_stack(&first, |s| s.live),
            "seed {seed}"
        );
        assert_eq!(by_stack(&second, |s| s.live), by_stack(&whole, |s| s.live));
        let mut sum = by_stack(&first, |s| s.allocated);
        for (stack, (blocks, bytes)) in by_stack(&second, |s| s.allocated) {
            let sum = sum.entry(stack).or_default();
            sum.0 += blocks;
            sum.1 += bytes;
        }
        assert_eq!(sum, by_stack(&whole, |s| s.allocated), "seed {seed}");
        let peak = first.peak_bytes.max(second.peak_bytes);
        assert_eq!(peak, whole.peak_bytes, "seed {seed}");
        assert_eq!(second.sum.peak.bytes as u64, second.peak_bytes);
        // Every site that is live at the start has its state at the first point.
        let mut live = vec![Estimate::default(); second.sites.len()];
        for change in &second.changes {
            live[change.site as usize] = change.live;
        }
        let at_end: Vec<_> = second.sites.iter().map(|site| site.live).collect();
        assert_eq!(live, at_end, "seed {seed}");
    }
}

/// The expected variance is the sum over live blocks, sampled with probability p, of (1 - p) / p^2
/// times the squared size.
#[test]
fn estimates_have_a_variance() {
    const MEAN: f64 = 500.0;
    let dir = Dir::new("activity-sampled");
    let meta = Meta {
        sample_bytes: MEAN as u64,
        ..Meta::default()
    };
    let calls = Program::new(77, 3).run(80, 100);
    let path = dir.0.join("sampled.mhk");
    let recording = recorded_as(&meta, &path, &calls, &Options::default(), 5);
    let activity = recording.activity(None, None, 50).unwrap();
    let (mut bytes, mut variance) = (0.0, 0.0);
    for &(size, amount) in &activity.live_sizes {
        let p = 1.0 - (-(size.max(1) as f64) / MEAN).exp();
        let blocks = amount.blocks * p;
        bytes += blocks * size as f64 / p;
        variance += blocks * (1.0 - p) / (p * p) * (size as f64).powi(2);
    }
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.abs();
    let sum = &activity.sum;
    assert!(bytes > 0.0 && variance > 0.0);
    assert!(close(sum.live.bytes, bytes), "{} {bytes}", sum.live.bytes);
    assert!(
        close(sum.live.variance, variance),
        "{} {variance}",
        sum.live.variance
    );
    // Allocated blocks are either live or released.
    let both = sum.live.variance + sum.released.variance;
    assert!(sum.released.variance > 0.0);
    assert!(
        close(sum.allocated.variance, both),
        "{} {both}",
        sum.allocated.variance
    );
    let of_peak: f64 = activity.sites.iter().map(|site| site.peak.variance).sum();
    assert!(close(sum.peak.variance, of_peak) && of_peak > 0.0);
}

/// Counts temporary blocks by definition: released by the allocating thread before its next
/// allocation.
fn temporary_by_hand(calls: &[Call]) -> u64 {
    let mut last = None;
    let mut announced = None;
    let mut found = 0;
    for call in calls {
        let Call::Event(event, ..) = call else {
            continue;
        };
        // A realloc counts as successful unless the thread's next event reports its failure.
        if let Some(address) = announced.take()
            && event.op != Op::ReallocFailed
            && last == Some(address)
        {
            found += 1;
            last = None;
        }
        match event.op {
            Op::Allocation => last = Some(event.address),
            Op::Release if last == Some(event.address) => {
                found += 1;
                last = None;
            }
            Op::ReallocRelease => announced = Some(event.address),
            Op::Pair => {
                found += u64::from(event.sequence);
                last = None;
            }
            _ => {}
        }
    }
    if announced.is_some() && announced == last {
        found += 1;
    }
    found
}

#[test]
fn temporary_allocations_are_counted_by_thread() {
    let dir = Dir::new("activity-temporary");
    let mut seen = 0;
    for seed in 0..20 {
        let calls = Program::new(700 + seed, 1).run(40, 200);
        let recording = recorded(&dir, &format!("{seed}.mhk"), &calls, &Options::default(), 0);
        let activity = recording.activity(None, None, 50).unwrap();
        let by_hand = temporary_by_hand(&calls);
        assert_eq!(activity.sum.temporary.blocks as u64, by_hand, "seed {seed}");
        seen += by_hand;
    }
    assert!(
        seen > 100,
        "the program makes too few of them to tell: {seen}"
    );
}

#[test]
fn sums_of_intervals_tell_the_same_as_events() {
    let dir = Dir::new("activity-summary");
    for seed in 0..10 {
        let calls = Program::new(500 + seed, 3).run(60, 100);
        let events = recorded(
            &dir,
            &format!("e{seed}.mhk"),
            &calls,
            &Options::default(),
            0,
        );
        let options = Options {
            mode: Mode::Summary {
                interval: std::time::Duration::from_millis(1),
            },
            ..Options::default()
        };
        let sums = recorded(&dir, &format!("s{seed}.mhk"), &calls, &options, 0);
        assert!(sums.is_summary());
        let recording = sums;
        let events = events.activity(None, None, 10).unwrap();
        let sums = recording.activity(None, None, 10).unwrap();
        for of in [
            |s: &memhook_recording::SiteActivity| s.live,
            |s: &memhook_recording::SiteActivity| s.allocated,
        ] {
            assert_eq!(by_stack(&events, of), by_stack(&sums, of), "seed {seed}");
        }
        assert_eq!(sums.sum.peak.bytes as u64, sums.peak_bytes);
        assert!(sums.peak_bytes <= events.peak_bytes);
        // The window from one interval end to another includes exactly the intervals between.
        let ends: Vec<u64> = sums.timeline.iter().map(|point| point.time_ns).collect();
        let (from, to) = (ends[1], ends[ends.len() - 2]);
        let part = recording.activity(Some(from), Some(to), 10).unwrap();
        assert_eq!((part.from_ns, part.to_ns), (from, to));
        assert_eq!(part.timeline.len(), ends.len() - 3);
    }
}

#[test]
fn windows_that_cannot_be() {
    let dir = Dir::new("activity-refused");
    let calls = Program::new(1, 2).run(20, 50);
    let recording = recorded(&dir, "run.mhk", &calls, &Options::default(), 0);
    let end = recording.span_ns().1;
    for (from, to) in [
        (Some(end + 1), None),
        (Some(5), Some(5)),
        (Some(9), Some(3)),
    ] {
        assert!(recording.activity(from, to, 10).is_err(), "{from:?} {to:?}");
    }
    let error = recording.activity(Some(end + 2_000_000_000), None, 10);
    let text = error
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    assert!(text.contains("covers 0.000 s to"), "{text}");
}
