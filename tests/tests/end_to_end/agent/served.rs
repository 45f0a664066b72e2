//! A target for a single test, requests about it, and other programs.

use memhook_tests::agents::{Pprof, wrapped_slots};
use memhook_tests::programs::Folder;
use memhook_tests::{Target, build_target};
use std::path::{Path, PathBuf};
use std::process::Child;

/// Starts a target that only this test uses; rules select it by its path.
pub(super) fn service(folder: &Folder) -> (Target, PathBuf) {
    let program = PathBuf::from(folder.path("served"));
    if !program.exists() {
        memhook_tests::programs::copy_program(build_target("served", &[]), &program);
    }
    (Target::start(&program, &[]), program)
}

pub(super) fn rule(program: &Path, more: &str) -> String {
    format!(
        "[[rule]]\nname = \"web\"\nexecutable = \"{}\"\n{more}\n",
        program.display()
    )
}

/// Checks that memhook-rs has left nothing in a process.
pub(super) fn expect_untouched(pid: u32) {
    assert_eq!(
        wrapped_slots(pid),
        0,
        "slots of process {pid} lead to wrappers"
    );
}

pub(super) fn ask(target: &mut Target, what: &str) {
    target.send(what);
    target.expect("done");
}

pub(super) fn files(directory: &str) -> Vec<Pprof> {
    let entries = std::fs::read_dir(directory).expect("a directory").flatten();
    entries
        .map(|entry| Pprof::read(&std::fs::read(entry.path()).expect("readable")))
        .collect()
}

/// A program that is killed on drop.
pub(super) struct Ended(pub(super) Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
