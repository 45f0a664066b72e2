use crate::*;
use memhook_tests::programs::installed;
use std::collections::BTreeSet;
use std::path::Path;

const TYPES: [(&str, Measure, Unit); 10] = [
    ("inuse_space", Measure::Live, Unit::Bytes),
    ("inuse_objects", Measure::Live, Unit::Blocks),
    ("alloc_space", Measure::Allocated, Unit::Bytes),
    ("alloc_objects", Measure::Allocated, Unit::Blocks),
    ("peak_space", Measure::Peak, Unit::Bytes),
    ("released_objects", Measure::Released, Unit::Blocks),
    ("released_space", Measure::Released, Unit::Bytes),
    ("peak_objects", Measure::Peak, Unit::Blocks),
    ("temporary_space", Measure::Temporary, Unit::Bytes),
    ("temporary_objects", Measure::Temporary, Unit::Blocks),
];

/// Finds `go tool pprof`, even if Go is not on the path.
fn go() -> Command {
    let usual = Path::new("/usr/local/go/bin/go");
    match usual.is_file() {
        true => Command::new(usual),
        false => Command::new(installed("go")),
    }
}

fn pprof(file: &TemporaryFile, options: &[&str]) -> String {
    let mut command = go();
    command
        .args(["tool", "pprof", "-symbolize=none"])
        .args(options)
        .arg(&file.0);
    output_of(&mut command)
}

/// Returns flat and cumulative values by function, from the output of `-top` in bytes.
fn top(file: &TemporaryFile, sample_type: &str) -> BTreeMap<String, (u64, u64)> {
    let index = format!("-sample_index={sample_type}");
    let unit = if sample_type.ends_with("space") {
        "-unit=B"
    } else {
        "-unit=count"
    };
    let all = ["-nodecount=1000000", "-nodefraction=0", "-edgefraction=0"];
    let text = pprof(file, &[&["-top", &index, unit][..], &all].concat());
    let rows = text
        .lines()
        .skip_while(|l| !l.trim_start().starts_with("flat "))
        .skip(1);
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let mut number = || -> u64 {
            let word = words.next().expect("a number");
            word.trim_end_matches('B')
                .parse()
                .unwrap_or_else(|e| panic!("{line}: {e}"))
        };
        let flat = number();
        words.next();
        words.next();
        let mut words = words.clone();
        let cumulative = words
            .next()
            .expect("a number")
            .trim_end_matches('B')
            .parse()
            .expect("one");
        words.next();
        let mut name = words.collect::<Vec<_>>().join(" ");
        // pprof marks functions that are only ever inlined.
        if let Some(bare) = name
            .strip_suffix(" (inline)")
            .or(name.strip_suffix(" (partial-inline)"))
        {
            name = bare.to_owned();
        }
        (name, (flat, cumulative))
    };
    rows.map(row).collect()
}

/// Returns the numbers that pprof must print, computed from the profile.
fn expected(
    profile: &Profile,
    options: &FormatOptions,
    names: &[String],
) -> BTreeMap<String, (u64, u64)> {
    let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for site in &profile.sites {
        let value = options.of(&site.measures);
        if value == 0 {
            continue;
        }
        let stack = profile.stacks[site.stack as usize].iter();
        let mut stack: Vec<String> = stack.map(|&frame| names[frame as usize].clone()).collect();
        if stack.is_empty() {
            stack.push("(no call stack)".into());
        }
        sums.entry(stack[0].clone()).or_default().0 += value;
        for name in stack.into_iter().collect::<BTreeSet<String>>() {
            sums.entry(name).or_default().1 += value;
        }
    }
    sums
}

/// Returns the name of each frame as in every other format, but with single spaces, as pprof prints
/// it.
fn names(profile: &Profile) -> Vec<String> {
    let names = profile.frames.iter().map(|frame| frame_name(&frame.frame));
    names
        .map(|name| name.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect()
}

#[test]
fn go_tool_pprof_agrees() {
    let mut runs = profiles();
    runs.retain(|profile| !profile.sites.is_empty());
    for (number, profile) in runs.iter().enumerate().skip(3) {
        let bytes = exported(profile, "pprof", &FormatOptions::default());
        let file = TemporaryFile::new(&format!("{number}.pb.gz"), &bytes);
        let names = names(profile);
        for (sample_type, measure, unit) in TYPES {
            let options = FormatOptions {
                measure,
                unit,
                gzip: false,
                ..FormatOptions::default()
            };
            let expected = expected(profile, &options, &names);
            assert_eq!(
                top(&file, sample_type),
                expected,
                "{sample_type} of run {number}"
            );
        }
    }
}

#[test]
fn mappings_lines_and_labels_are_there() {
    let profile = simulated::profile(5, 2_000, 12);
    let bytes = exported(&profile, "pprof", &FormatOptions::default());
    let file = TemporaryFile::new("raw.pb.gz", &bytes);
    let raw = pprof(&file, &["-raw"]);
    for module in &profile.modules {
        let mapping = format!(
            "{:#x}/{:#x}/0x0 {} {}",
            module.start, module.end, module.path, module.build_id
        );
        assert!(raw.contains(&mapping), "{mapping} in {raw}");
    }
    assert!(
        raw.contains("kind:[new]") && raw.contains("thread:[4243 (worker 1)]"),
        "{raw}"
    );
    assert!(raw.contains("inuse_space/bytes[dflt]"), "{raw}");
    assert!(raw.contains("/src/shop/5.cc:6"), "{raw}");
}
