//! The page of a large program: its memory use does not grow with the amount of data.

use super::*;

const FINDINGS: u32 = 22_000;
const THREADS: u32 = 5_000;

/// Returns a run with many findings about each of many sites, on many threads.
fn large_run() -> Profile {
    let mut profile = simulated::profile(6, 60_000, 4_000);
    let site_count = profile.sites.len() as u32;
    for (site, number) in profile.sites.iter_mut().zip(0..) {
        site.tid = 10_000 + number % THREADS.min(site_count);
        site.thread = "worker".into();
    }
    let stacks = profile.stacks.len() as u32;
    let finding = |number| Inference {
        kind: InferenceKind::ShortLivedInLoop,
        title: InferenceKind::ShortLivedInLoop.title(),
        evidence: format!("{number} blocks came and went"),
        advice: "allocate once",
        gain: Gain {
            calls: 1_000,
            ..Gain::default()
        },
        allocator: "malloc".into(),
        stack: Vec::new(),
        stack_index: number % stacks,
        truncated: false,
    };
    profile.scores = Some(ProfileScores {
        run: RunScores {
            scores: Scores::of_lifetime(Some(0.31)),
            variance: Scores::of_lifetime(Some(0.125)),
            sites: u64::from(stacks),
            access_source: None,
            accessed_sites: 0,
            accesses_missed: 0,
            looks: 0,
            group_s: 0.01,
        },
        sites: Vec::new(),
        inferences: (0..FINDINGS).map(finding).collect(),
        ..ProfileScores::default()
    });
    profile
}

/// Expression for the number of nodes of the document, including text.
const NODES: &str = "(() => { const walker = document.createTreeWalker(document); let nodes = 1; while (walker.nextNode()) nodes += 1; return nodes; })()";
const MOST_NODES: u64 = 5_000;

fn nodes(browser: &mut Browser) -> u64 {
    browser.value(NODES).as_u64().expect("a number")
}

/// Returns the sizes that remain after a garbage collection: the bytes of the script's heap, and
/// the number of nodes that the heap or the document refers to.
fn kept(browser: &mut Browser) -> (f64, f64) {
    for _ in 0..2 {
        browser.call("HeapProfiler.collectGarbage", serde_json::json!({}));
    }
    let metrics = browser.call("Performance.getMetrics", serde_json::json!({}));
    let metric = |name: &str| {
        let mut all = metrics["metrics"].as_array().expect("metrics").iter();
        let found = all.find(|metric| metric["name"] == name);
        found.and_then(|metric| metric["value"].as_f64())
    };
    let number = |name| metric(name).expect("a number");
    (number("JSHeapUsedSize"), number("Nodes"))
}

#[test]
fn lists_show_their_first_entries_and_more_when_asked() {
    let page = Page::of(&large_run(), "long-lists");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let title = format!("What stands out ({})", count(u64::from(FINDINGS)));
    assert!(browser.text("#details").contains(&title));
    let entries = "document.querySelectorAll('#details .inferences li').length";
    browser.value("document.querySelector('#details .entries').scrollIntoView()");
    browser.wait(&format!("{entries} === 20"));
    assert!(nodes(&mut browser) <= MOST_NODES);
    browser.picture("long-list");
    let more = |browser: &mut Browser| {
        browser.value("document.querySelector('#details .entries > .more').scrollIntoView()");
        browser.click("#details .entries > .more");
    };
    more(&mut browser);
    assert_eq!(browser.value(entries), 70);
    // Keyboard users continue at the first new entry.
    let focused = "[...document.querySelectorAll('#details .inferences li')].indexOf(document.activeElement.closest('li'))";
    assert_eq!(browser.value(focused), 20);
    // Switching to another view and back leaves the list unchanged.
    browser.value("window.before = document.querySelector('#details .inferences')");
    browser.click(".row");
    browser.key("Escape");
    let is_same = "document.querySelector('#details .inferences') === window.before";
    assert_eq!(browser.value(is_same), true);
    assert_eq!(browser.value(entries), 70);
    // The first entries are removed, regardless of how far the user scrolls.
    for _ in 0..10 {
        more(&mut browser);
    }
    assert_eq!(browser.value(entries), 220);
    let first = "document.querySelector('#details .inferences').start";
    assert_eq!(browser.value(first), 570 - 220 + 1);
    assert!(nodes(&mut browser) <= MOST_NODES);
    browser.value("document.querySelector('#details .entries > button').scrollIntoView()");
    browser.click("#details .entries > button");
    assert_eq!(
        (browser.value(first), browser.value(entries)),
        (1.into(), 20.into())
    );
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// The filter menu offers the most important threads. Other threads are filtered by their rows.
#[test]
fn a_thread_beyond_the_options_is_filtered_by_its_row() {
    let page = Page::of(&large_run(), "threads");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let options = browser.value("byId('thread').options.length").as_u64();
    assert!(options.is_some_and(|options| options <= 202), "{options:?}");
    browser.click("#groups [data-name=thread]");
    browser.value("app.table.pick(app.table.rows.length - 1)");
    browser.settle();
    let picked = browser.value("app.state.pick.key");
    browser.click("#details .only-this");
    assert_eq!(browser.value("app.state.thread"), picked);
    assert_eq!(browser.value("Number(byId('thread').value)"), picked);
    assert_eq!(browser.value("app.table.rows.length"), 1);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Returns how often basic blocks of the script have been executed since the last call. Unlike
/// time, this number depends only on the script and the profile.
fn steps(browser: &mut Browser) -> u64 {
    let coverage = browser.call("Profiler.takePreciseCoverage", serde_json::json!({}));
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let scripts = list(&coverage["result"]).into_iter();
    let functions = scripts.flat_map(|script| list(&script["functions"]));
    let ranges = functions.flat_map(|function| list(&function["ranges"]));
    ranges.filter_map(|range| range["count"].as_u64()).sum()
}

/// Expression that is true when the page has finished the work that it does ahead of clicks.
const AHEAD: &str = "app.ahead.isDone";
/// The simulated program has no functions whose names make them wrappers. This script turns some
/// functions into wrappers.
const SOME_WRAPPERS: &str = "app.setWrappers(true, ['cache_*', 'serve', 'operator<<'])";
const HIDE_WRAPPERS: &str = "w";

/// The work for a click grows with the visible part. Work that must cover all sites is split into
/// short steps.
#[test]
fn a_click_on_twenty_thousand_sites_is_short() {
    const SITES: u64 = 20_000;
    const MOST_STEPS: u64 = 20 * SITES;
    let clicks = [
        ".row:nth-child(3)",
        ".row:nth-child(5)",
        "#units [data-name=blocks]",
        "#units [data-name=bytes]",
        "#shapes [data-name=icicle]",
        "#shapes [data-name=flame]",
        "#measures [data-name=allocated]",
        "#measures [data-name=peak]",
        // The other tree was built ahead.
        HIDE_WRAPPERS,
        HIDE_WRAPPERS,
        "#groups [data-name=function]",
        ".row:nth-child(2)",
        "#units [data-name=blocks]",
        "#units [data-name=bytes]",
        "#charts [data-name=stacked]",
        "#charts button:first-child",
        "#groups [data-name=site]",
        "#groups [data-name=module]",
        "#groups [data-name=thread]",
        "#groups [data-name=site]",
        "#columns .name button",
        "#columns .value button",
        "#shapes [data-name=callers]",
        "#shapes [data-name=flame]",
    ];
    let page = Page::of(&simulated::profile(7, 1_000_000, SITES), "short-clicks");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.value(SOME_WRAPPERS);
    browser.wait(AHEAD);
    browser.call("Profiler.enable", serde_json::json!({}));
    let counts = serde_json::json!({ "callCount": true, "detailed": true });
    browser.call("Profiler.startPreciseCoverage", counts);
    let mut all = Vec::new();
    for selector in clicks {
        steps(&mut browser);
        match selector {
            HIDE_WRAPPERS => browser.key(HIDE_WRAPPERS),
            selector => browser.click(selector),
        }
        all.push((selector, steps(&mut browser)));
        assert!(nodes(&mut browser) <= MOST_NODES);
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
    assert!(
        all.iter()
            .all(|(_, steps)| (1..=MOST_STEPS).contains(steps)),
        "{all:?}"
    );
}

/// A click before all data is ready waits until the current slice is finished, and continues from
/// there.
#[test]
fn the_other_tree_is_built_ahead_in_slices() {
    let page = Page::of(&simulated::profile(7, 200_000, 10_000), "ahead");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let labels = "[app.tree.label.length, app.tree.label.reduce((sum, label, at) => (sum * 31 + label + app.tree.parent[at]) % 1e9, 0)]";
    // The reference is computed in one step, from nothing precomputed.
    let at_once = "(() => { const hidden = hiddenLabels(app.data, { ...app.state, hides: false }); const tree = finished(treeSteps(app.data, hidden)); return [tree.label.length, tree.label.reduce((sum, label, at) => (sum * 31 + label + tree.parent[at]) % 1e9, 0)]; })()";
    browser.value(SOME_WRAPPERS);
    let expected = browser.value(at_once);
    let hidden = browser.value(labels);
    assert_ne!(hidden, expected);
    // Only some slices run before the toggle.
    browser.value("app.made.delete('tree'); app.setTree(); app.ahead.tasks = app.ahead.tasks.slice(-1); app.ahead.tasks[0].next(); app.ahead.tasks[0].next()");
    browser.value("app.setWrappers(false, app.state.wrappers)");
    assert_eq!(browser.value(labels), expected);
    browser.value("app.setWrappers(true, app.state.wrappers)");
    assert_eq!(browser.value(labels), hidden);
    browser.wait(AHEAD);
    // When all slices are done, a toggle builds nothing.
    browser.value("window.built = 0; const node = TreeBuilder.prototype.node; TreeBuilder.prototype.node = function(...of) { window.built += 1; return node.apply(this, of); }");
    browser.value("app.setWrappers(false, app.state.wrappers)");
    assert_eq!(browser.value("window.built"), 0);
    assert_eq!(browser.value(labels), expected);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Function rows, which are computed in batches of sites, agree with sums over the individual
/// sites.
#[test]
fn lines_of_functions_are_the_sums_of_their_sites() {
    let page = Page::of(&simulated::profile(7, 200_000, 8_000), "lines");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.wait(AHEAD);
    browser.click("#groups [data-name=function]");
    let different = "Array.from(app.table.found.order, (row) => app.table.found.keys[row]).filter((key) => { const line = rowOverTime(app, key); const sum = summedOverTime(app.data, allMembers(app.data, app.tree, 'function', key), app.state.unit); return line.some((value, point) => value !== sum[point]); }).length";
    assert!(browser.value("app.table.found.length").as_u64() >= Some(10));
    assert_eq!(browser.value(different), 0);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// When the page goes back to the first row, it draws no row until rows of the right kind exist.
#[test]
fn no_row_is_drawn_as_one_of_another_kind() {
    let page = Page::of(&simulated::profile(7, 200_000, 8_000), "kinds");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.value("app.table.box.scrollTop = 5000");
    browser.settle();
    browser.value("window.wrong = 0; const series = TableView.prototype.series; TableView.prototype.series = function(row) { if (this.found.keys[row.row] !== row.key || !this.found.sums.self.length || row.key >= app.data.strings.length) window.wrong += 1; return series.call(this, row); }");
    browser.click("#groups [data-name=function]");
    assert_eq!(browser.value("window.wrong"), 0);
    assert!(browser.value("app.table.box.scrollTop") == 0);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn two_hundred_clicks_leave_nothing_behind() {
    let page = Page::of(&large_run(), "clicks");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.call("Performance.enable", serde_json::json!({}));
    let clicks = |browser: &mut Browser, rounds: u32| {
        let mut most = 0;
        for round in 0..rounds {
            for selector in [
                format!(".row:nth-child({})", 2 + round % 4),
                "#units [data-name=blocks]".into(),
                "#shapes [data-name=icicle]".into(),
                "#groups [data-name=function]".into(),
                "#columns .name button".into(),
                ".row".into(),
                "#charts [data-name=stacked]".into(),
                "#measures [data-name=allocated]".into(),
            ] {
                browser.click(&selector);
                most = most.max(nodes(browser));
            }
            // The page returns to the overview.
            browser.value("app.update({ ...newState(app.data) })");
            browser.settle();
            most = most.max(nodes(browser));
        }
        most
    };
    // After the first rounds, all data that is built once or cached up to a limit exists.
    let before_any = clicks(&mut browser, 4);
    let (heap, live) = kept(&mut browser);
    let most = clicks(&mut browser, 23).max(before_any);
    let (heap_after, live_after) = kept(&mut browser);
    assert!(most <= MOST_NODES, "{most} nodes");
    let grown = heap_after - heap;
    assert!(grown < 1e6, "{grown} bytes more of {heap}");
    assert!(
        live_after <= live + 500.0,
        "{live} nodes, then {live_after}"
    );
    assert_eq!(browser.complaints, Vec::<String>::new());
}
