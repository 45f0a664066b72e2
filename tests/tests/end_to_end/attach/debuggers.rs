//! Programs that list the modules of a formerly traced process, and open them by name: debuggers,
//! and the process itself.

use memhook_tests::programs::installed;
use memhook_tests::{Attacher, Target, build_library, build_target};
use std::process::{Command, Stdio};

/// Debugging a small program takes a second; a debugger that read from one of its own pipes would
/// hang forever.
const LIMIT_SECONDS: &str = "120";

/// Runs a debugger with the process, and returns its output. The debugger must exit and release the
/// process.
fn debug(command: &mut Command, target: &Target) -> String {
    let output = command
        .stdin(Stdio::null())
        .output()
        .expect("timeout(1) runs");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{}: {said}", output.status);
    let state = target.status("State");
    assert!(!state.starts_with(['t', 'T']), "{state}: {said}");
    said
}

fn with_limit() -> Command {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", LIMIT_SECONDS]);
    command
}

fn gdb(target: &Target) -> String {
    let pid = target.pid().to_string();
    let commands = ["info sharedlibrary", "thread apply all backtrace"];
    let commands = commands.iter().flat_map(|command| ["-ex", command]);
    let mut gdb = with_limit();
    gdb.arg(installed("gdb"))
        .args(["-nx", "-batch", "-p", &pid]);
    debug(gdb.args(commands), target)
}

fn gcore(target: &Target) {
    let pid = target.pid().to_string();
    let to = std::env::temp_dir().join(format!("memhook-core-{pid}"));
    let mut gcore = with_limit();
    debug(
        gcore.arg(installed("gcore")).arg("-o").arg(&to).arg(&pid),
        target,
    );
    let core = to.with_file_name(format!("memhook-core-{pid}.{pid}"));
    assert!(core.metadata().is_ok_and(|core| core.len() > 0));
    let _ = std::fs::remove_file(core);
}

fn start() -> Target {
    let library = build_library("late_library", "liblate.so", &[]);
    let library = library.to_str().expect("UTF-8");
    Target::start(&build_target("lists_modules", &[]), &[library])
}

#[test]
fn gdb_and_gcore_after_an_attach_and_during_one() {
    memhook_tests::patiently(|| {
        let target = start();
        Attacher::start(&target, &[]).finish();
        let said = gdb(&target);
        assert!(said.contains("/[memhook-hook]"), "{said}");
        gcore(&target);
        let attacher = Attacher::start(&target, &[]);
        gdb(&target);
        gcore(&target);
        attacher.finish();
        assert!(target.finish().success());
    });
}

/// Checks a program that has a descriptor with the same number as the one through which the hook
/// was loaded.
#[test]
fn a_program_opens_its_modules_by_their_names() {
    memhook_tests::patiently(|| {
        let mut target = start();
        for _ in 0..3 {
            Attacher::start(&target, &[]).finish();
            target.go();
            target.expect("listed");
        }
        let attacher = Attacher::start(&target, &[]);
        target.go();
        target.expect("listed");
        attacher.finish();
        assert!(target.finish().success());
    });
}
