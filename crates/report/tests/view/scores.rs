//! Scores, findings, and the chunks of a site.

use super::*;
use memhook_recording::{Chunk, ChunkAccesses, KeptChunks, ScoredSite};

/// Number of chunks of the first site.
const MANY: u64 = 1_000_000;

/// Returns a run whose first site has a million chunks and a bad score. The scores of the other
/// sites improve from site to site.
fn scored_run() -> Profile {
    let mut profile = run();
    let mut stacks: Vec<u32> = profile.sites.iter().map(|site| site.stack).collect();
    stacks.sort_unstable();
    stacks.dedup();
    let span_ns = profile.to_ns - profile.from_ns;
    let of_stack = |(number, stack): (usize, &u32)| {
        let chunks = if number == 0 { MANY } else { 10 };
        let lifetime = (0.01 + 0.1 * number as f64).min(1.0);
        let chunk = |n: u64| Chunk {
            number: n,
            start_ns: profile.from_ns + span_ns / 2 / chunks * n,
            end_ns: profile.from_ns + span_ns / 2 / chunks * n + span_ns / (2 + n % 7),
            size: 16 << (n % 5),
            is_live: false,
            // Chunks are written and read from a quarter of their lifetime onwards. Every tenth
            // chunk is never used.
            accesses: Some(Box::new(if n % 10 == 9 {
                ChunkAccesses::default()
            } else {
                let start_ns = profile.from_ns + span_ns / 2 / chunks * n;
                ChunkAccesses {
                    first_ns: start_ns + span_ns / (2 + n % 7) / 4,
                    last_ns: start_ns + span_ns / (2 + n % 7) / 2,
                    reads: 1000 + n,
                    writes: 1,
                    by_several: n % 2 == 1,
                }
            })),
        };
        SiteScores {
            stack: *stack,
            scores: Scores::of_lifetime(Some(lifetime)),
            numbers: ScoredSite {
                lifetime,
                groups: 1,
                chunks,
                most_live: 7,
                kept: KeptChunks {
                    step: 1,
                    chunks: (0..chunks).map(chunk).collect(),
                },
                ..ScoredSite::default()
            },
            ..SiteScores::default()
        }
    };
    let sites: Vec<SiteScores> = stacks.iter().enumerate().map(of_stack).collect();
    let inference = Inference {
        kind: InferenceKind::ShortLivedInLoop,
        title: InferenceKind::ShortLivedInLoop.title(),
        evidence: "1,000,000 blocks came and went".into(),
        advice: "allocate once",
        gain: Gain {
            calls: 1_999_986,
            ..Gain::default()
        },
        allocator: "malloc".into(),
        stack: Vec::new(),
        stack_index: stacks[0],
        truncated: false,
    };
    profile.scores = Some(ProfileScores {
        run: RunScores {
            scores: Scores::of_lifetime(Some(0.31)),
            variance: Scores::of_lifetime(Some(0.125)),
            sites: sites.len() as u64,
            access_source: None,
            accessed_sites: 0,
            accesses_missed: 0,
            looks: 0,
            group_s: 0.01,
        },
        sites,
        inferences: vec![inference],
        ..ProfileScores::default()
    });
    profile
}

#[test]
fn severity_colours_the_graph_and_inferences_lead_to_their_sites() {
    let profile = scored_run();
    let page = Page::of(&profile, "scores");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let panel = browser.text("#details");
    for words in [
        "Lifetime0.31 variance 0.125",
        "Usageunknown",
        "What stands out (1)",
        "1,999,986 calls",
    ] {
        assert!(panel.contains(words), "{words}: {panel}");
    }
    // In the colour scale, the worst site has the last of twelve steps.
    browser.key("p");
    assert_eq!(browser.text_of("app.state.paint"), "score");
    assert_eq!(
        browser.value("document.querySelectorAll('#modules li').length"),
        14
    );
    browser.wait("location.hash.includes('colours=score')");
    let first = profile.scores.as_ref().expect("scores").sites[0].stack;
    let severity = format!(
        "app.data.severity[{}]",
        profile
            .sites
            .iter()
            .position(|site| site.stack == first)
            .expect("a site")
    );
    assert_eq!(browser.value(&severity), 11);
    let whole = "severityOfFrame(app.flame.root, app.result.severities.score)";
    let drawn = "app.flame.colorOf(app.flame.drawn.find(({ frame }) => frame.depth === 1).frame)";
    let color = browser.text_of(drawn);
    assert!(color.starts_with("--severity-"), "{color}");
    assert!(
        browser
            .value(whole)
            .as_i64()
            .is_some_and(|step| (0..12).contains(&step))
    );
    browser.picture("scores-graph");
    // The inference is a link.
    browser.click("#details .inferences button");
    assert_eq!(browser.text_of("app.state.pick.kind"), "row");
    let panel = browser.text("#details");
    assert!(panel.contains("Lifetime0.01"), "{panel}");
    assert!(
        panel.contains("1,000,000 blocks in 1 group, at most 7 live at a time"),
        "{panel}"
    );
    browser.picture("scores-site");
    // A saved table has the scores.
    let csv = browser.download("#csv");
    assert!(
        csv.lines()
            .next()
            .is_some_and(|head| head.ends_with(",lifetime_score")),
        "{csv:.300}"
    );
    assert!(csv.lines().any(|line| line.ends_with(",0.010000")));
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn a_million_chunks_are_rows() {
    let profile = scored_run();
    let page = Page::of(&profile, "chunks");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.click("#details .inferences button");
    browser.key("x");
    let shown = browser.text("#shown");
    assert_eq!(
        shown,
        "1,000,000 chunks of 1,000,000 blocks, of 16 B to 256 B, the darker the larger"
    );
    // If all chunks fit on one screen, each line covers its share of them.
    let lines = browser
        .value("app.chunks.drawn.length")
        .as_u64()
        .expect("lines");
    assert!((50..900).contains(&lines), "{lines}");
    assert_eq!(
        browser.value("app.chunks.drawn.reduce((sum, row) => sum + row.count, 0)"),
        MANY
    );
    browser.picture("chunks-all");
    // Only chunks on the screen are drawn individually, at any scroll position.
    browser.click("#talls [data-name='6']");
    let box_height = browser
        .value("app.chunks.box.clientHeight")
        .as_u64()
        .expect("pixels");
    let drawn = |browser: &mut Browser| {
        browser
            .value("app.chunks.drawn.length")
            .as_u64()
            .expect("rows")
    };
    assert!(drawn(&mut browser) <= box_height / 6 + 3);
    assert_eq!(browser.value("byId('chunk-spacer').offsetHeight"), 6 * MANY);
    browser.value("app.chunks.box.scrollTop = 3000000");
    browser.settle();
    assert_eq!(browser.value("app.chunks.drawn[0].begin"), 500_000);
    assert!(drawn(&mut browser) <= box_height / 6 + 3);
    // The chunk is drawn from its allocation to its release.
    let row = browser.value("app.chunks.drawn[0]");
    let chunk = profile.scores.as_ref().expect("scores").sites[0]
        .numbers
        .kept
        .chunks[500_000]
        .clone();
    assert_eq!(row["from"], chunk.start_ns / 1000);
    assert_eq!(
        row["to"],
        chunk.start_ns / 1000 + (chunk.end_ns - chunk.start_ns) / 1000
    );
    assert_eq!(row["size"], chunk.size);
    // The ticks that mark the chunk's accesses are at the right places, and the text describes
    // these accesses.
    let accesses = chunk.accesses.expect("they are known");
    let times = browser.value("accessTimes(app.data, app.chunks.order[500000])");
    assert_eq!(
        times["first"].as_u64(),
        Some(chunk.start_ns / 1000 + (accesses.first_ns - chunk.start_ns) / 1000)
    );
    let used = times["last"].as_u64().expect("a time") - times["first"].as_u64().expect("a time");
    assert_eq!(used, (accesses.last_ns - accesses.first_ns) / 1000);
    let words = |browser: &mut Browser, number: u64| {
        browser.text_of(&format!(
            "accessLines(app.data, app.chunks.order[{number}]).join()"
        ))
    };
    assert!(
        words(&mut browser, 500_000)
            .starts_with("501,000 reads and 1 write by one thread,first used after ")
    );
    assert!(words(&mut browser, 500_001).contains("by several threads"));
    assert_eq!(words(&mut browser, 500_009), "never read or written");
    browser.picture("chunks-rows");
    let shown = browser.text("#shown");
    assert!(
        shown.ends_with("the darker the larger, with ticks at the first and the last access"),
        "{shown}"
    );
    // The keyboard works too. The page's URL holds the state.
    browser.value("byId('chunk-box').focus()");
    browser.key("Home");
    browser.wait("app.chunks.drawn[0].begin === 0");
    browser.wait("location.hash.includes('view=chunks') && location.hash.includes('chunks=6')");
    let fragment = browser.text_of("location.hash");
    let mut again = Browser::open_at(&page.0, &fragment, (1400, 900), READY);
    assert_eq!(again.text("#shown"), shown);
    assert_eq!(
        again.value("app.chunks.drawn.length"),
        browser.value("app.chunks.drawn.length")
    );
    // A time window omits chunks that were not live in it.
    again.value("app.setWindow(Math.round(app.data.points * 0.9), app.data.points - 1)");
    again.settle();
    let rest = again
        .value("app.chunks.order.length")
        .as_u64()
        .expect("chunks");
    assert!(rest > 0 && rest < MANY, "{rest}");
    for browser in [browser, again] {
        assert_eq!(browser.complaints, Vec::<String>::new());
    }
}

/// Recordings of samples or sums have no scores, and the page offers none.
#[test]
fn without_scores_nothing_is_said_of_them() {
    let page = Page::of(&run(), "no-scores");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    assert!(!browser.text("#details").contains("Scores"));
    for control in ["#paints [data-name=score]", "#shapes [data-name=chunks]"] {
        let is_off = format!("document.querySelector({control:?}).disabled");
        assert_eq!(browser.value(&is_off), true, "{control}");
    }
    browser.key("x");
    browser.key("p");
    assert_eq!(
        browser.text_of("app.state.shape + app.state.paint"),
        "flamemodule"
    );
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn formulas_are_columns_colours_and_measures() {
    let mut profile = scored_run();
    let scores = profile.scores.as_mut().expect("scores");
    let formulas = [
        "turn = blocks * (1 - lifetime)",
        "part = sqrt(blocks - 1000)",
    ];
    let formulas = formulas.map(|text| Formula::parse(text).expect(text));
    scores.add_formulas(&formulas).expect("known of any run");
    let turns: f64 = scores.custom[0].sum.expect("known of all");
    let [turn, part] = &scores.custom[..] else {
        panic!("{:?}", scores.custom);
    };
    assert_eq!(
        (turn.known_sites, part.known_sites),
        (scores.sites.len() as u64, 1)
    );
    let page = Page::of(&profile, "formulas");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let panel = browser.text("#details");
    assert!(panel.contains("part999.5 in all"), "{panel}");
    browser.key("4");
    // The scores are columns of the table of sites. Rows without a value come last in both sort
    // orders.
    for (is_ascending, first) in [("false", "999.5"), ("true", "999.5")] {
        browser.click("[data-column='score:part']");
        assert_eq!(
            browser.text_of("String(app.state.isAscending)"),
            is_ascending
        );
        let cells = "[...document.querySelectorAll('.row')].map((row) => row.querySelectorAll('.custom')[1].textContent)";
        let shown = browser.value(cells);
        let shown = shown.as_array().expect("cells");
        assert_eq!(shown[0], first, "{shown:?}");
        assert!(shown[1..].iter().all(|cell| cell == "-"), "{shown:?}");
    }
    browser.wait("location.hash.includes('sort=score%3Apart')");
    browser.click("[data-column='score:turn']");
    let largest = "document.querySelector('.row .custom').textContent";
    assert_eq!(browser.text_of(largest), "990,000");
    // In the colour scale, the largest value counts as the worst, regardless of its size.
    browser.key("p");
    browser.key("p");
    assert_eq!(browser.text_of("app.state.paint"), "score:turn");
    assert_eq!(
        browser.text_of(
            "document.querySelector('#modules li:last-child').previousElementSibling.textContent"
        ),
        "largest"
    );
    let first = profile.scores.as_ref().expect("scores").sites[0].stack;
    let site = profile.sites.iter().position(|site| site.stack == first);
    let severity = format!(
        "app.data.customOf.get('score:turn').severity[{}]",
        site.expect("a site")
    );
    assert_eq!(browser.value(&severity), 11);
    let drawn = "app.flame.colorOf(app.flame.drawn.find(({ frame }) => frame.depth === 1).frame)";
    let color = browser.text_of(drawn);
    assert!(color.starts_with("--severity-"), "{color}");
    // If the sum is selected as the measure, it determines the width of the graph.
    browser.click("#measures button:nth-last-child(2)");
    assert_eq!(browser.text_of("app.state.measure"), "score:turn");
    browser.settle();
    let whole = browser.value("app.flame.root.value").as_f64();
    let whole = whole.expect("a number");
    assert!((whole - turns).abs() < 1e-6 * turns, "{whole}, not {turns}");
    assert!(browser.text("#shown").contains("of all turn"));
    browser.picture("formulas");
    // The values appear in the panel of a site, and in the table when it is saved as a file.
    browser.click("#body .row");
    let panel = browser.text("#details");
    assert!(
        panel.contains("turn990,000") && panel.contains("part999.5"),
        "{panel}"
    );
    let csv = browser.download("#csv");
    let head = csv.lines().next().unwrap_or_default();
    assert!(head.ends_with(",lifetime_score,turn,part"), "{head}");
    let ends = "0.010000,990000,999.499874937461";
    assert!(csv.lines().any(|line| line.ends_with(ends)), "{csv:.600}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}
