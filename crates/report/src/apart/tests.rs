//! Labels in a small space, and the differences between sites that look alike.

use super::*;

fn frame(text: &str) -> StackFrame {
    let (function, line) = text.split_once('@').unwrap_or((text, "1"));
    StackFrame {
        function: Some(function.into()),
        file: Some("src/a.cc".into()),
        line: line.parse().ok(),
        ..StackFrame::default()
    }
}

fn shown_in(room: usize, stacks: &[&str]) -> Vec<String> {
    let stacks: Vec<Vec<StackFrame>> = stacks
        .iter()
        .map(|stack| stack.split_whitespace().map(frame).collect())
        .collect();
    let sites = stacks.iter().zip(1..).map(|(frames, stack)| KnownSite {
        stack,
        kind: "malloc",
        frames,
    });
    let sites: Vec<KnownSite> = sites.collect();
    let shown = labels(&sites, room, Style::default());
    let shown = shown.into_iter().zip(&sites).map(|(label, site)| {
        let text = format!("{} {}{}", label.name, label.place, label.callers);
        let columns = columns(&text) + 1;
        let least = least_columns(std::slice::from_ref(site), Style::default());
        assert!(columns <= room.max(least), "{text}: {columns} > {room}");
        text
    });
    shown.collect()
}

fn shown(stacks: &[&str]) -> Vec<String> {
    let shown = shown_in(60, stacks);
    shown
        .into_iter()
        .map(|text| text.replacen(" src/a.cc:1", "", 1))
        .collect()
}

#[test]
fn the_caller_that_differs_comes_first() {
    assert_eq!(
        shown(&["copy load main", "copy load store main", "free main"]),
        [
            "copy \u{2190} \u{2026} \u{2190} main",
            "copy \u{2190} \u{2026} \u{2190} store \u{2190} main",
            "free \u{2190} main",
        ]
    );
    // One stack may end where the other continues.
    assert_eq!(
        shown(&["a b c", "a b"]),
        ["a \u{2190} \u{2026} \u{2190} c", "a \u{2190} b"]
    );
}

#[test]
fn of_the_same_calls_it_is_the_line() {
    assert_eq!(
        shown(&["a@1 b@4 main", "a@1 b@9 main"]),
        [
            "a \u{2190} b (a.cc:4) \u{2190} main",
            "a \u{2190} b (a.cc:9) \u{2190} main"
        ]
    );
    assert_eq!(shown(&["a@3", "a@2"]), ["a src/a.cc:3", "a src/a.cc:2"]);
    assert_eq!(shown(&[""]), ["(no call stack) "]);
    // The sites differ only in frames that are not shown: the allocator's function, or functions of
    // the C++ library.
    assert_eq!(
        shown(&["std::x a b", "std::y a b"]),
        ["a [std::x] \u{2190} b", "a [std::y] \u{2190} b"]
    );
    assert_eq!(
        shown(&["std::x@3 a b", "std::x@4 a b"]),
        [
            "a [a.cc:3 std::x] \u{2190} b",
            "a [a.cc:4 std::x] \u{2190} b"
        ]
    );
    assert_eq!(
        shown(&["std::f(int) a", "std::g(int) a"]),
        ["a [std::f]", "a [std::g]"]
    );
    assert_eq!(shown(&["a", "a"]), ["a [stack 1]", "a [stack 2]"]);
}

#[test]
fn names_fit_and_overloads_stay_apart() {
    assert_eq!(shown(&["f(int) a"]), ["f \u{2190} a"]);
    assert_eq!(
        shown(&["f(int) a", "f(char) a"]),
        ["f(int) \u{2190} a", "f(char) \u{2190} a"]
    );
}

#[test]
fn a_line_number_is_the_last_to_go() {
    let long = "shop::Cache<Order,Customer>::place_order@42 serve main";
    for (room, expected) in [
        (
            70,
            "shop::Cache<Order,Customer>::place_order src/a.cc:42 \u{2190} serve",
        ),
        (60, "shop::Cache<Order,Customer>::place_order src/a.cc:42"),
        (42, "shop::Cache<...>::place_order src/a.cc:42"),
        (31, "...::Cache::place_order a.cc:42"),
    ] {
        let shown = &shown_in(room + 1, &[long])[0];
        assert!(shown.starts_with(expected), "{room}: {shown}");
    }
    // A label drops directories and parts of the name before it drops the difference between sites.
    let alike = [
        "place_many_orders@42 serve main",
        "place_many_orders@42 print main",
    ];
    for (room, expected) in [
        (
            60,
            "place_many_orders src/a.cc:42 \u{2190} serve \u{2190} main",
        ),
        (40, "place_many_orders src/a.cc:42 \u{2190} serve"),
        (36, "place_many_orders a.cc:42 \u{2190} serve"),
    ] {
        let shown = &shown_in(room, &alike)[0];
        assert!(shown.starts_with(expected), "{room}: {shown}");
    }
    // A label is never wider than requested, and always contains its line number.
    for room in 34..100 {
        for shown in shown_in(room, &[long, alike[0], alike[1]]) {
            assert!(shown.contains("a.cc:42"), "{room}: {shown}");
        }
    }
}

/// Tests three sites, each of which has something in common with another site.
#[test]
fn what_tells_one_apart_is_not_what_two_have_in_common() {
    let alike = [
        "std::a std::node x",
        "std::b std::node x",
        "std::b x",
        "std::a x",
    ];
    let shown = shown(&alike);
    let count = shown.iter().collect::<HashSet<_>>().len();
    assert_eq!(count, alike.len(), "{shown:#?}");
    let stacks: Vec<Vec<StackFrame>> = alike
        .iter()
        .map(|stack| stack.split_whitespace().map(frame).collect())
        .collect();
    let sites = stacks.iter().zip(1..).map(|(frames, stack)| KnownSite {
        stack,
        kind: "new",
        frames,
    });
    let found = asides(
        &sites.collect::<Vec<_>>(),
        &vec!["x".to_owned(); alike.len()],
    );
    let count = found.iter().collect::<HashSet<_>>().len();
    assert_eq!(count, alike.len(), "{found:#?}");
}

#[test]
fn what_tells_rows_apart_is_cut_last() {
    let alike = [
        "std::make_unique<shop::Session,shop::Name> shop::Sessions::login@26 serve",
        "std::make_shared<shop::Session,shop::Name> shop::Sessions::login@26 serve",
        "std::vector<std::byte>::_M_default_append shop::Sessions::login@26 serve",
        "std::vector<std::byte>::_M_realloc_insert shop::Sessions::login@26 serve",
    ];
    let distinct = |room: usize| {
        let shown = shown_in(room, &alike);
        let count = shown.iter().collect::<HashSet<_>>().len();
        assert_eq!(count, alike.len(), "{room}: {shown:#?}");
        shown
    };
    for room in 45..120 {
        distinct(room);
    }
    // The label is complete at the width that a row requests, and at any larger width.
    let sites: Vec<Vec<StackFrame>> = alike
        .iter()
        .map(|stack| stack.split_whitespace().map(frame).collect())
        .collect();
    let sites: Vec<KnownSite> = sites
        .iter()
        .zip(1..)
        .map(|(frames, stack)| KnownSite {
            stack,
            kind: "new",
            frames,
        })
        .collect();
    let least = least_columns(&sites, Style::default());
    assert!(least < 70, "{least}");
    for shown in distinct(least + 1) {
        assert!(
            shown.starts_with("shop::Sessions::login") && shown.contains(']'),
            "{shown}"
        );
    }
}

#[test]
fn rows_that_look_alike_have_an_aside() {
    let found = |stacks: &[&str]| {
        let stacks: Vec<Vec<StackFrame>> = stacks
            .iter()
            .map(|stack| stack.split_whitespace().map(frame).collect())
            .collect();
        let sites = stacks.iter().zip(1..).map(|(frames, stack)| KnownSite {
            stack,
            kind: "new",
            frames,
        });
        let looks = stacks
            .iter()
            .map(|stack| from_responsible(stack)[0].function.clone());
        let looks: Vec<String> = looks.map(Option::unwrap_or_default).collect();
        asides(&sites.collect::<Vec<_>>(), &looks)
    };
    assert_eq!(found(&["a b", "c b"]), ["", ""]);
    assert_eq!(
        found(&["a b(int) c", "a d c", "x"]),
        [" \u{2190} b", " \u{2190} d", ""]
    );
    assert_eq!(found(&["a b", "a b c"]), ["", " \u{2190} c"]);
    assert_eq!(
        found(&["a b@4", "a b@9"]),
        [" \u{2190} b (a.cc:4)", " \u{2190} b (a.cc:9)"]
    );
    assert_eq!(found(&["a@1", "a@2"]), [" (a.cc:1)", " (a.cc:2)"]);
    assert_eq!(
        found(&["std::f(int) a", "std::g(int) a"]),
        [" [std::f]", " [std::g]"]
    );
    assert_eq!(found(&["std::f(int) a", "a"]), [" [std::f]", " [new]"]);
}

#[test]
fn rows_that_differ_are_shown_from_the_inside() {
    assert_eq!(shown(&["a b", "c d"]), ["a \u{2190} b", "c \u{2190} d"]);
}
