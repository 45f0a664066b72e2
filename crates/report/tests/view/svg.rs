//! The flame graph as a separate picture.

use super::*;

/// Labels stay inside their frames with any font, and even in viewers that run no scripts.
#[test]
fn no_label_leaves_its_frame() {
    let mut profile = run();
    for frame in &mut profile.frames {
        if let Some(name) = &mut frame.frame.function {
            *name = name.repeat(30);
        }
    }
    let page = Page::exported(&profile, "flamegraph", "labels.svg");
    let ready = "typeof zoom === 'function' && document.readyState === 'complete'";
    let mut browser = Browser::open(&page.0, 1300, 700, ready);
    let wide = "frames.filter(({ rect, label, text }) => { const [r, l] = [rect, label].map((e) => ({ x: +e.getAttribute('x'), wide: +e.getAttribute('width') })); \
                return text.textContent && !(l.x >= r.x && l.x + l.wide <= r.x + r.wide && getComputedStyle(label).overflow === 'hidden'); }).length";
    assert_eq!(browser.value(wide), 0);
    let widest = "frames.filter(({ text }) => /^[ -~]*$/.test(text.textContent)).every(({ rect, text }) => text.getComputedTextLength() <= +rect.getAttribute('width'))";
    assert_eq!(browser.value(widest), true);
    let heading = "document.querySelector('.heading').getComputedTextLength() <= 1200";
    assert_eq!(browser.value(heading), true);
    browser.picture("svg-labels");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn the_flame_graph_zooms_and_searches() {
    let profile = run();
    let page = Page::exported(&profile, "flamegraph", "flamegraph.svg");
    let ready = "typeof zoom === 'function' && document.readyState === 'complete'";
    let mut browser = Browser::open(&page.0, 1300, 700, ready);
    browser.picture("svg");
    // A label loses its least informative parts first, here, in the page and in text alike.
    let name = "shop::Cache<A, B>::place(std::pair<int, A>) const";
    let names = [
        name,
        "std::map<int, Pair<A, B>>::operator[](int const&) (shop)",
        "operator()<std::vector<int>>(int) const",
        "f<(lambda at a->b)>::g",
        "(anonymous namespace)::parse(int)",
        "a.operator<(b)",
        "a_name_of_c",
    ];
    for name in names {
        for room in 3..name.len() + 1 {
            let fitting = browser.value(&format!("fittingName({name:?}, {room})"));
            assert_eq!(fitting, shortened_name(name.to_owned(), room), "{room}");
        }
    }
    let width = |browser: &mut Browser, index: usize| {
        let expression = format!("+frames[{index}].rect.getAttribute('width')");
        browser.value(&expression).as_f64().expect("a width")
    };
    let before = width(&mut browser, 1);
    assert!(before < 1180.0);
    let at = browser.value("(() => { const r = frames[1].rect.getBoundingClientRect(); return [r.x + r.width / 2, r.y + 5]; })()");
    let at = (at[0].as_f64().expect("x"), at[1].as_f64().expect("y"));
    browser.drag(at, at);
    assert_eq!(width(&mut browser, 1), 1180.0);
    browser.picture("svg-zoomed");
    browser.click("#unzoom");
    assert!((width(&mut browser, 1) - before).abs() < 0.01);
    let matched =
        browser.value("search('^cache_grow$'); document.getElementById('matched').textContent");
    let live = live_below(&profile, "cache_grow");
    let all = sum(&profile, Measure::Live, Unit::Bytes);
    let share = 100.0 * live as f64 / all as f64;
    let shown = matched
        .as_str()
        .expect("text")
        .trim_start_matches("^cache_grow$: ");
    let shown: f64 = shown.trim_end_matches(" %").parse().expect("a number");
    // Frames too narrow to be drawn are not found.
    assert!((shown - share).abs() < 0.2, "{shown} {share}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}
