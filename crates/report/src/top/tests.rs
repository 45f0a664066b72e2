//! A board with samples and keys, drawn on an in-memory screen.

use super::board::Named;
use super::*;
use crate::StackFrame;
use memhook_ledger::SiteTotals;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{
    Event, KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use ratatui::style::Color;
use std::time::Duration;

pub(super) fn site(
    stack: u32,
    bytes: u64,
    blocks: u64,
    allocated_blocks: u64,
    oldest_ns: u64,
) -> SiteTotals {
    SiteTotals {
        stack,
        bytes,
        blocks,
        oldest_ns,
        allocated_blocks,
        ..SiteTotals::default()
    }
}

pub(super) fn sample(seconds: u64, sites: Vec<SiteTotals>) -> Sample {
    Sample {
        time: Duration::from_secs(seconds),
        sites,
        ..Sample::default()
    }
}

fn named(functions: &str) -> Named {
    let frame = |name: &str| StackFrame {
        function: Some(name.into()),
        ..StackFrame::default()
    };
    Named {
        kind: "malloc".into(),
        frames: functions.split(' ').map(frame).collect(),
    }
}

/// Returns a board with three sites. Two of them allocate in the same function.
fn board() -> Board {
    let mut board = Board::new("shop".into(), 7);
    board.sample(sample(
        0,
        vec![site(1, 100, 9, 9, 5), site(2, 500, 1, 1, 3)],
    ));
    let sites = vec![
        site(1, 300, 19, 49, 5),
        site(2, 500, 1, 1, 3),
        site(3, 0, 0, 60, 7),
    ];
    board.sample(sample(2, sites));
    let names = [
        (1, "copy load main"),
        (2, "copy store main"),
        (3, "log main"),
    ];
    board.name_sites(
        names
            .map(|(stack, names)| (stack, named(names)))
            .into_iter(),
    );
    board
}

fn press(board: &mut Board, keys: &str) {
    for key in keys.chars() {
        let code = match key {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            key => KeyCode::Char(key),
        };
        let event = Event::Key(KeyEvent::new(code, KeyModifiers::NONE));
        assert_eq!(board.react(&event), Some(Reaction::Redraw), "{key}");
    }
}

/// Returns the lines of the screen.
fn screen(board: &mut Board, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, board)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let row = |y| {
        (0..width)
            .map(|x| buffer[(x, y)].symbol())
            .collect::<String>()
    };
    let lines = (0..height).map(row);
    lines.map(|line| line.trim_end().to_owned()).collect()
}

/// The tree consists of the sites with names, but its sums include all others.
#[test]
fn a_tree_of_very_many_sites_leaves_nothing_out() {
    let mut board = Board::new("shop".into(), 7);
    let sites = (1..=2_500).map(|stack| site(stack, 10_000 - u64::from(stack), 1, 1, 5));
    board.sample(sample(0, sites.collect()));
    let names = (1..=2_000).map(|stack| (stack, named(&format!("f{stack} main"))));
    board.name_sites(names);
    press(&mut board, "t");
    let lines = screen(&mut board, 100, 20).join("\n");
    assert!(lines.contains("calls (of the 2,000 largest)"), "{lines}");
    let of_rest = board.rows().last().expect("a row");
    assert!(lines.contains("17.2 MiB"), "{lines}");
    assert_eq!(
        (of_rest.numbers.blocks, of_rest.numbers.bytes),
        (500, 3_874_750)
    );
    let all: u64 = [&board.rows()[0], of_rest]
        .iter()
        .map(|row| row.numbers.blocks)
        .sum();
    assert_eq!(all, 2_500);
    press(&mut board, "t");
    let lines = screen(&mut board, 100, 20).join("\n");
    assert!(!lines.contains("2,000 largest"), "{lines}");
}

/// Returns the sites on the screen, without the numbers to their left.
fn sites(board: &mut Board) -> Vec<String> {
    let lines = screen(board, 100, 12);
    let start = lines[2]
        .find("site")
        .or(lines[2].find("calls"))
        .expect("a title");
    let start = lines[2][..start].chars().count();
    let rows = lines[3..11].iter().filter(|line| !line.is_empty());
    rows.map(|line| line.chars().skip(start).collect())
        .collect()
}

#[test]
fn orders_and_what_stays_selected() {
    let mut board = board();
    let [copy_load, copy_store, log] = [
        "copy \u{2190} load \u{2190} main",
        "copy \u{2190} store \u{2190} main",
        "log \u{2190} main",
    ];
    for (key, expected) in [
        ("b", [copy_store, copy_load, log]),
        ("n", [copy_load, copy_store, log]),
        ("g", [copy_load, copy_store, log]),
        ("r", [log, copy_load, copy_store]),
        ("a", [copy_store, copy_load, log]),
    ] {
        press(&mut board, key);
        assert_eq!(sites(&mut board), expected, "{key}");
    }
    press(&mut board, "jr");
    assert_eq!(board.selected(), Some(2), "site 2 stays selected");
    press(&mut board, "\n");
    assert_eq!(board.drilled().and_then(|row| row.stack()), Some(2));
    let lines = screen(&mut board, 100, 12);
    assert!(
        lines[2].starts_with("500 B in 1 block by malloc"),
        "{lines:?}"
    );
    assert!(lines[4].trim() == "store", "{lines:?}");
    press(&mut board, "\x1b");
    assert!(board.drilled().is_none());
}

#[test]
fn a_pause_holds_the_rows_and_not_the_past() {
    let mut board = Board::new("shop".into(), 7);
    board.sample(sample(0, vec![site(1, 100, 1, 1, 0)]));
    press(&mut board, "p");
    board.sample(sample(1, vec![site(1, 900, 2, 2, 0)]));
    assert_eq!(board.rows()[0].numbers.bytes, 100);
    assert_eq!(board.past().bytes_of(1), [100, 900]);
    press(&mut board, "p");
    board.sample(sample(2, vec![]));
    assert!(board.rows().is_empty());
    press(&mut board, "\n");
    assert!(board.drilled().is_none());
}

#[test]
fn a_filter_is_typed_kept_and_cleared() {
    let mut board = board();
    press(&mut board, "/STq\x08");
    assert_eq!(sites(&mut board), ["copy \u{2190} store \u{2190} main"]);
    let foot = screen(&mut board, 100, 12).pop().unwrap();
    assert!(foot.starts_with("/ST"), "{foot}");
    press(&mut board, "\n");
    press(&mut board, "s");
    assert_eq!(
        sites(&mut board).len(),
        1,
        "kept while other keys work again"
    );
    press(&mut board, "/x");
    let lines = screen(&mut board, 100, 12).join("\n");
    assert!(lines.contains("matches the filter"), "{lines}");
    press(&mut board, "\x1b");
    assert_eq!(sites(&mut board).len(), 3);
}

#[test]
fn a_tree_opens_and_closes() {
    let mut board = board();
    assert!(board.wanted().is_empty(), "nothing is on the screen yet");
    press(&mut board, "t");
    assert_eq!(
        board.wanted(),
        [2, 1, 3],
        "a tree has the names of all sites"
    );
    let all = [
        "\u{25be} main",
        " \u{25be} store",
        "    copy",
        " \u{25be} load",
        "    copy",
        " \u{25b8} log",
    ];
    let shown = sites(&mut board);
    assert_eq!(shown[..5], all[..5], "{shown:?}");
    press(&mut board, "\n\n");
    assert_eq!(sites(&mut board).len(), 6, "closed and opened again");
    press(&mut board, "\n");
    assert_eq!(sites(&mut board), ["\u{25b8} main"]);
    press(&mut board, "\x1b");
    assert_eq!(sites(&mut board).len(), 3, "the table again");
}

#[test]
fn help_is_shown_until_a_key() {
    for key in ["?", "h"] {
        let mut board = board();
        // The head has its usual number of lines.
        board.latest.resident = Some(Resident::default());
        board.unseen = Some(Duration::from_secs(1));
        press(&mut board, key);
        let lines = screen(&mut board, 80, 24).join("\n");
        for (keys, what) in super::keys::HELP {
            assert!(
                lines.contains(keys) && lines.contains(what),
                "{keys}: {lines}"
            );
        }
        // The key closes the help, and does not end the program.
        let q = Event::Key(KeyCode::Char('q').into());
        assert_eq!(board.react(&q), Some(Reaction::Redraw));
        assert_eq!(board.react(&q), Some(Reaction::Quit));
        assert!(
            !screen(&mut board, 100, 24)
                .join("\n")
                .contains("detach and quit")
        );
    }
}

#[test]
fn a_narrow_screen_has_the_site_and_a_wide_one_everything() {
    for (width, lacks) in [(60, "blocks"), (80, "oldest")] {
        let lines = screen(&mut board(), width, 24);
        let text = lines.join("\n");
        assert!(text.contains("copy \u{2190} store \u{2190} main"), "{text}");
        assert!(!lines[6].contains(lacks), "{text}");
    }
    let lines = screen(&mut board(), 200, 50);
    for title in [
        "live", "blocks", "growth/s", "allocs/s", "oldest", "past", "site",
    ] {
        assert!(lines[6].contains(title), "{lines:?}");
    }
}

#[test]
fn a_line_number_is_never_cut_off() {
    let file = "/w/shop/src/storage/engine/write_ahead_log.cc";
    let long = StackFrame {
        function: Some(
            "shop::storage::Engine<Order, Customer>::append_record(Order const&)".into(),
        ),
        file: Some(file.into()),
        line: Some(12345),
        ..StackFrame::default()
    };
    let other = StackFrame {
        function: Some("main".into()),
        file: Some("/w/shop/main.cc".into()),
        line: Some(1),
        ..StackFrame::default()
    };
    let mut board = board();
    let names = Named {
        kind: "malloc".into(),
        frames: vec![long, other],
    };
    board.name_sites([(2, names)].into_iter());
    for width in 40..200 {
        for is_stack in [false, true] {
            let text = screen(&mut board, width, 24).join("\n");
            assert!(text.contains("write_ahead_log.cc:12345"), "{width}: {text}");
            let is_whole = text.contains("  src/storage/engine/write_ahead_log.cc");
            assert!(is_whole || !is_stack || width < 100, "{width}: {text}");
            board.react(&Event::Key(KeyCode::Enter.into()));
        }
    }
}

#[test]
fn growth_says_over_what_time() {
    let lines = screen(&mut board(), 100, 24);
    assert!(lines[1].contains("/s over 2.0 s"), "{lines:?}");
}

#[test]
fn the_report_the_mouse_and_a_message() {
    let mut board = board();
    let key = |c| Event::Key(KeyCode::Char(c).into());
    assert_eq!(board.react(&key('w')), Some(Reaction::Report));
    assert_eq!(board.react(&key('m')), Some(Reaction::Mouse));
    board.message = Some("Report written to x".into());
    let foot = screen(&mut board, 80, 24).pop().unwrap();
    assert_eq!(foot, "Report written to x");
    assert_eq!(board.react(&key('w')), Some(Reaction::Report));
    let foot = screen(&mut board, 80, 24).pop().unwrap();
    assert!(foot.ends_with("w write report"), "{foot}");
    press(&mut board, "/wm");
    assert_eq!(board.filter, "wm", "in a filter they are letters");
}

#[test]
fn the_mouse_selects_scrolls_and_sorts() {
    let mut board = board();
    screen(&mut board, 100, 12);
    let mut mouse = |kind, column, row| {
        let event = MouseEvent {
            kind,
            column,
            row,
            modifiers: KeyModifiers::NONE,
        };
        board.react(&Event::Mouse(event));
        (board.selected(), board.is_drilled)
    };
    let click = MouseEventKind::Down(MouseButton::Left);
    assert_eq!(mouse(click, 70, 4), (Some(1), false));
    assert_eq!(mouse(MouseEventKind::ScrollDown, 0, 0), (Some(2), false));
    assert_eq!(mouse(click, 15, 2), (Some(2), false), "sorted by blocks");
    assert_eq!(mouse(click, 70, 3), (Some(0), false));
    assert_eq!(mouse(click, 70, 3), (Some(0), true));
    assert_eq!(mouse(click, 70, 11), (Some(0), true));
    assert_eq!(board.sort, super::rows::Sort::Blocks);
}

#[test]
fn what_nobody_touches_has_a_column_where_it_is_watched() {
    let mut board = board();
    let press = |board: &mut Board| board.react(&Event::Key(KeyCode::Char('u').into()));
    press(&mut board);
    assert_eq!(board.sort, super::rows::Sort::Bytes, "nothing to sort by");
    let sites = vec![site(1, 1000, 10, 10, 0), site(2, 500, 10, 10, 0)];
    board.sample(Sample {
        // The value does not exceed the live bytes.
        stale: Some([(2, 700)].into()),
        ..sample(3, sites)
    });
    press(&mut board);
    let shown = board.rows().iter();
    let shown: Vec<_> = shown.map(|row| (row.stack(), row.numbers.stale)).collect();
    assert_eq!(shown, [(Some(2), 500), (Some(1), 0)]);
    let screen = screen(&mut board, 120, 24).join("\n");
    assert!(screen.contains("\u{25be}stale"), "{screen}");
}

#[test]
fn what_is_resident_has_a_line() {
    let mut board = board();
    let resident = Resident {
        rss_bytes: 9 << 20,
        parts: vec![
            ("stacks".into(), 1 << 20),
            ("live heap".into(), 6 << 20),
            ("swap".into(), 0),
            ("file pages".into(), 2 << 20),
        ],
    };
    board.sample(Sample {
        resident: Some(resident),
        ..sample(3, vec![site(1, 1000, 10, 10, 0)])
    });
    let wide = screen(&mut board, 100, 24);
    let line = "9.0 MiB resident: 6.0 MiB live heap, 2.0 MiB file pages, 1.0 MiB stacks";
    assert_eq!(wide[2], line, "{wide:#?}");
    let narrow = screen(&mut board, 45, 24);
    assert_eq!(
        narrow[2], "9.0 MiB resident: 6.0 MiB live heap",
        "{narrow:#?}"
    );
}

#[test]
fn without_colours_nothing_has_one() {
    let mut board = board();
    for has_color in [true, false] {
        board.has_color = has_color;
        let mut terminal = Terminal::new(TestBackend::new(100, 24)).unwrap();
        terminal.draw(|frame| draw(frame, &mut board)).unwrap();
        let cells = &terminal.backend().buffer().content;
        let is_colored = cells
            .iter()
            .any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
        assert_eq!(is_colored, has_color);
    }
}
