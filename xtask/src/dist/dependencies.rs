//! Packages that are linked into the command, according to cargo.

use super::{output, root};
use anyhow::Context;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

/// Package that the command is built from, including the command itself.
pub struct Dependency {
    pub name: String,
    pub version: String,
    /// SPDX expression.
    pub licence: String,
    /// Directory of its sources.
    pub directory: PathBuf,
    /// True for a package of this repository.
    pub is_ours: bool,
    /// Package URLs of its dependencies.
    pub depends_on: Vec<String>,
}

impl Dependency {
    /// Returns the package URL: <https://github.com/package-url/purl-spec>
    pub fn url(&self) -> String {
        url(&self.name, &self.version)
    }
}

fn url(name: &str, version: &str) -> String {
    format!("pkg:cargo/{name}@{version}")
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    manifest_path: PathBuf,
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    /// Absent for linked dependencies, otherwise `dev` or `build`.
    kind: Option<String>,
}

/// Returns the packages, sorted by name and version.
pub fn of_the_command() -> anyhow::Result<Vec<Dependency>> {
    let text = output(
        Command::new("cargo")
            .args(["metadata", "--locked", "--format-version", "1"])
            .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
            .current_dir(root()),
    )?;
    let metadata: Metadata = serde_json::from_str(&text).context("cargo metadata")?;
    let packages: BTreeMap<&str, &Package> = metadata
        .packages
        .iter()
        .map(|package| (&*package.id, package))
        .collect();
    let linked = |node: &Node| -> Vec<String> {
        let edges = node.deps.iter();
        let edges = edges.filter(|edge| edge.dep_kinds.iter().any(|kind| kind.kind.is_none()));
        edges.map(|edge| edge.pkg.clone()).collect()
    };
    let edges: BTreeMap<&str, Vec<String>> = metadata
        .resolve
        .nodes
        .iter()
        .map(|node| (&*node.id, linked(node)))
        .collect();

    let command = metadata
        .packages
        .iter()
        .find(|package| package.name == "memhook-cli");
    let mut waiting = vec![&*command.context("memhook-cli is in the workspace")?.id];
    let mut seen = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if seen.insert(id) {
            waiting.extend(edges[id].iter().map(String::as_str));
        }
    }
    let mut dependencies = Vec::new();
    for id in seen {
        let package = packages[id];
        let name = &package.name;
        let directory = package
            .manifest_path
            .parent()
            .context("a manifest has a directory")?;
        let mut depends_on: Vec<String> = edges[id]
            .iter()
            .map(|id| url(&packages[&**id].name, &packages[&**id].version))
            .collect();
        depends_on.sort();
        dependencies.push(Dependency {
            name: name.clone(),
            version: package.version.clone(),
            licence: package
                .license
                .clone()
                .with_context(|| format!("{name} names no licence"))?,
            directory: directory.to_owned(),
            is_ours: package.source.is_none(),
            depends_on,
        });
    }
    dependencies.sort_by_key(Dependency::url);
    Ok(dependencies)
}
