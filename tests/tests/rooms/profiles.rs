//! The build profiles.

use super::read;

/// Cargo strips a program by its profile only where the package has no settings of its own in that profile: an optimization
/// level for it, and the symbols would be back.
#[test]
fn a_release_is_stripped() {
    let manifest: toml::Table = toml::from_str(&read("Cargo.toml")).expect("TOML");
    let release = &manifest["profile"]["release"];
    assert_eq!(release["strip"].as_str(), Some("symbols"));
    assert!(release["package"].get("memhook-cli").is_none());
}
