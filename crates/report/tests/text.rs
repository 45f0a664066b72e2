//! The report as readers see it: once in full, then the parts that readers must notice.

use memhook_report::*;

fn frame(function: Option<&str>, place: Option<(&str, u32)>, inlined: bool) -> StackFrame {
    StackFrame {
        address: "0x55550000123f".into(),
        module: Some("shop".into()),
        offset: Some("0x123e".into()),
        function: function.map(Into::into),
        file: place.map(|p| p.0.into()),
        line: place.map(|p| p.1),
        inlined,
    }
}

fn report() -> ReportModel {
    let plumbing = |name| frame(Some(name), Some(("/usr/include/c++/12/bits/x.h", 7)), true);
    ReportModel {
        marks: Vec::new(),
        schema: "memhook-rs/report/1",
        is_final: false,
        ended: None,
        is_cut: false,
        ends_early: false,
        is_recorded: false,
        by: "site",
        target: Target {
            pid: 7,
            name: "shop".into(),
            exe: "/opt/shop".into(),
        },
        attach: AttachInfo {
            attach_ms: 2.0,
            held_ms: 0.8,
            idle_held_ms: 0.0,
            slots: 61,
            modules: 7,
            depth: 5,
            from_start: false,
        },
        from_s: 0.0,
        elapsed_s: 10.0,
        gaps: Vec::new(),
        heap_comparison: None,
        live_bounds: None,
        since_last_s: Some(5.0),
        sampling: None,
        allocator_time: None,
        bounded: None,
        totals: ReportTotals {
            allocations: 3_386_850,
            releases: 3_370_012,
            allocated_bytes: 279_600_000,
            released_bytes: 278_000_000,
            live_bytes: 1_600_000,
            live_blocks: 16_850,
            live_growth_bytes: 800_000,
            peak_live_bytes: 1_700_000,
            unknown_releases: 12,
            ..ReportTotals::default()
        },
        heaps: Vec::new(),
        call_stacks: None,
        measured: Measured {
            measure: "live",
            bytes: 1_600_000,
            blocks: 16_850,
            error_bytes: None,
        },
        coverage: vec![
            Coverage {
                module: "shop".into(),
                hooked: 61,
                unhookable: 87,
                note: "jemalloc is part of it: 87 direct calls (je_malloc, ...) use no slot".into(),
                calls_seen: 1200,
                symbols: Some("debug info"),
                ..Coverage::default()
            },
            Coverage {
                module: "libc.so.6".into(),
                hooked: 4,
                unhookable: 0,
                note: String::new(),
                calls_seen: 1631,
                symbols: None,
                ..Coverage::default()
            },
        ],
        sites: vec![SiteRow {
            stack_id: 0,
            scores: None,
            custom_scores: std::collections::BTreeMap::new(),
            bytes: 1_590_000,
            blocks: 16_560,
            error_bytes: None,
            unseen_bytes: 0,
            unreachable_bytes: None,
            unreachable_error_bytes: None,
            allocator_time: None,
            growth_bytes: 795_000,
            oldest_ms: 9_900,
            heap: None,
            kind: "new".into(),
            truncated: false,
            cut: false,
            stack: vec![
                plumbing("std::__new_allocator<Order>::allocate(unsigned long, void const*)"),
                plumbing("std::vector<Order, std::allocator<Order> >::push_back(Order&&)"),
                frame(
                    Some("shop::place_order(int)"),
                    Some(("/src/shop/orders.cc", 48)),
                    false,
                ),
                frame(Some("serve"), Some(("/src/shop/main.cc", 9)), true),
                frame(Some("main"), Some(("/src/shop/main.cc", 31)), false),
                frame(None, None, false),
            ],
        }],
        groups: vec![],
        folded: None,
        releases: vec![],
        more_rows: 1,
        mappings: None,
        resident: Vec::new(),
        rss: None,
        rss_bytes: None,
        leaks: None,
        overhead: None,
        stale: None,
        scores: None,
        custom_scores: Vec::new(),
        inferences: None,
    }
}

#[test]
fn a_report() {
    let expected = "\
shop, 10.0 s after the attach: 1.5 MiB live in 16,850 blocks (+781.2 KiB in the last 5.0 s, peak 1.6 MiB)
  allocated   266.6 MiB in 3,386,850 blocks  338,685/s, 26.7 MiB/s
  released    265.1 MiB in 3,370,000 blocks  337,000/s, 26.5 MiB/s
  12 blocks released whose allocation was not seen: from before the attach, by constructors of libraries opened since, or by calls that use no slot
  61 slots hooked in 7 modules, no event lost, 0 stacks cut short (0.0 %), 0 re-entrant calls skipped

  module  slots  calls seen  not seen  names from
  shop       61       1,200        87  debug info
          jemalloc is part of it: 87 direct calls (je_malloc, ...) use no slot

Sites, and their share of all live bytes:

#1 1.5 MiB 99.4 %  shop::place_order  orders.cc:48  16,560 blocks, +776.4 KiB, oldest 9.9 s, by new
      std::vector<Order>::push_back(Order&&)  shop  bits/x.h:7 [inlined, 1 more]
      shop::place_order(int)                  shop  orders.cc:48
      serve                                   shop  main.cc:9 [inlined]
      main                                    shop  main.cc:31
      shop+0x123e

... and 1 more site (--top)
";
    assert_eq!(report().text(Style::default()), expected);
}

/// Parts without problems take one line, and unreachable blocks are in the row of their site.
#[test]
fn the_answer_comes_first() {
    let mut model = report();
    model.coverage.remove(0);
    model.sites[0].unreachable_bytes = Some(1_048_576);
    let shown = model.text(Style::default());
    let healthy = "  complete: no event lost, every call through a slot seen (61 slots in 7 modules; -v for more)\n";
    assert!(shown.contains(healthy), "{shown}");
    assert!(
        shown.contains("16,560 blocks, 1.0 MiB of it unreachable"),
        "{shown}"
    );
    assert!(!shown.contains("libc.so.6"), "{shown}");
    // Events in a gap are missing, so nothing is complete.
    model.gaps = vec![UnseenTime {
        from_s: 0.0,
        to_s: 0.5,
    }];
    let shown = model.text(Style::default());
    assert!(!shown.contains("complete"), "{shown}");
    model.gaps.clear();
    model.totals.truncated_stacks = 3;
    let shown = model.text(Style::default());
    assert!(shown.contains("3 stacks cut short"), "{shown}");
}

/// A report that is followed by others fits on one screen. The last report has the stacks.
#[test]
fn reports_on_a_terminal_are_tables_until_the_last() {
    let mut model = report();
    let style = Style {
        width: Some(120),
        ..Style::default()
    };
    let row = "#1 1.5 MiB 99.4 %  shop::place_order  orders.cc:48  16,560 blocks";
    model.releases.push(ReleaseSite {
        bytes: 4096,
        blocks: 2,
        error_bytes: None,
        heap: None,
        kind: "free".into(),
        stack: model.sites[0].stack.clone(),
    });
    for (is_final, has_stacks) in [(false, false), (true, true)] {
        model.is_final = is_final;
        let shown = model.text(style);
        assert!(shown.contains(row), "{shown}");
        assert!(shown.contains("R1 4.0 KiB"), "{shown}");
        assert_eq!(shown.contains("main.cc:31"), has_stacks, "{shown}");
    }
}

/// A row of blocks whose allocation was not seen says so.
#[test]
fn leaks_from_before_the_attach_say_so() {
    let mut model = report();
    let site = |kind: &str| LeakSite {
        bytes: 640,
        blocks: 10,
        held_bytes: 0,
        held_blocks: 0,
        kind: kind.into(),
        truncated: false,
        stack: Vec::new(),
    };
    model.leaks = Some(Leaks {
        snapshot: Some(SnapshotTaken {
            method: "fork".into(),
            held_ms: 1.0,
            prepare_held_ms: 1.0,
            copied_bytes: 4096,
        }),
        totals: LeakTotals::default(),
        sites: vec![site("an unknown caller"), site("malloc")],
        more_sites: 0,
        possible: Vec::new(),
        more_possible: None,
        gaps: Vec::new(),
    });
    let shown = model.text(Style::default());
    let rows: Vec<&str> = shown.lines().filter(|l| l.starts_with('L')).collect();
    assert!(
        rows[1].ends_with(
            "  allocated before the attach, or allocated by a call that was not recorded  10 blocks"
        ),
        "{shown}"
    );
    assert!(rows[2].ends_with("  10 blocks, by malloc"), "{shown}");
}

#[test]
fn stacks_say_how_they_end() {
    let mut model = report();
    model.attach.depth = 3;
    let shown = model.text(Style::default());
    assert!(shown.contains("      ... (--depth 3)\n"), "{shown}");
    model.sites[0].truncated = true;
    let shown = model.text(Style::default());
    assert!(shown.contains("(the stack continues: "), "{shown}");
    model.sites[0].stack.clear();
    assert!(model.text(Style::default()).contains("(no call stack)"));
}

#[test]
fn verbose_leaves_nothing_out() {
    let style = Style {
        verbose: true,
        ..Style::default()
    };
    let shown = report().text(style);
    for word in [
        "libc.so.6",
        "__new_allocator",
        "/src/shop/orders.cc:48",
        "std::allocator<Order>",
    ] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
}

#[test]
fn first_report_has_no_growth() {
    let mut model = report();
    model.since_last_s = None;
    let shown = model.text(Style::default());
    assert!(!shown.contains("+7"), "{shown}");
    assert!(shown.contains("(peak 1.6 MiB)"), "{shown}");
}

#[test]
fn functions_and_frames() {
    let mut model = report();
    model.by = "frame";
    model.groups = vec![GroupRow {
        name: "0x55550000123f".into(),
        frame: Some(frame(Some("main"), None, false)),
        bytes: 1_590_000,
        self_bytes: 96,
        blocks: 16_560,
        error_bytes: None,
        unseen_bytes: 0,
        unreachable_bytes: None,
        unreachable_error_bytes: None,
        allocator_time: None,
        growth_bytes: -5,
        oldest_ms: 9_900,
        heap: None,
        released_bytes: 1024,
        released_blocks: 3,
    }];
    let shown = model.text(Style::default());
    let line = "   1.5 MiB     99.4%        96 B      16,560        -5 B        9.9 s     1.0 KiB           3  main (shop+0x123e)\n";
    assert!(shown.contains(line), "{shown}");
    assert!(shown.contains("more than 100 %"));
    model.by = "function";
    model.groups[0].frame = None;
    model.groups[0].name = "main (shop)".into();
    assert!(model.text(Style::default()).contains("3  main (shop)\n"));
}

/// A report fits a terminal of any width, and always keeps the important parts.
#[test]
fn a_narrow_terminal() {
    let mut model = report();
    model.is_final = true;
    for by in ["site", "function"] {
        model.by = by;
        model.groups = vec![GroupRow {
            name: "std::vector<Order, std::allocator<Order>>::push_back(Order const&) (shop)"
                .into(),
            frame: None,
            bytes: 1_590_000,
            self_bytes: 96,
            unseen_bytes: 0,
            unreachable_bytes: None,
            unreachable_error_bytes: None,
            allocator_time: None,
            blocks: 16_560,
            error_bytes: None,
            growth_bytes: -5,
            oldest_ms: 9_900,
            heap: None,
            released_bytes: 0,
            released_blocks: 0,
        }];
        for width in [60, 80, 100, 300] {
            let style = Style {
                width: Some(width),
                ..Style::default()
            };
            let shown = memhook_report::document(&model, false, style).expect("written");
            for line in shown.lines() {
                assert!(line.chars().count() <= width, "{width}: {line}\n{shown}");
            }
            let words = match (by, width) {
                ("site", 60) => ["serve", "main"],
                ("site", _) => ["orders.cc:48", "main"],
                _ => ["push_back", " (shop)"],
            };
            for word in words {
                assert!(shown.contains(word), "{width}: {word}: {shown}");
            }
        }
    }
    let anything = memhook_report::document(&model, false, Style::default());
    assert_eq!(anything.expect("written"), model.text(Style::default()));
}

#[test]
fn what_makes_numbers_wrong_comes_first() {
    let mut model = report();
    model.gaps = vec![UnseenTime {
        from_s: 1.5,
        to_s: 3.0,
    }];
    model.live_bounds = Some(LiveBounds {
        least_bytes: 1024,
        most_bytes: 4096,
        least_blocks: 3,
        most_blocks: 10,
    });
    model.call_stacks = Some(CallStacks {
        count: 40,
        cut_at_depth: 12,
        cut_unfollowed: 1,
    });
    let text = model.text(Style::default());
    let first = text.lines().next().expect("a line");
    assert!(
        first.starts_with("Nothing was seen from 1.5 s to 3.0 s after the attach: "),
        "{text}"
    );
    assert!(
        first.contains("3.0 KiB in 7 blocks were live before and have not been seen since"),
        "{text}"
    );
    assert!(text.contains("1.0 KiB to "), "{text}");
    assert!(text.contains(" live in 3 to 10 blocks"), "{text}");
    assert!(
        text.contains("12 of 40 call stacks end at --depth "),
        "{text}"
    );
    // This report has no gap.
    let whole = report();
    let rate = |model: &ReportModel| {
        let text = model.text(Style::default());
        let line = text
            .lines()
            .find(|line| line.contains("allocated "))
            .expect("a line");
        line.rsplit("  ").next().expect("rates").to_owned()
    };
    assert_ne!(rate(&model), rate(&whole));
}

/// Calls without a stack do not count as stacks that were cut.
#[test]
fn call_stacks_that_found_no_room() {
    let mut model = report();
    assert!(!model.text(Style::default()).contains("was full"));
    model.totals.unkept_stacks = 37_652;
    model.call_stacks = Some(CallStacks {
        count: 30_609,
        ..CallStacks::default()
    });
    let shown = model.text(Style::default());
    let warning = "  37,652 calls have no call stack: the memory for stacks is full. A smaller --depth makes room\n";
    assert!(shown.contains(warning), "{shown}");
}

/// If the question needs another command, a line names it.
#[test]
fn hints() {
    let mut model = report();
    model.coverage.clear();
    model.since_last_s = None;
    assert!(!model.text(Style::default()).contains("resident is not"));
    model.rss_bytes = Some(60 << 20);
    assert!(
        !model.text(Style::default()).contains("resident is not"),
        "little"
    );
    model.rss_bytes = Some(512 << 20);
    let shown = model.text(Style::default());
    let hint = "  99 % of 512.0 MiB resident is not in these blocks: rss 7, or --mappings\n";
    assert!(shown.contains(hint), "{shown}");
    model.since_last_s = Some(5.0);
    let shown = model.text(Style::default());
    assert!(!shown.contains("resident is not"), "once is enough");
    model.since_last_s = None;
    // Memory that malloc had at the peak may still be resident.
    model.totals.peak_live_bytes = 300 << 20;
    assert!(!model.text(Style::default()).contains("resident is not"));
    model.totals.peak_live_bytes = 0;
    model.rss_bytes = None;
    model.resident = vec![ResidentPoint {
        anonymous_bytes: 512 << 20,
        ..ResidentPoint::default()
    }];
    let shown = model.text(Style::default());
    assert!(
        shown.contains("resident is not in these blocks: --rss, --mappings"),
        "{shown}"
    );
    model.measured.measure = "allocated";
    assert!(!model.text(Style::default()).contains("resident is not"));

    let mut model = report();
    model.totals.live_bytes = 9_000;
    model.totals.peak_live_bytes = 10_000;
    assert!(!model.text(Style::default()).contains("released again"));
    model.is_final = true;
    let shown = model.text(Style::default());
    assert!(
        shown.contains(
            "  Nearly all of the 266.6 MiB was released again. Who allocates it: attach 7 "
        ),
        "{shown}"
    );

    model.call_stacks = Some(CallStacks {
        count: 4,
        cut_at_depth: 4,
        cut_unfollowed: 0,
    });
    for (depth, deeper) in [(10, true), (64, false)] {
        model.attach.depth = depth;
        let shown = model.text(Style::default());
        assert!(
            shown.contains("4 of 4 call stacks end at --depth "),
            "{shown}"
        );
        assert_eq!(shown.contains("(--depth 64 shows more)"), deeper, "{shown}");
    }
}

/// Rows for the same function differ in a caller. If there is little room, the name is the last
/// part to be shortened.
#[test]
fn alike_rows_and_narrow_rows() {
    let mut model = report();
    let mut other = model.sites[0].clone();
    other.stack[3].function = Some("refill(Shop&)".into());
    model.sites.push(other);
    model.sites.push(SiteRow {
        kind: "malloc".into(),
        stack: vec![frame(Some("alone"), None, false)],
        ..model.sites[0].clone()
    });
    let shown = model.text(Style::default());
    for part in [
        "shop::place_order \u{2190} serve  orders.cc:48  16,560 blocks",
        "shop::place_order \u{2190} refill  orders.cc:48  16,560 blocks",
        "alone  16,560 blocks",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let narrow = |width| Style {
        width: Some(width),
        ..Style::default()
    };
    let shown = model.text(narrow(80));
    let row = "#1 1.5 MiB 99.4 %  shop::place_order \u{2190} serve  orders.cc:48  16,560 blocks\n";
    assert!(shown.contains(row), "{shown}");
    model.by = "function";
    let group = |name: &str| GroupRow {
        name: name.into(),
        frame: None,
        bytes: 1_590_000,
        self_bytes: 96,
        blocks: 16_560,
        error_bytes: None,
        unseen_bytes: 0,
        unreachable_bytes: None,
        unreachable_error_bytes: None,
        allocator_time: None,
        growth_bytes: 0,
        oldest_ms: 9_900,
        heap: None,
        released_bytes: 0,
        released_blocks: 0,
    };
    for (name, shown_at_80) in [
        ("main", "  main\n"),
        (
            "storefront::checkout::Basket::recalculate(Customer const&)",
            "  storefront::checkout::Basket::recalculate(...)\n",
        ),
    ] {
        model.groups = vec![group(name)];
        let shown = model.text(narrow(80));
        assert!(shown.contains(shown_at_80), "{shown}");
        assert_eq!(shown.contains("itself"), name == "main", "{shown}");
    }
    // Text merges the rows into one, and JSON has each row.
    model.by = "thread";
    model.groups = vec![group("thread 8 (ended)"), group("thread 9 (ended)")];
    model.more_rows = 9_998;
    model.folded = Some(FoldedGroups {
        groups: vec![group("10,000 threads that ended")],
        more_rows: 0,
    });
    let shown = model.text(narrow(80));
    assert!(shown.contains("  10,000 threads that ended\n"), "{shown}");
    assert!(
        !shown.contains("(ended)") && !shown.contains("more row"),
        "{shown}"
    );
    let json = serde_json::to_string(&model).expect("JSON");
    assert!(
        json.contains("thread 9 (ended)") && !json.contains("that ended"),
        "{json}"
    );
}

/// A hint that names a command for glibc's heap only also names an alternative, and takes at most
/// two lines.
#[test]
fn hints_about_other_allocators() {
    let with = |allocator: &str, is_linked_in, is_final, rss_bytes| {
        let mut model = report();
        model.coverage = vec![Coverage {
            module: "lib\u{202e}.so".into(),
            allocator: allocator.into(),
            is_linked_in,
            ..Coverage::default()
        }];
        model.is_final = is_final;
        model.rss_bytes = rss_bytes;
        model.text(Style::default())
    };
    let shown = with("jemalloc", false, true, Some(1));
    let hint = "  These blocks come from jemalloc: scan knows its heap; \
                rss 7 asks it what it holds, trim 7 has it give memory back\n";
    assert!(shown.contains(hint), "{shown}");
    let shown = with("tcmalloc", false, true, None);
    assert!(shown.contains("; rss PID asks it"), "{shown}");
    let shown = with("mimalloc", false, true, Some(1));
    assert!(
        shown.contains("scan knows its heap; trim 7 has it"),
        "{shown}"
    );
    let shown = with("jemalloc", true, true, Some(1));
    assert!(
        shown.contains("These blocks come from jemalloc, which is part of lib"),
        "{shown}"
    );
    assert!(
        !shown.contains("rss 7") && !shown.contains('\u{202e}'),
        "{shown}"
    );
    let shown = with("jemalloc", false, false, Some(1));
    assert!(!shown.contains("jemalloc"), "once, at the end: {shown}");

    let mut model = report();
    model.is_final = true;
    model.totals.live_bytes = 9_000;
    model.totals.peak_live_bytes = 10_000;
    model.rss_bytes = Some(512 << 20);
    model.coverage = vec![Coverage {
        allocator: "jemalloc".into(),
        hidden: "Small objects are hidden.".into(),
        ..Coverage::default()
    }];
    let shown = memhook_report::hints_in_words(&model);
    assert_eq!(shown.len(), 2, "{shown:?}");
    assert!(shown[0].starts_with("Nearly all of "), "{shown:?}");
    assert_eq!(shown[1], "Small objects are hidden.");

    model.sites.clear();
    model.totals.live_blocks = 0;
    model.totals.live_bytes = 0;
    let shown = model.text(Style::default());
    let line = "Who allocates it: attach 7 -o run.mhk, then report run.mhk --measure allocated\n";
    assert!(
        shown.contains("Nothing grows: all of ") && shown.contains(line),
        "{shown}"
    );
    model.is_recorded = true;
    let shown = model.text(Style::default());
    assert!(
        shown.contains("Who allocates it: report --measure allocated, or"),
        "{shown}"
    );
}
