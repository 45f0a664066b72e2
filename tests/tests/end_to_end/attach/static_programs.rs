//! Programs that contain their allocator. memhook-rs hooks the allocator's functions by jumps at
//! their entries.

use memhook_tests::programs::Folder;
use memhook_tests::{
    Attacher, Sites, Target, binary, build_on_musl, build_target, changed_code, run, sites,
};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Returns the addresses of functions in a file, according to nm.
fn symbols(program: &Path, names: &[&str]) -> Vec<(String, u64)> {
    let output = Command::new("nm").arg(program).output().expect("nm");
    let text = String::from_utf8(output.stdout).expect("names");
    let mut found = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        if let [address, _, name] = words[..]
            && names.contains(&name)
        {
            let address = u64::from_str_radix(address, 16).expect("an address");
            found.push((name.to_owned(), address));
        }
    }
    found
}

/// Returns the locations at which code in memory differs from the files, except for mappings of
/// memhook-rs.
fn changed(target: &Target) -> Vec<String> {
    let mut found = changed_code(target.pid());
    found.retain(|place| !place.contains("memhook"));
    found
}

/// Returns the first address of a program.
fn base_of(target: &Target, program: &Path) -> u64 {
    let (maps, path) = (target.maps(), program.to_str().expect("UTF-8"));
    let first = maps.lines().find(|line| line.ends_with(path));
    let start = first.and_then(|line| line.split('-').next());
    u64::from_str_radix(start.expect("it is mapped"), 16).expect("an address")
}

/// Checks that `doctor` lists these functions with their addresses, and says that pads hook them.
fn names_functions(target: &Target, program: &Path, functions: &[&str], owner: &str) {
    let (code, out, _) = run(&["doctor", &target.pid().to_string()]);
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("statically linked"), "{out}");
    let planted = symbols(program, functions);
    assert_eq!(planted.len(), functions.len(), "{planted:?}");
    let base = base_of(target, program);
    for (name, svma) in planted {
        let begin = format!("{name} ({owner})");
        let line = out.lines().find(|line| line.starts_with(&begin));
        let line = line.unwrap_or_else(|| panic!("{name}: {out}"));
        // In a program that is not relocated, addresses in the file are the same as addresses in
        // memory.
        let address = if svma < base { base + svma } else { svma };
        assert!(line.contains(&format!("{address:#018x}")), "{line}");
        assert!(line.ends_with("a pad at its entry"), "{line}");
    }
}

const PLANTED: [(&str, &str, u64, u64); 7] = [
    ("leak_by_malloc", "malloc", 100, 48),
    ("leak_by_calloc", "calloc", 90, 72),
    ("leak_by_realloc", "realloc", 80, 112),
    ("leak_by_posix_memalign", "posix_memalign", 70, 128),
    ("leak_by_strdup", "malloc", 60, 24),
    ("leak_by_new", "new[]", 50, 72),
    ("leak_in_thread", "malloc", 16, 40),
];

/// Traces a program that is linked with these flags twice. Between the two traces, an attacher is
/// killed. One of the program's threads is always in the allocator. At the end, the program's code
/// must be unchanged.
fn is_traced(flags: &[&str]) {
    let program = build_target("static_allocator", flags);
    let mut target = Target::start(&program, &[]);
    let pid = target.pid().to_string();
    let functions = ["malloc", "free", "calloc", "realloc"];
    names_functions(&target, &program, &functions, "glibc");
    let (code, out, err) = run(&["attach", "--dry-run", &pid]);
    assert_eq!(code, 0, "{err}");
    assert!(
        out.contains("at their entries: ") && out.contains(" malloc free "),
        "{out}"
    );
    assert_eq!(changed(&target), [] as [String; 0]);
    Attacher::start(&target, &[]).finish();
    assert_eq!(changed(&target), [] as [String; 0], "it is put back");
    let mappings = target.our_mappings();
    Attacher::start(&target, &[]).kill();
    assert!(!changed(&target).is_empty());
    let (code, _, err) = run(&["detach", &pid]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(changed(&target), [] as [String; 0], "it is put back");
    killed_while_it_attaches(&target);
    Attacher::start(&target, &[]).kill();
    let attacher = Attacher::start(&target, &[]);
    target.send("f");
    let child = target.expect("child");
    let child = child
        .trim_end()
        .rsplit(' ')
        .next()
        .expect("a number")
        .to_owned();
    let (code, _, err) = run(&["detach", &child]);
    assert_eq!(code, 0, "{err}");
    let mut of_child = changed_code(child.parse().expect("a number"));
    of_child.retain(|place| !place.contains("memhook"));
    assert_eq!(
        of_child,
        [] as [String; 0],
        "a child is put right by itself"
    );
    assert_eq!(
        target.our_mappings(),
        mappings,
        "what is there is used again"
    );
    let maps = target.maps();
    assert!(!maps.lines().any(|line| line.contains("rwx")), "{maps}");
    target.go();
    target.expect("done");
    let report = attacher.finish();
    let totals = &report["totals"];
    assert_eq!(totals["lost_events"], 0, "{report:#}");
    // At most two releases are of unknown blocks: the block that the busy thread held at the
    // attach, and the exception, which is allocated within the operator new that throws it. The C
    // library's releases at thread exit do not count.
    let unknown = totals["unknown_releases"].as_u64();
    assert!(unknown <= Some(2), "{report:#}");
    assert_eq!(totals["unhooked_releases"], 0, "{report:#}");
    let mut found = sites(&report, "static_allocator.cc");
    // Ignores memory that the C library keeps with the stacks of exited threads, and memory for
    // exceptions.
    found.retain(|(function, _), _| function.starts_with("leak_"));
    let planted = PLANTED.iter().map(|&(function, kind, blocks, size)| {
        let key = (function.to_owned(), kind.to_owned());
        (key, (blocks, blocks * size))
    });
    assert_eq!(found, planted.collect::<Sites>(), "{report:#}");
    assert_eq!(changed(&target), [] as [String; 0], "it is put back");
    assert!(target.finish().success());
}

/// Kills attachers at various points of their attach. `detach` must be able to clean up what they
/// leave behind.
fn killed_while_it_attaches(target: &Target) {
    let pid = target.pid().to_string();
    for delay in [1, 3, 6, 10, 15, 22, 30, 45, 70] {
        let mut attacher = Command::new(binary())
            .args(["attach", "--json", &pid])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        // The kill may come at any moment.
        std::thread::sleep(Duration::from_millis(delay));
        attacher.kill().expect("it runs");
        attacher.wait().expect("it ends");
        assert!(target.is_alive());
        let (code, _, err) = run(&["detach", &pid]);
        assert!(code == 0 || err.contains("nothing of memhook-rs"), "{err}");
        assert_eq!(changed(target), [] as [String; 0], "after {delay} ms");
    }
}

#[test]
fn a_static_program_on_glibc() {
    is_traced(&["-static", "-no-pie", "-g", "-O1"]);
}

#[test]
fn a_static_program_that_is_relocated() {
    is_traced(&["-static-pie", "-fPIE", "-g", "-O1"]);
}

/// Checks a program without signal handlers, and therefore without a signal restorer.
#[test]
fn a_static_program_on_musl() {
    let Some(program) = build_on_musl("on_musl", &["-static", "-no-pie"]) else {
        return;
    };
    let mut target = Target::start(&program, &["96"]);
    let functions = ["malloc", "free", "calloc", "realloc"];
    names_functions(&target, &program, &functions, "musl");
    let attacher = Attacher::start(&target, &[]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    assert_eq!(report["totals"]["unknown_releases"], 0);
    assert_eq!(
        report["totals"]["live_blocks"],
        100 + 90 + 80 + 70 + 60 + 1 + 1
    );
    // The functions of musl have no call frame information, so a stack through strdup ends there.
    let mut found = sites(&report, "on_musl.c");
    found.retain(|(function, _), _| function.starts_with("leak_"));
    let planted = [
        ("leak_by_malloc", "malloc", 100, 48),
        ("leak_by_calloc", "calloc", 90, 72),
        ("leak_by_realloc", "realloc", 80, 112),
        ("leak_by_aligned_alloc", "aligned_alloc", 70, 128),
        ("leak_in_thread", "malloc", 1, 40),
    ];
    let planted = planted.map(|(function, kind, blocks, size)| {
        let key = (function.to_owned(), kind.to_owned());
        (key, (blocks, blocks * size))
    });
    assert_eq!(found, Sites::from(planted), "{report:#}");
    assert_eq!(changed(&target), [] as [String; 0], "it is put back");
    assert!(target.finish().success());
}

/// Checks programs that memhook-rs starts: the first block counts, even before any constructor.
#[test]
fn static_programs_are_run() {
    let on_glibc = build_target("static_allocator", &["-static", "-no-pie", "-g", "-O1"]);
    let on_musl = build_on_musl("on_musl", &["-static", "-no-pie"]);
    let folder = Folder::new("static-run");
    // A stack ends in musl's strdup.
    let programs = [
        (Some(on_glibc), "static_allocator.cc", 466),
        (on_musl, "on_musl.c", 344),
    ];
    for (program, file, planted) in programs {
        let Some(program) = program else { continue };
        let report = folder.path("report.json");
        let script = "printf gg | \"$0\" run --json -T 1000 --force -o \"$1\" -- \"$2\" 96";
        let status = Command::new("sh")
            .args(["-c", script])
            .arg(binary())
            .arg(&report)
            .arg(&program)
            .status();
        assert!(status.expect("sh").success());
        let report = std::fs::read_to_string(&report).expect("a report");
        let last = serde_json::Deserializer::from_str(&report).into_iter::<serde_json::Value>();
        let last = last.last().expect("one").expect("JSON");
        assert_eq!(last["totals"]["lost_events"], 0, "{last:#}");
        // The allocation of the exception counts as part of operator new.
        let unknown = last["totals"]["unknown_releases"].as_u64();
        assert!(unknown <= Some(2), "{last:#}");
        let found = sites(&last, file);
        let found = found
            .iter()
            .filter(|((name, _), _)| name.starts_with("leak_"));
        let blocks: u64 = found.map(|(_, (blocks, _))| blocks).sum();
        assert_eq!(blocks, planted, "{last:#}");
    }
}

/// Checks that memhook-rs refuses a program that has no symbols, because it cannot find the
/// program's allocator.
#[test]
fn a_stripped_program_is_refused() {
    let program = build_target("threads", &["-static", "-s"]);
    let target = Target::start(&program, &["16"]);
    let pid = target.pid().to_string();
    let (code, _, err) = run(&["attach", &pid]);
    assert_eq!((code, err.lines().count()), (2, 1), "{err}");
    assert!(err.contains("statically linked and stripped"), "{err}");
    assert_eq!(target.our_mappings(), 0);
    assert!(target.finish().success());
}

/// Checks that `doctor` lists the functions that a dynamic program calls through slots.
#[test]
fn a_dynamic_program() {
    let mut target = Target::start(&build_target("threads", &[]), &["16"]);
    let (code, out, _) = run(&["doctor", &target.pid().to_string()]);
    assert_eq!(code, 0, "{out}");
    let line = out.lines().find(|line| line.starts_with("malloc (glibc)"));
    let line = line.unwrap_or_else(|| panic!("{out}"));
    assert!(
        line.contains("libc.so.6") && line.ends_with(" slots"),
        "{line}"
    );
    target.go();
    target.expect("done");
    assert!(target.finish().success());
}

/// Checks a program with a loader but no C library: `doctor` reports this among its checks, and
/// memhook-rs refuses an attach.
#[test]
fn a_program_without_a_c_library() {
    let flags = ["-nostdlib", "-ffreestanding", "-fno-stack-protector"];
    let target = Target::start(&build_target("without_c_library", &flags), &[]);
    let pid = target.pid().to_string();
    let (code, out, _) = run(&["doctor", &pid]);
    assert_eq!(code, 2, "{out}");
    assert!(out.contains("runs on neither glibc nor musl"), "{out}");
    assert!(out.contains("permission"), "its other checks: {out}");
    let (code, _, why) = run(&["attach", &pid, "-d", "100ms"]);
    assert_eq!(code, 2, "{why}");
    assert!(why.contains("neither glibc nor musl"), "{why}");
    assert!(target.finish().success());
}
