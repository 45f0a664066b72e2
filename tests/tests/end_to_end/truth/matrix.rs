//! The matrix of allocators, linkers and linking methods: one program with one leak, about which no
//! command may make a false statement.

use super::says;
use super::situation::{Built, Situation};
use memhook_tests::programs::Folder;
use memhook_tests::releases::Release;
use memhook_tests::{Attacher, Target, not_run, run};
use serde_json::Value;

/// Folder of the matrix's program.
pub const FOLDER: &str = "planted";

const LINKERS: [&str; 4] = ["bfd", "gold", "lld", "mold"];
/// Flags that link a program with another allocator.
const ALLOCATORS: [(&str, &[&str]); 5] = [
    ("glibc", &[]),
    ("jemalloc", &["-ljemalloc"]),
    ("tcmalloc", &["-ltcmalloc_minimal"]),
    ("mimalloc", &["-l:libmimalloc.so.2"]),
    (
        "jemalloc inside",
        &["-l:libjemalloc.a", "-ldl", "-lm", "-pthread"],
    ),
];

/// Libraries from Debian releases whose heap layout differs from this system's.
const OF_RELEASES: [(&str, &str); 5] = [
    ("trixie", "libmimalloc.so.3"),
    ("trixie", "libtcmalloc_minimal.so.4"),
    ("sid", "libjemalloc.so.2"),
    ("sid", "libtcmalloc_minimal.so.4"),
    ("sid", "libmimalloc.so.3"),
];

/// Returns the builds: every allocator with every linker (every second build is stripped), static
/// programs, and allocators of other releases.
fn ways() -> Vec<(String, Vec<String>)> {
    let mut ways = Vec::new();
    for (allocator, (name, libraries)) in ALLOCATORS.into_iter().enumerate() {
        for (number, linker) in LINKERS.into_iter().enumerate() {
            let mut flags = vec![format!("-fuse-ld={linker}")];
            let is_stripped = (allocator + number) % 2 == 1;
            flags.extend(is_stripped.then(|| "-s".to_owned()));
            // Links the library even if the program does not use it.
            flags.push("-Wl,--no-as-needed".into());
            flags.extend(libraries.iter().map(|&library| library.to_owned()));
            ways.push((format!("{name} by {linker}"), flags));
        }
    }
    for linker in ["bfd", "lld"] {
        for form in ["-static", "-static-pie"] {
            let flags = vec![format!("-fuse-ld={linker}"), form.to_owned()];
            ways.push((format!("{form} by {linker}"), flags));
        }
    }
    for (name, library) in OF_RELEASES {
        if let Some(release) = Release::named(name)
            && let Some(path) = release.library(library)
        {
            let mut flags = release.flags();
            flags.push("-Wl,--no-as-needed".into());
            // The library needs a newer libstdc++ than this system's, and finds it when it runs.
            flags.push("-Wl,--allow-shlib-undefined".into());
            flags.push(path.display().to_string());
            ways.push((format!("{library} of {name}"), flags));
        }
    }
    ways
}

fn number(report: &Value, path: &str) -> u64 {
    report
        .pointer(path)
        .and_then(Value::as_u64)
        .expect("a number")
}

/// Checks a trace, a search and two verdicts on one program.
fn check(situation: &Situation, built: &Built, what: &str, folder: &Folder) {
    let planted = &situation.site[0];
    let file = folder.path("run.mhk");
    let mut target = Target::run(&mut built.command());
    let pid = target.pid().to_string();
    let attacher = Attacher::start(&target, &["-o", &file]);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    let text = says(&["report", &file]);
    situation.check("attach", what, &text);
    let seen = number(&report, "/totals/live_blocks");
    if text.contains("complete: no event lost") {
        assert!(seen >= planted.blocks, "{what}: {seen}: {text}");
    }
    let (code, scanned, errors) = run(&["scan", &pid, "--json"]);
    situation.check("rss", what, &says(&["rss", &pid]));
    // The heap of a static program on glibc is refused, which is not a statement about leaks.
    if code != 2 {
        assert!(matches!(code, 0 | 1 | 3), "{what}: {code}: {errors}");
        let scanned: Value = serde_json::from_str(&scanned).expect("JSON");
        let leaked = number(&scanned, "/totals/leaked_blocks");
        // Stale pointers on the stack, or in caches of an unknown allocator, keep a few blocks
        // alive.
        let found_all = leaked + 10 >= planted.blocks;
        let is_whole = scanned["whole"] == true;
        assert!(found_all || !is_whole, "{what}: {leaked}: {scanned:#}");
        situation.check("scan", what, &says(&["scan", &pid]));
        // gperftools loses its first MallocExtension.
        assert!(leaked <= planted.blocks + 1, "{what}: {leaked}");
        let advice = says(&["advise", &pid, "-d", "300ms"]);
        situation.check("advise", what, &advice);
    }
    let (code, verdict, errors) = run(&["gate", "-p", &pid]);
    assert!(matches!(code, 1..=3), "{what}: {code}: {verdict} {errors}");
    situation.check("gate", what, &(verdict + &errors));
    assert!(target.finish().success(), "{what}");
    super::judged(situation, built, what, folder);
}

#[test]
fn one_leak_by_every_allocator_and_linker() {
    let situation = Situation::read(FOLDER);
    let folder = Folder::new("truth-matrix");
    let mut checked = Vec::new();
    for (number, (what, flags)) in ways().into_iter().enumerate() {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let Some(built) = situation.build_by(&flags, &folder.path(&number.to_string())) else {
            not_run(&format!("{what}: it cannot be linked here"));
            continue;
        };
        let outputs = Folder::new("truth-matrix-outputs");
        check(&situation, &built, &what, &outputs);
        checked.push(what);
    }
    assert!(
        checked.iter().any(|what| what.starts_with("glibc by bfd")),
        "{checked:?}"
    );
}
