//! A scan and LeakSanitizer examine the same random graphs.

use memhook_tests::scans::{List, scan};
use memhook_tests::{Target, build_target};
use std::process::Command;

/// Returns the target's own list of its blocks in order of creation: whether each block is leaked,
/// and its bytes.
fn in_order(target: &mut Target) -> Vec<(bool, u64)> {
    target.send("l");
    let mut all = Vec::new();
    loop {
        let line = target.expect("");
        if line.starts_with("done") {
            return all;
        }
        let fields: Vec<&str> = line.split_whitespace().collect();
        all.push((fields[0] == "leak", fields[2].parse().unwrap()));
    }
}

/// Parses bytes and blocks from `SUMMARY: LeakSanitizer: 120 byte(s) leaked in 3 allocation(s).`
fn summary(text: &str) -> (u64, u64) {
    let Some(line) = text
        .lines()
        .find(|l| l.starts_with("SUMMARY: LeakSanitizer"))
    else {
        return (0, 0);
    };
    let mut numbers = line.split(' ').filter_map(|word| word.parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

#[test]
fn the_same_leaks_as_leak_sanitizer() {
    let plain = build_target("random_graph", &[]);
    let checked = build_target("random_graph", &["-fsanitize=leak"]);
    let (mut ours, mut theirs, mut true_leaks) = (0, 0, 0);
    for seed in 100..110 {
        let seed = seed.to_string();
        let args = [seed.as_str(), "500", "e"];
        let log = std::env::temp_dir().join(format!("memhook-lsan-{}", std::process::id()));
        let options = format!("exitcode=0:log_path={}", log.display());
        let mut sanitized = Target::run(
            Command::new(&checked)
                .args(args)
                .env("LSAN_OPTIONS", options),
        );
        let same = in_order(&mut sanitized);
        sanitized.send("s");
        sanitized.expect("done");
        let log = log.with_extension(sanitized.pid().to_string());
        assert!(sanitized.finish().success());
        // The log does not exist if LeakSanitizer found nothing.
        let lsan = summary(&std::fs::read_to_string(&log).unwrap_or_default());
        let _ = std::fs::remove_file(log);

        let mut target = Target::run(Command::new(&plain).args(args));
        let found = List::parse(&scan(target.pid(), &["--list"]));
        let (want, order) = (blocks_of(&mut target), in_order(&mut target));
        assert_eq!(
            order, same,
            "seed {seed}: the two builds plant the same graph"
        );
        let leaked = order.iter().filter(|b| b.0);
        let truth = leaked.fold((0, 0), |sum, b| (sum.0 + b.1, sum.1 + 1));
        let mine = found
            .blocks
            .values()
            .filter(|b| b.0)
            .fold((0, 0), |sum, b| (sum.0 + b.1, sum.1 + 1));
        for (address, block) in found.blocks.iter().filter(|b| b.1.0) {
            assert_eq!(want.get(address), Some(block), "seed {seed}: {address:#x}");
        }
        println!(
            "seed {seed}: leaked {truth:?} (bytes, blocks), scan {mine:?}, LeakSanitizer {lsan:?}"
        );
        // Neither tool reports reachable blocks as leaked. A stale word may keep some blocks alive
        // for either tool.
        assert!(mine.1 <= truth.1 && lsan.1 <= truth.1);
        true_leaks += truth.1;
        ours += mine.1;
        theirs += lsan.1;
    }
    assert!(true_leaks > 1000);
    assert!(
        ours * 100 >= theirs * 98,
        "scan {ours}, LeakSanitizer {theirs} of {true_leaks}"
    );
}

fn blocks_of(target: &mut Target) -> std::collections::BTreeMap<u64, (bool, u64)> {
    target.send("l");
    let mut text = String::new();
    loop {
        let line = target.expect("");
        if line.starts_with("done") {
            return List::parse(&text).blocks;
        }
        text += &line;
    }
}
