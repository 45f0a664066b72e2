//! No circles between the modules of the two crates that hold everything together. A module and its
//! submodules are one node here; an edge is a path that begins with `crate::`, or with enough `super::`
//! to leave the module.

use super::root;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

type Graph = BTreeMap<String, BTreeSet<String>>;

/// A file of a crate without its tests: the module it belongs to, how deep in it, its text.
struct File {
    module: String,
    depth: usize,
    text: String,
}

fn files(directory: &Path, parents: &[String], into: &mut Vec<File>) {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{directory:?}: {e}"));
    for entry in entries.map(|entry| entry.expect("readable")) {
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        // Its modules are the command's own ones, but for the processors that they are for.
        if path.is_dir() && name == "live" {
            files(&path, parents, into);
            continue;
        }
        if path.is_dir() {
            let inside = [parents, &[name.into_owned()]].concat();
            files(&path, &inside, into);
            continue;
        }
        let Some(name) = name.strip_suffix(".rs") else {
            continue;
        };
        let own = (name != "mod").then(|| name.to_owned());
        let modules: Vec<String> = parents.iter().cloned().chain(own).collect();
        // It only lists modules.
        if modules.is_empty() {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("readable");
        into.push(File {
            module: modules[0].clone(),
            depth: modules.len(),
            text: product(&text),
        });
    }
}

/// The code without comments and without unit tests, which stand at the end of a file.
fn product(text: &str) -> String {
    let code = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or("");
    let lines = code.lines().map(|line| match line.trim_start() {
        comment if comment.starts_with("//") => "",
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The first names of the paths that `text` begins with: `a` of `a::b`, `a` and `b` of `{a::c, b}`.
fn first_names(text: &str) -> Vec<String> {
    let Some(group) = text.strip_prefix('{') else {
        return vec![identifier(text)];
    };
    let (mut names, mut depth, mut is_first) = (Vec::new(), 0, true);
    for (at, sign) in group.char_indices() {
        match sign {
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            '{' => depth += 1,
            ',' if depth == 0 => is_first = true,
            _ if is_first && !sign.is_whitespace() => {
                names.push(identifier(&group[at..]));
                is_first = false;
            }
            _ => {}
        }
    }
    names
}

fn identifier(text: &str) -> String {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    text[..end.unwrap_or(text.len())].to_owned()
}

/// What `lib.rs` or `main.rs` hands on: name to the module that it comes from.
fn handed_on(root_file: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for statement in product(root_file).split(';') {
        let Some((_, path)) = statement.rsplit_once("use ") else {
            continue;
        };
        let path = path.trim().trim_start_matches("crate::");
        if let Some((module, rest)) = path.split_once("::")
            && module != "live"
        {
            for name in first_names(rest) {
                names.insert(name, module.to_owned());
            }
        }
    }
    names
}

/// Which module mentions which.
fn graph(files: &[File], root_file: &str) -> Graph {
    let handed_on = handed_on(root_file);
    let modules: BTreeSet<&String> = files.iter().map(|f| &f.module).collect();
    let mut graph = Graph::new();
    for file in files {
        let beyond = "super::".repeat(file.depth);
        let deeper = "super::".repeat(file.depth + 1);
        let edges = graph.entry(file.module.clone()).or_default();
        for start in ["crate::", &beyond] {
            for (at, _) in file.text.match_indices(start) {
                let before = file.text[..at].chars().next_back();
                let is_name = before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':');
                if is_name || (start != "crate::" && file.text[at..].starts_with(&deeper)) {
                    continue;
                }
                let rest = &file.text[at + start.len()..];
                let rest = rest.strip_prefix("live::").unwrap_or(rest);
                for name in first_names(rest) {
                    let module = handed_on.get(&name).unwrap_or(&name);
                    if modules.contains(module) && *module != file.module {
                        edges.insert(module.clone());
                    }
                }
            }
        }
    }
    graph
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

/// Groups of modules each of which leads to all others of its group.
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

/// The edges inside of a circle, to show where it can be cut.
fn edges_within(graph: &Graph, circle: &BTreeSet<String>) -> Vec<String> {
    let edges = graph.iter().filter(|(from, _)| circle.contains(*from));
    edges
        .map(|(from, to)| {
            let to: Vec<_> = to.intersection(circle).cloned().collect();
            format!("{from} -> {}", to.join(", "))
        })
        .collect()
}

fn check(name: &str, root_file: &str) {
    let source = root().join("crates").join(name).join("src");
    if !source.exists() {
        panic!("crates/{name} is gone: name its successor here");
    }
    let mut found = Vec::new();
    files(&source, &[], &mut found);
    let of_root = std::fs::read_to_string(source.join(root_file)).expect(root_file);
    found.retain(|file| !["main", "lib"].contains(&file.module.as_str()));
    let graph = graph(&found, &of_root);
    let edges: usize = graph.values().map(BTreeSet::len).sum();
    assert!(edges > 10, "only {edges} edges were found in crates/{name}");
    let circles = circles(&graph);
    let shown: Vec<_> = circles.iter().map(|c| edges_within(&graph, c)).collect();
    assert!(circles.is_empty(), "circles in crates/{name}: {shown:#?}");
}

#[test]
fn no_circles_in_the_command() {
    check("cli", "main.rs");
}

#[test]
fn no_circles_in_the_library_of_one_trace() {
    check("attach", "lib.rs");
}

#[test]
fn a_circle_is_found() {
    let file = |module: &str, depth, text: &str| File {
        module: module.to_owned(),
        depth,
        text: product(text),
    };
    let root_file = "mod a;\nmod b;\nmod c;\npub use b::{Thing, Other};\n";
    let straight = [
        file(
            "a",
            1,
            "use crate::{b::X, c};\n// crate::a would be a comment\n",
        ),
        file(
            "b",
            1,
            "use super::c::Y;\n#[cfg(test)]\nmod tests {\n use crate::a;\n}\n",
        ),
        file("b", 2, "use super::Z; use super::super::c;"),
        file("c", 1, "fn f() { mycrate::a::g() }"),
    ];
    let found = graph(&straight, root_file);
    let edges = |name: &str| found[name].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(
        (edges("a"), edges("b"), edges("c")),
        (vec!["b", "c"], vec!["c"], vec![])
    );
    assert!(circles(&found).is_empty());

    for back in [
        "use crate::a;",
        "use crate::Thing;",
        "fn f() { super::a::g() }",
    ] {
        let mut files = vec![file("c", 1, back)];
        files.extend(straight.iter().map(|f| file(&f.module, f.depth, &f.text)));
        assert_eq!(circles(&graph(&files, root_file)).len(), 1, "{back}");
    }
}
