//! Events change a ledger in the same way whether they are applied directly or read from a file.

mod program;

use memhook_ledger::{Ledger, LiveBlock};
use memhook_recording::{Meta, Options, Recording, RecordingEnd, Replay, Writer};
use program::*;

fn blocks(ledger: &Ledger) -> Vec<LiveBlock> {
    let mut blocks: Vec<_> = ledger.live_blocks().collect();
    blocks.sort_by_key(|block| block.address);
    blocks
}

fn assert_same(ledger: &Ledger, replay: &Replay) {
    assert_eq!(replay.totals(), ledger.totals());
    assert_eq!(replay.sites(), ledger.sites());
    assert_eq!(blocks(replay.ledger()), blocks(ledger));
    assert_eq!(replay.release_sites(), ledger.release_sites());
}

#[test]
fn a_file_gives_back_what_went_in() {
    let dir = Dir::new("roundtrip");
    for seed in 0..12 {
        let path = dir.0.join(format!("{seed}.mhk"));
        let mut program = Program::new(seed, 1 + seed as usize % 5);
        program.tsc = seed % 2 == 1;
        let calls = program.run(60, 400);
        let mut ledger = Ledger::new(options(true));
        let mut writer = Writer::create(&path, &Meta::default(), &Options::default()).unwrap();
        record(
            &calls,
            &mut writer,
            &mut ledger,
            if seed < 6 { 0 } else { 7 },
        );
        assert_eq!(writer.finish(), RecordingEnd::Finished);

        let recording = Recording::open(&path).unwrap();
        assert_eq!(recording.end(), Some(&RecordingEnd::Finished));
        let mut collected = Collect::default();
        recording.visit(&mut collected).unwrap();
        assert_eq!(collected.0.len(), calls.len());
        assert_eq!(normalized(&collected.0), normalized(&calls), "seed {seed}");
        ledger.finish();
        assert_same(&ledger, &recording.replay(options(true)).unwrap());
        for id in ledger.sites().iter().map(|site| site.stack) {
            let found = recording.stacks().get(id).map(|view| view.frames.to_vec());
            assert_eq!(
                found,
                find_stack(id).map(|stack| stack.frames),
                "stack {id}"
            );
        }
    }
}

/// A replay of the events alone and a replay from each checkpoint give equal states at every
/// checkpoint and at the end.
#[test]
fn a_window_is_the_same_from_any_checkpoint() {
    let dir = Dir::new("windows");
    for seed in 0..40 {
        let path = dir.0.join(format!("{seed}.mhk"));
        let calls = Program::new(100 + seed, 4).run(60, 60);
        let mut ledger = Ledger::new(options(true));
        let mut writer = Writer::create(&path, &Meta::default(), &Options::default()).unwrap();
        let times = record(&calls, &mut writer, &mut ledger, 1 + seed as usize % 9);
        writer.finish();
        ledger.finish();
        let recording = Recording::open(&path).unwrap();
        assert_eq!(recording.checkpoints(), times);
        for &from in &times {
            let Ok(window) = recording.window(from, u64::MAX, options(true)) else {
                assert_eq!(from, recording.span_ns().1);
                continue;
            };
            let replay = &window.replay;
            assert_eq!(replay.sites(), ledger.sites(), "seed {seed} from {from}");
            assert_eq!(
                blocks(replay.ledger()),
                blocks(&ledger),
                "seed {seed} from {from}"
            );
            let (found, right) = (replay.totals(), ledger.totals());
            let split = found.unknown_releases.abs_diff(right.unknown_releases);
            assert_eq!(
                split,
                found.unhooked_releases.abs_diff(right.unhooked_releases)
            );
            assert!(split <= 8, "seed {seed} from {from}: {found:?} {right:?}");
            let without = memhook_ledger::Totals {
                unknown_releases: right.unknown_releases,
                unhooked_releases: right.unhooked_releases,
                ..found
            };
            assert_eq!(without, right, "seed {seed} from {from}");
            let inside: u64 = window.sites().iter().map(|site| site.allocated_bytes).sum();
            assert_eq!(
                inside + window.totals_before.allocated_bytes,
                right.allocated_bytes
            );
        }
    }
}

#[test]
fn a_window_inside_is_what_happened_there() {
    let dir = Dir::new("inside");
    let path = dir.0.join("run.mhk");
    let calls = Program::new(5, 3).run(100, 80);
    let mut ledger = Ledger::new(options(false));
    let mut writer = Writer::create(&path, &Meta::default(), &Options::default()).unwrap();
    record(&calls, &mut writer, &mut ledger, 10);
    writer.finish();
    let ends: Vec<u64> = calls
        .iter()
        .filter_map(|call| match call {
            Call::Pass(now) => Some(*now),
            _ => None,
        })
        .collect();
    let recording = Recording::open(&path).unwrap();
    let (from, to) = (ends[34] - 1, ends[71]);
    let window = recording.window(from, to, options(false)).unwrap();
    let end_at = |time: u64| {
        let is_before = |call: &Call| matches!(call, Call::Pass(now) if *now <= time);
        calls.iter().rposition(is_before).unwrap() + 1
    };
    let mut right = Ledger::new(options(false));
    feed_ledger(&calls[..end_at(from)], &mut right);
    assert_eq!(window.sites_before, right.sites());
    feed_ledger(&calls[end_at(from)..end_at(to)], &mut right);
    right.finish();
    assert_eq!(window.replay.sites(), right.sites());
    assert_eq!(blocks(window.replay.ledger()), blocks(&right));
    let outside = recording.span_ns().1 + 1;
    assert!(
        recording
            .window(outside, outside + 5, options(false))
            .is_err()
    );
    assert!(recording.window(5, 5, options(false)).is_err());
}

/// No event happens in the window, and the next one happens much later.
#[test]
fn a_window_in_a_pause_has_the_times_that_were_asked_for() {
    let dir = Dir::new("pause");
    let path = dir.0.join("run.mhk");
    let mut program = Program::new(3, 1);
    let mut calls = program.run(5, 40);
    let pause = program.now_ns;
    program.now_ns += 1_000_000_000;
    calls.extend(program.run(5, 40));
    let mut ledger = Ledger::new(options(false));
    let mut writer = Writer::create(&path, &Meta::default(), &Options::default()).unwrap();
    record(&calls, &mut writer, &mut ledger, 0);
    writer.finish();
    let recording = Recording::open(&path).unwrap();
    let (from, to) = (pause + 300_000_000, pause + 700_000_000);
    let until_pause = |call: &Call| matches!(call, Call::Pass(now) if *now <= pause);
    let before = calls.iter().rposition(until_pause).unwrap() + 1;
    let mut right = Ledger::new(options(false));
    feed_ledger(&calls[..before], &mut right);
    for from in [None, Some(from)] {
        let activity = recording.activity(from, Some(to), 10).unwrap();
        assert_eq!((activity.from_ns, activity.to_ns), (from.unwrap_or(0), to));
        assert_eq!(activity.totals.live_bytes, right.totals().live_bytes);
        if from.is_some() {
            assert_eq!(activity.totals, activity.totals_before);
        }
    }
}
