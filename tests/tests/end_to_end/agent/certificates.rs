//! A certificate for a server on this machine, and its CA certificate.

use memhook_tests::programs::{Folder, installed};
use std::net::IpAddr;
use std::process::Command;

/// Writes `leaf.key` and `leaf.pem` for an address into a folder, signed by `ca.pem`.
pub(super) fn make(folder: &Folder, address: IpAddr) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout";
    openssl(
        folder,
        &format!("req -x509 {key} @ca.key -out @ca.pem -subj /CN=ca -days 2"),
    );
    openssl(
        folder,
        &format!("req {key} @leaf.key -out @leaf.csr -subj /CN=store"),
    );
    let names = format!("subjectAltName=IP:{address}");
    std::fs::write(folder.path("names"), names).expect("written");
    openssl(
        folder,
        "x509 -req -in @leaf.csr -CA @ca.pem -CAkey @ca.key -CAcreateserial -days 2 -extfile @names -out @leaf.pem",
    );
}

/// Runs openssl with these arguments, replacing `@` with the folder.
fn openssl(folder: &Folder, words: &str) {
    let words = words
        .split(' ')
        .map(|word| word.replace('@', &folder.path("")));
    let output = Command::new(installed("openssl"))
        .args(words)
        .output()
        .expect("openssl runs");
    assert!(output.status.success(), "{output:?}");
}
