//! The table: its columns, its sort order, and the file in which it is saved.

use super::*;
use std::collections::BTreeMap;

/// Parses the rows of a file by RFC 4180.
pub fn parse_csv(text: &str) -> Vec<Vec<String>> {
    let mut rows = vec![vec![String::new()]];
    let mut is_quoted = false;
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let row = rows.last_mut().expect("one");
        let field = row.last_mut().expect("one");
        match c {
            '"' if is_quoted && chars.peek() == Some(&'"') => field.extend(chars.next()),
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => row.push(String::new()),
            '\r' if !is_quoted => {}
            '\n' if !is_quoted => rows.push(vec![String::new()]),
            _ => field.push(c),
        }
    }
    rows.pop();
    rows
}

/// Returns name, value, self and other of each row.
fn functions_of(csv: &str) -> BTreeMap<String, [u64; 3]> {
    let rows = parse_csv(csv);
    let column = |name: &str| {
        rows[0]
            .iter()
            .position(|head| head == name)
            .expect("a column")
    };
    let columns = ["live_bytes", "self_bytes", "live_blocks"].map(column);
    let numbers = |row: &Vec<String>| columns.map(|at| row[at].parse().expect("a number"));
    rows[1..]
        .iter()
        .map(|row| (row[0].clone(), numbers(row)))
        .collect()
}

#[test]
fn functions_have_what_they_allocate_themselves() {
    let profile = run();
    let page = Page::of(&profile, "functions");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.click("#groups [data-name=function]");
    browser.picture("functions");
    let rows = functions_of(&browser.download("#csv"));
    let own: u64 = rows.values().map(|[_, own, _]| own).sum();
    assert_eq!(own, sum(&profile, Measure::Live, Unit::Bytes));
    for function in ["cache_grow", "cache_insert", "main"] {
        let live = live_amount_below(&profile, function);
        let innermost = profile
            .sites
            .iter()
            .filter(|site| functions(&profile, site).first() == Some(&Some(function)));
        let own = innermost.map(|site| site.measures.live.bytes).sum();
        let found = rows.get(function).copied().unwrap_or_default();
        assert_eq!(found, [live.bytes, own, live.blocks], "{function}");
    }
    // Sites have no column for their own share, because all of their memory is their own.
    assert_eq!(
        browser.value("Boolean(document.querySelector('.row .self'))"),
        true
    );
    browser.click("#groups [data-name=site]");
    assert_eq!(
        browser.value("Boolean(document.querySelector('.row .self'))"),
        false
    );
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn every_column_sorts_both_ways() {
    let profile = run();
    let page = Page::of(&profile, "sorting");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.click("#groups [data-name=function]");
    browser.key("2");
    for column in ["name", "value", "share", "self", "other", "growth", "spark"] {
        let key = match column {
            "name" => "rowName(app, 'function', row.key).name",
            "share" => "row.value",
            "spark" => "app.table.peakOf(row)",
            other => &format!("row.{other}"),
        };
        let is_ordered = |sign: &str| {
            format!(
                "app.table.rows.map((row) => {key}).every((a, i, all) => i === 0 || !(all[i - 1] {sign} a))"
            )
        };
        let header = format!("#columns .{column} button");
        let state = format!("#columns .{column}");
        // Sorted by name, the table is in ascending alphabetical order. Sorted by number, it starts
        // with the largest.
        let (first, then) = if column == "name" {
            (">", "<")
        } else {
            ("<", ">")
        };
        browser.click(&header);
        assert_eq!(browser.value(&is_ordered(first)), true, "{column}");
        browser.click(&header);
        assert_eq!(
            browser.value(&is_ordered(then)),
            true,
            "{column}, turned round"
        );
        let direction = format!("document.querySelector({state:?}).getAttribute('aria-sort')");
        let expected = if column == "name" {
            "descending"
        } else {
            "ascending"
        };
        assert_eq!(browser.value(&direction), expected, "{column}");
        browser.click(&header);
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// With growth as the measure, the value already shows it.
#[test]
fn growth_is_one_column() {
    let page = Page::of(&run(), "growth-once");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.key("3");
    let heads = "[...document.querySelectorAll('#columns button')].filter((e) => e.textContent.startsWith('Growth')).length";
    assert_eq!(browser.value(heads), 1);
    let csv = browser.download("#csv");
    let head = &parse_csv(&csv)[0];
    let grown = head.iter().filter(|name| *name == "growth_bytes");
    assert_eq!(grown.count(), 1, "{head:?}");
    let columns = "[document.querySelector('#columns'), document.querySelector('.row')].map((e) => [e.children.length, getComputedStyle(e).gridTemplateColumns.split(' ').length]).flat().join()";
    assert_eq!(browser.value(columns), "5,5,5,5");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// The sites differ in the library function that they call. Paths begin at the root of the sources.
#[test]
fn rows_that_look_alike_are_told_apart() {
    let mut profile = run();
    let frame = |function: &str, file: &str, line: u32| ProfileFrame {
        address: 0x1000,
        module: None,
        frame: StackFrame {
            function: Some(function.into()),
            module: Some("shop".into()),
            file: Some(file.into()),
            line: Some(line),
            ..StackFrame::default()
        },
    };
    for frame in &mut profile.frames {
        frame.frame.file = None;
    }
    let first = profile.frames.len() as u32;
    profile.frames.extend([
        frame(
            "std::vector<int>::reserve(unsigned long)",
            "/usr/include/c++/12/vector",
            7,
        ),
        frame(
            "std::deque<int>::resize(unsigned long)",
            "/usr/include/c++/12/deque",
            9,
        ),
        frame("xmalloc", "/w/shop/src/lib/memory.cc", 3),
        frame("shop::login(int)", "/w/shop/src/users/login.cc", 26),
        frame("serve()", "/w/shop/src/serve.cc", 80),
    ]);
    let [vector, deque, wrapper, login, serve] = [0, 1, 2, 3, 4].map(|at| first + at);
    for (at, inner) in [vector, deque].into_iter().enumerate() {
        let stack = profile.stacks.len() as u32;
        profile.stacks.push(vec![inner, wrapper, login, serve]);
        profile.sites[at].stack = stack;
        profile.sites[at].measures.live = Amount {
            bytes: 1 << 30,
            blocks: 1,
            ..Amount::default()
        };
    }
    let page = Page::of(&profile, "alike");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.picture("alike");
    let rows = "[...document.querySelectorAll('.row .main')].slice(0, 2).map((row) => row.textContent).sort().join('|')";
    assert_eq!(
        browser.text_of(rows),
        "shop::login(int) [std::deque::resize]users/login.cc:26|shop::login(int) [std::vector::reserve]users/login.cc:26"
    );
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn the_file_has_every_row_and_no_formula() {
    let mut profile = run();
    let formula = "=HYPERLINK(\"http://example.org\",\"x\")";
    for frame in &mut profile.frames {
        if frame.frame.function.as_deref() == Some("cache_grow") {
            frame.frame.function = Some(formula.into());
        }
    }
    let page = Page::of(&profile, "csv");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.key("4");
    let text = browser.download("#csv");
    let rows = parse_csv(&text);
    let head = [
        "site",
        "file",
        "line",
        "module",
        "callers",
        "allocated_bytes",
        "share_percent",
        "allocated_blocks",
        "growth_bytes",
    ];
    assert_eq!(rows[0], head);
    assert!(rows.iter().all(|row| row.len() == head.len()));
    let total = |column: usize| -> u64 {
        let cells = rows[1..].iter().map(|row| row[column].parse::<u64>());
        cells.sum::<Result<_, _>>().expect("numbers")
    };
    assert_eq!(total(5), sum(&profile, Measure::Allocated, Unit::Bytes));
    assert_eq!(total(7), sum(&profile, Measure::Allocated, Unit::Blocks));
    // The file has all rows, not only the rows on the screen.
    let drawn = browser
        .value("document.querySelectorAll('.row').length")
        .as_u64();
    assert!(drawn.is_some_and(|drawn| drawn < rows.len() as u64 - 1));
    let begins = |start: &str| {
        rows.iter()
            .flatten()
            .filter(|cell| cell.starts_with(start))
            .count()
    };
    assert_eq!(begins("="), 0);
    assert!(begins("'=HYPERLINK(\"http") > 0);
    browser.click("#groups [data-name=thread]");
    assert_eq!(browser.value("document.querySelectorAll('.row').length"), 3);
    assert_eq!(parse_csv(&browser.download("#csv")).len(), 4);
    assert_eq!(browser.complaints, Vec::<String>::new());
}
