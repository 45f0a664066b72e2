//! Modules of the two central crates must not have circular references.
//!
//! A folder whose `mod.rs` only lists modules is a *room*; each module in it counts separately. A
//! module with its own code counts together with its submodules, which are its parts. An edge is a
//! path that begins with `crate::` or `super::` and leads out of the module. A re-export by a room
//! or by the crate counts as the original module.

use super::root;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

type Graph = BTreeMap<String, BTreeSet<String>>;
/// Names in a path.
type Names = Vec<String>;

/// Rooms and loose modules that refer to each other although no two of their modules do, each with
/// the reason.
const ROOMS_BACK: &[(&str, &str, &str, &str)] = &[
    (
        "attach",
        "error",
        "probes",
        "an error of the crate may be one of probes, which fail with it",
    ),
    (
        "cli",
        "gate",
        "live",
        "the command hands on what runs to the part that traces, which shares its options and verdict",
    ),
];

/// A file of a crate without its tests: the module to which it belongs, and its text.
struct File {
    module: Names,
    text: String,
}

fn files(directory: &Path, parents: &[String], into: &mut Vec<File>) {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{directory:?}: {e}"));
    for entry in entries.map(|entry| entry.expect("readable")) {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if path.is_dir() {
            files(&path, &[parents, &[name.into_owned()]].concat(), into);
            continue;
        }
        let Some(name) = name.strip_suffix(".rs") else {
            continue;
        };
        let own = (!["mod", "lib", "main"].contains(&name)).then(|| name.to_owned());
        let text = std::fs::read_to_string(&path).expect("readable");
        into.push(File {
            module: parents.iter().cloned().chain(own).collect(),
            text: product(&text),
        });
    }
}

/// Returns the code without comments and without the unit tests at the end of a file.
fn product(text: &str) -> String {
    let code = text.split("\n#[cfg(test)]\nmod tests {").next();
    let lines = code.unwrap_or("").lines().map(|line| {
        let is_comment = line.trim_start().starts_with("//");
        if is_comment { "" } else { line }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the paths at the start of `text`: for `a::b::{c, d}`, these are `a::b::c` and `a::b::d`.
fn paths(text: &str) -> Vec<Names> {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        let (mut found, mut depth, mut start) = (Vec::new(), 0, 0);
        for (at, sign) in group.char_indices() {
            match sign {
                ',' | '}' if depth == 0 => {
                    found.extend(paths(&group[start..at]));
                    start = at + 1;
                    if sign == '}' {
                        break;
                    }
                }
                '}' => depth -= 1,
                '{' => depth += 1,
                _ => {}
            }
        }
        return found;
    }
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    let (name, rest) = text.split_at(end.unwrap_or(text.len()));
    if name.is_empty() {
        return Vec::new();
    }
    let behind = rest.strip_prefix("::").map_or_else(Vec::new, paths);
    let with = |behind: Names| [vec![name.to_owned()], behind].concat();
    match behind.is_empty() {
        true => vec![with(Vec::new())],
        false => behind.into_iter().map(with).collect(),
    }
}

/// Returns true if a file only lists modules and re-exports their contents.
fn only_lists(text: &str) -> bool {
    let statements = text.split(';').map(str::trim);
    statements.filter(|s| !s.is_empty()).all(|statement| {
        let without = statement.rsplit(']').next().unwrap_or(statement).trim();
        let without = without.split_once(") ").map_or(without, |(_, rest)| rest);
        let without = without.trim_start_matches("pub ");
        without.starts_with("mod ") || without.starts_with("use ")
    })
}

/// Modules of a crate, and their references.
struct Modules<'a> {
    all: BTreeMap<&'a [String], &'a File>,
}

impl Modules<'_> {
    fn of(files: &[File]) -> Modules<'_> {
        let all = files.iter().map(|file| (&file.module[..], file)).collect();
        Modules { all }
    }

    fn is_room(&self, module: &[String]) -> bool {
        let file = self.all.get(module);
        module.is_empty() || file.is_some_and(|file| only_lists(&file.text))
    }

    /// Returns the node of a module: the module itself, or the module of which it is a part.
    fn node(&self, module: &[String]) -> Option<String> {
        let prefixes = (1..=module.len()).map(|length| &module[..length]);
        let own = prefixes.into_iter().find(|prefix| !self.is_room(prefix))?;
        Some(own.join("::"))
    }

    /// Returns the target of a path in a module.
    fn meant(&self, from: &[String], path: &[String]) -> Option<String> {
        let mut at = from.to_vec();
        for (number, name) in path.iter().enumerate() {
            if !self.is_room(&at) {
                break;
            }
            at.push(name.clone());
            if self.all.contains_key(&at[..]) {
                continue;
            }
            at.pop();
            let handed_on = self.handed_on(&at, name)?;
            return self.meant(&at, &[&handed_on, &path[number + 1..]].concat());
        }
        self.node(&at)
    }

    /// Returns the original path of a name that a room re-exports.
    fn handed_on(&self, room: &[String], name: &str) -> Option<Names> {
        let text = &self.all.get(room)?.text;
        let uses = text
            .split(';')
            .filter_map(|s| Some(s.rsplit_once("use ")?.1));
        let mut handed_on = uses.flat_map(paths);
        handed_on.find(|path| path.len() > 1 && path.last().is_some_and(|last| last == name))
    }
}

/// Returns the modules to which each module refers.
fn graph(files: &[File]) -> Graph {
    let modules = Modules::of(files);
    let mut graph = Graph::new();
    for file in files {
        let Some(node) = modules.node(&file.module) else {
            continue;
        };
        let edges = graph.entry(node.clone()).or_default();
        for start in ["crate::", "super::"] {
            for (at, _) in file.text.match_indices(start) {
                let before = file.text[..at].chars().next_back();
                if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                    continue;
                }
                let mut rest = &file.text[at..];
                let mut from = &file.module[..];
                if let Some(behind) = rest.strip_prefix("crate::") {
                    (rest, from) = (behind, &[]);
                }
                while let Some(behind) = rest.strip_prefix("super::") {
                    (rest, from) = (behind, &from[..from.len().saturating_sub(1)]);
                }
                let meant = paths(rest);
                let meant = meant.iter().filter_map(|path| modules.meant(from, path));
                edges.extend(meant.filter(|other| *other != node));
            }
        }
    }
    graph
}

/// Returns the graph of rooms and loose files.
fn of_rooms(graph: &Graph, name: &str) -> Graph {
    let room = |module: &String| module.split("::").next().unwrap_or("").to_owned();
    let mut rooms = Graph::new();
    for (from, to) in graph {
        let from = room(from);
        let is_listed = |to: &String| {
            let mut listed = ROOMS_BACK.iter();
            listed.any(|(of, back, there, _)| *of == name && *back == from && there == to)
        };
        let to = to.iter().map(room);
        let to = to
            .filter(|to| *to != from && !is_listed(to))
            .collect::<Vec<_>>();
        rooms.entry(from).or_default().extend(to);
    }
    rooms
}

fn reachable(graph: &Graph, from: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut waiting = vec![from.to_owned()];
    while let Some(module) = waiting.pop() {
        for next in graph.get(&module).into_iter().flatten() {
            if seen.insert(next.clone()) {
                waiting.push(next.clone());
            }
        }
    }
    seen
}

/// Returns the groups of modules in which each module leads to all others.
fn circles(graph: &Graph) -> BTreeSet<BTreeSet<String>> {
    let reach: BTreeMap<_, _> = graph.keys().map(|m| (m, reachable(graph, m))).collect();
    let circle_of = |module: &String| -> BTreeSet<String> {
        let others = reach[module].iter();
        let back = others.filter(|&other| reach.get(other).is_some_and(|r| r.contains(module)));
        back.cloned().collect()
    };
    let circles = graph.keys().map(circle_of);
    circles.filter(|circle| !circle.is_empty()).collect()
}

/// Returns the edges inside a circle, to show where it can be cut.
fn edges_within(graph: &Graph, circle: &BTreeSet<String>) -> Vec<String> {
    let edges = graph.iter().filter(|(from, _)| circle.contains(*from));
    edges
        .map(|(from, to)| {
            let to: Vec<_> = to.intersection(circle).cloned().collect();
            format!("{from} -> {}", to.join(", "))
        })
        .collect()
}

fn check(name: &str) {
    let source = root().join("crates").join(name).join("src");
    if !source.exists() {
        panic!("crates/{name} is gone: name its successor here");
    }
    let mut found = Vec::new();
    files(&source, &[], &mut found);
    let modules = graph(&found);
    let edges: usize = modules.values().map(BTreeSet::len).sum();
    assert!(
        edges > 100,
        "only {edges} edges were found in crates/{name}"
    );
    for (graph, what) in [(&modules, "modules"), (&of_rooms(&modules, name), "rooms")] {
        let circles = circles(graph);
        let shown: Vec<_> = circles.iter().map(|c| edges_within(graph, c)).collect();
        assert!(
            circles.is_empty(),
            "circles of {what} in crates/{name}: {shown:#?}"
        );
    }
    for (_, back, there, reason) in ROOMS_BACK.iter().filter(|listed| listed.0 == name) {
        let leads = |(from, to): (&String, &BTreeSet<String>)| {
            let is_in = |module: &String, room: &str| module.split("::").next() == Some(room);
            is_in(from, back) && to.iter().any(|to| is_in(to, there))
        };
        assert!(
            modules.iter().any(leads),
            "{back} does not lead to {there} any more: {reason}"
        );
    }
}

#[test]
fn no_circles_in_the_command() {
    check("cli");
}

#[test]
fn no_circles_in_the_library_of_one_trace() {
    check("attach");
}

#[test]
fn a_circle_is_found() {
    let file = |module: &str, text: &str| File {
        module: module
            .split("::")
            .filter(|n| !n.is_empty())
            .map(str::to_owned)
            .collect(),
        text: product(text),
    };
    let straight = [
        (
            "",
            "mod a;\nmod b;\nmod c;\nmod room;\npub use b::{Thing, Other};\nfn main() {}\n",
        ),
        (
            "a",
            "use crate::{b::X, c};\n// crate::a would be a comment\nfn of() { crate::room::f() }",
        ),
        (
            "b",
            "use super::c::Y;\nfn f() {}\n#[cfg(test)]\nmod tests {\n use crate::a;\n}\n",
        ),
        ("b::part", "use super::Z; use super::super::c;"),
        ("c", "fn f() { mycrate::a::g() }"),
        (
            "room",
            "pub mod d;\n#[cfg(test)]\nmod e;\npub(crate) use d::{self, f};",
        ),
        ("room::d", "fn f() {}"),
        ("room::e", "use super::d; use crate::a;\nfn g() {}"),
    ];
    let files = || -> Vec<File> { straight.map(|(module, text)| file(module, text)).into() };
    let found = graph(&files());
    let edges = |name: &str| found[name].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(edges("a"), ["b", "c", "room::d"]);
    assert_eq!((edges("b"), edges("c")), (vec!["c"], vec![]));
    assert_eq!(
        (edges("room::d"), edges("room::e")),
        (vec![], vec!["a", "room::d"])
    );
    assert!(circles(&found).is_empty());
    // `e` leads to `a`, and `a` to `d`: a circle of rooms only.
    assert_eq!(circles(&of_rooms(&found, "attach")).len(), 1);

    for (module, back) in [
        ("c::more", "use crate::a;"),
        ("c::more", "use crate::Thing;"),
        ("c::more", "fn f() { super::super::a::g() }"),
        ("room::d::more", "use crate::room::e::Y;"),
    ] {
        let mut files = files();
        files.push(file(module, back));
        assert_eq!(circles(&graph(&files)).len(), 1, "{back}");
    }
}
