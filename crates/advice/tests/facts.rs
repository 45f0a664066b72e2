//! Advice on made-up facts, which needs no process.

use memhook_advice::{Advice, Child, Class, Facts, Kind, advise};
use memhook_report::{
    Amount, Document, Leaks, MappedSite, Measures, Point, Profile, ProfileFrame, ProfileSite,
    RssPart, RssReport, SitePoint, StackFrame, StackGrowth, Style, TwoLooks,
};

const MIB: u64 = 1 << 20;
/// Length of the run in seconds.
const SECONDS: u64 = 60;

/// Returns an account with these parts, in the form of an `rss` document.
fn account(parts: &[(&str, u64)]) -> RssReport {
    let parts: Vec<RssPart> = parts
        .iter()
        .map(|(name, mib)| RssPart {
            name: (*name).to_owned().into(),
            bytes: mib * MIB,
        })
        .collect();
    let rss: u64 = parts.iter().map(|part| part.bytes).sum();
    let json = serde_json::json!({
        "pid": 7, "rss_bytes": rss, "pss_bytes": null, "private_dirty_bytes": null, "swap_bytes": 0,
        "huge_page_bytes": 0, "hugetlb_bytes": 0, "parts": parts, "trim_bytes": 0,
        "allocator": null, "arenas": [], "mapped_bytes": 0, "holdings": [], "more_holdings": 0,
        "pins": [], "more_pins": 0, "snapshot": null, "notes": [],
    });
    serde_json::from_value(json).expect("an account")
}

/// Returns a run in which each site's live bytes are a function of the elapsed share of the run.
/// All blocks were searched and are reachable.
fn run(sites: &[(&str, &dyn Fn(f64) -> f64)]) -> Profile {
    let mut profile = Profile {
        to_ns: SECONDS * 1_000_000_000,
        leaks: Some(Leaks {
            snapshot: serde_json::from_str(
                r#"{"method":"fork","held_ms":1.0,"prepare_held_ms":1.0,"copied_bytes":1}"#,
            )
            .ok(),
            ..Leaks::default()
        }),
        ..Profile::default()
    };
    let bytes = |bytes: f64| Amount {
        blocks: (bytes / 1000.0) as u64,
        bytes: bytes as u64,
        ..Amount::default()
    };
    for (at, (name, live)) in (0u32..).zip(sites) {
        profile.frames.push(ProfileFrame {
            address: u64::from(at),
            module: None,
            frame: frame(name),
        });
        profile.stacks.push(vec![at]);
        profile.sites.push(ProfileSite {
            stack: at,
            kind: "malloc".into(),
            measures: Measures {
                live: bytes(live(1.0)),
                ..Measures::default()
            },
            ..ProfileSite::default()
        });
    }
    for point in 0..=100u32 {
        let share = f64::from(point) / 100.0;
        let all: f64 = sites.iter().map(|(_, live)| live(share)).sum();
        profile.timeline.push(Point {
            time_ns: (share * profile.to_ns as f64) as u64,
            live: bytes(all),
            ..Point::default()
        });
        for (site, (_, live)) in (0u32..).zip(sites) {
            profile.changes.push(SitePoint {
                point,
                site,
                live: bytes(live(share)),
                ..SitePoint::default()
            });
        }
    }
    profile
}

/// Adds two looks, between which the live heap changed by `heap` MiB and each site by its given
/// growth.
fn with_looks(profile: &mut Profile, first: RssReport, heap: (u64, u64), grown: &[u64]) {
    let stacks = (0u32..).zip(grown).map(|(stack, mib)| StackGrowth {
        stack,
        live_bytes: profile.sites[stack as usize].measures.live.bytes,
        at_least_bytes: mib * MIB,
        at_most_bytes: mib * MIB,
    });
    profile.looks = Some(Box::new(TwoLooks {
        first,
        first_ms: 1,
        last_ms: SECONDS * 1000,
        live_bytes: Some((heap.0 * MIB, heap.1 * MIB)),
        stacks: stacks.collect(),
        mapped: Vec::new(),
    }));
}

fn frame(function: &str) -> StackFrame {
    StackFrame {
        address: "0x1".into(),
        module: Some("shop".into()),
        offset: None,
        function: Some(function.into()),
        file: Some("shop.c".into()),
        line: Some(7),
        inlined: false,
    }
}

fn advice(profile: &Profile, account: &RssReport) -> Advice {
    advise(&Facts {
        profile,
        account: Some(account),
        stale: None,
        is_running: true,
        is_traced: true,
        larger_child: None,
    })
}

fn kinds(advice: &Advice) -> Vec<Kind> {
    advice.findings.iter().map(|finding| finding.kind).collect()
}

fn mib(share: f64, most: f64) -> f64 {
    share * most * MIB as f64
}

/// The process allocated 40 MiB of new blocks, and released 40 MiB of old blocks, so nothing grows.
#[test]
fn a_full_cache_is_bounded() {
    let mut profile = run(&[("remember", &|t| mib(t, 40.0))]);
    let (before, after) = (
        account(&[("live heap", 100)]),
        account(&[("live heap", 100)]),
    );
    with_looks(&mut profile, before, (100, 100), &[0]);
    let found = advice(&profile, &after);
    assert_eq!((found.class, kinds(&found)), ("nothing", Vec::new()));
    assert_eq!(found.sites[0].class, Class::Bounded);
    // This also holds with the resident memory alone.
    profile.looks = None;
    profile.resident = [0, 59_000]
        .map(|time_ms| memhook_report::ResidentPoint {
            time_ms,
            anonymous_bytes: 100 * MIB,
            ..Default::default()
        })
        .into();
    let found = advice(&profile, &after);
    assert_eq!((found.class, kinds(&found)), ("nothing", Vec::new()));
}

#[test]
fn what_grows_behind_a_full_cache_is_found_alone() {
    let mut profile = run(&[
        ("remember", &|t| mib(t, 40.0)),
        ("keep_session", &|t| mib(t, 10.0)),
    ]);
    let (before, after) = (
        account(&[("live heap", 100)]),
        account(&[("live heap", 110)]),
    );
    with_looks(&mut profile, before, (100, 110), &[0, 10]);
    let found = advice(&profile, &after);
    assert_eq!(
        (found.class, kinds(&found)),
        ("unbounded", vec![Kind::Growth])
    );
    let place = found.findings[0].place.as_deref();
    assert_eq!(place, Some("keep_session (shop.c:7)"));
    assert_eq!(found.findings[0].gain_bytes_an_hour, Some(600 * MIB));
    let live = found.lines.iter().find(|line| line.what == "live heap");
    let live = live.map(|line| (line.bytes_before, line.bytes));
    assert_eq!(live, Some((Some(100 * MIB), 110 * MIB)));
}

/// If two sites have equal sizes, only their combined growth is known.
#[test]
fn shared_sizes_make_growth_an_estimate() {
    let mut profile = run(&[("one", &|t| mib(t, 30.0)), ("other", &|t| mib(t, 30.0))]);
    let (before, after) = (
        account(&[("live heap", 100)]),
        account(&[("live heap", 130)]),
    );
    with_looks(&mut profile, before, (100, 130), &[30, 30]);
    if let Some(looks) = &mut profile.looks {
        looks.stacks[0].at_least_bytes = 0;
        looks.stacks[1].at_least_bytes = 0;
    }
    let found = advice(&profile, &after);
    assert_eq!(found.class, "unbounded");
    assert!(
        found
            .findings
            .iter()
            .all(|one| one.certainty == "estimated")
    );
}

#[test]
fn a_cache_that_fills_up_and_a_burst_are_nothing_to_do() {
    let mut profile = run(&[
        ("warm", &|t| mib(1.0 - (-6.0 * t).exp(), 30.0)),
        ("batch", &|t| {
            if (0.2..0.6).contains(&t) {
                mib(1.0, 50.0)
            } else {
                0.0
            }
        }),
    ]);
    let before = account(&[("live heap", 100)]);
    // The memory of the batch is free, and will be needed again.
    let mut after = account(&[("live heap", 130), ("free inside the allocator", 45)]);
    after.trim_bytes = 45 * MIB;
    with_looks(&mut profile, before, (100, 130), &[30, 0]);
    let found = advice(&profile, &after);
    assert_eq!((found.class, kinds(&found)), ("nothing", Vec::new()));
    let classes: Vec<Class> = found.sites.iter().map(|site| site.class).collect();
    assert_eq!(classes, [Class::Warming, Class::Burst]);
}

#[test]
fn one_step_is_not_enough_to_tell() {
    let mut profile = run(&[("load", &|t| if t > 0.9 { mib(1.0, 30.0) } else { 0.0 })]);
    let (before, after) = (
        account(&[("live heap", 100)]),
        account(&[("live heap", 130)]),
    );
    with_looks(&mut profile, before, (100, 130), &[30]);
    let found = advice(&profile, &after);
    assert_eq!(
        (found.class, found.more_seconds),
        ("unsure", Some(2 * SECONDS))
    );
    assert!(found.findings.is_empty() && found.answer.is_none());
}

/// The buffer existed before the attach, and its full size appears when it is first enlarged.
#[test]
fn a_buffer_that_was_there_before_grows_by_what_was_added() {
    let mut profile = run(&[("append", &|t| {
        if t > 0.0 {
            mib(1.0, 100.0) + mib(t, 10.0)
        } else {
            0.0
        }
    })]);
    profile.sites[0].kind = "realloc".into();
    let (before, after) = (
        account(&[("live heap", 200)]),
        account(&[("live heap", 210)]),
    );
    with_looks(&mut profile, before, (200, 210), &[110]);
    let found = advice(&profile, &after);
    assert_eq!(
        (found.class, kinds(&found)),
        ("unbounded", vec![Kind::Growth])
    );
    assert_eq!(found.findings[0].gain_bytes, 110 * MIB);
    let rate = found.findings[0].gain_bytes_an_hour.unwrap_or(0);
    assert!((9 * 60 * MIB..=600 * MIB).contains(&rate), "{rate}");
    assert!(found.findings[0].found.contains("by realloc"));
}

/// Certain findings precede probable ones, even larger ones.
#[test]
fn what_is_certain_comes_first() {
    let mut profile = run(&[("grow", &|t| mib(t, 30.0))]);
    let first = account(&[("live heap", 100), ("mappings", 10)]);
    let after = account(&[("live heap", 130), ("mappings", 14)]);
    with_looks(&mut profile, first, (100, 130), &[30]);
    if let Some(looks) = &mut profile.looks {
        looks.stacks[0].at_least_bytes = 0;
    }
    let found = advice(&profile, &after);
    assert_eq!(kinds(&found), [Kind::Mappings, Kind::Growth]);
}

#[test]
fn a_damaged_heap_is_not_reclaimed() {
    let mut profile = run(&[]);
    let leak = r#"{"bytes":9000000,"blocks":9,"held_bytes":0,"held_blocks":0,"kind":"malloc","truncated":false,"stack":[]}"#;
    let leaks = profile.leaks.as_mut().expect("a search");
    leaks.sites = vec![serde_json::from_str(leak).expect("a site")];
    let after = account(&[("live heap", 100)]);
    let found = advice(&profile, &after);
    assert!(found.findings[0].remedy.contains("--reclaim"));
    let leaks = profile.leaks.as_mut().expect("a search");
    leaks
        .gaps
        .push("the heap does not parse at 0x1000 (a write): no chunk".into());
    let found = advice(&profile, &after);
    assert_eq!(kinds(&found), [Kind::Leak]);
    assert!(!found.findings[0].remedy.contains("reclaim"), "{found:?}");
}

#[test]
fn growing_mappings_have_a_caller() {
    let mut profile = run(&[]);
    let first = account(&[("live heap", 10), ("mappings", 10)]);
    let after = account(&[("live heap", 10), ("mappings", 50)]);
    with_looks(&mut profile, first, (10, 10), &[]);
    let mapped = |mib: u64, function: &str| MappedSite {
        resident_bytes: mib * MIB,
        stack: vec![frame(function)],
    };
    let looks = profile.looks.as_mut().expect("two looks");
    looks.mapped = vec![mapped(39, "load_tile"), mapped(1, "map_log")];
    let found = advice(&profile, &after);
    assert_eq!(found.class, "mappings");
    let finding = &found.findings[0];
    assert_eq!(finding.place.as_deref(), Some("load_tile (shop.c:7)"));
    assert!(finding.found.contains("load_tile"), "{}", finding.found);
    // A caller of a small part is not to blame.
    let looks = profile.looks.as_mut().expect("two looks");
    looks.mapped.remove(0);
    let found = advice(&profile, &after);
    assert_eq!((found.class, &found.findings[0].place), ("mappings", &None));
}

/// Without a search, a process without findings is not called healthy.
#[test]
fn a_failed_search_is_no_clean_bill_of_health() {
    let mut profile = run(&[]);
    let account = account(&[("live heap", 10)]);
    assert_eq!(advice(&profile, &account).class, "nothing");
    let why = "the process ended before its memory could be searched";
    profile.leaks = Some(Leaks {
        gaps: vec![why.into()],
        ..Leaks::default()
    });
    let found = advice(&profile, &account);
    assert_eq!((found.class, found.more_seconds), ("unsure", None));
    assert!(found.headline().starts_with("Nothing was found, but "));
    assert!(found.headline().ends_with(why), "{}", found.headline());
}

#[test]
fn unexplained_memory_comes_first() {
    let after = account(&[("live heap", 10), ("unknown", 1)]);
    let found = advice(&run(&[]), &after);
    assert_eq!(found.unexplained_bytes, Some(MIB));
    let text = found.text(Style::default());
    assert!(text.starts_with("1.0 MiB of 11.0 MiB resident"), "{text}");
}

#[test]
fn the_page_draws_every_site_with_its_class() {
    let mut profile = run(&[("remember", &|t| mib(t, 40.0))]);
    let (before, after) = (
        account(&[("live heap", 100)]),
        account(&[("live heap", 140)]),
    );
    with_looks(&mut profile, before, (100, 140), &[40]);
    profile.resident = [0, 30_000, 60_000]
        .map(|time_ms| memhook_report::ResidentPoint {
            time_ms,
            anonymous_bytes: (100 + time_ms / 1500) * MIB,
            ..Default::default()
        })
        .into();
    let found = advice(&profile, &after);
    let site = &found.sites[0];
    assert_eq!(site.live_over_time.last(), Some(&(40 * MIB)));
    assert_eq!(
        site.seen,
        "it grew by 13.2 MiB, 13.2 MiB and 13.6 MiB in the three thirds of the time"
    );
    let page = found.page();
    assert_eq!(page.matches("<svg viewBox=\"0 0 1060").count(), 2);
    for text in ["remember (shop.c:7)", "unbounded", "anonymous memory"] {
        assert!(page.contains(text), "{text}");
    }
}

#[test]
fn only_growth_is_predicted() {
    for (heap, is_predicted) in [((60, 20), false), ((20, 60), true)] {
        let mut profile = run(&[("work", &|t| mib(t, 20.0))]);
        let first = account(&[("live heap", heap.0)]);
        with_looks(&mut profile, first, heap, &[0]);
        let found = advice(&profile, &account(&[("live heap", heap.1)]));
        let text = found.text(Style::default());
        assert_eq!(
            text.contains("an hour at this rate"),
            is_predicted,
            "{text}"
        );
    }
}

/// The last look comes before the end of the trace, and the next burst begins in between.
#[test]
fn a_burst_after_the_last_look_is_none() {
    let is_up = |t: f64| (0.2..0.4).contains(&t) || t > 0.95;
    let mut profile = run(&[("batch", &|t| if is_up(t) { mib(1.0, 50.0) } else { 0.0 })]);
    let before = account(&[("live heap", 100)]);
    let mut after = account(&[("live heap", 100), ("free inside the allocator", 45)]);
    after.trim_bytes = 45 * MIB;
    with_looks(&mut profile, before, (100, 100), &[0]);
    let looks = profile.looks.as_mut().expect("two looks");
    looks.last_ms = 55_000;
    let found = advice(&profile, &after);
    assert_eq!((found.class, kinds(&found)), ("nothing", Vec::new()));
}

#[test]
fn a_child_with_more_memory_is_named() {
    let profile = run(&[]);
    let account = account(&[("live heap", 10)]);
    let facts = |larger_child| Facts {
        profile: &profile,
        account: Some(&account),
        stale: None,
        is_running: true,
        is_traced: true,
        larger_child,
    };
    assert_eq!(advise(&facts(None)).class, "nothing");
    let found = advise(&facts(Some(Child {
        pid: 8,
        name: "worker".into(),
        rss_bytes: 20 * MIB,
    })));
    assert_eq!(found.class, "unsure");
    assert_eq!(
        found.headline(),
        "Nothing was found, but its child process 8 (worker) holds more memory (20.0 MiB) and was not examined: memhook-rs advise 8"
    );
}

/// A buffer belongs to the call that last enlarged it, and to no call while it is being copied.
#[test]
fn a_buffer_that_several_calls_enlarge_is_one() {
    let is_first = |t: f64| ((t * 100.0) as u64).is_multiple_of(2);
    let of = |t: f64, first: bool| match is_first(t) == first && (t * 100.0) as u64 != 50 {
        true => mib(1.0, 50.0) + mib(t, 20.0),
        false => 0.0,
    };
    let mut profile = run(&[("append", &|t| of(t, true)), ("append", &|t| of(t, false))]);
    for site in &mut profile.sites {
        site.kind = "realloc".into();
    }
    let (before, after) = (account(&[("live heap", 60)]), account(&[("live heap", 80)]));
    with_looks(&mut profile, before, (60, 80), &[20, 0]);
    let found = advice(&profile, &after);
    assert_eq!(
        (found.class, kinds(&found)),
        ("unbounded", vec![Kind::Growth])
    );
    assert_eq!(found.sites.len(), 1, "{:?}", found.sites);
}

/// Free memory is not the advice's answer if a site has grown by more and may keep growing.
#[test]
fn unsure_growth_comes_before_smaller_free_memory() {
    let mut profile = run(&[("load", &|t| if t > 0.9 { mib(1.0, 30.0) } else { 0.0 })]);
    let before = account(&[("live heap", 100)]);
    let mut after = account(&[("live heap", 130), ("free inside the allocator", 10)]);
    after.trim_bytes = 10 * MIB;
    with_looks(&mut profile, before, (100, 130), &[30]);
    let found = advice(&profile, &after);
    assert_eq!((found.class, found.answer.as_ref()), ("unsure", None));
    assert_eq!(kinds(&found), [Kind::Retention]);
    assert!(!found.can_be_tried());
    let text = found.text(Style::default());
    let place = "Where: load (shop.c:7): 30.0 MiB more than at the beginning";
    assert_eq!(text.lines().nth(1), Some(place), "{text}");
}

/// The trace ends while the buffer is being copied, but the last look has found the buffer.
#[test]
fn a_buffer_that_is_copied_at_the_end_is_not_gone() {
    let in_flight = |t: f64| (0.4..0.5).contains(&t) || t > 0.99;
    let of = |t: f64| match in_flight(t) {
        true => 0.0,
        false => mib(1.0, 50.0) + mib(t, 40.0),
    };
    let mut profile = run(&[("append", &of)]);
    profile.sites[0].kind = "realloc".into();
    let (before, after) = (account(&[("live heap", 50)]), account(&[("live heap", 90)]));
    with_looks(&mut profile, before.clone(), (50, 90), &[0]);
    assert_eq!(advice(&profile, &after).class, "unbounded");
    // It was released: the heap has shrunk.
    with_looks(&mut profile, before.clone(), (50, 10), &[0]);
    assert_eq!(advice(&profile, &before).class, "nothing");
}

/// The walks do not recognize the heap, so the heap is counted with the mappings.
#[test]
fn growth_in_a_heap_that_is_not_walked_has_a_site() {
    let mut profile = run(&[("keep_more", &|t| mib(t, 20.0))]);
    let first = account(&[("live heap", 1), ("mappings", 2)]);
    let after = account(&[("live heap", 1), ("mappings", 22)]);
    with_looks(&mut profile, first, (1, 1), &[0]);
    let looks = profile.looks.as_mut().expect("two looks");
    looks.stacks.clear();
    let found = advice(&profile, &after);
    assert_eq!(
        (found.class, kinds(&found)),
        ("unbounded", vec![Kind::Growth])
    );
    assert_eq!(found.findings[0].certainty, "estimated");
    assert_eq!(found.lines[0].bytes_an_hour, Some(20 * 60 * MIB as i64));
    // If the mappings have not grown, other blocks must have been released.
    let after = account(&[("live heap", 1), ("mappings", 2)]);
    assert_eq!(advice(&profile, &after).class, "nothing");
}

/// The allocator returns free memory by itself after some time, and requests it again for each
/// burst.
#[test]
fn free_memory_that_comes_and_goes_is_not_kept() {
    let is_up = |t: f64| (0.2..0.4).contains(&t) || (0.8..0.99).contains(&t);
    let mut profile = run(&[("batch", &|t| if is_up(t) { mib(1.0, 11.0) } else { 0.0 })]);
    let before = account(&[("live heap", 1)]);
    let mut after = account(&[("live heap", 1), ("free inside the allocator", 18)]);
    after.trim_bytes = 18 * MIB;
    with_looks(&mut profile, before, (1, 1), &[0]);
    let resident = |anonymous_mib: [u64; 6]| {
        let points = (0..).zip(anonymous_mib);
        let points = points.map(|(at, mib)| memhook_report::ResidentPoint {
            time_ms: at * 12_000,
            anonymous_bytes: mib * MIB,
            ..Default::default()
        });
        points.collect::<Vec<_>>()
    };
    profile.resident = resident([2, 13, 13, 10, 13, 20]);
    let found = advice(&profile, &after);
    assert_eq!((found.class, kinds(&found)), ("nothing", Vec::new()));
    // The other memory was free all the time.
    profile.resident = resident([20, 20, 20, 20, 20, 20]);
    let found = advice(&profile, &after);
    assert_eq!(kinds(&found), [Kind::Retention]);
    assert_eq!(found.findings[0].gain_bytes, 7 * MIB);
}
