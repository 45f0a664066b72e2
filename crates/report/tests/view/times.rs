//! The chart: its window, its axes, its series, its marks.

use super::*;

#[test]
fn ticks_are_at_round_numbers() {
    let page = Page::of(&Profile::default(), "ticks");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let mut ticks =
        |call: &str| browser.text_of(&format!("{call}.map(([, text]) => text).join(', ')"));
    for (call, expected) in [
        (
            "timeTicks(0, 30e9, 6)",
            "0 s, 5 s, 10 s, 15 s, 20 s, 25 s, 30 s",
        ),
        ("timeTicks(0, 7.3e9, 4)", "0 s, 2 s, 4 s, 6 s"),
        ("timeTicks(3.2e9, 3.9e9, 4)", "3.2 s, 3.4 s, 3.6 s, 3.8 s"),
        (
            "timeTicks(0, 0.45e9, 5)",
            "0 s, 100 ms, 200 ms, 300 ms, 400 ms",
        ),
        ("timeTicks(0, 1000e9, 4)", "0 s, 5 min, 10 min, 15 min"),
        (
            "timeTicks(0, 150e9, 5)",
            "0 s, 30 s, 1 min, 1 min 30 s, 2 min, 2 min 30 s",
        ),
        ("timeTicks(0, 4 * 3600e9, 4)", "0 s, 1 h, 2 h, 3 h, 4 h"),
        (
            "timeTicks(0, 10 * 86400e9, 5)",
            "0 s, 48 h, 96 h, 144 h, 192 h, 240 h",
        ),
        ("timeTicks(0, 0, 5)", "0 s"),
        (
            "amountTicks(4.5 * 2 ** 20, 'bytes', 5)",
            "0 B, 1 MiB, 2 MiB, 3 MiB, 4 MiB",
        ),
        (
            "amountTicks(9 * 2 ** 20, 'bytes', 5)",
            "0 B, 2 MiB, 4 MiB, 6 MiB, 8 MiB",
        ),
        (
            "amountTicks(2000, 'bytes', 4)",
            "0 B, 512 B, 1 KiB, 1.5 KiB",
        ),
        ("amountTicks(1, 'bytes', 4)", "0 B, 1 B"),
        ("amountTicks(12345, 'blocks', 4)", "0, 5,000, 10,000"),
    ] {
        assert_eq!(ticks(call), expected, "{call}");
    }
    for (text, ns) in [
        ("10", 10e9),
        ("700ms", 0.7e9),
        ("1 min 30 s", 90e9),
        ("2.5 s", 2.5e9),
        (" 3 h ", 10800e9),
    ] {
        assert_eq!(
            browser.value(&format!("parseTime({text:?})")).as_f64(),
            Some(ns),
            "{text}"
        );
    }
    for text in ["", "soon", "10 parsecs", "-3", "1 2x"] {
        assert!(
            browser.value(&format!("parseTime({text:?})")).is_null(),
            "{text}"
        );
    }
}

/// The page of part of a recording is not mistaken for the page of the whole recording.
#[test]
fn a_part_of_a_recording_is_called_so() {
    let mut profile = run();
    let page = Page::of(&profile, "all-of-it");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    assert_eq!(browser.text("#window"), "Whole run, 30.0 s");
    // The label is right even if sites are followed only at some points, and also after returning
    // from a part.
    browser.value("app.data.step = 7; app.setWindow(20, 60); app.refreshNow()");
    assert!(browser.text("#window").ends_with(" of 30.0 s"));
    browser.click("#whole");
    assert_eq!(browser.text("#window"), "Whole run, 30.0 s");
    drop(browser);
    profile.is_part = true;
    let page = Page::of(&profile, "part");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    assert_eq!(browser.text("#window"), "From 0 s to 30.0 s, 30.0 s");
    browser.key("j");
    assert!(browser.text("#details").contains("From 0 s to 30.0 s"));
    let all = browser.text_of("document.body.innerText").to_lowercase();
    assert!(!all.contains("whole run"), "{all}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Returns the point of the timeline nearest to a time.
fn nearest(profile: &Profile, ns: u64) -> usize {
    let points = profile.timeline.iter().enumerate();
    points
        .min_by_key(|(_, point)| point.time_ns.abs_diff(ns))
        .expect("points")
        .0
}

/// Returns the live bytes of each site at a point.
fn live_at(profile: &Profile, point: usize) -> Vec<i64> {
    let mut live: Vec<i64> = profile
        .sites
        .iter()
        .map(|site| site.before.bytes as i64)
        .collect();
    for change in profile
        .changes
        .iter()
        .filter(|change| change.point as usize <= point)
    {
        live[change.site as usize] = change.live.bytes as i64;
    }
    live
}

fn type_into(browser: &mut Browser, id: &str, text: &str) {
    browser.value(&format!("document.getElementById('{id}').select()"));
    browser.type_text(text);
    browser.key("Enter");
}

/// A user who looks for a leak starts by finding out which sites grew most between two times.
#[test]
fn growth_between_two_times_that_are_typed() {
    let profile = run();
    let page = Page::of(&profile, "growth");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    type_into(&mut browser, "from", "10");
    type_into(&mut browser, "to", "20 s");
    browser.key("Escape");
    browser.key("3");
    let ends = [10, 20].map(|s| nearest(&profile, s * 1_000_000_000));
    assert_eq!(
        browser.value("[app.state.first, app.state.last]"),
        serde_json::json!(ends)
    );
    let [begin, end] = ends.map(|point| live_at(&profile, point));
    let growth: Vec<i64> = end
        .iter()
        .zip(&begin)
        .map(|(end, begin)| end - begin)
        .collect();
    let added: i64 = growth.iter().filter(|bytes| **bytes > 0).sum();
    let most = *growth.iter().max().expect("sites");
    assert_eq!(browser.text(".row .value"), bytes(most as u64));
    assert_eq!(
        browser.text(".row .share"),
        share(most as u64, added as u64)
    );
    browser.picture("growth");
    // Invalid input is marked, and changes nothing.
    type_into(&mut browser, "to", "later");
    assert_eq!(
        browser.value("document.getElementById('to').classList.contains('wrong')"),
        true
    );
    assert_eq!(browser.value("app.state.last"), serde_json::json!(ends[1]));
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn areas_of_the_largest_rows_come_to_the_total() {
    let profile = run();
    let page = Page::of(&profile, "stacked");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.click("#charts [data-name=stacked]");
    for group in ["site", "function", "module", "type", "thread"] {
        browser.click(&format!("#groups [data-name={group}]"));
        let differs = browser.value("[...app.data.timeline.live.bytes].findIndex((live, i) => live !== app.timeline.series.reduce((sum, one) => sum + one.values[i], 0))");
        assert_eq!(differs, -1, "{group}");
        browser.picture(&format!("stacked-{group}"));
    }
    // Each mark has its own entry: here there are marks of three threads, and the peak.
    let legend = "[...document.querySelectorAll('#legend li')].map((e) => e.textContent)";
    let entries = browser.value(legend);
    let entries: Vec<&str> = entries
        .as_array()
        .expect("entries")
        .iter()
        .filter_map(|e| e.as_str())
        .collect();
    assert_eq!(entries.len(), 4, "{entries:?}");
    assert!(
        entries[0].starts_with("worker ") && entries[3].starts_with("peak, at "),
        "{entries:?}"
    );
    // An entry picks its row.
    browser.click("#legend li:nth-child(2) button");
    assert_eq!(browser.text(".row.picked .name"), entries[1]);
    let entries = browser.value(&format!("{legend}.join('; ')"));
    assert!(
        entries.as_str().is_some_and(|e| e.contains("picked")),
        "{entries}"
    );
    browser.click("#charts [data-name=total]");
    let entries = browser.text_of(&format!("{legend}.join('; ')"));
    for mark in ["live bytes", "allocated, at most ", "picked", "peak, at "] {
        assert!(entries.contains(mark), "{mark}: {entries}");
    }
    let modules = browser.text_of(
        "[...document.querySelectorAll('#modules li')].map((e) => e.textContent).join('; ')",
    );
    assert_eq!(modules, "shop; libshop & sons.so");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn times_in_which_nothing_was_seen() {
    let mut profile = run();
    let page = Page::of(&profile, "no-gaps");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    assert!(!browser.text("#legend").contains("nothing was seen"));
    profile.gaps = vec![memhook_report::UnseenTime {
        from_s: 2.0,
        to_s: 3.5,
    }];
    let page = Page::of(&profile, "gaps");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    assert!(browser.text("#legend").contains("nothing was seen"));
    let subtitle = browser.text("#subtitle");
    assert!(
        subtitle.contains("nothing was seen for 1.50 s"),
        "{subtitle}"
    );
    browser.picture("gaps");
    assert_eq!(browser.complaints, Vec::<String>::new());
}
