use crate::*;

#[test]
fn rectangles_add_up() {
    for profile in profiles() {
        for options in choices() {
            let bytes = exported(&profile, "flamegraph", &options);
            let text = String::from_utf8(bytes).expect("UTF-8");
            let document = roxmltree::Document::parse(&text).expect("well-formed XML");
            let total = total(&profile, &options);
            let root = document.root_element();
            assert_eq!(root.attribute("data-total"), Some(&*total.to_string()));
            let number = |node: &roxmltree::Node, name: &str| -> u64 {
                node.attribute(name)
                    .expect("there")
                    .parse()
                    .expect("a number")
            };
            // Rectangles at one depth do not overlap, and each lies on a rectangle one level below.
            let mut rows: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
            let frames = document
                .descendants()
                .filter(|n| n.attribute("class") == Some("frame"));
            for frame in frames {
                let (start, value) = (number(&frame, "data-start"), number(&frame, "data-value"));
                let row = rows.entry(number(&frame, "data-depth")).or_default();
                row.push((start, start + value));
                let rect = frame
                    .children()
                    .find(|n| n.has_tag_name("rect"))
                    .expect("one");
                let width: f64 = rect
                    .attribute("width")
                    .expect("one")
                    .parse()
                    .expect("a number");
                let expected = 1180.0 * value as f64 / total.max(1) as f64;
                assert!((width - expected).abs() < 0.01, "{width} {expected}");
            }
            assert_eq!(rows[&0], [(0, total)]);
            for (depth, row) in &mut rows.clone() {
                row.sort();
                assert!(row.windows(2).all(|w| w[0].1 <= w[1].0), "{depth}");
                if *depth > 0 {
                    let lies = |&(start, end): &(u64, u64)| {
                        rows[&(depth - 1)]
                            .iter()
                            .any(|&(s, e)| s <= start && end <= e)
                    };
                    assert!(row.iter().all(lies), "{depth}");
                }
            }
            // The outermost drawn frames cover all but the narrowest stacks.
            let drawn: u64 = rows.get(&1).into_iter().flatten().map(|(s, e)| e - s).sum();
            let narrow = (total as f64 * 0.1 / 1180.0) as u64 * 60;
            assert!(drawn + narrow >= total, "{drawn} of {total}");
        }
    }
}

#[test]
fn names_are_whole_in_the_tips() {
    let profile = simulated::profile(5, 2_000, 12);
    let bytes = exported(&profile, "flamegraph", &FormatOptions::default());
    let text = String::from_utf8(bytes).expect("UTF-8");
    let document = roxmltree::Document::parse(&text).expect("well-formed XML");
    let tips: Vec<&str> = document
        .descendants()
        .filter(|n| n.has_tag_name("title"))
        .filter_map(|n| n.text())
        .collect();
    let odd = "quote\"d & <marked>; up\u{e9}\u{4e16}\u{754c} (";
    assert!(tips.iter().any(|tip| tip.starts_with(odd)), "{tips:?}");
}
