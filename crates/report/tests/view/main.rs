//! The page in a real browser: what it shows follows the selection and agrees with the profile.

mod browser;
#[path = "../formats/simulated.rs"]
mod simulated;

use browser::Browser;
use memhook_report::*;
use std::path::PathBuf;

/// The script has drawn everything.
const READY: &str = "document.body && document.body.dataset.ready === 'yes'";

/// The page of a profile, gone at the end of the test.
struct Page(PathBuf);

impl Page {
    fn of(profile: &Profile, name: &str) -> Page {
        Page::exported(profile, "html", &format!("{name}.html"))
    }

    fn exported(profile: &Profile, format: &str, name: &str) -> Page {
        let file = format!("memhook-view-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(file);
        let mut out = Vec::new();
        formats::write(
            formats::export_format(format).expect("known"),
            profile,
            &FormatOptions::default(),
            &mut out,
        )
        .expect("memory");
        std::fs::write(&path, out).expect("a temporary file");
        Page(path)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn sum(profile: &Profile, measure: Measure, unit: Unit) -> u64 {
    profile
        .sites
        .iter()
        .map(|site| unit.of(measure.of(&site.measures)))
        .sum()
}

/// Live bytes of the sites whose stacks have a function.
fn live_below(profile: &Profile, function: &str) -> u64 {
    let has = |site: &&ProfileSite| {
        let frames = profile.stacks[site.stack as usize].iter();
        let mut names = frames.map(|&f| profile.frames[f as usize].frame.function.as_deref());
        names.any(|name| name == Some(function))
    };
    let sites = profile.sites.iter().filter(has);
    sites.map(|site| site.measures.live.bytes).sum()
}

/// A run with sources.
fn run() -> Profile {
    let mut profile = simulated::profile(6, 30_000, 60);
    let files = (0..9).map(|n| SourceLines {
        file: format!("/src/shop/{n}.cc"),
        first: 1,
        lines: (1..=70)
            .map(|line| format!("  line_{line}(\"<b>\");"))
            .collect(),
    });
    profile.sources = files.collect();
    profile
}

#[test]
fn selections_agree_with_the_profile() {
    let profile = run();
    let page = Page::of(&profile, "selections");
    let mut browser = Browser::open(&page.0, 1500, 940, READY);
    browser.picture("whole");
    let shown =
        |browser: &mut Browser| browser.value("document.getElementById('shown').textContent");
    for (key, measure) in (1..).zip([Measure::Live, Measure::Peak]) {
        browser.key(&key.to_string());
        let expected = format!("{}, 100.0 %", bytes(sum(&profile, measure, Unit::Bytes)));
        assert_eq!(shown(&mut browser), expected, "{measure:?}");
    }
    for (key, measure) in (4..).zip([Measure::Allocated, Measure::Released, Measure::Temporary]) {
        browser.key(&key.to_string());
        browser.key("b");
        let expected = format!("{}, 100.0 %", count(sum(&profile, measure, Unit::Blocks)));
        assert_eq!(shown(&mut browser), expected, "{measure:?}");
        browser.key("b");
    }

    // A window: the middle third of the chart.
    browser.key("4");
    let (x, y) = browser.middle_of("#timeline");
    browser.drag((x - 200.0, y), (x + 200.0, y));
    browser.picture("window");
    let window = browser.value("document.getElementById('window').textContent");
    assert!(
        window.as_str().is_some_and(|text| text.contains(" to ")),
        "{window}"
    );
    let found = browser.value("document.querySelector('#measures [data-name=temporary]').disabled");
    assert_eq!(found, true);
    let all = sum(&profile, Measure::Allocated, Unit::Bytes);
    assert_ne!(shown(&mut browser), format!("{}, 100.0 %", bytes(all)));
    browser.click("#whole");
    assert_eq!(shown(&mut browser), format!("{}, 100.0 %", bytes(all)));

    // A row: its stack and its source.
    browser.key("1");
    browser.key("j");
    browser.picture("row");
    let largest = profile
        .sites
        .iter()
        .map(|site| site.measures.live.bytes)
        .max();
    let value =
        browser.value("document.querySelector('.row.picked span:nth-child(2)').textContent");
    assert_eq!(value, bytes(largest.expect("sites")));
    let frames = browser.value("document.querySelectorAll('#details ol.stack li').length");
    assert!(frames.as_u64().is_some_and(|n| n > 0), "{frames}");

    // The numbers beside it follow the window.
    browser.drag((x - 200.0, y), (x + 200.0, y));
    let titles = browser
        .value("[...document.querySelectorAll('#details h3')].map((e) => e.textContent).join()");
    assert!(
        titles
            .as_str()
            .is_some_and(|t| t.starts_with("Window,Whole run")),
        "{titles}"
    );
    browser.click("#whole");

    // A frame of the graph.
    browser.key("Escape");
    browser.click("#shapes [data-name=icicle]");
    let (x, _) = browser.middle_of("#flame");
    let top = browser.value("document.getElementById('flame').getBoundingClientRect().y + 32");
    let at = (x - 200.0, top.as_f64().expect("a number"));
    browser.drag(at, at);
    browser.picture("zoom");
    let path = browser.value("document.getElementById('path').textContent");
    assert_ne!(path, "");
    let title = browser.value("document.querySelector('#details h2').textContent");
    assert_eq!(title, path);
    assert_ne!(
        shown(&mut browser),
        format!(
            "{}, 100.0 %",
            bytes(sum(&profile, Measure::Live, Unit::Bytes))
        )
    );

    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn filters_and_groups() {
    let profile = run();
    let page = Page::of(&profile, "filters");
    let mut browser = Browser::open(&page.0, 1500, 940, READY);
    browser.key("/");
    for key in "cache_grow".chars() {
        browser.key(&key.to_string());
    }
    let live = live_below(&profile, "cache_grow");
    assert!(live > 0);
    let shown = browser.value("document.getElementById('shown').textContent");
    assert_eq!(shown, format!("{}, 100.0 %", bytes(live)));
    browser.key("Escape");
    browser.click("#clear");
    // Threads: three rows, and all of the heap is on them.
    browser.click("#groups [data-name=thread]");
    assert_eq!(browser.value("document.querySelectorAll('.row').length"), 3);
    browser.picture("threads");
    browser.key("t");
    let theme = browser.value("document.documentElement.dataset.theme");
    assert!(theme == "dark" || theme == "light", "{theme}");
    browser.click("#shapes [data-name=inverted]");
    browser.picture("dark");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn the_flame_graph_zooms_and_searches() {
    let profile = run();
    let page = Page::exported(&profile, "flamegraph", "flamegraph.svg");
    let ready = "typeof zoom === 'function' && document.readyState === 'complete'";
    let mut browser = Browser::open(&page.0, 1300, 700, ready);
    browser.picture("svg");
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

#[test]
fn nothing_recorded_is_shown_too() {
    let page = Page::of(&Profile::default(), "empty");
    let mut browser = Browser::open(&page.0, 900, 700, READY);
    assert_eq!(
        browser.value("document.getElementById('shown').textContent"),
        "nothing here"
    );
    for key in [
        "2", "3", "4", "5", "6", "b", "f", "g", "j", "]", "-", "Escape",
    ] {
        browser.key(key);
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}

fn with_error(amount: Amount) -> String {
    let error = bytes(amount.error_bytes().expect("an estimate"));
    format!("{} \u{b1} {error}", bytes(amount.bytes))
}

#[test]
fn estimates_have_their_errors() {
    let mut profile = simulated::profile(8, 3_000, 20);
    profile.sampling = Some(Sampling {
        mean_bytes: 4096,
        recorded_allocations: 3_000,
        ..Sampling::default()
    });
    for site in &mut profile.sites {
        site.measures.live.variance = 1e6;
    }
    for change in &mut profile.changes {
        change.live.variance = 9e6;
    }
    let error = bytes((1e6 * profile.sites.len() as f64).sqrt().round() as u64);
    let page = Page::of(&profile, "sampled");
    let mut browser = Browser::open(&page.0, 1500, 940, READY);
    let tile = browser.value("document.querySelector('#tiles dd').textContent");
    let tile = tile.as_str().unwrap_or_default();
    assert!(
        tile.contains(&format!(" \u{b1} {error}, ")),
        "{tile} {error}"
    );
    let subtitle = browser.value("document.getElementById('subtitle').textContent");
    let subtitle = subtitle.as_str().unwrap_or_default();
    assert!(subtitle.contains("estimated from samples"), "{subtitle}");
    browser.picture("sampled");
    let text = |browser: &mut Browser, query: &str| {
        let expression = format!("document.querySelector('{query}').textContent");
        browser
            .value(&expression)
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let live: Amount = profile.sites.iter().map(|s| s.measures.live).sum();
    let all = format!("{} \u{b1} {error}, 100.0 %", bytes(live.bytes));
    assert_eq!(text(&mut browser, "#shown"), all);
    // A row of a single site, its details, and with the unit of blocks its other column.
    let of_a_site = |stack: usize| {
        let sites = profile.sites.iter().filter(|s| s.stack as usize == stack);
        with_error(sites.map(|s| s.measures.live).sum())
    };
    let stacks = 0..profile.stacks.len();
    let expected: Vec<_> = stacks.map(of_a_site).collect();
    browser.key("j");
    let value = text(&mut browser, ".row.picked span:nth-child(2)");
    assert!(expected.contains(&value), "{value}");
    assert_eq!(text(&mut browser, "#details .numbers b"), value);
    browser.picture("sampled-row");
    browser.key("b");
    browser.key("Escape");
    browser.key("j");
    let other = text(&mut browser, ".row.picked span:nth-child(4)");
    assert!(expected.contains(&other), "{other}");
    browser.key("b");
    // A thread has the errors of its sites; a part of the run those at its end, three times as large here.
    browser.click("#groups [data-name=thread]");
    let value = text(&mut browser, ".row span:nth-child(2)");
    assert!(value.contains(" \u{b1} "), "{value}");
    browser.click("#groups [data-name=site]");
    let (x, y) = browser.middle_of("#timeline");
    browser.drag((x - 200.0, y), (x + 200.0, y));
    browser.key("Escape");
    browser.key("j");
    let value = text(&mut browser, ".row.picked span:nth-child(2)");
    assert!(value.contains(" \u{b1} "), "{value}");
    // How far the blocks at both ends of it are the same is not known.
    browser.key("3");
    let value = text(&mut browser, "#shown");
    assert!(!value.contains('\u{b1}'), "{value}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn fifty_thousand_sites() {
    let mut profile = simulated::profile(7, 1_000_000, 50_000);
    profile.target.name = "large".into();
    let page = Page::of(&profile, "large");
    let mut browser = Browser::open(&page.0, 1500, 940, READY);
    browser.key("2");
    let expected = format!(
        "{}, 100.0 %",
        bytes(sum(&profile, Measure::Peak, Unit::Bytes))
    );
    assert_eq!(
        browser.value("document.getElementById('shown').textContent"),
        expected
    );
    let (x, y) = browser.middle_of("#timeline");
    browser.drag((x - 200.0, y), (x + 200.0, y));
    browser.picture("large");
    if std::env::var_os("MEMHOOK_PICTURES").is_some() {
        let time = "(() => { const t = performance.now(); document.body.dispatchEvent(new KeyboardEvent('keydown', { key: '4', bubbles: true })); \
                    return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - t)))); })()";
        let size = std::fs::metadata(&page.0).expect("there").len();
        eprintln!(
            "a change of the measure takes {} ms; {size} bytes",
            browser.value(time)
        );
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}
