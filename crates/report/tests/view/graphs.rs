//! Graphs: hidden wrappers, the sandwich, and navigation by keyboard.

use super::*;
use std::collections::BTreeMap;

/// Returns a run in which some functions are wrappers, as their names show.
fn run_with_wrappers() -> Profile {
    let mut profile = run();
    for frame in &mut profile.frames {
        let name = frame.frame.function.as_deref();
        let renamed = match name {
            Some("cache_grow") => "zmalloc",
            Some("main") => "operator new(unsigned long)",
            _ => continue,
        };
        frame.frame.function = Some(renamed.into());
    }
    profile
}

/// Expression for the names of all drawn frames of the graph, and of all rows.
const DRAWN: &str = "[...app.flame.drawn.map(({ frame }) => app.flame.text(frame)), ...app.table.rows.map((row) => rowName(app, app.state.group, row.key).name)].join('\\n')";

#[test]
fn wrappers_are_hidden_by_a_list_that_can_be_edited() {
    let profile = run_with_wrappers();
    let page = Page::of(&profile, "wrappers");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.click("#groups [data-name=function]");
    let has =
        |browser: &mut Browser, name: &str| browser.text_of(DRAWN).lines().any(|line| line == name);
    for name in ["zmalloc", "operator new(unsigned long)"] {
        assert!(!has(&mut browser, name), "{name}");
    }
    assert_eq!(browser.text("#hidden"), "(2 hidden)");
    // Nothing is lost, because the memory of hidden frames counts for their callers.
    let whole = sum(&profile, Measure::Live, Unit::Bytes);
    let all = format!("{}, 100.0 % of all live bytes", bytes(whole));
    assert_eq!(browser.text("#shown"), all);
    let own = "app.table.rows.reduce((sum, row) => sum + row.self, 0)";
    assert_eq!(browser.value(own).as_u64(), Some(whole));
    // Sites are named after the first frame that is not a wrapper.
    let innermost =
        |site: &&ProfileSite| functions(&profile, site).first() == Some(&Some("zmalloc"));
    assert!(
        profile.sites.iter().any(|site| innermost(&site)),
        "a test of something"
    );
    browser.click("#groups [data-name=site]");
    assert!(!has(&mut browser, "zmalloc"));

    browser.key("w");
    browser.click("#groups [data-name=function]");
    for name in ["zmalloc", "operator new(unsigned long)"] {
        assert!(has(&mut browser, name), "{name}");
    }
    browser.click("#filters");
    browser.click("#edit");
    // While it is not being edited, the list of hidden functions is a single line that fits.
    let usual = "(() => { const list = byId('list-of-wrappers'); return [list.value, list.scrollWidth <= list.clientWidth, list.scrollHeight <= list.clientHeight].join('|'); })()";
    assert_eq!(
        browser.text_of(usual),
        "(usual wrappers: malloc, operator new, std::allocator, my_alloc, ...)|true|true"
    );
    let why = browser.text("#wrappers p");
    assert!(why.contains("what a hidden function allocates counts as its caller's"));
    browser.picture("usual-wrappers");
    browser.value("document.getElementById('list-of-wrappers').select()");
    browser.type_text("cache_*");
    browser.picture("wrappers");
    browser.click("#wrappers button[value=use]");
    assert!(!has(&mut browser, "cache_insert") && has(&mut browser, "zmalloc"));
    assert_eq!(browser.text("#hidden"), "(1 hidden)");
    // The address holds the list.
    browser.wait("decodeURIComponent(location.hash).includes('list=cache_*')");
    let fragment = browser.text_of("location.hash");
    let mut again = Browser::open_at(&page.0, &fragment, (1400, 900), READY);
    assert_eq!(again.text_of(DRAWN), browser.text_of(DRAWN));
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// The page uses the rule of reports and the gate.
#[test]
fn the_page_hides_what_reports_skip() {
    let names = [
        "malloc",
        "operator new[](unsigned long)",
        "std::__new_allocator<int>::allocate(unsigned long, void const*)",
        "std::_Vector_base<int, std::allocator<int> >::_M_allocate(unsigned long)",
        "std::vector<int, std::allocator<int> >::push_back(int&&)",
        "my_malloc_stats",
        "Arena::Allocate(unsigned long)",
        "mallocator::grow()",
        "operator<<(std::ostream&, Row const&)",
    ];
    let mut profile = run();
    for (frame, name) in profile.frames.iter_mut().zip(names) {
        frame.frame.function = Some(name.into());
    }
    let page = Page::of(&profile, "patterns");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let all = "data.labels.function.filter((name, label) => label && label !== data.cutLabel)";
    let hidden = format!(
        "(({{ data }}) => {all}.filter((name, at) => app.hidden[at + 1]).map((name) => data.strings[name]))(app)"
    );
    let named = format!("(({{ data }}) => {all}.map((name) => data.strings[name]))(app)");
    let texts = |browser: &mut Browser, of: &str| -> Vec<String> {
        serde_json::from_value(browser.value(of)).expect("names")
    };
    let skipped: Vec<String> = texts(&mut browser, &named)
        .into_iter()
        .filter(|name| memhook_report::is_wrapper(name))
        .collect();
    assert!(skipped.len() > 3, "{skipped:?}");
    assert_eq!(texts(&mut browser, &hidden), skipped);
}

/// Returns the live memory of the direct callers (`is_caller`) or callees of the outermost call of
/// a function, by name.
fn neighbours(profile: &Profile, function: &str, is_caller: bool) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for site in profile
        .sites
        .iter()
        .filter(|site| site.measures.live.bytes > 0)
    {
        let stack = functions(profile, site);
        let Some(at) = stack.iter().rposition(|name| *name == Some(function)) else {
            continue;
        };
        let next = if is_caller {
            stack.get(at + 1)
        } else {
            at.checked_sub(1).and_then(|at| stack.get(at))
        };
        // Frames without a name are named by their module and offset.
        if let Some(Some(next)) = next {
            *sums.entry((*next).to_owned()).or_default() += site.measures.live.bytes;
        }
    }
    sums
}

/// Only an empty sandwich shows the hint.
#[test]
fn the_hint_of_the_sandwich_goes_with_it() {
    let profile = super::space::placed_run();
    let page = Page::of(&profile, "hint");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let is_hidden = "byId('sandwich-hint').hidden";
    browser.click("#shapes [data-name=sandwich]");
    assert_eq!(browser.value(is_hidden), false);
    browser.click("#shapes [data-name=space]");
    assert_eq!(browser.value(is_hidden), true);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// Frames that all stacks share take one row, and a click shows them.
#[test]
fn a_common_root_is_folded() {
    let mut profile = run();
    let number = profile.frames.len() as u32;
    for name in ["begin", "start_call", "start"] {
        let mut frame = profile.frames[0].clone();
        frame.frame.function = Some(name.into());
        frame.frame.inlined = false;
        profile.frames.push(frame);
    }
    profile.depth = 0;
    profile.cut_root = None;
    for stack in &mut profile.stacks {
        stack.extend(number..number + 3);
    }
    for site in &mut profile.sites {
        site.truncated = false;
    }
    let page = Page::of(&profile, "root");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let rows = "app.flame.drawn.filter(({ row }) => row <= 1).map((place) => app.flame.placeText(place)).join()";
    assert_eq!(browser.value(rows), "all,begin  \u{2190} 2 callers");
    browser.click("#root");
    assert_eq!(browser.value(rows), "all,start");
    browser.wait("location.hash.includes('root=whole')");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn a_sandwich_has_callers_and_callees() {
    let profile = run();
    let page = Page::of(&profile, "sandwich");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.click("#shapes [data-name=sandwich]");
    assert_eq!(
        browser.value("document.getElementById('sandwich-hint').hidden"),
        false
    );
    browser.click("#groups [data-name=function]");
    let row = "app.table.rows.findIndex((row) => app.data.strings[row.key] === 'cache_insert')";
    browser.value(&format!("app.table.pick({row})"));
    browser.settle();
    browser.picture("sandwich");
    assert_eq!(browser.text("#path"), "cache_insert");
    let whole = sum(&profile, Measure::Live, Unit::Bytes);
    let live = live_below(&profile, "cache_insert");
    let shown = format!("{}, {} of all live bytes", bytes(live), share(live, whole));
    assert_eq!(browser.text("#shown"), shown);
    for (is_caller, root) in [(true, "callers"), (false, "root")] {
        let children = format!(
            "Object.fromEntries(app.flame.{root}.children.map((frame) => [app.flame.text(frame), frame.value]))"
        );
        let found = browser.value(&children);
        let expected = neighbours(&profile, "cache_insert", is_caller);
        assert!(!expected.is_empty());
        for (name, value) in expected {
            // Names are shortened to one line.
            if name.contains(['<', '{', '\n']) {
                continue;
            }
            assert_eq!(found[&name].as_u64(), Some(value), "{root}: {name}");
        }
    }
    // A click on another frame puts that frame in the middle.
    let other = "app.flame.text(app.flame.callers.children[0])";
    let name = browser.text_of(other);
    let at = browser.value("(() => { const p = app.flame.drawn.find(({ frame }) => frame === app.flame.callers.children[0]); const r = app.flame.canvas.getBoundingClientRect(); return [r.x + p.x + 5, r.y + p.y + 8]; })()");
    let at = (at[0].as_f64().expect("x"), at[1].as_f64().expect("y"));
    browser.drag(at, at);
    assert_eq!(browser.text("#path"), name);
    browser.key("Escape");
    assert_eq!(browser.value("app.state.shape"), "flame");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn a_graph_can_be_walked_by_keyboard() {
    let profile = run();
    let page = Page::of(&profile, "walk");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let whole = sum(&profile, Measure::Live, Unit::Bytes);
    let all = format!("{}, 100.0 % of all live bytes", bytes(whole));
    browser.value("document.getElementById('flame').focus()");
    // The widest frame above the root is the outermost function below which the most memory was
    // allocated.
    browser.key("ArrowUp");
    let name =
        |browser: &mut Browser, frame: &str| browser.text_of(&format!("app.flame.text({frame})"));
    let widest = name(&mut browser, "app.flame.root.children[0]");
    let said = browser.text("#said");
    assert!(said.starts_with(&format!("{widest}, ")), "{said}");
    browser.key("ArrowRight");
    let second = name(&mut browser, "app.flame.root.children[1]");
    assert!(browser.text("#said").starts_with(&format!("{second}, ")));
    browser.key("ArrowLeft");
    browser.key("ArrowUp");
    let deeper = name(&mut browser, "app.flame.root.children[0].children[0]");
    browser.picture("walk");
    browser.key("Enter");
    assert_eq!(browser.text("#path"), deeper);
    assert_eq!(browser.text("#details h2"), deeper);
    browser.key("ArrowDown");
    assert!(browser.text("#said").starts_with(&format!("{widest}, ")));
    // The picture marks the keyboard's position: a pixel of the frame's border has the colour of
    // text.
    let border = "(() => { const { canvas } = app.flame; const p = app.flame.cursorPlace(); const c = canvas.getContext('2d').getImageData(p.x + 1, p.y + 1, 1, 1).data; \
                  return `rgb(${c[0]}, ${c[1]}, ${c[2]})` === getComputedStyle(document.body).color; })()";
    assert_eq!(browser.value(border), true);
    browser.key("Escape");
    assert_eq!(browser.text("#path"), widest);
    browser.key("Escape");
    assert_eq!(
        (browser.text("#path").as_str(), browser.text("#shown")),
        ("", all)
    );
    // With the root at the top, the arrow keys work in the opposite direction.
    browser.click("#shapes [data-name=icicle]");
    browser.value("document.getElementById('flame').focus()");
    browser.key("ArrowDown");
    assert!(browser.text("#said").starts_with(&format!("{widest}, ")));
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// The graph marks the stack of a picked row. Outermost functions that nearly all memory has in common share a row with
/// the function that they lead to, until the whole root is shown.
#[test]
fn the_stack_of_a_picked_row_is_marked_in_the_graph() {
    const IS_FRAME: &str = "({ frame }) => frame.label !== app.data.cutLabel";
    let marked = |browser: &mut Browser, order: &str, value: &str| {
        let places = format!("app.flame.ofPickedRow().filter({IS_FRAME}).sort((a, b) => {order})");
        let found = browser.value(&format!("{places}.map((place) => {value})"));
        found.as_array().cloned().expect("one for each marked row")
    };
    let name = "app.flame.text(place.frame)";
    for (seed, has_common_root) in [(6, false), (2, true)] {
        let profile = simulated::profile(seed, 30_000, 60);
        let page = Page::of(&profile, &format!("marked-{seed}"));
        let mut browser = Browser::open(&page.0, 1400, 900, READY);
        browser.key("j");
        let stack =
            "framesOf(app.data, app.state.pick.key).map((frame) => functionOf(app.data, frame))";
        let stack = browser.value(stack);
        let stack = stack.as_array().expect("a stack");
        assert!(stack.len() > 1);
        let inwards = "b.row - a.row";
        let shared = marked(&mut browser, inwards, "place.folded || 0");
        let shared = shared.iter().filter_map(serde_json::Value::as_u64);
        let shared = shared.sum::<u64>() as usize;
        assert_eq!(shared > 0, has_common_root, "seed {seed}");
        let shown = marked(&mut browser, inwards, name);
        assert_eq!(shown, stack[..stack.len() - shared], "seed {seed}");
        browser.value("app.update({ isWholeRoot: true })");
        browser.settle();
        assert_eq!(marked(&mut browser, inwards, name), *stack, "seed {seed}");
        browser.click("#shapes [data-name=callers]");
        assert_eq!(
            marked(&mut browser, "a.row - b.row", name),
            *stack,
            "seed {seed}"
        );
        assert_eq!(browser.complaints, Vec::<String>::new());
    }
}

/// The outermost frame of a cut stack is not mistaken for the program's start.
#[test]
fn stacks_that_were_cut_have_a_frame_of_their_own() {
    let profile = run();
    let page = Page::of(&profile, "cut");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    let is_cut = |site: &&ProfileSite| {
        let stack = &profile.stacks[site.stack as usize];
        let frames = stack
            .iter()
            .map(|&frame| &profile.frames[frame as usize].frame);
        let depth = frames.filter(|frame| !frame.inlined).count();
        !stack.is_empty() && (site.truncated || depth as u32 >= profile.depth)
    };
    let cut = || profile.sites.iter().filter(is_cut);
    let live: u64 = cut().map(|site| site.measures.live.bytes).sum();
    let all = sum(&profile, Measure::Live, Unit::Bytes);
    assert!(live > 0 && live < all);
    let frame =
        "app.flame.root.children.find((frame) => app.flame.text(frame).startsWith('\u{2026}'))";
    assert_eq!(
        browser.value(&format!("{frame}.value")).as_u64(),
        Some(live)
    );
    let whole = sum(&profile, Measure::Allocated, Unit::Blocks);
    let part = |is_unfollowed: bool| {
        let cut = cut().filter(|site| site.truncated == is_unfollowed);
        share(cut.map(|site| site.measures.allocated.blocks).sum(), whole)
    };
    // A larger --depth helps only with the first kind.
    let expected = format!(
        "stacks of {} of the blocks are cut (--depth 6), stacks of {} of the blocks could not be followed to their end",
        part(false),
        part(true)
    );
    let subtitle = browser.text("#subtitle");
    assert!(subtitle.ends_with(&expected), "{subtitle}");
    let ending = |is_unfollowed: bool| {
        format!(
            "(() => {{ const site = [...app.data.cut].indexOf({}); app.setGroup('site'); app.refreshNow(); app.pickRow(app.data.sites.node[site]); return byId('details').textContent; }})()",
            2 - u32::from(is_unfollowed)
        )
    };
    let of_depth = browser.text_of(&ending(false));
    assert!(of_depth.contains("was cut at --depth 6."), "{of_depth}");
    let unfollowed = browser.text_of(&ending(true));
    assert!(
        unfollowed.contains("was not followed any further:"),
        "{unfollowed}"
    );
    // The frame exists regardless of the reason.
    let mut of_depth = profile.clone();
    for site in &mut of_depth.sites {
        site.truncated = false;
    }
    let live: u64 = of_depth
        .sites
        .iter()
        .filter(is_cut)
        .map(|site| site.measures.live.bytes)
        .sum();
    let page = Page::of(&of_depth, "cut-at-depth");
    let mut other = Browser::open(&page.0, 1400, 900, READY);
    assert_eq!(other.value(&format!("{frame}.value")).as_u64(), Some(live));
    // The frame is not a function.
    browser.click("#groups [data-name=function]");
    let names = browser.text_of("app.table.rows.map((row) => app.data.strings[row.key]).join()");
    assert!(!names.contains("not recorded"), "{names}");
    assert_eq!(browser.complaints, Vec::<String>::new());
}
