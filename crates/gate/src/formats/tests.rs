//! One verdict in every format.

use super::*;
use crate::{Ending, Evidence, Exceptions, Leak, Limits, judge};
use memhook_report::claims::Seen;

/// Returns a verdict with two leaks. One leaked block points to other blocks, and its site has a
/// name that every format must escape.
pub fn example() -> Verdict {
    let frame = |function: &str, file: &str, line| SourceFrame {
        function: Some(function.into()),
        file: Some(file.into()),
        line: Some(line),
        module: Some("/opt/app/bin/tests".into()),
        svma: 0x1234,
        ..SourceFrame::default()
    };
    let site = |kind: &str, stack| AllocationSite {
        symbol: Some("malloc".into()),
        kind: kind.into(),
        stack,
        truncated: false,
        heap: None,
        live: Sum {
            blocks: 2,
            bytes: 96,
        },
    };
    let main = frame("main", "/src/app/main.cc", 9);
    let evidence = Evidence {
        program: "./tests --all".into(),
        seen: Some(Seen::default()),
        ending: Ending::Exited(0),
        sites: vec![
            site(
                "malloc",
                vec![
                    frame("Map<A, B>::add(\"%|&\")", "/src/app/map,h.cc", 42),
                    main.clone(),
                ],
            ),
            site("new", vec![frame("node", "/src/app/node.cc", 7), main]),
            AllocationSite {
                kind: "unknown".into(),
                ..AllocationSite::default()
            },
        ],
        leaks: vec![
            Leak {
                site: 0,
                direct: Sum {
                    blocks: 2,
                    bytes: 4096,
                },
                indirect: vec![(
                    1,
                    Sum {
                        blocks: 9,
                        bytes: 90,
                    },
                )],
                growth: None,
            },
            Leak {
                site: 2,
                direct: Sum {
                    blocks: 1,
                    bytes: 12,
                },
                ..Leak::default()
            },
        ],
        reachable: Sum {
            blocks: 3,
            bytes: 72,
        },
        peak_bytes: 10_000,
        allocations: 77,
        elapsed: std::time::Duration::from_millis(1500),
        ..Evidence::default()
    };
    judge(
        evidence,
        &Limits::default(),
        &mut Exceptions::default(),
        false,
    )
}

fn shown(format: &str, top: usize) -> String {
    let options = FormatOptions {
        top,
        source_root: "/src/app".into(),
        ..FormatOptions::default()
    };
    rendered(format, &vec![example()].into(), &options).unwrap()
}

#[test]
fn the_text() {
    let expected = "\
#1 4.0 KiB in 2 blocks leaked, by malloc, and 90 B in 9 blocks that only they reach
      Map<A, B>::add(\"%|&\")  map,h.cc:42
      main  main.cc:9
   90 B in 9 blocks, by new: node  node.cc:7

#2 12 B in 1 block leaked, by unknown
      (no allocation stack: allocated before the attach, or allocated by a call that was not recorded)

  ./tests --all ended with exit status 0
  still reachable 72 B in 3 blocks, peak 9.8 KiB, 77 allocations
FAILED: 2 leaks, 4.1 KiB in 12 blocks (limit 0): Map<A, B>::add (map,h.cc:42), and 1 more
accept it: --gen-suppressions prints rules for --suppressions; or --write-baseline FILE, and --baseline FILE from then on
";
    assert_eq!(shown("text", 10), expected);
    assert!(shown("text", 1).contains("... and 1 more leak"));
}

#[test]
fn names_and_paths_are_short() {
    let string = "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >";
    let frame = SourceFrame {
        function: Some(format!(
            "load({string}, {})",
            "std::vector<Order>, ".repeat(9)
        )),
        file: Some("/src/app/deep/load.cc".into()),
        line: Some(3),
        ..SourceFrame::default()
    };
    let mut options = FormatOptions {
        source_root: "/src/app".into(),
        ..FormatOptions::default()
    };
    assert_eq!(frame_line(&frame, &options), "load(...)  deep/load.cc:3");
    options.lists_all = true;
    let whole = frame_line(&frame, &options);
    assert!(
        whole.starts_with("load(std::string, std::vector<Order>, "),
        "{whole}"
    );
}

#[test]
fn a_leak_takes_at_most_fifteen_lines() {
    let mut verdict = example();
    let sites = &mut verdict.evidence.sites;
    let frame = sites[1].stack[0].clone();
    sites[0].stack.extend(vec![frame.clone(); 40]);
    sites[1].stack.extend(vec![frame; 40]);
    let sites = sites.len();
    let node = verdict.evidence.sites[1].clone();
    verdict.evidence.sites.extend(vec![node; 9]);
    let indirect = (sites..sites + 9).map(|site| {
        (
            site,
            Sum {
                blocks: 1,
                bytes: 8,
            },
        )
    });
    verdict.evidence.leaks[0].indirect.extend(indirect);
    let verdict = judge(
        verdict.evidence,
        &Limits::default(),
        &mut Exceptions::default(),
        false,
    );
    let lines = |lists_all| {
        let options = FormatOptions {
            top: 1,
            lists_all,
            ..FormatOptions::default()
        };
        let text = rendered("text", &vec![verdict.clone()].into(), &options).unwrap();
        let first = text.split("\n\n").next().unwrap().lines().count();
        (first, text)
    };
    let (short, text) = lines(false);
    assert!(short <= 15, "{text}");
    assert!(text.contains("... 34 more frames (-v)"), "{text}");
    assert!(lines(true).0 > 100);
}

#[test]
fn a_program_that_failed_did_not_pass() {
    let of = |ending| {
        let evidence = Evidence {
            program: "./tests --all".into(),
            ending,
            ..Evidence::default()
        };
        headline(&judge(
            evidence,
            &Limits::default(),
            &mut Exceptions::default(),
            false,
        ))
    };
    assert_eq!(of(Ending::Exited(0)), "PASSED: no leaks");
    assert_eq!(
        of(Ending::Exited(3)),
        "no leaks; ./tests itself failed with exit status 3"
    );
    assert_eq!(
        of(Ending::Signaled(11)),
        "no leaks; ./tests itself was ended by SIGSEGV"
    );
}

#[test]
fn machines_can_read_the_others() {
    let value: serde_json::Value = serde_json::from_str(&shown("json", 10)).unwrap();
    assert_eq!(value["outcome"], "failed");
    assert_eq!(value["leaked"]["bytes"], 4198);
    let sarif: serde_json::Value = serde_json::from_str(&shown("sarif", 10)).unwrap();
    let result = &sarif["runs"][0]["results"][0];
    let place = &result["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "map%2Ch.cc");
    assert_eq!(place["region"]["startLine"], 42);
    assert_eq!(sarif["runs"][0]["results"].as_array().unwrap().len(), 2);
    let junit = quick_junit::Report::deserialize_from_str(&shown("junit", 10)).unwrap();
    assert_eq!((junit.tests, junit.failures), (2, 2));
    let seconds = std::time::Duration::from_millis(1500);
    assert_eq!(junit.time, Some(seconds));
    let suite = &junit.test_suites[0];
    assert_eq!(suite.time, Some(seconds));
    let of_cases = suite.test_cases.iter().map(|case| case.time.unwrap());
    assert_eq!(of_cases.sum::<std::time::Duration>(), seconds);
    let notes = shown("github", 10);
    let line = notes.lines().next().unwrap();
    assert!(
        line.starts_with("::error file=map%2Ch.cc,line=42,title="),
        "{line}"
    );
    assert!(line.contains("%25|&") && line.contains("%0A"), "{line}");
    assert!(notes.lines().all(|line| line.starts_with("::error ")));
    let markdown = shown("markdown", 10);
    assert!(markdown.starts_with("### ") && markdown.contains("map,h.cc:42"));
}

#[test]
fn suppressions_suppress() {
    let verdict = example();
    let written = shown("suppressions", 10);
    let mut known = Exceptions::default();
    known.suppressions.read("x", &written).unwrap();
    let evidence = verdict.evidence;
    let again = judge(evidence, &Limits::default(), &mut known, false);
    // Leaks without a stack have no identity.
    assert_eq!(
        again.leaked,
        Sum {
            blocks: 1,
            bytes: 12
        },
        "{written}"
    );
}
