use crate::*;

/// The test splits a line as flamegraph.pl and inferno do: at the last space, then at semicolons.
#[test]
fn every_stack_has_its_value() {
    for profile in profiles() {
        for options in choices() {
            let bytes = exported(&profile, "folded", &options);
            let text = String::from_utf8(bytes).expect("UTF-8");
            let (mut sum, mut depths) = (0, BTreeMap::new());
            for line in text.lines() {
                let (stack, value) = line.rsplit_once(' ').expect("a value");
                let value: u64 = value.parse().expect("a number");
                sum += value;
                *depths.entry(stack.split(';').count()).or_default() += value;
            }
            assert_eq!(sum, total(&profile, &options), "{options:?}");
            let mut expected: BTreeMap<usize, u64> = BTreeMap::new();
            for (stack, value) in by_stack(&profile, &options, |f| f.frame.address.clone()) {
                *expected.entry(stack.len().max(1)).or_default() += value;
            }
            assert_eq!(depths, expected, "{options:?}");
        }
    }
}
