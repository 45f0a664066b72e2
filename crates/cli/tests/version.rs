//! The command runs without a target process. Because of this test, building the tests builds the
//! command too.

use std::process::Command;

#[test]
fn it_says_its_version() {
    let output = Command::new(env!("CARGO_BIN_EXE_memhook-rs"))
        .arg("--version")
        .output()
        .expect("it runs");
    let expected = format!("memhook-rs {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    assert!(output.status.success() && output.stderr.is_empty());
}
