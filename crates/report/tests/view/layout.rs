//! The page on wide and narrow screens.

use super::*;

/// Expression for controls that remain outside the window or cut off, even after scrolling to them.
const LOST: &str = "[...document.querySelectorAll('button, input, select, #flame, #table, #details')].filter((e) => !e.hidden && !e.closest('dialog, [hidden]')).filter((e) => { \
    e.scrollIntoView({ block: 'center' }); const r = e.getBoundingClientRect(); \
    const at = document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2); \
    return r.width < 10 || r.x < 0 || r.right > innerWidth || !(at && (e.contains(at) || at.contains(e) || e.closest('label')?.contains(at))); \
}).map((e) => e.id || e.textContent).join()";

#[test]
fn one_row_each_at_1400_pixels() {
    let page = Page::of(&run(), "wide");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.key("/");
    browser.type_text("cache_grow");
    browser.key("Enter");
    browser.settle();
    for row in ["#bar", "#graph > .head", "#list > .head", ".caption"] {
        let middles = format!(
            "new Set([...document.querySelectorAll('{row} > *')].filter((e) => !e.hidden && e.id !== 'filter-panel' && e.textContent !== '').map((e) => {{ const r = e.getBoundingClientRect(); return Math.round((r.y + r.height / 2) / 8); }})).size"
        );
        assert_eq!(browser.value(&middles), 1, "{row}");
    }
    assert_eq!(browser.value(LOST), "");
    // The head of the graph always takes one row.
    let head = "new Set([...document.querySelectorAll('#graph > .head > *')].filter((e) => !e.hidden && e.textContent !== '').map((e) => { const r = e.getBoundingClientRect(); return Math.round((r.y + r.height / 2) / 8); })).size";
    for choice in [
        "#measures [data-name=growth]",
        "#measures [data-name=allocated]",
        "#shapes [data-name=chunks]",
        "#shapes [data-name=space]",
        "#measures [data-name=live]",
        "#shapes [data-name=flame]",
    ] {
        // Choices without data are disabled.
        if browser.value(&format!("document.querySelector('{choice}').disabled")) == true {
            continue;
        }
        browser.click(choice);
        assert_eq!(browser.value(head), 1, "{choice}");
    }
    // The graph takes most of the height and, when enlarged, the whole width.
    let room = "byId('flames').clientHeight / innerHeight";
    let part = browser.value(room).as_f64().expect("a part");
    assert!(part > 0.33, "{part}");
    browser.click("#filters");
    let inside = "(() => { const r = byId('filter-panel').getBoundingClientRect(); return r.x >= 0 && r.right <= innerWidth && r.height < 60; })()";
    assert_eq!(browser.value(inside), true);
    browser.key("Escape");
    assert_eq!(browser.value("byId('filter-panel').hidden"), true);
    browser.key("e");
    let part = browser.value(room).as_f64().expect("a part");
    assert!(part > 0.85, "{part}");
    let wide = "byId('flames').clientWidth / innerWidth > 0.95";
    assert_eq!(browser.value(wide), true);
    browser.picture("enlarged");
    browser.key("Escape");
    assert_eq!(browser.text_of("app.state.large"), "");
    // Names of sites have room, and more than one line.
    let width = browser.value("document.querySelector('.row .name').getBoundingClientRect().width");
    assert!(width.as_f64().is_some_and(|width| width > 480.0), "{width}");
    // The larger table has twice as many rows.
    let rows = "Math.floor(document.getElementById('table').clientHeight / app.table.rowHeight)";
    let before = browser.value(rows).as_u64().expect("rows");
    browser.click("#enlarge-list");
    assert!(browser.value(rows).as_u64().expect("rows") > 2 * before);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn nothing_is_lost_at_700_pixels() {
    let page = Page::of(&run(), "narrow");
    let mut browser = Browser::open(&page.0, 700, 900, READY);
    browser.picture("narrow");
    for group in ["site", "function"] {
        browser.click(&format!("#groups [data-name={group}]"));
        assert!(
            browser
                .value("document.documentElement.scrollWidth")
                .as_u64()
                <= Some(700)
        );
        assert_eq!(browser.value(LOST), "", "{group}");
        // No cell of a row is missing.
        let cells = browser.value("[...document.querySelector('.row').children].every((cell) => { const r = cell.getBoundingClientRect(); return r.width > 30 && r.right <= 700; })");
        assert_eq!(cells, true, "{group}");
    }
    browser.value("document.getElementById('list').scrollIntoView()");
    browser.picture("narrow-table");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// The graph begins within the first screen.
#[test]
fn the_graph_is_in_sight_at_800_by_600() {
    let page = Page::of(&run(), "small");
    let mut browser = Browser::open(&page.0, 800, 600, READY);
    browser.picture("small");
    let seen = "innerHeight - byId('flames').getBoundingClientRect().top";
    let seen = browser.value(seen).as_f64().expect("pixels");
    assert!(seen >= 200.0, "{seen} pixels of the graph");
    let within = "document.documentElement.scrollWidth";
    assert!(browser.value(within).as_u64() <= Some(800));
    // Without the chart, more of the graph is visible.
    browser.click("#open-charts [data-name=heap]");
    let more = "innerHeight - byId('flames').getBoundingClientRect().top";
    assert!(browser.value(more).as_f64().expect("pixels") >= seen + 80.0);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Frames shared by two thirds of the stacks take one row, although the other stacks do not have
/// them.
#[test]
fn the_root_of_most_is_one_row() {
    let mut profile = run();
    let first = profile.frames.len() as u32;
    for name in ["the_main_function", "the_begin"] {
        let mut frame = profile.frames[0].clone();
        frame.frame.function = Some(name.into());
        profile.frames.push(frame);
    }
    let cut = profile.cut_root;
    for (stack, number) in profile.stacks.iter_mut().zip(0..) {
        let goes_on = stack.last().is_some_and(|&last| Some(last) == cut);
        if number % 9 != 0 && !goes_on {
            stack.extend([first, first + 1]);
        }
    }
    let page = Page::of(&profile, "root-of-most");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let part = "app.flame.root.children[0].value / app.flame.root.value";
    let part = browser.value(part).as_f64().expect("a part");
    assert!((0.5..0.8).contains(&part), "a test of something: {part}");
    let row = "app.flame.drawn.filter((place) => place.row === 1).map((place) => app.flame.placeText(place)).join('\\n')";
    let rows = browser.text_of(row);
    assert!(
        rows.contains("the_main_function  \u{2190} 1 caller"),
        "{rows}"
    );
    browser.click("#root");
    let rows = browser.text_of(row);
    assert!(rows.lines().any(|row| row == "the_begin"), "{rows}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// The box of a graph is as tall as its frames, so a shallow graph leaves more room for the table.
#[test]
fn a_shallow_graph_leaves_its_room_to_the_table() {
    let of_depth = |depth: usize| {
        let mut profile = run();
        let first = profile.frames[0].clone();
        profile.frames = (0..depth)
            .map(|number| {
                let mut frame = first.clone();
                frame.frame.function = Some(format!("function_{number}"));
                frame
            })
            .collect();
        let stack: Vec<u32> = (0..depth as u32).collect();
        profile.cut_root = None;
        profile.stacks.fill(stack);
        profile
    };
    let heights = "[byId('flames').clientHeight, byId('table').clientHeight]";
    for size in [(1400, 900), (800, 600)] {
        let [shallow, deep] = [3, 60].map(|depth| {
            let page = Page::of(&of_depth(depth), &format!("deep-{depth}"));
            let mut browser = Browser::open(&page.0, size.0, size.1, READY);
            // The frames of the root have separate rows.
            browser.click("#root");
            browser.picture(&format!("deep-{depth}-{}", size.0));
            let found: [u64; 2] = serde_json::from_value(browser.value(heights)).expect("numbers");
            assert_eq!(browser.complaints, Vec::<String>::new());
            found
        });
        assert!((100..=140).contains(&shallow[0]), "{shallow:?}");
        assert!(deep[0] >= 2 * shallow[0], "{shallow:?} {deep:?}");
        if size.0 > 900 {
            // The table gets the room that the graph does not need.
            let [all, as_much] = [shallow, deep].map(|[graph, table]| graph + table);
            assert!(all.abs_diff(as_much) <= 2, "{shallow:?} {deep:?}");
        }
    }
}
