use crate::*;
use memhook_tests::programs::installed;

#[test]
fn ms_print_agrees() {
    for (number, profile) in profiles().into_iter().enumerate() {
        let bytes = exported(&profile, "massif", &FormatOptions::default());
        let file = TemporaryFile::new(&format!("{number}.massif"), &bytes);
        let text = output_of(
            Command::new(installed("ms_print"))
                .arg("--threshold=0")
                .arg(&file.0),
        );
        let of = |measure| {
            let options = FormatOptions {
                measure,
                ..FormatOptions::default()
            };
            total(&profile, &options)
        };
        let (peak, live) = (of(Measure::Peak), of(Measure::Live));
        assert!(text.contains(" (peak)"), "{text}");
        // There are two trees, of the peak and of the end.
        let roots: Vec<&str> = text
            .lines()
            .filter(|l| l.contains("(heap allocation functions)"))
            .collect();
        let root = |bytes: u64| format!("({}B) (heap allocation functions)", count(bytes));
        let mut expected = vec![(profile.peak_ns, root(peak)), (u64::MAX, root(live))];
        expected.sort();
        assert_eq!(roots.len(), 2, "{text}");
        for (found, (_, expected)) in roots.iter().zip(&expected) {
            assert!(found.contains(expected.as_str()), "{found} {expected}");
        }
        // Calls have their places, and real addresses.
        let text = String::from_utf8(bytes.clone()).expect("text");
        let nodes = || text.lines().filter(|line| line.contains(": 0x"));
        if nodes().count() > 20 {
            assert!(nodes().any(|line| line.contains(".cc:")), "{text}");
            let in_module = nodes().any(|line| line.contains("(in /opt/shop)"));
            assert!(in_module, "{text}");
        }
        // A line that is not a stack frame of the program has no address.
        let has_none = |line: &&str| line.contains(" 0x0: ");
        let pseudo = [
            format!("0x0: {CUT_ROOT}"),
            "0x0: (no call stack)".to_owned(),
        ];
        let mut without = nodes().filter(has_none);
        assert!(
            without.all(|line| pseudo.iter().any(|p| line.contains(p))),
            "{text}"
        );
        let highest = profile
            .timeline
            .iter()
            .map(|p| p.live.bytes)
            .max()
            .unwrap_or(0);
        assert!(highest <= peak);
    }
}
