//! The addresses of live blocks.

use super::*;
use memhook_recording::{AddressCell, AddressMap};
use simulated::Random;

/// Start pages of two heaps that are far apart.
const HEAPS: [u64; 2] = [0x5_5555_5557, 0x7_ffff_0000];
const PAGES: u64 = 300;

/// Returns a run in which the live blocks of each site are on one page of one of two heaps. One
/// site has a block of 40 pages after the first heap, half of which was live at an earlier moment.
pub fn placed_run() -> Profile {
    let mut profile = run();
    let mut random = Random(5);
    let mut cells = Vec::new();
    for (site, of_site) in (0..).zip(&profile.sites) {
        let live = of_site.measures.live;
        if live.blocks == 0 {
            continue;
        }
        let heap = HEAPS[random.below(2) as usize];
        // No page holds more bytes than its size. The rest is placed on the following pages, like a
        // block that spans several pages.
        let whole = live.bytes / 4096;
        let start = heap + random.below(PAGES);
        cells.push(AddressCell {
            start,
            more: 0,
            site,
            blocks: live.blocks,
            bytes: live.bytes % 4096,
            oldest_ns: profile.to_ns / 2,
        });
        if whole > 0 {
            cells.push(AddressCell {
                start: heap + PAGES + 1000 * u64::from(site),
                more: whole - 1,
                site,
                blocks: 0,
                bytes: whole * 4096,
                oldest_ns: profile.to_ns / 4,
            });
        }
    }
    cells.sort_unstable_by_key(|cell| (cell.start, cell.more, cell.site));
    let earlier = cells.iter().map(|cell| AddressCell {
        bytes: cell.bytes / 2,
        blocks: cell.blocks / 2,
        oldest_ns: 0,
        ..*cell
    });
    let mut earlier: Vec<AddressCell> = earlier.collect();
    // The block is free at the end.
    earlier.push(AddressCell {
        start: HEAPS[1] - 3,
        blocks: 1,
        bytes: 4000,
        ..AddressCell::default()
    });
    earlier.sort_unstable_by_key(|cell| (cell.start, cell.more, cell.site));
    let map = |at_ns, cells| AddressMap {
        at_ns,
        shift: 12,
        cells,
    };
    profile.addresses = vec![map(profile.to_ns / 2, earlier), map(profile.to_ns, cells)];
    profile
}

/// Expression for the sums over all drawn cells if no cell is left out.
const SUM: &str = "(() => { const v = app.space; v.layout(); const sum = { live: 0, marked: 0, blocks: 0 }; for (const { pieces } of v.known.rows) for (const { cell, count } of pieces) for (let c = cell; c < cell + count; c += 1) { const f = v.about(c); sum.live += f.bytes; sum.marked += f.marked; sum.blocks += f.blocks; } return sum; })()";

#[test]
fn every_live_byte_has_its_place_whatever_the_cells() {
    let profile = placed_run();
    let page = Page::of(&profile, "space");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.key("a");
    browser.wait("!byId('space-box').hidden && app.space.drawn.length > 0");
    browser.picture("addresses");
    let live = sum(&profile, Measure::Live, Unit::Bytes);
    let blocks = sum(&profile, Measure::Live, Unit::Blocks);
    for cells in ["all", "fine"] {
        browser.click(&format!("#cells [data-name={cells}]"));
        let sums = browser.value(SUM);
        let sum_of = |name: &str| sums[name].as_f64().expect("a sum").round() as u64;
        assert_eq!(sum_of("live"), live, "{cells}");
        assert_eq!(sum_of("marked"), live, "{cells}");
        assert_eq!(sum_of("blocks"), blocks, "{cells}");
        assert!(browser.text("#shown").contains("blocks live at"));
    }
    browser.picture("addresses-fine");
    // By default, each cell is a page of memory. On request, all cells are fitted on one screen.
    assert_eq!(browser.value("app.space.known.size"), 4096);
    browser.click("#cells [data-name=all]");
    assert_eq!(
        browser.value("byId('space-box').scrollHeight <= byId('space-box').clientHeight + 1"),
        true
    );
    // The space between the heaps is left out, and the page says so.
    let far = browser.text_of("app.space.farText(app.space.known.rows.find((row) => row.far))");
    assert!(far.contains(" TiB left out"), "{far}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn filters_picks_and_windows_reach_the_addresses() {
    let profile = placed_run();
    let page = Page::of(&profile, "space-filters");
    let mut browser = Browser::open_at(&page.0, "#view=space", (1400, 900), READY);
    // A filter dims the other cells, but leaves them visible.
    browser.value("app.update({ search: 'cache_grow', only: true })");
    browser.settle();
    let of_function = live_below(&profile, "cache_grow");
    let sums = browser.value(SUM);
    assert_eq!(
        sums["marked"].as_f64().map(f64::round),
        Some(of_function as f64)
    );
    let live = sum(&profile, Measure::Live, Unit::Bytes);
    assert_eq!(sums["live"].as_f64().map(f64::round), Some(live as f64));
    assert!(
        browser
            .text("#shown")
            .starts_with("of what passes the filters, ")
    );
    browser.value("app.clearFilters()");
    browser.settle();
    // A row is picked.
    browser.value("app.pickRow(app.table.rows[0].key)");
    browser.settle();
    let picked = browser.value("app.table.rows[0].value");
    assert_eq!(
        browser.value(SUM)["marked"].as_f64().map(f64::round),
        picked.as_f64()
    );
    browser.key("Escape");
    // A window that ends at the earlier moment shows that moment, with the blocks that are free at
    // the end.
    browser.value("app.setWindow(0, nearestPoint(app.data, app.data.to_ns / 2))");
    browser.settle();
    assert_eq!(browser.value("app.space.moment"), 0);
    let freed = format!("Math.floor({} * 4096 / app.space.known.size)", HEAPS[1] - 3);
    assert_eq!(
        browser.text_of(&format!(
            "app.space.look({freed}, app.space.about({freed})).state"
        )),
        "live"
    );
    browser.value("app.setWindow(0, app.data.points - 1)");
    browser.settle();
    browser.click("#cells [data-name=fine]");
    let state = format!("app.space.look({freed}, app.space.about({freed})).state");
    assert_eq!(browser.text_of(&state), "free");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn a_cell_is_picked_by_mouse_and_keys_and_is_in_the_address() {
    let profile = placed_run();
    let page = Page::of(&profile, "space-picked");
    let mut browser = Browser::open_at(&page.0, "#view=space&cells=fine", (1400, 900), READY);
    browser.value("byId('space-box').focus()");
    for key in ["ArrowRight", "ArrowDown", "End", "ArrowUp", "Home"] {
        browser.key(key);
        assert!(
            browser.text("#said").starts_with("0x"),
            "{key}: {}",
            browser.text("#said")
        );
    }
    assert_eq!(
        browser.value("app.space.cursor === app.space.known.rows[0].first"),
        true
    );
    browser.key("Enter");
    let title = browser.text("#details h2");
    assert!(
        title.starts_with("0x") && title.contains(" \u{2013} 0x"),
        "{title}"
    );
    assert!(browser.text("#details").contains("begin here"));
    browser.wait("location.hash.includes('view=space') && location.hash.includes('at=0x')");
    let fragment = browser.text_of("location.hash");
    let mut again = Browser::open_at(&page.0, &fragment, (1400, 900), READY);
    assert_eq!(again.text("#details h2"), title);
    assert_eq!(again.text("#shown"), browser.text("#shown"));
    again.picture("addresses-picked");
    // The cell's sites lead to the rows of the table. Escape leads back to the cell, and another
    // Escape clears it.
    again.click("#details ol.stack button");
    assert_eq!(again.value("app.state.pick.kind"), "row");
    again.key("Escape");
    assert_eq!(again.text("#details h2"), title);
    again.key("Escape");
    assert_eq!(again.text("#details h2"), "Overview");
    assert!(
        again
            .text("#details")
            .contains("Which pages are resident is not in the recording")
    );
    // By mouse, the text is at the pointer.
    let at = again.value("(() => { const p = app.space.drawn.find(({ state }) => state === 'live'); const r = byId('space').getBoundingClientRect(); return [r.x + p.x + 2, r.y + p.y + 5]; })()");
    let at = (at[0].as_f64().expect("x"), at[1].as_f64().expect("y"));
    again.drag(at, at);
    assert!(again.text("#details h2").starts_with("0x"));
    assert!(
        again.text("#tip").contains(" old"),
        "{}",
        again.text("#tip")
    );
    for theme in ["dark", "light"] {
        again.value(&format!(
            "app.update({{ theme: '{theme}' }}); app.showTheme()"
        ));
        again.settle();
        again.picture(&format!("addresses-{theme}"));
    }
    again.click("#covers [data-name=row]");
    for browser in [browser, again] {
        assert_eq!(browser.complaints, Vec::<String>::new());
    }
}

#[test]
fn addresses_are_saved_as_a_picture_and_as_lines() {
    let profile = placed_run();
    let page = Page::of(&profile, "space-saved");
    let mut browser = Browser::open_at(&page.0, "#view=space&cells=fine", (1400, 900), READY);
    let csv = browser.download("#cells-csv");
    let lines = tables::parse_csv(&csv);
    let bytes = lines[1..].iter().map(|line| {
        assert!(line[0].starts_with("0x"), "{line:?}");
        line[2].parse::<u64>().expect("bytes")
    });
    assert_eq!(
        bytes.sum::<u64>(),
        sum(&profile, Measure::Live, Unit::Bytes)
    );
    let svg = browser.download("#svg");
    let document = roxmltree::Document::parse(&svg).expect("XML");
    let mut titles = document
        .descendants()
        .filter(|node| node.has_tag_name("title"));
    assert!(titles.any(|title| title.text().is_some_and(|text| text.contains("live"))));
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Even for the largest number of live blocks, their memory pages take a bounded part of the file.
#[test]
fn the_file_is_bounded() {
    let plain = run();
    let mut random = Random(9);
    let mut placed = run();
    let sites = placed.sites.len() as u64;
    let mut map = |at: u64, most: u64| {
        let mut start = HEAPS[0];
        let cells = (0..most).map(|_| {
            start += random.below(3);
            AddressCell {
                start,
                more: 0,
                site: random.below(sites) as u32,
                blocks: 1 + random.below(60),
                bytes: random.below(4096),
                oldest_ns: random.below(plain.to_ns),
            }
        });
        AddressMap {
            at_ns: at,
            shift: 12,
            cells: cells.collect(),
        }
    };
    // This is the maximum that a recording contains: see MOMENTS and MAX_CELLS of
    // recorded/profile.rs.
    let mut maps: Vec<AddressMap> = Vec::new();
    for moment in 1..9 {
        maps.push(map(moment * plain.to_ns / 9, 15_000));
    }
    maps.push(map(plain.to_ns, 60_000));
    placed.addresses = maps;
    let length = |profile: &Profile, name: &str| {
        let page = Page::of(profile, name);
        std::fs::metadata(&page.0).expect("the page").len()
    };
    let (with, without) = (length(&placed, "space-large"), length(&plain, "space-none"));
    assert!(with - without < 2_000_000, "{with} {without}");
    let page = Page::of(&placed, "space-shown");
    let mut browser = Browser::open_at(&page.0, "#view=space", (1400, 900), READY);
    browser.wait("app.space.drawn.length > 0");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// A recording that contains only sums has no addresses, so the page offers no view of them.
#[test]
fn without_addresses_nothing_is_said_of_them() {
    let page = Page::of(&run(), "no-space");
    let mut browser = Browser::open_at(&page.0, "#view=space&at=0x1000", (1400, 900), READY);
    assert_eq!(
        browser.value("document.querySelector('#shapes [data-name=space]').disabled"),
        true
    );
    assert_eq!(browser.value("app.state.shape"), "flame");
    browser.key("a");
    assert_eq!(browser.value("app.state.shape"), "flame");
    assert_eq!(browser.complaints, Vec::<String>::new());
}
