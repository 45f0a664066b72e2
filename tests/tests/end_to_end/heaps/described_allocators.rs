//! Allocators that the user describes. Each has a separate heap.

use memhook_tests::{
    Attacher, JsonSchema, Sites, Target, binary, build_library, build_target, changed_code,
    has_library, run, sites,
};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

const FILE: &str = r#"
[[allocator]]
name = "pool"
alloc = ["pool_alloc(size=arg2) -> ptr", "pool_calloc(count=arg2:32, size=arg3) -> ptr"]
free = ["pool_free(ptr=arg2)"]
realloc = ["pool_realloc(ptr=arg2, size=arg3) -> ptr"]

[[allocator]]
name = "nodes"
alloc = ["node_get(size=fixed:64, ptr=*arg2) -> 0"]
free = ["node_put(ptr=*arg1)"]
"#;

/// Live blocks in the pool at the end: calling function, allocating function, number of blocks, and
/// bytes per block.
const IN_POOL: [(&str, &str, u64, u64); 14] = [
    ("plain", "pool_alloc", 300, 100),
    ("zeroed", "pool_calloc", 40, 21),
    ("grown", "pool_realloc", 25, 150),
    ("not_grown", "pool_alloc", 5, 33),
    ("odd", "pool_alloc", 21, 1),
    ("after_throw", "pool_alloc", 11, 30),
    ("after_jump", "pool_alloc", 12, 31),
    ("interrupted", "pool_alloc", 3, 669),
    ("in_handler", "pool_alloc", 3, 70),
    ("in_coroutine", "pool_alloc", 1, 668),
    ("meanwhile", "pool_alloc", 4, 32),
    ("in_thread", "pool_alloc", 4 * 250, 40),
    // Slabs of eight nodes of 64 bytes, for 61 live nodes.
    ("node_get", "pool_alloc", 8, 512),
    ("many", "pool_alloc", 1, 20),
];

struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> File {
        let name = format!("memhook-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).expect("written");
        File(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the locations at which code in memory differs from the files, except for mappings of
/// memhook-rs.
fn changed(pid: u32) -> Vec<String> {
    let mut found = changed_code(pid);
    found.retain(|place| !place.contains("memhook"));
    found
}

fn of_heap(report: &Value, name: &str) -> Sites {
    let all = report["sites"].as_array().expect("sites");
    let of_heap = all.iter().filter(|site| site["heap"] == name);
    let of_heap = json!({ "sites": of_heap.collect::<Vec<_>>() });
    sites(&of_heap, "described_allocators.cc")
}

fn planted(all: &[(&str, &str, u64, u64)]) -> Sites {
    let one = |&(function, kind, blocks, size): &(&str, &str, u64, u64)| {
        let key = (function.to_owned(), kind.to_owned());
        (key, (blocks, blocks * size))
    };
    all.iter().map(one).collect()
}

fn totals_of<'r>(report: &'r Value, name: &str) -> &'r Value {
    let heaps = report["heaps"].as_array().expect("heaps");
    let heap = heaps.iter().find(|heap| heap["name"] == name);
    &heap.unwrap_or_else(|| panic!("{name}: {report:#}"))["totals"]
}

/// Checks every form of a description, in a program whose calls leave the allocator in every way.
/// Before that, the test kills attachers while a thread is in the allocator, and forks a child. At
/// the end, the code must be unchanged.
#[test]
fn heaps_of_their_own_are_counted_exactly() {
    let program = build_target("described_allocators", &["-g", "-O2", "-fPIE", "-pie"]);
    let mut target = Target::start(&program, &[]);
    let file = File::new("pools.toml", FILE);
    let options = ["--allocators", file.path()];
    let pid = target.pid();
    let (code, out, err) = run(&[
        "attach",
        "--dry-run",
        "--allocators",
        file.path(),
        &pid.to_string(),
    ]);
    assert_eq!(code, 0, "{err}");
    let at_entries = out.lines().find(|line| line.contains("at their entries: "));
    let at_entries = at_entries.unwrap_or_else(|| panic!("{out}"));
    for (name, _) in FILE.split('"').filter_map(|text| text.split_once('(')) {
        assert!(at_entries.contains(&format!(" {name}")), "{name}: {out}");
    }
    assert_eq!(changed(pid), [] as [String; 0]);
    killed_while_it_attaches(&target, &options);
    Attacher::start(&target, &options).finish();
    assert_eq!(changed(pid), [] as [String; 0], "it is put back");
    let mappings = target.our_mappings();
    Attacher::start(&target, &options).kill();
    assert!(!changed(pid).is_empty());
    let attacher = Attacher::start(&target, &options);
    target.send("f");
    let child = target.expect("child");
    let child: u32 = child
        .trim_end()
        .rsplit(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number");
    let (code, _, err) = run(&["detach", &child.to_string()]);
    assert_eq!(code, 0, "{err}");
    assert_eq!(
        changed(child),
        [] as [String; 0],
        "a child is put right by itself"
    );
    assert_eq!(
        target.our_mappings(),
        mappings,
        "what is there is used again"
    );
    assert!(!target.maps().lines().any(|line| line.contains("rwx")));
    target.go();
    let slabs = target.expect("slabs");
    let slabs: u64 = slabs
        .trim_end()
        .rsplit(' ')
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number");
    target.expect("done");
    let report = attacher.finish();
    JsonSchema::load("report-1").check(&report);
    assert_eq!(report["totals"]["lost_events"], 0, "{report:#}");
    assert_eq!(of_heap(&report, "pool"), planted(&IN_POOL), "{report:#}");
    assert_eq!(
        of_heap(&report, "nodes"),
        planted(&[("nodes", "node_get", 60, 64)]),
        "{report:#}"
    );
    // Slabs count for malloc, and in no other sum.
    let of_malloc = of_heap(&report, "malloc");
    let slab = ("take_slab".to_owned(), "malloc".to_owned());
    assert_eq!(
        of_malloc.get(&slab),
        Some(&(slabs, slabs * 65536)),
        "{report:#}"
    );
    let sum = |sites: &Sites| {
        sites
            .values()
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    };
    for name in ["malloc", "pool", "nodes"] {
        let (totals, sum) = (totals_of(&report, name), sum(&of_heap(&report, name)));
        assert_eq!(totals["live_blocks"], sum.0, "{name}: {report:#}");
        assert_eq!(totals["live_bytes"], sum.1, "{name}: {report:#}");
        assert_eq!(totals["unhooked_releases"], 0, "{name}: {report:#}");
    }
    assert_eq!(report["totals"], *totals_of(&report, "malloc"));
    let nodes = totals_of(&report, "nodes");
    assert_eq!(
        (nodes["allocations"].as_u64(), nodes["releases"].as_u64()),
        (Some(70), Some(10))
    );
    // The busy thread may release the block that it held when memhook-rs attached.
    let unknown = totals_of(&report, "pool")["unknown_releases"].as_u64();
    assert!(unknown <= Some(1), "{report:#}");
    assert_eq!(changed(pid), [] as [String; 0], "it is put back");
    assert!(target.finish().success());
}

/// Kills attachers at some point of their attach. `detach` must be able to clean up their remains.
fn killed_while_it_attaches(target: &Target, options: &[&str]) {
    let pid = target.pid().to_string();
    for delay in [3, 12, 25, 50, 90] {
        let mut attacher = Command::new(binary())
            .args(["attach", "--json", &pid])
            .args(options)
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
        assert_eq!(changed(target.pid()), [] as [String; 0], "after {delay} ms");
    }
}

/// Checks that a mistake is reported in one line, without touching the target.
#[test]
fn mistakes_are_one_line() {
    let program = build_target("described_allocators", &["-g", "-O2", "-fPIE", "-pie"]);
    let target = Target::start(&program, &[]);
    let pid = target.pid().to_string();
    let mistake = File::new(
        "mistake.toml",
        "[[allocator]]\nname = \"pool\"\nalloc = [\"pool_alloc(size=arg9) -> ptr\"]\n",
    );
    let cases: [(&[&str], &[&str]); 8] = [
        (
            &["--allocators", "alloc pool_aloc(size=arg2) -> ptr"],
            &["'pool_aloc'", "did you mean pool_alloc"],
        ),
        (
            &["--allocators", "alloc pool_alloc(size=arg7) -> ptr"],
            &["'arg7' is not in a register"],
        ),
        (
            &["--allocators", "alloc libnone.so!f(size=arg1) -> ptr"],
            &["no module 'libnone.so'"],
        ),
        (
            &["--allocators", "alloc many_arguments(size=arg1) -> ptr"],
            &[
                "many_arguments cannot be traced",
                "arguments from the stack",
            ],
        ),
        (
            &["--allocators", "alloc short_one(size=arg1) -> ptr"],
            &["short_one cannot be traced"],
        ),
        (
            &[
                "--allocators",
                "alloc pool_alloc(size=arg2) -> ptr; free pool_alloc(ptr=arg2)",
            ],
            &["the same function"],
        ),
        (
            &["--allocators", "free pool_free(ptr=arg2)"],
            &["allocates"],
        ),
        (
            &["--allocators", mistake.path()],
            &["mistake.toml:3:10: ", "'arg9'"],
        ),
    ];
    for (options, words) in cases {
        let (code, out, err) = run(&[&["attach", &pid, "-d", "1s"], options].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{options:?}: {err}");
        for word in words {
            assert!(err.contains(word), "{options:?}: {err}");
        }
        assert_eq!(target.our_mappings(), 0, "{options:?}: {err}");
    }
    assert_eq!(changed(target.pid()), [] as [String; 0]);
    // Without a trace, the blocks of a described allocator are unknown.
    let options = ["--allocators", "alloc pool_alloc(size=arg2) -> ptr"];
    let (code, _, err) = run(&[&["gate", "--pid", &pid], &options[..]].concat());
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("add --duration"), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert_eq!(target.our_mappings(), 0);
}

/// Checks that a described function is not hooked if the hook has to be mapped, because exceptions
/// could not pass through it.
#[test]
fn a_program_that_throws_on_another_allocator_is_refused() {
    let program = build_target("described_allocators", &["-g", "-O2", "-fPIE", "-pie"]);
    let library = "libjemalloc.so.2";
    if !has_library(library) {
        return;
    }
    let mut target = Target::run(Command::new(program).env("LD_PRELOAD", library));
    let pid = target.pid().to_string();
    let options = ["--allocators", "alloc pool_alloc(size=arg2) -> ptr"];
    let (code, _, err) = run(&[&["attach", &pid, "-d", "1s"], &options[..]].concat());
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("the program can throw"), "{err}");
    assert_eq!(target.our_mappings(), 0);
    target.go();
    target.expect("slabs");
    target.expect("done");
}

/// Checks that each heap has a recording in the usual format, in addition to the recording of
/// malloc's heap.
#[test]
fn each_heap_has_a_recording() {
    let program = build_target("described_allocators", &["-g", "-O2", "-fPIE", "-pie"]);
    let mut target = Target::start(&program, &[]);
    let file = File::new("recorded.toml", FILE);
    let record = File::new("run.mhk", "");
    std::fs::remove_file(&record.0).expect("removed");
    let beside = ["pool", "nodes"].map(|name| File(record.0.with_extension(format!("{name}.mhk"))));
    let attacher = Attacher::start(&target, &["--allocators", file.path(), "-o", record.path()]);
    target.go();
    target.expect("slabs");
    target.expect("done");
    attacher.finish();
    let report = |path: &str| {
        let (code, out, err) = run(&["report", "--json", "--top", "100", path]);
        assert_eq!(code, 0, "{err}");
        serde_json::from_str::<Value>(&out).expect("JSON")
    };
    let pool = report(beside[0].path());
    assert_eq!(of_heap(&pool, "pool"), planted(&IN_POOL), "{pool:#}");
    let nodes = report(beside[1].path());
    assert_eq!(
        of_heap(&nodes, "nodes"),
        planted(&[("nodes", "node_get", 60, 64)])
    );
    let slab = ("take_slab".to_owned(), "malloc".to_owned());
    assert!(sites(&report(record.path()), "described_allocators.cc").contains_key(&slab));
    assert!(target.finish().success());
}

/// Checks that memhook-rs does not write into data that a program maps where a closed library with
/// traced functions used to be, even if the bytes are equal.
#[test]
fn nothing_is_written_where_a_closed_library_was() {
    let library = build_library("closed_pool_library", "libclosed_pool.so", &["-g", "-O2"]);
    let library = library.to_str().expect("UTF-8");
    let program = build_target("closed_pool", &["-g", "-O2"]);
    for more in [&[library] as &[&str], &[library, "as code"]] {
        let mut target = Target::start(&program, more);
        let attacher = Attacher::start(
            &target,
            &[
                "--allocators",
                "pool: alloc pool_alloc(size=arg1) -> ptr; free pool_free(ptr=arg1)",
            ],
        );
        target.go();
        target.expect("done");
        let report = attacher.finish();
        let totals = totals_of(&report, "pool");
        assert_eq!(totals["live_blocks"], 15, "{report:#}");
        assert_eq!(totals["live_bytes"], 15 * 40, "{report:#}");
        // The program itself checks that its memory is unchanged.
        assert!(target.finish().success());
    }
}

/// Checks that a description may use any number as the address of a block without affecting the
/// program.
#[test]
fn a_wrong_place_of_the_block_is_no_crash() {
    let program = build_target("wild_arguments", &["-g", "-O2"]);
    let traced = |place: &str| {
        let mut target = Target::start(&program, &[]);
        let wild = format!(
            "wild: alloc wild_get(size=arg3, ptr=*{place}) -> 0; free wild_put(ptr=*{place})"
        );
        let attacher = Attacher::start(&target, &["--allocators", &wild]);
        target.go();
        target.expect("done");
        let report = attacher.finish();
        assert!(target.finish().success(), "{place}: {report:#}");
        report
    };
    let report = traced("arg1");
    let totals = totals_of(&report, "wild");
    assert_eq!(totals["allocations"], 9 * 200, "{report:#}");
    assert_eq!(totals["live_blocks"], 8, "{report:#}");
    assert_eq!(report["totals"]["lost_events"], 0, "{report:#}");
    let report = traced("arg2");
    let totals = totals_of(&report, "wild");
    assert_eq!(totals["allocations"], 0, "{report:#}");
    assert_ne!(report["totals"]["lost_events"], 0, "{report:#}");
}
