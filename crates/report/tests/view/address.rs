//! The page's URL contains the state of the view, so everyone who opens it sees the same view.

use super::*;

/// Expression for the visible page, regardless of the scroll position of the table: texts, the
/// order of the rows, frames of the graph.
const SEEN: &str = "JSON.stringify([[...document.querySelectorAll('h1, h2, h3, p, dd, li, button, span, output, small')].filter((e) => !e.hidden && !e.closest('#body, #tip')).map((e) => e.textContent), app.table.rows.map((row) => row.key), app.flame.drawn.map(({ frame, x, y, width }) => [app.flame.text(frame), x, y, width]), document.documentElement.dataset.theme, document.getElementById('search').value, ...['module', 'thread', 'least', 'most', 'from', 'to'].map((id) => document.getElementById(id).value)])";

#[test]
fn an_address_opens_the_same_view() {
    let profile = run();
    let page = Page::of(&profile, "address");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    assert_eq!(
        browser.value("location.hash"),
        "",
        "the first view needs none"
    );
    let (x, y) = browser.middle_of("#timeline");
    browser.drag((x - 300.0, y), (x + 100.0, y));
    let steps: [&[&str]; 3] = [
        // These keys set a window, another measure and unit, a search that filters, an order, a
        // selection, a large table, and the other theme.
        &[
            "4", "b", "g", "/", "c", "a", "c", "h", "e", "Enter", "Escape", "j", "j", "t", "c",
        ],
        // These keys show both panels again, and then a zoomed icicle with its wrappers.
        &["Escape", "Escape", "Escape", "Escape", "f", "w"],
        // These show a sandwich.
        &["j", "s"],
    ];
    let clicks: [&[&str]; 3] = [
        &[
            "#columns .other button",
            "#columns .other button",
            "#enlarge-list",
        ],
        &[],
        &["#groups [data-name=function]"],
    ];
    for (keys, selectors) in steps.into_iter().zip(clicks) {
        keys.iter().for_each(|key| browser.key(key));
        selectors
            .iter()
            .for_each(|selector| browser.click(selector));
        if keys.contains(&"w") {
            let at = browser.value("(() => { const p = app.flame.drawn.find(({ row, x }) => row === 1 && x === 0); const r = app.flame.canvas.getBoundingClientRect(); return [r.x + p.x + 5, r.y + p.y + 8]; })()");
            let at = (at[0].as_f64().expect("x"), at[1].as_f64().expect("y"));
            browser.drag(at, at);
            assert_ne!(browser.text("#path"), "");
        }
        // Otherwise the pointer would open a tip.
        browser.value("hideTip()");
        browser.wait("location.hash.slice(1) === addressOf(app.data, app.state)");
        let fragment = browser.text_of("location.hash");
        let mut other = Browser::open_at(&page.0, &fragment, (1400, 900), READY);
        other.settle();
        assert_eq!(other.text_of(SEEN), browser.text_of(SEEN), "{fragment}");
        assert_eq!(other.complaints, Vec::<String>::new());
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn an_address_that_makes_no_sense_is_harmless() {
    let page = Page::of(&run(), "nonsense");
    let fragment = "#from=x&to=-1&measure=toString&unit=__proto__&module=nope&least=99&zoom=zz.zz.!&pick=row.999999&view=constructor&center=%3Cimg%3E&sort=x&search=(nowhere&only=yes&list=(%0A*&chart=x";
    let mut browser = Browser::open_at(&page.0, fragment, (1400, 900), READY);
    assert_eq!(browser.text("#shown"), "nothing here");
    browser.click("#clear");
    assert!(
        browser
            .text("#shown")
            .ends_with("100.0 % of all live bytes")
    );
    // The page follows a changed address.
    browser.value("location.hash = 'measure=peak&rows=thread'");
    browser.wait("document.querySelectorAll('.row').length === 3");
    assert!(
        browser
            .text("#shown")
            .ends_with("100.0 % of all bytes at the peak")
    );
    assert_eq!(browser.complaints, Vec::<String>::new());
}
