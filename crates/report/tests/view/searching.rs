//! The search, the filters, and the total to which percentages refer.

use super::*;

#[test]
fn a_search_counts_what_it_finds_and_leaves_the_rest() {
    let profile = run();
    let page = Page::of(&profile, "search");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let whole = sum(&profile, Measure::Live, Unit::Bytes);
    let found = live_amount_below(&profile, "cache_grow");
    assert!(found.bytes > 0 && found.bytes < whole);
    let plural = if found.blocks == 1 { "" } else { "s" };
    browser.key("/");
    browser.type_text("cache_grow");
    let expected = format!(
        "1 function: {} in {} block{plural}, {} of all live bytes",
        bytes(found.bytes),
        found.blocks,
        share(found.bytes, whole)
    );
    assert_eq!(browser.text("#found"), expected);
    let all = format!("{}, 100.0 % of all live bytes", bytes(whole));
    assert_eq!(browser.text("#shown"), all);
    assert_eq!(browser.text("#filtered"), "");
    browser.picture("search");
    // The rows are sites with the function somewhere in their stack. Its name is highlighted where
    // it is shown.
    let marks = browser.value(
        "[...document.querySelectorAll('.row.found mark')].map((e) => e.textContent).join()",
    );
    assert!(
        marks.as_str().is_some_and(|m| m.contains("cache_grow")),
        "{marks}"
    );
    let lost = browser.value("[...document.querySelectorAll('.row:not(.found)')].some((row) => row.textContent.includes('cache_grow'))");
    assert_eq!(lost, false);
    // Only frames of the graph that match are marked.
    let frames = "app.flame.drawn.filter(({ frame }) => frame.label > 0 && app.result.search.byLabel[frame.label]).map(({ frame }) => app.flame.text(frame))";
    let frames = browser.value(&format!("[...new Set({frames})].join()"));
    assert_eq!(frames, "cache_grow");

    // When the search is used as a filter, percentages remain relative to everything.
    browser.key("Enter");
    let left = share(found.bytes, whole);
    let shown = format!("{}, {left} of all live bytes", bytes(found.bytes));
    assert_eq!(browser.text("#shown"), shown);
    let filtered = format!(
        "Filters leave {left}: {} of {}",
        bytes(found.bytes),
        bytes(whole)
    );
    assert_eq!(browser.text("#filtered"), filtered);
    browser.picture("filter");
    let shares = browser.value("app.table.rows.reduce((sum, row) => sum + row.value, 0)");
    assert_eq!(shares.as_u64(), Some(found.bytes));
    let largest = browser
        .value("app.table.rows[0].value")
        .as_u64()
        .expect("bytes");
    assert_eq!(browser.text(".row .share"), share(largest, whole));

    // The search handles an empty text, and a text that is not a valid regular expression.
    browser.click("#clear");
    assert_eq!(browser.text("#shown"), all);
    browser.key("/");
    browser.type_text("operator<<(");
    assert!(browser.text("#found").starts_with("1 function: "));
    browser.type_text("nowhere");
    assert_eq!(browser.text("#found"), "Nothing that is shown matches");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn filters_of_modules_threads_and_sizes() {
    let mut profile = run();
    let sites = profile.sites.iter();
    let largest = sites.max_by_key(|site| site.measures.live.bytes);
    let typed = largest.expect("a site").stack;
    profile.types.insert(typed, "shop::Basket".into());
    let page = Page::of(&profile, "filters");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let whole = sum(&profile, Measure::Live, Unit::Bytes);
    let choose = |browser: &mut Browser, id: &str, value: &str| {
        let pick = format!(
            "(() => {{ const e = document.getElementById('{id}'); \
             const o = [...e.options].find((o) => o.textContent === {value:?}); e.value = o.value; \
             e.dispatchEvent(new Event('change')); }})()"
        );
        browser.value(&pick);
        browser.settle();
    };
    let live = |passes: &dyn Fn(&ProfileSite) -> bool| {
        let sites = profile.sites.iter().filter(|site| passes(site));
        let sum: u64 = sites.map(|site| site.measures.live.bytes).sum();
        format!("{}, {} of all live bytes", bytes(sum), share(sum, whole))
    };
    choose(&mut browser, "thread", "worker 1 (4243)");
    assert_eq!(browser.text("#shown"), live(&|site| site.tid == 4243));
    choose(&mut browser, "thread", "All threads");
    choose(&mut browser, "type", "shop::Basket");
    assert_eq!(browser.text("#shown"), live(&|site| site.stack == typed));
    assert!(browser.text("#filtered").starts_with("Filters leave "));
    assert_eq!(
        browser.value("addressOf(app.data, app.state).includes('type=shop')"),
        true
    );
    choose(&mut browser, "type", "unknown");
    assert_eq!(browser.text("#shown"), live(&|site| site.stack != typed));
    browser.click("#groups [data-name=type]");
    assert_eq!(
        browser.value("[...document.querySelectorAll('.row')].length"),
        1
    );
    choose(&mut browser, "type", "All types");
    assert_eq!(
        browser.value("[...document.querySelectorAll('.row')].length"),
        2
    );
    browser.click("#groups [data-name=site]");
    choose(&mut browser, "module", "libshop & sons.so");
    let has_module = |site: &ProfileSite| {
        let mut frames = profile.stacks[site.stack as usize].iter();
        frames.any(|&f| {
            profile.frames[f as usize].frame.module.as_deref() == Some("libshop & sons.so")
        })
    };
    assert_eq!(browser.text("#shown"), live(&has_module));
    choose(&mut browser, "module", "All modules");
    choose(&mut browser, "least", "32 KiB");
    let has_large = |site: &ProfileSite| site.sizes.iter().any(|(bucket, _)| *bucket >= 16);
    assert_eq!(browser.text("#shown"), live(&has_large));
    browser.click("#clear");
    // A bar of the histogram filters by its size.
    let labels =
        "[...document.querySelectorAll('#details .bars button')].map((e) => e.textContent)";
    let bars = browser.value(labels);
    let bars: Vec<&str> = bars
        .as_array()
        .expect("bars")
        .iter()
        .filter_map(|b| b.as_str())
        .collect();
    let at = bars
        .iter()
        .position(|text| *text == "128 B to 256 B")
        .expect("a bar");
    let blocks: u64 = profile
        .sites
        .iter()
        .flat_map(|site| &site.sizes)
        .filter(|(bucket, _)| *bucket == 8)
        .map(|(_, n)| n)
        .sum();
    let counted = browser.text(&format!("#details .bars li:nth-child({}) span", at + 1));
    assert_eq!(counted, count(blocks));
    browser.click(&format!("#details .bars li:nth-child({}) button", at + 1));
    let has_size = |site: &ProfileSite| site.sizes.iter().any(|(bucket, _)| *bucket == 8);
    assert_eq!(browser.text("#shown"), live(&has_size));
    assert_eq!(browser.complaints, Vec::<String>::new());
}
