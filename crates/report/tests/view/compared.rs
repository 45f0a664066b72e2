//! Two runs in one page, and what is saved of a graph.

use super::*;
use std::collections::BTreeMap;

#[test]
fn red_is_more_and_blue_is_less() {
    let new = run();
    // The old run has twice as much of everything that worker 1 has, and nothing of the rest.
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
    // What is only in the new run is as red as can be; of worker 1 a third of both runs is the new one's.
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
    // One more is behind all.
    assert_eq!(count("rect") as u64, drawn + 1);
    assert_eq!(browser.complaints, Vec::<String>::new());
}
