//! A crate may import only crates that are above it in the code map of ARCHITECTURE.

use super::{read, root, table};
use std::collections::BTreeSet;
use std::process::Command;

/// Data from `cargo metadata` on a crate below `crates/`.
struct Crate {
    directory: String,
    /// Directories of the workspace crates that a crate imports, not counting its tests.
    imports: Vec<String>,
}

fn crates() -> Vec<Crate> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata fails");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    packages.iter().filter_map(of_package).collect()
}

fn of_package(package: &serde_json::Value) -> Option<Crate> {
    let manifest = package["manifest_path"].as_str()?;
    let directory = directory_in_crates(manifest.strip_suffix("/Cargo.toml")?)?;
    let dependencies = package["dependencies"].as_array()?;
    let imports = dependencies
        .iter()
        .filter(|dependency| dependency["kind"] != "dev")
        .filter_map(|dependency| directory_in_crates(dependency["path"].as_str()?));
    Some(Crate {
        directory,
        imports: imports.collect(),
    })
}

/// Returns `inject` for `/anywhere/crates/inject`.
fn directory_in_crates(path: &str) -> Option<String> {
    let (parent, name) = path.rsplit_once('/')?;
    parent.ends_with("/crates").then(|| name.to_owned())
}

/// Returns the directories below `crates/` in the order of the code map.
fn code_map() -> Vec<String> {
    let rows = table(&read("ARCHITECTURE.md"), "The code map");
    let places = rows.iter().filter_map(|row| {
        let place = row[0].trim_matches('`').strip_prefix("crates/")?;
        Some(place.to_owned())
    });
    places.collect()
}

/// Returns the faults: crates that are missing from the map, entries without a crate, and imports
/// in the wrong direction.
fn faults(map: &[String], crates: &[Crate]) -> Vec<String> {
    let line = |name: &String| map.iter().position(|place| place == name);
    let mut faults = Vec::new();
    let mapped: BTreeSet<_> = map.iter().collect();
    if mapped.len() < map.len() {
        faults.push("a crate is on two lines of the code map".to_owned());
    }
    let present: BTreeSet<_> = crates.iter().map(|c| &c.directory).collect();
    for gone in mapped.difference(&present) {
        faults.push(format!(
            "crates/{gone} is in the code map, but does not exist"
        ));
    }
    for new in present.difference(&mapped) {
        faults.push(format!("crates/{new} is missing in the code map"));
    }
    for importer in crates.iter().filter(|c| mapped.contains(&c.directory)) {
        for import in &importer.imports {
            if line(import) >= line(&importer.directory) {
                let name = &importer.directory;
                faults.push(format!(
                    "crates/{name} imports crates/{import}, which is not above it"
                ));
            }
        }
    }
    faults
}

#[test]
fn no_crate_imports_upward() {
    let (map, crates) = (code_map(), crates());
    assert!(crates.len() > 10, "cargo names {} crates", crates.len());
    let faults = faults(&map, &crates);
    assert!(faults.is_empty(), "ARCHITECTURE.md: {faults:#?}");
}

#[test]
fn a_wrong_import_is_found() {
    let map = ["abi", "process", "heap"].map(str::to_owned);
    let of = |directory: &str, imports: &[&str]| Crate {
        directory: directory.to_owned(),
        imports: imports.iter().map(|&i| i.to_owned()).collect(),
    };
    let right = [
        of("abi", &[]),
        of("process", &["abi"]),
        of("heap", &["process", "abi"]),
    ];
    assert!(faults(&map, &right).is_empty());
    let upward = [of("abi", &[]), of("process", &["heap"]), of("heap", &[])];
    assert_eq!(faults(&map, &upward).len(), 1);
    let itself = [of("abi", &["abi"]), of("process", &[]), of("heap", &[])];
    assert_eq!(faults(&map, &itself).len(), 1);
    let unknown = [
        of("abi", &[]),
        of("process", &[]),
        of("heap", &[]),
        of("cli", &["heap"]),
    ];
    assert_eq!(faults(&map, &unknown).len(), 1);
    assert_eq!(faults(&map, &right[..2]).len(), 1);
}
