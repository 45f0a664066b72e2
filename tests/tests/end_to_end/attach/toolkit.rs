//! Profilers built on `memhook-attach`: its examples, each on a real program.

#[path = "../../../../crates/attach/examples/calls_per_second.rs"]
mod calls_per_second;
#[path = "../../../../crates/attach/examples/size_histogram.rs"]
mod size_histogram;

use memhook_tests::{Target, build_target, until};
use std::{
    collections::HashMap,
    io::Write,
    sync::{Arc, Mutex},
    time::Duration,
};

/// Longer than the target lives: its end ends the trace.
const LONG: Duration = Duration::from_secs(3600);

#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Output {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("alive").clone()).expect("text")
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("alive").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Attaches with `profile` to a program that always makes the same calls, and lets it make them; ends it when
/// `is_enough` says so of the output.
fn profiled(
    profile: fn(i32, Duration, &mut Output) -> Result<(), memhook_attach::Error>,
    is_enough: fn(&str) -> bool,
) -> String {
    let mut target = Target::start(&build_target("deterministic", &[]), &[]);
    let pid = target.pid() as i32;
    let output = Output::default();
    let mut to = output.clone();
    let profiler = std::thread::spawn(move || profile(pid, LONG, &mut to));
    // The hold that loads the hook ends when the slots are patched.
    until("the attach", || {
        target.maps().contains("memhook-hook") && target.status("TracerPid") == "0"
    });
    target.go();
    target.expect("done");
    until("enough output", || is_enough(&output.text()));
    assert!(target.finish().success());
    profiler.join().expect("no panic").expect("traced");
    output.text()
}

#[test]
fn a_histogram_of_sizes_keeps_data_with_each_block() {
    let text = profiled(size_histogram::run, |_| true);
    let number = |word: &str| -> u64 { word.parse().unwrap_or_else(|_| panic!("{text}")) };
    let classes: HashMap<u64, (u64, u64)> = text
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split([' ', ':', ',']).collect();
            (number(words[2]), (number(words[4]), number(words[7])))
        })
        .collect();
    // 500 blocks of 100 to 599 bytes stay; 3,000 of 64 bytes and 1,000 of 2,000 go.
    assert_eq!(classes[&256].1, 128, "{text}");
    assert_eq!(classes[&512].1, 256, "{text}");
    assert!(classes[&64].0 >= 3000 && classes[&64].1 == 0, "{text}");
    assert!(classes[&2048].0 >= 1000 && classes[&2048].1 == 0, "{text}");
}

#[test]
fn calls_are_counted_by_thread() {
    let calls = |text: &str| -> u64 {
        let counts = text.lines().filter_map(|line| {
            let (thread, count) = line.split_once(": ")?;
            assert!(thread.contains("deterministic"), "{text}");
            count.strip_suffix(" calls")?.parse::<u64>().ok()
        });
        counts.sum()
    };
    let text = profiled(calls_per_second::run, |text| text.ends_with("calls\n"));
    assert!((4500..10_000).contains(&calls(&text)), "{text}");
}
