//! Sources of symbol names.

use super::{output, record};
use memhook_tests::programs::Folder;
use memhook_tests::terminal::Terminal;
use memhook_tests::{DebugServer, binary, build_id, build_target, run, run_with};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A recording of a program that is removed or replaced later.
struct Recorded {
    folder: Folder,
    /// Original of the program's copy.
    built: PathBuf,
    program: String,
    file: String,
}

impl Recorded {
    fn new(name: &str) -> Recorded {
        let folder = Folder::new(name);
        let built = build_target("regression", &["-g", "-Wl,--build-id"]);
        let program = folder.path("program");
        memhook_tests::programs::copy_program(&built, &program);
        let file = folder.path("run.mhk");
        record(Path::new(&program), &["3"], &file, &[]);
        Recorded {
            folder,
            built,
            program,
            file,
        }
    }
}

/// Checks the names after the files are gone: without another source, from a bundle, and from a
/// copy of the file system.
#[test]
fn names_on_another_machine() {
    let Recorded {
        folder,
        built: program,
        program: here,
        file,
    } = Recorded::new("recorded-names");
    let bundle = folder.path("syms");
    output(&["symbols", "pack", &file, "-o", &bundle]);
    // The machine's own copy is now another build.
    let other = build_target("regression", &["-g", "-Wl,--build-id", "-DOTHER_BUILD"]);
    std::fs::remove_file(&here).expect("removed");
    memhook_tests::programs::copy_program(&other, &here);
    let innermost = |options: &[&str]| {
        let (code, out, err) = run(&[&["report", &file, "--json", "-T", "1"], options].concat());
        assert_eq!(code, 0, "{err}");
        let report: Value = serde_json::from_str(&out).expect("JSON");
        (report["sites"][0]["stack"][0].clone(), err)
    };
    let (frame, err) = innermost(&[]);
    assert!(
        err.contains(&here) && err.contains("another build"),
        "refused by name: {err}"
    );
    assert_eq!(frame["function"], Value::Null);
    assert_eq!(frame["module"], "program");
    let offset = frame["offset"].as_str().expect("an offset").to_owned();
    let named = |options: &[&str]| {
        let (frame, err) = innermost(options);
        let function = frame["function"].as_str().unwrap_or_default();
        assert!(
            function.starts_with("fill_cache"),
            "{options:?}: {frame} {err}"
        );
        let source = frame["file"].as_str().unwrap_or_default();
        assert!(source.ends_with("regression.cc"), "{frame}");
        assert!(
            frame["line"].as_u64().is_some_and(|line| line > 5),
            "{frame}"
        );
        assert_eq!(frame["offset"], offset.as_str());
    };
    named(&["--symbols", &bundle]);
    let sysroot = folder.path("sysroot");
    let inside = format!("{sysroot}{here}");
    std::fs::create_dir_all(Path::new(&inside).parent().expect("a folder")).expect("created");
    std::fs::copy(&program, &inside).expect("copied");
    named(&["--sysroot", &sysroot]);
    // Now only the debug file exists, which is found by its build-id.
    let debug = folder.path("debug");
    let id = build_id(&program);
    let to = format!("{debug}/.build-id/{}/{}.debug", &id[..2], &id[2..]);
    std::fs::create_dir_all(Path::new(&to).parent().expect("a folder")).expect("created");
    let split = Command::new("objcopy")
        .args(["--only-keep-debug", program.to_str().expect("UTF-8"), &to])
        .status();
    assert!(split.expect("objcopy runs").success());
    named(&["--symbols", &debug]);
}

/// Checks that a report caches names for the next report while the files are unchanged. A build-id
/// alone, which any file can claim, proves nothing.
#[test]
fn names_of_an_earlier_report() {
    let Recorded {
        folder,
        program,
        file,
        ..
    } = Recorded::new("recorded-cache");
    let cache = folder.path("cache");
    let report = |cache: &str| {
        let args = ["report", &file, "-T", "1"];
        let (code, out, err) = run_with(&args, &[("XDG_CACHE_HOME", cache)]);
        assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
        out
    };
    let uncached = report("/dev/null");
    assert!(uncached.contains("fill_cache"), "{uncached}");
    assert_eq!(report(&cache), uncached);
    assert!(Path::new(&cache).exists(), "names were kept");
    assert_eq!(report(&cache), uncached);
    std::fs::remove_file(&program).expect("removed");
    for cache in [&*cache, "/dev/null"] {
        let without = report(cache);
        assert!(!without.contains("fill_cache"), "{without}");
    }
}

/// Checks that servers are queried only if the environment names them, and that a failing server
/// leads to missing names, not to a failure.
#[test]
fn names_from_a_server() {
    let Recorded {
        folder,
        built,
        program,
        file,
    } = Recorded::new("recorded-server");
    std::fs::remove_file(&program).expect("removed");
    let server = DebugServer::start(&built);
    server.release();
    let url = &server.url;
    let cache = folder.path("cache");
    let report = |urls: &str| {
        let variables = [("XDG_CACHE_HOME", &*cache), ("DEBUGINFOD_URLS", urls)];
        let (code, out, err) = run_with(&["report", &file, "-T", "1"], &variables);
        assert_eq!(code, 0, "{err}");
        (out, err)
    };
    let (out, err) = report("");
    assert!(!out.contains("fill_cache"), "{out}");
    assert_eq!(err, "");
    // Without a server, the report prints one line, regardless of the number of modules.
    let (out, err) = report("http://127.0.0.1:1");
    assert!(!out.contains("fill_cache"), "{out}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(
        err.contains("not used: http://127.0.0.1:1/buildid/"),
        "{err}"
    );
    let (out, err) = report(url);
    assert!(out.contains("fill_cache"), "{out}");
    assert!(out.contains("regression.cc"), "{out}");
    assert_eq!(err, "");
}

/// Checks that a terminal shows the reason for a wait, and that a pipe receives only the report.
#[test]
fn a_long_wait_is_explained() {
    const WAITING: &str = "looking up names";
    let Recorded {
        folder,
        built,
        program,
        file,
    } = Recorded::new("recorded-slow");
    std::fs::remove_file(&program).expect("removed");
    let server = DebugServer::start(&built);
    let cache = folder.path("cache");
    let command = format!(
        "XDG_CACHE_HOME='{cache}' DEBUGINFOD_URLS={} '{}' report '{file}' -T 1; echo exit=$?; sleep 1000",
        server.url,
        binary().display()
    );
    let terminal = Terminal::start("progress", &command);
    terminal.wait_for(WAITING);
    server.release();
    terminal.wait_for("exit=0");
    let screen = terminal.screen();
    assert!(!screen.contains(WAITING), "{screen}");

    let server = DebugServer::start(&built);
    let cache = folder.path("another-cache");
    let variables = [
        ("XDG_CACHE_HOME", &*cache),
        ("DEBUGINFOD_URLS", &*server.url),
    ];
    std::thread::scope(|scope| {
        let report = scope.spawn(|| run_with(&["report", &file, "-T", "1"], &variables));
        // The pause is longer than the time after which a terminal shows the reason.
        std::thread::sleep(Duration::from_millis(1500));
        server.release();
        let (code, out, err) = report.join().expect("it runs");
        assert_eq!((code, err.as_str()), (0, ""));
        assert!(!out.contains(WAITING) && out.contains("live"), "{out}");
    });
}
