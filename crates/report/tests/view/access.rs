//! Using the page without a mouse and with screen readers: names, roles, focus order.

use super::*;
use serde_json::{Value, json};

/// Checks that every focusable element has a role and a name, as reported by the browser to screen
/// readers.
fn assert_named(browser: &mut Browser, what: &str) {
    let tree = browser.call("Accessibility.getFullAXTree", json!({}));
    let nodes = tree["nodes"].as_array().expect("nodes");
    let is_focusable = |node: &&Value| {
        let mut properties = node["properties"].as_array().into_iter().flatten();
        properties.any(|p| p["name"] == "focusable" && p["value"]["value"] == true)
    };
    let controls: Vec<&Value> = nodes
        .iter()
        .filter(is_focusable)
        .filter(|node| node["ignored"] == false)
        .collect();
    assert!(controls.len() > 30, "{what}: {}", controls.len());
    for node in controls {
        let (role, name) = (&node["role"]["value"], &node["name"]["value"]);
        assert!(
            role.as_str().is_some_and(|role| role != "generic"),
            "{what}: {node}"
        );
        assert!(
            name.as_str().is_some_and(|name| !name.trim().is_empty()),
            "{what}: {node}"
        );
    }
}

#[test]
fn everything_has_a_role_and_a_name() {
    let page = Page::of(&run(), "names");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    assert_named(&mut browser, "at first");
    browser.key("j");
    assert_named(&mut browser, "a site");
    browser.click("#charts [data-name=stacked]");
    browser.click("#groups [data-name=function]");
    assert_named(&mut browser, "functions");
    let picked = "[...document.querySelectorAll('#body > *')].every((row) => row.getAttribute('role') === 'row' && row.hasAttribute('aria-selected') && [...row.children].every((cell) => cell.getAttribute('role') === 'gridcell'))";
    assert_eq!(browser.value(picked), true);
    // A strict content security policy forbids handlers in attributes.
    let handlers = "[...document.querySelectorAll('*')].filter((e) => [...e.attributes].some((a) => /^on/.test(a.name))).length";
    assert_eq!(browser.value(handlers), 0);
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn the_focus_goes_through_the_page_in_reading_order() {
    let page = Page::of(&run(), "focus");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.value("showFilters(true)");
    let mut order: Vec<String> = Vec::new();
    for _ in 0..120 {
        browser.key("Tab");
        let at = browser.text_of("(() => { const e = document.activeElement; return e === document.body ? '' : e.id ? `#${e.id}` : e.dataset.name || e.dataset.column || e.textContent; })()");
        if at.is_empty() || order.first() == Some(&at) {
            break;
        }
        order.push(at);
    }
    let place = |id: &str| {
        order
            .iter()
            .position(|at| at == id)
            .unwrap_or_else(|| panic!("no {id} in {order:?}"))
    };
    let stops = [
        "#theme",
        "#help",
        "#from",
        "#to",
        "total",
        "heap",
        "live",
        "bytes",
        "#search",
        "#only",
        "#filters",
        "#module",
        "#thread",
        "#least",
        "#most",
        "#hides",
        "#edit",
        "flame",
        "sandwich",
        "#root",
        "#enlarge-graph",
        "#flame",
        "site",
        "#csv",
        "#enlarge-list",
        "name",
        "spark",
        "#table",
        "#details",
    ];
    let places: Vec<usize> = stops.iter().map(|id| place(id)).collect();
    assert!(places.is_sorted_by(|a, b| a < b), "{order:?}");
    // Each stop of the focus is visible.
    browser.value("document.getElementById('only').focus()");
    browser.key("Tab");
    let outline = browser.value("getComputedStyle(document.activeElement).outlineStyle");
    assert_eq!(outline, "solid");
    assert_eq!(browser.complaints, Vec::<String>::new());
}

/// axe-core is not part of this repository. Get it with `npm pack axe-core`, and set
/// `MEMHOOK_AXE=axe.min.js`.
#[test]
#[ignore = "needs axe-core, which MEMHOOK_AXE names"]
fn axe_finds_nothing() {
    let axe = std::env::var_os("MEMHOOK_AXE").expect("MEMHOOK_AXE: the path of axe.min.js");
    let axe = std::fs::read_to_string(axe).expect("axe.min.js");
    let page = Page::of(&run(), "axe");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    browser.value(&format!("{axe};1"));
    let check = |browser: &mut Browser, what: &str| {
        let findings = browser.text_of("axe.run().then(({ violations }) => violations.map(({ id, nodes }) => `${id}: ${nodes.map((n) => n.html).join(' ')}`).join('\\n'))");
        assert_eq!(findings, "", "{what}");
    };
    check(&mut browser, "at first");
    browser.key("j");
    browser.click("#charts [data-name=stacked]");
    check(&mut browser, "a site");
    browser.key("e");
    check(&mut browser, "the graph alone");
    browser.key("e");
    browser.key("t");
    browser.click("#groups [data-name=function]");
    browser.key("j");
    browser.key("s");
    check(&mut browser, "a sandwich in the other theme");
    browser.click("#filters");
    check(&mut browser, "the filters");
    browser.click("#edit");
    check(&mut browser, "the list of wrappers");
    browser.key("Escape");
    browser.key("?");
    check(&mut browser, "the keys");
    browser.key("Escape");
    browser.resize(700, 900);
    check(&mut browser, "a narrow window");
}
