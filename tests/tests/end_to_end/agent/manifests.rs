//! Effects of the Kubernetes manifests on the agent. `cargo xtask kubernetes-check` checks all
//! other aspects.

use memhook_tests::binary;
use memhook_tests::programs::Folder;
use std::path::Path;
use std::process::Command;

/// Returns the text of a YAML block scalar, `KEY: |`, without its indentation.
pub(super) fn block(file: &str, key: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fleet/kubernetes")
        .join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{file}: {e}"));
    let lines = text
        .lines()
        .skip_while(|line| !line.trim_start().starts_with(&format!("{key}: |")));
    let lines: Vec<&str> = lines.skip(1).collect();
    let width = |line: &str| line.len() - line.trim_start().len();
    let indentation = width(lines.first().expect("a block"));
    let inside = lines
        .into_iter()
        .take_while(|line| line.is_empty() || width(line) >= indentation);
    let inside = inside.map(|line| line.get(indentation..).unwrap_or_default().to_owned() + "\n");
    inside.collect::<String>().trim_end().to_owned() + "\n"
}

#[test]
fn the_agent_takes_the_configuration_of_the_manifests() {
    let text = block("configmap.yaml", "agent.toml");
    assert_eq!(text, block("chart/values.yaml", "configuration"));
    let folder = Folder::new("manifests");
    let file = folder.path("agent.toml");
    std::fs::write(&file, text).expect("written");
    let output = Command::new(binary())
        .args(["agent", "--check", "--config", &file])
        .env("NODE_IP", "192.0.2.7")
        .output()
        .expect("it runs");
    let [shown, errors] =
        [output.stdout, output.stderr].map(|of| String::from_utf8(of).expect("text"));
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(
        shown.contains("each namespace like \"*\": at most 10 targets and 1 % of the processors"),
        "{shown}"
    );
    // These files exist only in the pod.
    let beside = errors
        .lines()
        .filter(|line| !line.contains("/var/run/secrets/memhook-rs/"));
    assert_eq!(beside.collect::<Vec<_>>(), [""; 0]);
}
