//! Two runs in one page, and saved graphs.

use super::*;
use std::collections::BTreeMap;

#[test]
fn red_is_more_and_blue_is_less() {
    let new = run();
    // The old run has twice as many bytes for worker 1, and none for the other workers.
    let mut old = new.clone();
    let worker = new.sites[0].tid;
    for site in &mut old.sites {
        let factor = if site.tid == worker { 2 } else { 0 };
        site.measures.allocated.bytes *= factor;
        site.measures.allocated.blocks *= factor;
    }
    let (of_new, of_old) = (
        sum(&new, Measure::Allocated, Unit::Bytes),
        sum(&old, Measure::Allocated, Unit::Bytes),
    );
    old.target.name = "shop-before".into();
    let both = memhook_report::view::beside(new, old);
    let page = Page::of(&both, "compared");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    assert!(
        browser
            .text("#subtitle")
            .contains("compared with shop-before (4242)")
    );
    browser.key("4");
    let shown = browser.text("#shown");
    let change = of_new as i64 - of_old as i64;
    let expected = format!("{}, was {}", bytes(of_new), bytes(of_old));
    assert!(shown.starts_with(&expected), "{shown}");
    assert!(
        shown.contains(if change > 0 { "(+" } else { "(-" }),
        "{shown}"
    );
    // Frames that only the new run has get the deepest red. Of worker 1's bytes in both runs, a
    // third belongs to the new run.
    let step = |is_worker: bool| {
        format!(
            "(() => {{ const {} = app; const of = (site) => data.strings[data.sites.thread[site]].includes('({worker})') === {is_worker}; \
             const members = [...data.sites.node.keys()].filter(of); \
             return changeStep(newAndOld(data, members, result.positive)); }})()",
            "{ data, result }"
        )
    };
    assert_eq!(browser.value(&step(false)), 8);
    assert_eq!(browser.value(&step(true)), 3);
    assert_eq!(browser.text_of("app.state.paint"), "change");
    assert_eq!(
        browser.value("document.querySelectorAll('#modules li').length"),
        10
    );
    // The table has the new run, and the change.
    browser.click("#groups [data-name=thread]");
    let rows = browser.value("app.table.rows.map((row) => [row.value, row.growth])");
    let rows: Vec<(i64, i64)> = serde_json::from_value(rows).expect("numbers");
    assert_eq!(rows.iter().map(|row| row.0).sum::<i64>(), of_new as i64);
    assert_eq!(rows.iter().map(|row| row.1).sum::<i64>(), change);
    browser.picture("compared");
    // The chart has both runs.
    let old = "app.data.compared.timeline.length === app.data.points";
    assert_eq!(browser.value(old), true);
    assert!(
        browser
            .text("#legend")
            .contains("live bytes of shop-before (old)")
    );
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Another build has another file name, and other lines.
#[test]
fn the_page_joins_what_the_command_joins() {
    let new = run();
    let mut old = new.clone();
    for frame in &mut old.frames {
        if let Some(module) = &mut frame.frame.module {
            module.push_str(".old");
        }
        frame.frame.line = frame.frame.line.map(|line| line + 3);
    }
    for site in old.sites.iter_mut().step_by(2) {
        site.measures.live.bytes /= 2;
    }
    // The new build has only a part of the old build's stack.
    let deep = |stack: &&mut Vec<u32>| stack.len() > 3;
    old.stacks.iter_mut().find(deep).expect("a stack").remove(0);
    let found = memhook_report::diff(&old, &new, Measure::Live, usize::MAX);
    let mut expected: Vec<(i64, i64)> = found
        .sites
        .iter()
        .map(|site| (site.new_bytes as i64, site.change_bytes))
        .filter(|change| *change != (0, 0))
        .collect();
    let page = Page::of(&memhook_report::view::beside(new, old), "joined");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let rows = browser.value(
        "app.table.rows.map((row) => [row.value, row.growth]).filter(([, growth]) => growth)",
    );
    let mut rows: Vec<(i64, i64)> = serde_json::from_value(rows).expect("numbers");
    expected.retain(|(_, change)| *change != 0);
    expected.sort_unstable();
    rows.sort_unstable();
    assert_eq!(rows, expected);
    // No function may have two modules, because the graph would then show it twice.
    let old = "app.data.frames.function.some((name, i) => !app.data.strings[name].includes('+0x') && app.data.strings[app.data.frames.module[i]].endsWith('.old'))";
    assert_eq!(browser.value(old), false);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn what_the_graph_shows_can_be_saved() {
    let profile = run();
    let page = Page::of(&profile, "saved");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let folded = browser.download("#folded");
    let mut total = 0;
    let mut stacks: BTreeMap<&str, u64> = BTreeMap::new();
    for line in folded.lines() {
        let (stack, value) = line.rsplit_once(' ').expect("a value");
        let value = value.parse::<u64>().expect("a number");
        assert!(stacks.insert(stack, value).is_none(), "{stack} twice");
        total += value;
    }
    assert_eq!(total, sum(&profile, Measure::Live, Unit::Bytes));
    let svg = browser.download("#svg");
    let document = roxmltree::Document::parse(&svg).expect("XML");
    let count = |name: &str| {
        document
            .descendants()
            .filter(|node| node.has_tag_name(name))
            .count()
    };
    let drawn = browser
        .value("app.flame.drawn.length")
        .as_u64()
        .expect("frames");
    assert_eq!(count("title") as u64, drawn);
    // One more rectangle is behind all others.
    assert_eq!(count("rect") as u64, drawn + 1);
    assert_eq!(browser.complaints, Vec::<String>::new());
}
