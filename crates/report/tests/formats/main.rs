//! Reads each exported format with the program for which it is intended, and compares the numbers.

// The crate's `#[test]` lets a test pass if a program that the test needs is not installed.
#[macro_use]
extern crate memhook_tests;

mod flamegraph;
mod folded;
mod heaptrack;
mod massif;
mod pprof;
mod simulated;
mod speedscope;

use memhook_report::*;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// Returns runs that differ in length and in the number of stacks. The shortest runs end before
/// anything is released.
pub fn profiles() -> Vec<Profile> {
    let lengths = [(1, 1), (2, 2), (7, 3), (60, 3), (2_000, 12), (30_000, 60)];
    let runs = (1..).zip(lengths);
    let mut all: Vec<Profile> = runs
        .map(|(seed, (events, stacks))| simulated::profile(seed, events, stacks))
        .collect();
    all.push(Profile::default());
    all
}

/// Returns the bytes of a format.
pub fn exported(profile: &Profile, format: &str, options: &FormatOptions) -> Vec<u8> {
    let mut out = Vec::new();
    formats::write(
        formats::export_format(format).expect("known"),
        profile,
        options,
        &mut out,
    )
    .expect("memory does not fill up");
    out
}

/// Returns all choices of measures and units.
pub fn choices() -> Vec<FormatOptions> {
    let of = |measure| {
        [Unit::Bytes, Unit::Blocks].map(|unit| FormatOptions {
            measure,
            unit,
            gzip: false,
            ..FormatOptions::default()
        })
    };
    Measure::ALL.into_iter().flat_map(of).collect()
}

/// Returns the sum over all sites.
pub fn total(profile: &Profile, options: &FormatOptions) -> u64 {
    profile
        .sites
        .iter()
        .map(|site| options.of(&site.measures))
        .sum()
}

/// A file of this test process, removed at its end.
pub struct TemporaryFile(pub PathBuf);

impl TemporaryFile {
    /// Creates a file with this content.
    pub fn new(name: &str, content: &[u8]) -> TemporaryFile {
        let path =
            std::env::temp_dir().join(format!("memhook-formats-{}-{name}", std::process::id()));
        std::fs::write(&path, content).expect("a temporary file");
        TemporaryFile(path)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the output of a consumer, which must accept the file.
pub fn output_of(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    text
}

/// Returns the value of every call stack in the profile, outermost function first.
pub fn by_stack(
    profile: &Profile,
    options: &FormatOptions,
    name: impl Fn(&ProfileFrame) -> String,
) -> BTreeMap<Vec<String>, u64> {
    let mut sums = BTreeMap::new();
    for site in &profile.sites {
        let value = options.of(&site.measures);
        if value > 0 {
            let frames = profile.stacks[site.stack as usize].iter().rev();
            let names = frames
                .map(|&frame| name(&profile.frames[frame as usize]))
                .collect();
            *sums.entry(names).or_default() += value;
        }
    }
    sums
}
