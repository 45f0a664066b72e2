//! Attaches to a program that executes itself repeatedly, even in the middle of the attach. All
//! earlier knowledge refers to another address space, and must not be used for calls or writes.

use memhook_tests::{build_target, patience, run};
use std::process::Command;

/// Number of times that the program executes itself. An attach takes as long as a few executions.
const TIMES: &str = "120";

fn attach_until_it_ends(mut command: Command) {
    let mut child = command.arg(TIMES).spawn().expect("it runs");
    let pid = child.id().to_string();
    let mut attached = 0;
    while child.try_wait().expect("its state").is_none() {
        let (code, out, err) = run(&["attach", &pid, "-q", "-d", "20ms"]);
        assert!(matches!(code, 0 | 2), "{code}: {out}{err}");
        assert!(!err.contains("raised signal"), "{err}");
        assert!(!err.contains("panicked"), "{err}");
        attached += usize::from(code == 0);
    }
    let status = patience::end_of(&mut child);
    assert!(status.success(), "{status}, attached {attached} times");
}

#[test]
fn at_other_addresses_each_time() {
    attach_until_it_ends(Command::new(build_target("executes_itself", &["-O2"])));
}

/// Disables address randomization, so that every address is also valid in the next program.
#[test]
fn at_the_same_addresses_each_time() {
    let mut command = Command::new("setarch");
    command
        .arg("--addr-no-randomize")
        .arg(build_target("executes_itself", &["-O2"]));
    attach_until_it_ends(command);
}
