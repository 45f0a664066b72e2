//! Tests of the page in a real browser: its contents follow the selection and agree with the
//! profile.
//!
//! With `MEMHOOK_PICTURES=DIRECTORY`, the tests save screenshots there.

// The crate provides a `#[test]` attribute that lets a test pass if a program that it needs is not
// installed.
#[macro_use]
extern crate memhook_tests;

mod access;
mod address;
mod browser;
mod colors;
mod compared;
mod graphs;
mod layout;
mod numbers;
mod scores;
mod searching;
#[path = "../formats/simulated.rs"]
mod simulated;
mod size;
mod space;
mod svg;
mod tables;
mod times;

use browser::Browser;
use memhook_report::*;
use std::path::PathBuf;

/// Expression that is true after the script has drawn everything.
const READY: &str = "document.body && document.body.dataset.ready === 'yes'";

/// The page of a profile, removed at the end of the test.
struct Page(PathBuf);

impl Page {
    fn of(profile: &Profile, name: &str) -> Page {
        Page::exported(profile, "html", &format!("{name}.html"))
    }

    fn exported(profile: &Profile, format: &str, name: &str) -> Page {
        Page::with(format, profile, &FormatOptions::default(), name)
    }

    fn with(format: &str, profile: &Profile, options: &FormatOptions, name: &str) -> Page {
        let file = format!("memhook-view-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(file);
        let mut out = Vec::new();
        formats::write(
            formats::export_format(format).expect("known"),
            profile,
            options,
            &mut out,
        )
        .expect("memory");
        std::fs::write(&path, out).expect("a temporary file");
        Page(path)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn sum(profile: &Profile, measure: Measure, unit: Unit) -> u64 {
    profile
        .sites
        .iter()
        .map(|site| unit.of(measure.of(&site.measures)))
        .sum()
}

/// Returns the functions of a site's stack, innermost first.
fn functions<'a>(profile: &'a Profile, site: &ProfileSite) -> Vec<Option<&'a str>> {
    let frames = profile.stacks[site.stack as usize].iter();
    let name = |&frame: &u32| profile.frames[frame as usize].frame.function.as_deref();
    frames.map(name).collect()
}

/// Returns the live memory of the sites whose stacks contain a function.
fn live_amount_below(profile: &Profile, function: &str) -> Amount {
    let has = |site: &&ProfileSite| functions(profile, site).contains(&Some(function));
    let sites = profile.sites.iter().filter(has);
    sites.map(|site| site.measures.live).sum()
}

/// Returns the live bytes of the sites whose stacks contain a function.
fn live_below(profile: &Profile, function: &str) -> u64 {
    live_amount_below(profile, function).bytes
}

/// Formats a share as the page does.
fn share(part: u64, whole: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / whole as f64)
}

/// A run with sources.
fn run() -> Profile {
    let mut profile = simulated::profile(6, 30_000, 60);
    let files = (0..9).map(|n| SourceLines {
        file: format!("/src/shop/{n}.cc"),
        first: 1,
        lines: (1..=70)
            .map(|line| format!("  line_{line}(\"<b>\");"))
            .collect(),
    });
    profile.sources = files.collect();
    profile
}
