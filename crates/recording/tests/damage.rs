//! Recordings with missing, flipped or foreign bytes: each must lead to a clear error or a shorter
//! recording.

mod program;

use memhook_ledger::{Ledger, LedgerOptions};
use memhook_recording::{
    ClockPoint, Error, Meta, Mode, Module, Options, Recording, RecordingEnd, ThreadName, Writer,
};
use program::*;
use std::path::Path;
use std::time::Duration;

/// Returns a small file with every kind of chunk except summaries.
fn small(path: &Path) -> Vec<u8> {
    let meta = Meta {
        pid: 7,
        command: "redis-server *:6379".to_owned(),
        notes: vec![("unwind".to_owned(), "tables".to_owned())],
        ..Meta::default()
    };
    let mut writer = Writer::create(path, &meta, &Options::default()).unwrap();
    writer.module_loaded(&Module {
        path: "/usr/lib/libc.so.6".to_owned(),
        build_id: vec![1, 2, 3],
        base: 0x1000,
        start: 0x1000,
        end: 0x9000,
        ..Module::default()
    });
    writer.thread_name(&ThreadName {
        tid: 100,
        name: "main".to_owned(),
        time_ns: 0,
    });
    writer.clock(&ClockPoint {
        unix_ns: 5,
        tsc_scale: 0.4,
        ..ClockPoint::default()
    });
    let mut ledger = Ledger::new(options(false));
    let calls = Program::new(3, 2).run(8, 8);
    record(&calls, &mut writer, &mut ledger, 4);
    writer.losses(&memhook_stream::Losses::default(), 9);
    writer.module_unloaded(0x1000, 77);
    assert_eq!(writer.finish(), RecordingEnd::Finished);
    std::fs::read(path).unwrap()
}

/// Reads everything that is readable. Returns the number of events, or the first error.
fn read_all(path: &Path) -> Result<usize, Error> {
    let recording = Recording::open(path)?;
    let (start, end) = recording.span_ns();
    for interval in recording.intervals() {
        interval?;
    }
    let middle = start + (end - start) / 2;
    if let Err(error) = recording.window(middle, u64::MAX, LedgerOptions::default()) {
        assert!(!error.to_string().contains('\n'));
    }
    recording.replay(LedgerOptions::default())?;
    let mut events = Collect::default();
    recording.visit(&mut events)?;
    let is_event = |call: &&Call| matches!(call, Call::Event(..));
    Ok(events.0.iter().filter(is_event).count())
}

#[test]
fn records_come_back() {
    let dir = Dir::new("records");
    let path = dir.0.join("run.mhk");
    small(&path);
    let recording = Recording::open(&path).unwrap();
    assert_eq!(recording.meta().command, "redis-server *:6379");
    assert_eq!(recording.meta().notes.len(), 1);
    assert_eq!(recording.threads()[0].name, "main");
    assert_eq!(recording.clock()[0].tsc_scale, 0.4);
    assert_eq!(recording.modules()[0].build_id, [1, 2, 3]);
    assert_eq!(recording.modules()[0].unloaded_ns, Some(77));
    assert!(recording.module_at(0x2000, 76).is_some());
    assert!(recording.module_at(0x2000, 77).is_none());
    assert!(recording.module_at(0x9000, 0).is_none());
    assert_eq!(recording.losses_over_time().len(), 1);
    assert_eq!(recording.events() as usize, read_all(&path).unwrap());
}

#[test]
fn a_file_cut_anywhere_is_shorter() {
    let dir = Dir::new("cut");
    let path = dir.0.join("run.mhk");
    let bytes = small(&path);
    let all = read_all(&path).unwrap();
    let mut last = 0;
    for cut in 0..bytes.len() {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        match read_all(&path) {
            Ok(events) => {
                assert!(events >= last && events <= all, "cut at {cut}");
                last = events;
                let recording = Recording::open(&path).unwrap();
                assert_eq!(recording.end(), None, "cut at {cut}");
            }
            Err(Error::Empty | Error::NoBytes | Error::NotARecording) => {
                assert_eq!(last, 0, "cut at {cut}");
            }
            Err(error) => panic!("cut at {cut}: {error}"),
        }
    }
    assert_eq!(last, all);
}

#[test]
fn no_flipped_byte_goes_unnoticed_or_does_harm() {
    let dir = Dir::new("flip");
    let path = dir.0.join("run.mhk");
    let bytes = small(&path);
    let all = read_all(&path).unwrap();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= if at % 2 == 0 { 0xff } else { 1 << (at / 2 % 8) };
        std::fs::write(&path, &flipped).unwrap();
        match read_all(&path) {
            Ok(events) => assert!(events <= all, "byte {at}"),
            Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
        }
    }
}

#[test]
fn foreign_files_are_refused() {
    let dir = Dir::new("foreign");
    let path = dir.0.join("run.mhk");
    let mut bytes = small(&path);
    bytes[8] = 99;
    std::fs::write(&path, &bytes).unwrap();
    let error = Recording::open(&path).err().unwrap();
    assert!(matches!(error, Error::Version { found: 99, .. }), "{error}");
    for text in [&b"heaptrack"[..], b"\x89PNG\r\n\x1a\n0000"] {
        std::fs::write(&path, text).unwrap();
        let error = Recording::open(&path).err().unwrap();
        assert!(matches!(error, Error::NotARecording), "{error}");
    }
    let error = Recording::open("/nonexistent/run.mhk").err().unwrap();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    let error = Recording::open(&dir.0).err().unwrap();
    assert!(matches!(error, Error::Directory), "{error}");
    let error = Recording::open("/dev/null").err().unwrap();
    assert!(matches!(error, Error::Stream), "{error}");
    std::fs::write(&path, b"").unwrap();
    let error = Recording::open(&path).err().unwrap();
    assert!(matches!(error, Error::NoBytes), "{error}");
}

#[test]
fn a_stream_is_read_like_a_file() {
    let dir = Dir::new("stream");
    let path = dir.0.join("run.mhk");
    let bytes = small(&path);
    let file = Recording::open(&path).unwrap();
    let stream = Recording::read("standard input", &bytes[..]).unwrap();
    assert_eq!(stream.span_ns(), file.span_ns());
    assert_eq!(stream.modules(), file.modules());
    assert_eq!(stream.end(), file.end());
    let error = Recording::read("standard input", &b""[..]).err().unwrap();
    assert!(matches!(error, Error::NoBytes), "{error}");
    let error = Recording::read("standard input", &b"words"[..])
        .err()
        .unwrap();
    assert!(matches!(error, Error::NotARecording), "{error}");
}

#[test]
fn a_summary_that_is_cut_is_shorter() {
    let dir = Dir::new("summary-cut");
    let path = dir.0.join("run.mhk");
    let options = Options {
        mode: Mode::Summary {
            interval: Duration::from_millis(1),
        },
        ..Options::default()
    };
    let mut writer = Writer::create(&path, &Meta::default(), &options).unwrap();
    let calls = Program::new(8, 2).run(20, 30);
    record(
        &calls,
        &mut writer,
        &mut Ledger::new(program::options(false)),
        0,
    );
    writer.finish();
    let bytes = std::fs::read(&path).unwrap();
    for cut in 0..bytes.len() {
        std::fs::write(&path, &bytes[..cut]).unwrap();
        if let Ok(recording) = Recording::open(&path) {
            assert!(recording.intervals().all(|interval| interval.is_ok()));
            assert!(recording.replay(LedgerOptions::default()).is_err() || !recording.is_summary());
        }
    }
}
