//! Measures the detection of memory that is held but no longer touched. Repeats the evaluation of Memcov (Callanan et
//! al., "Model Predictive Control for Memory Profiling"), and adds a server with known stale bytes and redis with
//! unread keys.
//!
//! `cargo measure stale`; takes half an hour. It needs vim and redis, and writes its plots to `target/criterion/stale`.
//! `-- figures`, `-- times`, `-- pages`, `-- server` or `-- redis` runs only that part.

mod known_server;
mod pages;
mod redis;
mod vim;

use memhook_measurements::output_folder;
use serde_json::Value;
use std::fs::create_dir_all;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

fn main() {
    memhook_tests::binary();
    let folder = output_folder().join("stale");
    create_dir_all(&folder).expect("a folder for the pictures");
    let parts: Vec<String> = std::env::args().skip(1).collect();
    let parts: Vec<&String> = parts.iter().filter(|part| !part.starts_with('-')).collect();
    let is_wanted = |part: &str| parts.is_empty() || parts.iter().any(|&one| one == part);
    if is_wanted("figures") {
        vim::figures(&folder);
    }
    if is_wanted("times") {
        vim::run_times(&folder);
    }
    if is_wanted("pages") {
        pages::measure();
    }
    if is_wanted("server") {
        known_server::measure();
    }
    if is_wanted("redis") {
        redis::measure();
    }
}

/// Attaches memhook-rs to a process. Returns once the process is traced.
fn attached(arguments: &[&str]) -> Child {
    let mut child = Command::new(memhook_tests::binary())
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("memhook-rs");
    let mut errors = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    while !["Attached", "Watching"]
        .iter()
        .any(|&word| line.starts_with(word))
    {
        line.clear();
        let read = errors.read_line(&mut line).expect("readable");
        assert!(read > 0, "it ended, and does not trace");
    }
    std::thread::spawn(move || errors.lines().map_while(Result::ok).for_each(drop));
    child
}

fn report(of: Child) -> Value {
    let output = of.wait_with_output().expect("it ends");
    let text = String::from_utf8(output.stdout).expect("text");
    serde_json::from_str(text.lines().last().unwrap_or_default()).expect("a report")
}

/// Ends an attacher, and returns its last report.
fn ended(attacher: Child) -> Value {
    // SAFETY: kill(2) takes plain integers; the child has not been waited for.
    unsafe { libc::kill(attacher.id() as i32, libc::SIGINT) };
    report(attacher)
}
