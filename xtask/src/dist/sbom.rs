//! Components of the binary in machine-readable form: <https://cyclonedx.org/docs/1.5/json/>.

use super::Release;
use super::dependencies::Dependency;
use serde_json::json;

pub fn cyclonedx(release: &Release, dependencies: &[Dependency]) -> anyhow::Result<Vec<u8>> {
    let component = |dependency: &Dependency| {
        json!({
            "type": "library",
            "bom-ref": dependency.url(),
            "name": dependency.name,
            "version": dependency.version,
            // Older manifests write "MIT/Apache-2.0" where SPDX writes OR.
            "licenses": [{ "expression": dependency.licence.replace('/', " OR ") }],
            "purl": dependency.url(),
        })
    };
    let edges = |dependency: &Dependency| {
        json!({
            "ref": dependency.url(),
            "dependsOn": dependency.depends_on,
        })
    };
    let (command, others): (Vec<_>, Vec<_>) = dependencies
        .iter()
        .partition(|dependency| dependency.name == "memhook-cli");
    let mut subject = component(command[0]);
    subject["type"] = json!("application");
    let bom = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": subject, "properties": [
            { "name": "source-date-epoch", "value": release.epoch.to_string() },
        ] },
        "components": others.into_iter().map(component).collect::<Vec<_>>(),
        "dependencies": dependencies.iter().map(edges).collect::<Vec<_>>(),
    });
    let mut text = serde_json::to_string_pretty(&bom)?;
    text.push('\n');
    Ok(text.into_bytes())
}
