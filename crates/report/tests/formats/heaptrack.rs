use crate::*;
use memhook_tests::programs::installed;

/// Returns the number after `name` in the output of heaptrack_print.
fn value(text: &str, name: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("no {name:?} in {text}"));
    line.split_whitespace().next().expect("a value").to_owned()
}

/// Writes bytes like heaptrack: decimal units, two digits.
fn in_its_units(bytes: u64) -> String {
    let mut value = bytes as f64;
    let units = ["B", "K", "M", "G", "T"];
    let mut unit = 0;
    while unit + 1 < units.len() && value > 1000.0 {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{bytes}B"),
        _ => format!("{value:.2}{}", units[unit]),
    }
}

/// Returns the sum of a cost over heaptrack_print's folded stacks, which are not rounded.
fn folded_sum(file: &TemporaryFile, cost: &str) -> u64 {
    let stacks = TemporaryFile::new(&format!("{cost}.folded"), b"");
    let mut command = Command::new(installed("heaptrack_print"));
    command
        .args([
            "--disable-builtin-suppressions",
            "--flamegraph-cost-type",
            cost,
        ])
        .arg("-F")
        .arg(&stacks.0)
        .arg("-f")
        .arg(&file.0);
    output_of(&mut command);
    let text = std::fs::read(&stacks.0).expect("stacks");
    let text = String::from_utf8_lossy(&text);
    let value = |line: &str| -> u64 {
        let (_, value) = line.rsplit_once(' ').expect("a value");
        value.parse().expect("a number")
    };
    text.lines().map(value).sum()
}

/// Returns a point with the given resident size in MiB.
fn resident(mib: u64) -> memhook_report::ResidentPoint {
    memhook_report::ResidentPoint {
        anonymous_bytes: (mib - 1) << 20,
        file_bytes: 1 << 20,
        ..memhook_report::ResidentPoint::default()
    }
}

#[test]
fn heaptrack_print_agrees() {
    for (number, mut profile) in profiles().into_iter().enumerate() {
        profile.resident = [3, 7, 5].map(resident).into();
        let packed = FormatOptions {
            gzip: true,
            ..FormatOptions::default()
        };
        let bytes = exported(&profile, "heaptrack", &packed);
        let file = TemporaryFile::new(&format!("{number}.heaptrack.gz"), &bytes);
        let text = output_of(Command::new(installed("heaptrack_print")).arg(&file.0));
        let sum = |measure, unit| {
            let options = FormatOptions {
                measure,
                unit,
                gzip: false,
                ..FormatOptions::default()
            };
            total(&profile, &options)
        };
        let allocations = sum(Measure::Allocated, Unit::Blocks);
        assert_eq!(
            value(&text, "calls to allocation functions: "),
            allocations.to_string()
        );
        let temporary = sum(Measure::Temporary, Unit::Blocks);
        assert_eq!(
            value(&text, "temporary memory allocations: "),
            temporary.to_string()
        );
        let peak = sum(Measure::Peak, Unit::Bytes);
        assert_eq!(
            value(&text, "peak heap memory consumption: "),
            in_its_units(peak)
        );
        let live = sum(Measure::Live, Unit::Bytes);
        assert_eq!(value(&text, "total memory leaked: "), in_its_units(live));
        let resident = value(&text, "peak RSS (including heaptrack overhead): ");
        assert_eq!(resident, in_its_units(7 << 20));
        // heaptrack rounds to two digits, but the folded stacks contain all digits.
        for (cost, expected) in [
            ("allocations", allocations),
            ("temporary", temporary),
            ("leaked", live),
            ("peak", peak),
        ] {
            assert_eq!(folded_sum(&file, cost), expected, "{cost} of run {number}");
        }
    }
}

/// heaptrack_gui keeps a list by index, and appends to the list if an index equals its length. It
/// crashes on a larger index.
#[test]
fn indices_come_in_the_order_of_their_first_allocations() {
    let (mut checked, mut unusual) = (0, 0);
    for profile in profiles() {
        let bytes = exported(&profile, "heaptrack", &FormatOptions::default());
        let text = String::from_utf8(bytes).expect("text");
        let index = |line: &str| u64::from_str_radix(line, 16).expect("a number");
        let mut allocated = text.lines().filter_map(|line| line.strip_prefix("+ "));
        // In a run with very few blocks, it is possible that no block qualifies as the first one.
        if allocated.clone().next().is_some_and(|first| first != "0") {
            unusual += 1;
            continue;
        }
        let mut known = 0;
        let in_order = |line| {
            let is_new = index(line) == known;
            known += u64::from(is_new);
            is_new || index(line) < known
        };
        assert!(allocated.all(in_order), "after {known}: {text}");
        checked += 1;
    }
    assert!(checked > unusual, "{checked} and {unusual}");
}
