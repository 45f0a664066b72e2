//! Sums on the page equal those of the profile, even for empty, sampled or large runs.

use super::*;
use memhook_ledger::TimeTaken;

/// The source line of the innermost frame opens in an editor, whatever characters its path
/// contains.
#[test]
fn lines_open_in_the_editor_that_was_asked_for() {
    let mut profile = run();
    for frame in &mut profile.frames {
        if frame.frame.file.is_some() {
            frame.frame.file = Some("/src/a b/#1?\"{line}'.cc".to_owned());
            frame.frame.line = Some(17);
        }
    }
    let links = "[...document.querySelectorAll('#details ol.stack a')].map((a) => a.href).join()";
    for (editor, expected) in [
        (None, ""),
        (
            Some("x-own://open?{file}&{line}"),
            "x-own://open?/src/a%20b/%231%3F%22%7Bline%7D%27.cc&17",
        ),
    ] {
        let options = FormatOptions {
            editor: editor.map(|editor| editor.parse().expect("an editor")),
            ..FormatOptions::default()
        };
        let page = Page::with("html", &profile, &options, "editor.html");
        let mut browser = Browser::open(&page.0, 1500, 940, READY);
        browser.key("j");
        let found = browser.text_of(links);
        assert_eq!(found.split(',').next(), Some(expected), "{found}");
    }
}

#[test]
fn selections_agree_with_the_profile() {
    let profile = run();
    let page = Page::of(&profile, "selections");
    let mut browser = Browser::open(&page.0, 1500, 940, READY);
    browser.picture("whole");
    let shown = |browser: &mut Browser| browser.text("#shown");
    for (key, measure) in (1..).zip([Measure::Live, Measure::Peak]) {
        browser.key(&key.to_string());
        let expected = format!(
            "{}, 100.0 % of all",
            bytes(sum(&profile, measure, Unit::Bytes))
        );
        assert!(shown(&mut browser).starts_with(&expected), "{measure:?}");
    }
    for (key, measure) in (4..).zip([Measure::Allocated, Measure::Released, Measure::Temporary]) {
        browser.key(&key.to_string());
        browser.key("b");
        let blocks = count(sum(&profile, measure, Unit::Blocks));
        let expected = format!("{blocks} blocks, 100.0 % of all");
        assert!(shown(&mut browser).starts_with(&expected), "{measure:?}");
        browser.key("b");
    }

    // A window is selected: the middle third of the chart.
    browser.key("4");
    let (x, y) = browser.middle_of("#timeline");
    browser.drag((x - 200.0, y), (x + 200.0, y));
    browser.picture("window");
    let window = browser.text("#window");
    assert!(window.ends_with(" of 30.0 s"), "{window}");
    let found = browser.value("document.querySelector('#measures [data-name=temporary]').disabled");
    assert_eq!(found, true);
    let all = sum(&profile, Measure::Allocated, Unit::Bytes);
    assert_ne!(
        shown(&mut browser),
        format!("{}, 100.0 % of all allocated bytes", bytes(all))
    );
    browser.click("#whole");
    let expected = format!("{}, 100.0 % of all allocated bytes", bytes(all));
    assert_eq!(shown(&mut browser), expected);

    // A row shows its stack and its source.
    browser.key("1");
    browser.key("j");
    browser.picture("row");
    let largest = profile
        .sites
        .iter()
        .map(|site| site.measures.live.bytes)
        .max();
    let value = browser.value("document.querySelector('.row.picked .value').textContent");
    assert_eq!(value, bytes(largest.expect("sites")));
    let frames = browser.value("document.querySelectorAll('#details ol.stack li').length");
    assert!(frames.as_u64().is_some_and(|n| n > 0), "{frames}");

    // The numbers next to the stack follow the window.
    browser.drag((x - 200.0, y), (x + 200.0, y));
    let titles = browser
        .value("[...document.querySelectorAll('#details h3')].map((e) => e.textContent).join()");
    assert!(
        titles
            .as_str()
            .is_some_and(|t| t.starts_with("Call stack, innermost first,Whole run")),
        "{titles}"
    );
    let number = browser.text("#details .numbers span");
    assert_eq!(number, "live in the window");
    browser.click("#whole");

    // A frame of the graph shows its numbers.
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
            "{}, 100.0 % of all live bytes",
            bytes(sum(&profile, Measure::Live, Unit::Bytes))
        )
    );

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
    let error = amount.error_bytes().expect("an estimate");
    if error > amount.bytes {
        return format!(
            "\u{2264} {}",
            bytes(amount.bytes + (1.96 * error as f64).round() as u64)
        );
    }
    format!("{} \u{b1} {}", bytes(amount.bytes), bytes(error))
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
        site.measures.live.unhit = 4e6;
    }
    for change in &mut profile.changes {
        change.live.variance = 9e6;
    }
    // Memory that no sample has hit is counted once, for a single site as well as for the sum of
    // all sites.
    let error = bytes((1e6 * profile.sites.len() as f64 + 4e6).sqrt().round() as u64);
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
    let live: Amount = profile.sites.iter().map(|s| s.measures.live).sum();
    let all = format!(
        "{} \u{b1} {error}, 100.0 % of all live bytes",
        bytes(live.bytes)
    );
    assert_eq!(browser.text("#shown"), all);
    // Checks the row of a single site, its details, and its secondary column when the unit is
    // blocks.
    let of_a_site = |stack: usize| {
        let sites = profile.sites.iter().filter(|s| s.stack as usize == stack);
        with_error(sites.map(|s| s.measures.live).sum())
    };
    let stacks = 0..profile.stacks.len();
    let expected: Vec<_> = stacks.map(of_a_site).collect();
    browser.key("j");
    let value = browser.text(".row.picked .value");
    assert!(expected.contains(&value), "{value}");
    assert_eq!(browser.text("#details .numbers b"), value);
    browser.picture("sampled-row");
    browser.key("b");
    browser.key("Escape");
    browser.key("j");
    let other = browser.text(".row.picked .other");
    assert!(expected.contains(&other), "{other}");
    browser.key("b");
    // The error of a thread combines the errors of its sites. The error of a part of the run
    // combines the errors at both of its ends, which are three times as large here.
    browser.click("#groups [data-name=thread]");
    let value = browser.text(".row .value");
    assert!(value.contains(" \u{b1} "), "{value}");
    browser.click("#groups [data-name=site]");
    let (x, y) = browser.middle_of("#timeline");
    browser.drag((x - 200.0, y), (x + 200.0, y));
    browser.key("Escape");
    browser.key("j");
    let value = browser.text(".row.picked .value");
    assert!(value.contains(" \u{b1} "), "{value}");
    // The number of blocks common to both ends is unknown.
    browser.key("3");
    let value = browser.text("#shown");
    assert!(!value.contains('\u{b1}'), "{value}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn ten_thousand_sites() {
    let mut profile = simulated::profile(7, 200_000, 10_000);
    profile.target.name = "large".into();
    let page = Page::of(&profile, "large");
    let mut browser = Browser::open(&page.0, 1500, 940, READY);
    browser.key("2");
    let expected = format!(
        "{}, 100.0 % of all bytes at the peak",
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

/// This is the last step of a user who looks for a leak.
#[test]
fn who_releases_the_blocks_of_a_site() {
    let mut profile = run();
    let live_of = |site: &&ProfileSite| site.measures.live.bytes;
    let largest = profile
        .sites
        .iter()
        .max_by_key(live_of)
        .expect("sites")
        .stack;
    let deepest = (0..profile.stacks.len()).max_by_key(|&stack| profile.stacks[stack].len());
    let flow = |released_by, blocks, bytes| Flow {
        allocated_by: largest,
        released_by,
        kind: "free",
        amount: Amount {
            blocks,
            bytes,
            ..Amount::default()
        },
    };
    let page = Page::of(&profile, "not-recorded");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.key("j");
    let details = browser.text("#details");
    assert!(details.contains("--stacks all"), "{details}");
    let deepest = deepest.expect("stacks") as u32;
    profile.has_release_stacks = true;
    profile.flows = vec![flow(largest, 3, 4096), flow(deepest, 70, 8192)];
    let page = Page::of(&profile, "released");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.key("j");
    let released = "[...document.querySelectorAll('#details h3')].find((e) => e.textContent.startsWith('Released by')).nextSibling";
    let list = browser.text_of(&format!("{released}.textContent"));
    let amounts = ["8.0 KiB in 70 blocks", "4.0 KiB in 3 blocks"];
    let places = amounts.map(|amount| list.find(amount));
    assert!(places[0].is_some() && places[0] < places[1], "{list}");
    // A click shows the whole stack.
    let frames = profile.stacks[deepest as usize].len() as u64;
    browser.value(&format!("{released}.querySelector('button').click()"));
    let folded = "[...li.querySelectorAll('.folded button')].reduce((sum, e) => sum + parseInt(e.textContent), 0)";
    let shown = browser.value(&format!("(() => {{ const li = {released}.querySelector('li'); return li.querySelectorAll('ol > li:not(.folded)').length + {folded}; }})()"));
    assert_eq!(shown.as_u64(), Some(frames));
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Even for a program that has released everything, the first view is not empty.
#[test]
fn the_first_view_has_something_to_show() {
    let mut profile = simulated::profile(5, 2_000, 20);
    let first = |profile: &Profile, name: &str| {
        let page = Page::of(profile, name);
        let mut browser = Browser::open(&page.0, 1400, 900, READY);
        browser.text_of("app.state.measure")
    };
    assert_eq!(first(&profile, "first-live"), "live");
    for site in &mut profile.sites {
        site.measures.live = Amount::default();
    }
    assert_eq!(first(&profile, "first-peak"), "peak");
}

/// To distinguish a leak from a cache, a row shows its unreachable memory at the end next to its
/// growth.
#[test]
fn rows_say_what_nothing_reaches() {
    let mut profile = run();
    let page = Page::of(&profile, "not-searched");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let has_column = "document.querySelector('#columns .lost') !== null";
    assert_eq!(browser.value(has_column), false);
    assert!(!browser.text("#measures").contains("Unreachable"));
    // All but one block of the largest site are lost.
    let sites = profile.sites.iter_mut();
    let largest = sites
        .max_by_key(|site| site.measures.live.bytes)
        .expect("sites");
    let lost = Amount {
        blocks: largest.measures.live.blocks - 1,
        bytes: largest.measures.live.bytes - 1,
        ..Amount::default()
    };
    largest.measures.unreachable = lost;
    profile.leaks = Some(Leaks {
        snapshot: Some(SnapshotTaken {
            method: "precopy".into(),
            held_ms: 1.0,
            prepare_held_ms: 1.0,
            copied_bytes: 4096,
        }),
        gaps: vec!["a gap of the search".into()],
        ..Leaks::default()
    });
    let page = Page::of(&profile, "searched");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let lost_cells = "[...document.querySelectorAll('.row .lost')].map((e) => e.textContent).filter((text) => text)";
    let only_one = serde_json::json!([bytes(lost.bytes)]);
    assert_eq!(browser.value(lost_cells), only_one);
    let overview = browser.text("#details");
    assert!(overview.contains("a gap of the search"), "{overview}");
    // The column refers to the end of the run in every window, and can also be selected as a
    // measure.
    browser.click("#columns [data-column=lost]");
    let (x, y) = browser.middle_of("#timeline");
    browser.drag((x - 200.0, y), (x, y));
    assert_eq!(browser.value(lost_cells), only_one);
    browser.key("7");
    let shown = browser.text("#shown");
    let expected = format!("{}, 100.0 % of all unreachable bytes", bytes(lost.bytes));
    assert_eq!(shown, expected);
    assert_eq!(browser.text("#rows"), "1 row");
    assert_eq!(browser.value(has_column), false);
    browser.key("g");
    let functions = "document.querySelector('.row .value').textContent";
    assert_eq!(browser.value(functions), bytes(lost.bytes));
    browser.key("1");
    // Every function on the stack has the value.
    let cells = browser.value(lost_cells);
    let cells = cells.as_array().expect("cells");
    assert!(!cells.is_empty() && cells.iter().all(|cell| *cell == bytes(lost.bytes)));
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// The allocator time of a site is the same for a window as for the whole run, and each of its
/// callers has the same time.
#[test]
fn rows_say_what_the_allocator_took() {
    let mut profile = run();
    let has_column = "document.querySelector('#columns .took') !== null";
    let page = Page::of(&profile, "not-timed");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    assert_eq!(browser.value(has_column), false);
    let sites = profile.sites.iter_mut();
    let most = sites
        .max_by_key(|site| site.measures.live.bytes)
        .expect("sites");
    most.in_allocator = TimeTaken {
        time: 2_500_000.0,
        variance: 1.0,
        calls: 10,
    };
    profile.allocator_time = Some(AllocatorTime {
        ns: 2_500_000,
        error_ns: 1,
        timed: 10,
    });
    let page = Page::of(&profile, "timed");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let cells = "[...document.querySelectorAll('.row .took')].map((e) => e.textContent).filter((text) => text)";
    assert_eq!(browser.value(cells), serde_json::json!(["3 ms"]));
    browser.click("#columns [data-column=took]");
    let first = "document.querySelector('.row .took').textContent";
    assert_eq!(browser.value(first), "3 ms");
    let took = "Math.round(sumOf(tookOf(app.data, app.state)))";
    assert_eq!(browser.value(took), 2_500_000);
    let (x, y) = browser.middle_of("#timeline");
    browser.drag((x - 200.0, y), (x, y));
    let within = browser.value(took).as_f64().expect("a number");
    assert!(within < 2_500_000.0, "{within} ns");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Sums of variances exceed the range of exactly representable integers. The amounts beside them
/// stay exact.
#[test]
fn sums_of_large_variances_are_exact() {
    let mut profile = simulated::profile(9, 3_000, 20);
    profile.sampling = Some(Sampling {
        mean_bytes: 1 << 30,
        recorded_allocations: 3_000,
        ..Sampling::default()
    });
    for (site, number) in profile.sites.iter_mut().zip(0..) {
        // The sum of these variances exceeds 2^53 in any order of summation, and it is odd.
        site.measures.live.variance = if number % 2 == 0 { 3e18 } else { 900.0 };
    }
    let page = Page::of(&profile, "large-variances");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let off = browser.text_of(
        "(() => { const { data, tree, result } = app; const values = result.shown.variance; const sums = new TreeSums(tree, values); \
         const exact = (members) => Number([...members].reduce((sum, site) => sum + BigInt(values[site]), 0n)); \
         const off = []; \
         for (let node = 0; node < tree.parent.length; node += 1) { \
           const truth = exact(sitesBelow(tree, Uint32Array.of(node))); \
           if (Math.abs(sums.total(node) - truth) > truth * 1e-15) off.push(`node ${node}: ${sums.total(node)}, ${truth}`); \
           const own = exact(sitesAt(tree, Uint32Array.of(node))); \
           if (Math.abs(sums.self(node) - own) > own * 1e-15) off.push(`node ${node} itself: ${sums.self(node)}, ${own}`); \
         } \
         app.setGroup('function'); app.refreshNow(); \
         for (const row of app.table.rows) { \
           const truth = exact(membersOf(app, row.key)); \
           if (Math.abs(row.variance - truth) > truth * 1e-15) off.push(`row ${row.key}: ${row.variance}, ${truth}`); \
         } \
         return off.join('\\n'); })()",
    );
    assert_eq!(off, "");
    assert_eq!(browser.complaints, Vec::<String>::new());
}
