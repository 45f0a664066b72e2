//! The build profiles.

use super::read;

/// Checks that the binary is stripped. Cargo strips it only if the package has no settings in the
/// profile; an optimization level for the package would bring the symbols back.
#[test]
fn a_release_is_stripped() {
    let manifest: toml::Table = toml::from_str(&read("Cargo.toml")).expect("TOML");
    let release = &manifest["profile"]["release"];
    assert_eq!(release["strip"].as_str(), Some("symbols"));
    assert!(release["package"].get("memhook-cli").is_none());
}
