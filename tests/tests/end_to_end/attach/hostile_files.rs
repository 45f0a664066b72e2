//! Malicious files with which a target attacks the programs that examine it.

use memhook_tests::programs::Folder;
use memhook_tests::{Target, binary, build_id, build_library, build_target};
use std::process::{Command, Output};

/// Runs memhook-rs with an address space that is sufficient for its own region, its threads and
/// honest files, but not for 200 GiB.
fn bounded(arguments: &[&str]) -> Output {
    Command::new("sh")
        .args(["-c", "ulimit -v 25165824; exec \"$0\" \"$@\""])
        .arg(binary())
        .args(arguments)
        .env("XDG_CACHE_HOME", "/dev/null")
        .env_remove("DEBUGINFOD_URLS")
        .output()
        .expect("sh")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Writes a library followed by a hole of 200 GiB. The mapped part is unchanged.
fn with_hole(folder: &Folder, name: &str) -> String {
    let built = build_library("late_library", "libhole.so", &[]);
    let path = folder.path(name);
    std::fs::copy(built, &path).expect("copied");
    let file = std::fs::File::options().write(true).open(&path);
    file.expect("there")
        .set_len(200 << 30)
        .expect("a file system with holes");
    path
}

/// Checks libraries with names that memhook-rs looks for, each 200 GiB long. Reading one completely
/// would exhaust the memory of memhook-rs or of the machine.
#[test]
fn libraries_of_two_hundred_gibibytes() {
    let folder = Folder::new("holes");
    let names = [
        "libplain.so",
        "libc.so.6.hole",
        "libdl.so.hole",
        "ld-linux-x86-64.so.hole",
    ];
    let paths = names.map(|name| with_hole(&folder, name));
    let paths = paths.each_ref().map(String::as_str);
    let program = build_target("opens_library", &[]);
    let target = Target::start(&program, &paths);
    let pid = target.pid().to_string();
    let file = folder.path("run.mhk");
    for arguments in [
        &["doctor", &pid][..],
        &["attach", &pid, "--dry-run"],
        &["attach", &pid, "-d", "300ms", "--json"],
        &["attach", &pid, "-d", "300ms", "-o", &file],
        &["report", &file],
        &["scan", &pid],
        &["detach", &pid],
    ] {
        let output = bounded(arguments);
        let (out, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(
            output.status.success(),
            "{arguments:?}: {:?} {out}{errors}",
            output.status
        );
    }
    assert!(target.finish().success());
    // memhook-rs reads the mapped parts of the libraries, and finds their slots.
    let mut target = Target::start(&program, &paths);
    let pid = target.pid().to_string();
    let output = bounded(&["attach", &pid, "--dry-run"]);
    assert!(
        text(&output.stdout).contains("libplain.so"),
        "{}",
        text(&output.stdout)
    );
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}

/// Checks files in /proc that may contain arbitrarily long text from the process.
#[test]
fn a_command_line_of_sixty_four_gibibytes() {
    let folder = Folder::new("command-line");
    let mut target = Target::silent(&mut Command::new(build_target("long_command_line", &[])));
    let allowed = target.expect("");
    target.expect("ready");
    if allowed.trim() != "long" {
        return memhook_tests::not_run("this kernel does not let a process move its command line");
    }
    let pid = target.pid().to_string();
    let file = folder.path("run.mhk");
    for arguments in [
        &["attach", &pid, "-d", "100ms", "-o", &file][..],
        &["report", &file],
        &["doctor", &pid],
    ] {
        let output = bounded(arguments);
        let errors = text(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
    }
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}

/// Checks that an absolute link in the target's file system is resolved in that file system, not in
/// ours, and that a link to a pipe does not block.
#[test]
fn debug_links_of_a_root_of_its_own() {
    let folder = Folder::new("own-root");
    let root = folder.path("root");
    let lib = format!("{root}/usr/lib/debug");
    std::fs::create_dir_all(&lib).expect("a folder");
    let outside = folder.path("outside");
    let made = Command::new("mkfifo").arg(&outside).status();
    assert!(made.expect("mkfifo").success());
    let program = build_target("leaks", &["-Wl,--build-id=sha1"]);
    let file = folder.path("run.mhk");
    let mut target = Target::start(&program, &[]);
    let attacher = memhook_tests::Attacher::start(&target, &["-o", &file]);
    target.go();
    target.expect("done");
    attacher.finish();
    assert!(target.finish().success());
    let id = build_id(&program);
    let place = format!("{lib}/.build-id/{}", &id[..2]);
    std::fs::create_dir_all(&place).expect("a folder");
    let debug = format!("{place}/{}.debug", &id[2..]);
    for to in [
        outside.as_str(),
        "/dev/zero",
        program.to_str().expect("text"),
    ] {
        let _ = std::fs::remove_file(&debug);
        std::os::unix::fs::symlink(to, &debug).expect("a link");
        let output = bounded(&["report", &file, "--sysroot", &root, "--json"]);
        assert!(output.status.success(), "{to}: {}", text(&output.stderr));
        // This root does not contain the copy of the program to which the link would lead in our
        // file system.
        let out = text(&output.stdout);
        assert!(!out.contains("leak_by_growing"), "{to}");
    }
}
