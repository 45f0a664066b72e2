//! Size limits, rotation, disks that fill up, summaries.

mod program;

use memhook_ledger::{Ledger, LedgerOptions};
use memhook_recording::{Error, Meta, Mode, Options, Recording, RecordingEnd, Writer, WriterState};
use program::*;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn a_full_file_ends_the_recording_and_stays_readable() {
    let dir = Dir::new("size");
    let path = dir.0.join("run.mhk");
    let options = Options {
        max_file_bytes: Some(100_000),
        ..Options::default()
    };
    let mut writer = Writer::create(&path, &Meta::default(), &options).unwrap();
    let mut ledger = Ledger::new(LedgerOptions::default());
    let calls = Program::new(1, 2).run(100, 1000);
    record(&calls, &mut writer, &mut ledger, 5);
    assert_eq!(writer.finish(), RecordingEnd::SizeLimit);
    assert!(std::fs::metadata(&path).unwrap().len() <= 100_000);
    let recording = Recording::open(&path).unwrap();
    assert_eq!(recording.end(), Some(&RecordingEnd::SizeLimit));
    assert!(recording.events() > 10_000);
    recording.replay(LedgerOptions::default()).unwrap();
}

/// Waits until more bytes are written than before. Parts have full size only if the writer keeps
/// up.
fn wait_for_bytes(writer: &Writer, before: u64) {
    // At first there may be no full frame.
    let patience = Duration::from_millis(if before == 0 { 200 } else { 60_000 });
    let until = Instant::now() + patience;
    while writer.written_bytes() == before
        && writer.state() == WriterState::Running
        && Instant::now() < until
    {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_part_can_be_read_alone() {
    let dir = Dir::new("parts");
    let path = dir.0.join("run.mhk");
    let options = Options {
        max_file_bytes: Some(400_000),
        max_parts: 3,
        ..Options::default()
    };
    let mut writer = Writer::create(&path, &Meta::default(), &options).unwrap();
    let mut ledger = Ledger::new(program::options(true));
    let mut program = Program::new(1, 3);
    for _ in 0..60 {
        let before = writer.written_bytes();
        record(&program.run(10, 1000), &mut writer, &mut ledger, 0);
        // Frames are passed on once a second, or when they are full.
        program.now_ns += 1_000_000_000;
        wait_for_bytes(&writer, before);
    }
    assert_eq!(writer.finish(), RecordingEnd::Finished);
    ledger.finish();
    let mut files: Vec<_> = std::fs::read_dir(&dir.0)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert_eq!(files.len(), 3, "{files:?}");
    for file in files {
        assert!(std::fs::metadata(&file).unwrap().len() <= 800_000);
        let recording = Recording::open(&file).unwrap();
        let replay = recording.replay(program::options(true)).unwrap();
        if recording.end() == Some(&RecordingEnd::Finished) {
            assert_eq!(replay.sites(), ledger.sites());
            assert_eq!(replay.totals().live_bytes, ledger.totals().live_bytes);
            assert_eq!(replay.totals().allocations, ledger.totals().allocations);
        } else {
            assert_eq!(recording.end(), Some(&RecordingEnd::NextPart));
        }
        for site in replay.sites() {
            let known = recording.stacks().get(site.stack).is_some();
            assert_eq!(known, find_stack(site.stack).is_some());
        }
    }
}

#[test]
fn nothing_is_begun_on_a_full_disk_or_over_a_file() {
    let dir = Dir::new("begin");
    let path = dir.0.join("run.mhk");
    let options = Options {
        min_free_bytes: u64::MAX,
        ..Options::default()
    };
    let result = Writer::create(&path, &Meta::default(), &options);
    assert!(matches!(result.err(), Some(Error::NoSpace { .. })));
    assert!(!path.exists());
    std::fs::write(&path, "precious").unwrap();
    let result = Writer::create(&path, &Meta::default(), &Options::default());
    assert!(matches!(result.err(), Some(Error::Output(_))));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

/// The parts of an earlier recording are protected like its first file, and links are never
/// followed.
#[test]
fn later_parts_overwrite_nothing() {
    let dir = Dir::new("later");
    let (path, part) = (dir.0.join("run.mhk"), dir.0.join("run.3.mhk"));
    for other in ["run.x.mhk", "run.0.mhk", "run.4.txt", "other.1.mhk"] {
        std::fs::write(dir.0.join(other), "another file").unwrap();
    }
    std::fs::write(&part, "precious").unwrap();
    let mut options = Options {
        max_file_bytes: Some(400_000),
        max_parts: 2,
        ..Options::default()
    };
    let refused = Writer::create(&path, &Meta::default(), &options);
    let error = refused.err().expect("there is a part").to_string();
    assert!(error.contains("run.3.mhk exists already"), "{error}");
    assert!(!path.exists());
    // A file or a link that appears at the path of the next part ends the recording.
    std::fs::remove_file(&part).unwrap();
    for put in [
        |at: &std::path::Path| std::fs::write(at, "precious").unwrap(),
        |at: &std::path::Path| std::os::unix::fs::symlink("run.x.mhk", at).unwrap(),
    ] {
        options.overwrite = false;
        let mut writer = Writer::create(&path, &Meta::default(), &options).unwrap();
        put(&dir.0.join("run.1.mhk"));
        let mut ledger = Ledger::new(program::options(true));
        let mut program = Program::new(1, 3);
        for _ in 0..60 {
            let before = writer.written_bytes();
            record(&program.run(10, 1000), &mut writer, &mut ledger, 0);
            program.now_ns += 1_000_000_000;
            if matches!(writer.state(), memhook_recording::WriterState::Ended(_)) {
                break;
            }
            wait_for_bytes(&writer, before);
        }
        let end = writer.finish();
        assert!(
            matches!(&end, RecordingEnd::Failed(why) if why.contains("run.1.mhk")),
            "{end:?}"
        );
        Recording::open(&path).expect("the part so far is readable");
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(dir.0.join("run.1.mhk")).unwrap();
    }
    let kept = std::fs::read(dir.0.join("run.x.mhk")).unwrap();
    assert_eq!(kept, b"another file");
}

/// Writing fails in the middle of a recording. A file size limit set by the shell simulates the
/// full disk.
#[test]
fn a_full_disk_ends_the_recording_not_the_program() {
    let dir = Dir::new("full");
    let inner = std::env::current_exe().unwrap();
    // The output goes to a pipe, because the limit would also end the process when it writes to an
    // output file that is longer.
    let output = Command::new("sh")
        .arg("-c")
        .arg("trap '' XFSZ; ulimit -f 100; exec \"$0\" --exact --ignored --nocapture inner_full_disk")
        .arg(inner)
        .env("MEMHOOK_TEST_DIR", &dir.0)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let recording = Recording::open(dir.0.join("run.mhk")).unwrap();
    assert!(recording.events() > 1000);
    recording.replay(LedgerOptions::default()).unwrap();
}

#[test]
#[ignore = "the writer of another test, on a full disk"]
fn inner_full_disk() {
    let Some(dir) = std::env::var_os("MEMHOOK_TEST_DIR") else {
        return;
    };
    let path = std::path::Path::new(&dir).join("run.mhk");
    let options = Options {
        // The writer may pause for a while.
        max_queued_bytes: usize::MAX,
        ..Options::default()
    };
    let mut writer = Writer::create(&path, &Meta::default(), &options).unwrap();
    let mut ledger = Ledger::new(LedgerOptions::default());
    let mut program = Program::new(1, 2);
    for _ in 0..2000 {
        record(&program.run(10, 300), &mut writer, &mut ledger, 3);
        if writer.state() != WriterState::Running {
            break;
        }
    }
    let until = Instant::now() + Duration::from_secs(60);
    while writer.state() == WriterState::Running && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(matches!(
        writer.state(),
        WriterState::Ended(RecordingEnd::Failed(_))
    ));
    // The writer still takes events, and does nothing.
    record(&program.run(10, 300), &mut writer, &mut ledger, 3);
    assert!(matches!(writer.finish(), RecordingEnd::Failed(_)));
}

#[test]
fn a_disk_that_cannot_keep_up_ends_the_recording() {
    let dir = Dir::new("slow");
    let path = dir.0.join("run.mhk");
    let options = Options {
        max_queued_bytes: 0,
        ..Options::default()
    };
    let mut writer = Writer::create(&path, &Meta::default(), &options).unwrap();
    let mut ledger = Ledger::new(LedgerOptions::default());
    let mut program = Program::new(1, 2);
    for _ in 0..1000 {
        record(&program.run(10, 300), &mut writer, &mut ledger, 1);
        if writer.state() != WriterState::Running {
            break;
        }
    }
    assert_eq!(writer.state(), WriterState::Ended(RecordingEnd::TooSlow));
    assert_eq!(writer.finish(), RecordingEnd::TooSlow);
    // Data from before the failure is in the file.
    match Recording::open(&path) {
        Ok(recording) => assert_eq!(recording.end(), Some(&RecordingEnd::TooSlow)),
        Err(error) => assert!(matches!(error, Error::Empty), "{error}"),
    }
}

#[test]
fn intervals_add_up_to_the_ledger() {
    let dir = Dir::new("summary");
    let path = dir.0.join("run.mhk");
    let options = Options {
        mode: Mode::Summary {
            interval: Duration::from_millis(5),
        },
        ..Options::default()
    };
    let mut writer = Writer::create(&path, &Meta::default(), &options).unwrap();
    let mut ledger = Ledger::new(program::options(false));
    let calls = Program::new(4, 3).run(100, 200);
    let times = record(&calls, &mut writer, &mut ledger, 0);
    assert!(times.len() > 5);
    writer.checkpoint(&ledger, find_stack);
    assert_eq!(writer.finish(), RecordingEnd::Finished);
    let recording = Recording::open(&path).unwrap();
    assert!(recording.is_summary());
    assert!(recording.replay(LedgerOptions::default()).is_err());
    let intervals: Vec<_> = recording.intervals().map(Result::unwrap).collect();
    assert_eq!(intervals.last().unwrap().totals, ledger.totals());
    for site in ledger.sites() {
        let of_site = || {
            let all = intervals.iter().flat_map(|interval| &interval.sites);
            all.filter(|s| s.stack == site.stack)
        };
        let allocated: u64 = of_site().map(|s| s.allocated_bytes).sum();
        let released: u64 = of_site().map(|s| s.released_blocks).sum();
        let in_buckets: u64 = of_site().flat_map(|s| &s.sizes).map(|(_, n)| n).sum();
        assert_eq!(allocated, site.allocated_bytes);
        assert_eq!(released, site.released_blocks);
        assert_eq!(in_buckets, site.allocated_blocks);
        assert_eq!(
            recording.stacks().get(site.stack).is_some(),
            find_stack(site.stack).is_some()
        );
    }
}
