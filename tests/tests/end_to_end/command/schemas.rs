//! Checks the JSON output of the commands on real targets against the schemas in `docs/schemas`.
//! Nearly every field of the schemas must occur.

use memhook_tests::programs::{Folder, installed, installed_library};
use memhook_tests::{Attacher, JsonSchema, Prober, Target, build_target, run, run_program, stop};
use serde_json::Value;
use std::process::Command;

/// Returns the JSON output of a command, which must exit with this code.
fn json_with(code: i32, args: &[&str]) -> Value {
    let (found, out, err) = run(args);
    assert_eq!(found, code, "{args:?}: {err}");
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{args:?}: {e}: {out}"))
}

fn json(args: &[&str]) -> Value {
    json_with(0, args)
}

/// Traces a program from "ready" to "done", and returns the last report.
fn traced(program: &str, args: &[&str], options: &[&str]) -> Value {
    let mut target = Target::start(&build_target(program, &[]), args);
    let attacher = Attacher::start(&target, options);
    target.go();
    target.expect("done");
    attacher.finish()
}

#[test]
fn reports() {
    let folder = Folder::new("schema-report");
    let schema = JsonSchema::load("report-1");
    let file = folder.path("run.mhk");
    schema.check(&traced(
        "lost_while_traced",
        &[],
        &["--leaks", "--mappings"],
    ));
    let leaks = ["--leaks", "--show-possible"];
    schema.check(&traced("possible", &["wait"], &leaks));
    schema.check(&traced(
        "regression",
        &[],
        &["--stacks", "all", "-o", &file],
    ));
    schema.check(&traced(
        "regression",
        &[],
        &["--stacks", "all", "--by", "frame"],
    ));
    schema.check(&traced("sampled", &[], &["--sample", "8K"]));
    schema.check(&traced("many_blocks", &[], &["--max-memory", "16M"]));
    // Generates events faster than any attacher can read.
    let adapting = ["--on-full", "adapt", "--set", "ring-size=64K"];
    schema.check(&traced("crowd", &["16", "100000"], &adapting));
    for by in [
        "site", "frame", "function", "module", "thread", "size", "lifetime",
    ] {
        schema.check(&json(&["report", &file, "--json", "--by", by]));
    }
    for measure in ["peak", "allocated", "released", "temporary"] {
        schema.check(&json(&["report", &file, "--json", "--measure", measure]));
    }
    let sampled = folder.path("sampled.mhk");
    let options = ["--sample", "8K", "--stacks", "all", "--alloc-time"];
    let options = [&options[..], &["-o", &sampled]].concat();
    schema.check(&traced("sampled", &[], &options));
    schema.check(&json(&["report", &sampled, "--json"]));
    schema.check(&json(&["report", &sampled, "--json", "--by", "function"]));
    let lost = folder.path("lost.mhk");
    let options = ["--sample", "1K", "--leaks", "-o", &lost];
    schema.check(&traced("lost_while_traced", &[], &options));
    schema.check(&json(&["report", &lost, "--json", "--by", "function"]));
    let gap = folder.path("gap.mhk");
    schema.check(&forsaken(&gap));
    schema.check(&json(&["report", &gap, "--json", "--by", "function"]));
    let scored = folder.path("scored.mhk");
    traced("scores", &[], &["-o", &scored]);
    let formula = ["--scores=turns = blocks / peak_blocks"];
    schema.check(&json(
        &[&["report", &scored, "--json"][..], &formula].concat(),
    ));
    let kept = ["--overhead", "50%", "--rss=pins"];
    schema.check(&traced("sampled", &[], &kept));
    // Other tests check the remaining fields: those for marks, `stale`, described allocators, exits
    // and hints.
    let mut unseen = unseen_but_estimates(&schema);
    unseen.retain(|field| !field.starts_with("/ended"));
    unseen.retain(|field| !field.starts_with("/marks") && !field.starts_with("/stale"));
    unseen.retain(|field| !field.starts_with("/heaps") && !field.ends_with("/heap"));
    let of_hints = ["/allocator", "/linked_in", "/hidden"].map(|name| format!("/coverage[]{name}"));
    unseen.retain(|field| !of_hints.contains(field));
    assert_eq!(unseen, [""; 0]);
}

/// Records a program whose recorder is temporarily stopped, and returns the live report.
fn forsaken(file: &str) -> Value {
    let mut target = Target::start(&build_target("forsaken", &[]), &[]);
    let mut attacher = Attacher::start(&target, &["--stacks", "all", "-o", file]);
    for what in ["b", "p", "a"] {
        if what == "p" {
            stop(attacher.pid());
        }
        target.send(what);
        target.expect("done");
        if what == "p" {
            attacher.signal(libc::SIGCONT);
            attacher.wait_for("traced again");
        }
    }
    attacher.signal(libc::SIGINT);
    let (_, output, errors) = attacher.outcome();
    assert!(target.finish().success());
    let last = output.lines().last();
    let last = last.unwrap_or_else(|| panic!("no report: {errors}"));
    serde_json::from_str(last).expect("JSON")
}

/// Returns the fields that occurred in no document, except fields for estimates. Those fields need
/// watchpoints, and `looks.rs` checks them.
fn unseen_but_estimates(schema: &JsonSchema) -> Vec<String> {
    let mut unseen = schema.unseen();
    unseen.retain(|field| {
        !field.ends_with("usage_error") && !field.ends_with("useful_lifetime_error")
    });
    unseen
}

#[test]
fn trees_pairs_and_differences() {
    let folder = Folder::new("schema-views");
    let [old, new] = ["old.mhk", "new.mhk"].map(|name| folder.path(name));
    forsaken(&old);
    let options = ["--sample", "8K", "--stacks", "all", "--leaks", "-o", &new];
    traced("sampled", &[], &options);
    let scored = folder.path("scored.mhk");
    traced("scores", &[], &["-o", &scored]);
    let [tree, who_frees, diff] = ["tree-1", "who-frees-1", "diff-1"].map(JsonSchema::load);
    for file in [&old, &new] {
        for direction in ["top-down", "bottom-up"] {
            tree.check(&json(&["report", file, "--json", "--tree", direction]));
        }
        who_frees.check(&json(&["report", file, "--json", "--who-frees"]));
        diff.check(&json(&["diff", &old, file, "--json"]));
    }
    diff.check(&json(&["diff", &old, &scored, "--json", "-T", "1000"]));
    let formula = ["--scores=turns = blocks / peak_blocks"];
    diff.check(&json(
        &[&["diff", &scored, &old, "--json"][..], &formula].concat(),
    ));
    diff.check(&json(&["diff", &old, &new, "--by", "type", "--json"]));
    for schema in [tree, who_frees, diff] {
        assert_eq!(unseen_but_estimates(&schema), [""; 0]);
    }
}

#[test]
fn scans() {
    let [scan, census, reclaim] = ["scan-1", "census-1", "reclaim-1"].map(JsonSchema::load);
    let target = Target::start(&build_target("scan_plant", &[]), &["2"]);
    let pid = target.pid().to_string();
    for method in ["precopy", "fork", "stop"] {
        scan.check(&json(&["scan", &pid, "--json", "--snapshot", method]));
    }
    scan.check(&json(&["scan", &pid, "--json", "--show-possible"]));
    census.check(&json(&["scan", &pid, "--json", "--census"]));
    // Without --yes and a terminal, the command only prints its plan.
    let pause = ["--twice", "20ms"];
    reclaim.check(&json(
        &[&["scan", &pid, "--json", "--reclaim"], &pause[..]].concat(),
    ));
    let folder = Folder::new("schema-verdict");
    let verdict = folder.path("v.json");
    scan.check(&json(&["scan", &pid, "--json", "--verdict", &verdict]));
    let with_it = ["--reclaim", "--verdict", &verdict];
    reclaim.check(&json(&[&["scan", &pid, "--json"], &with_it[..]].concat()));
    let text = std::fs::read_to_string(&verdict).expect("a verdict");
    let found = serde_json::from_str(&text).expect("JSON");
    let schema = JsonSchema::load("verdict-1");
    schema.check(&found);
    assert_eq!(schema.unseen(), [""; 0]);
    let retained = JsonSchema::load("retained-1");
    let schema = JsonSchema::load("snapshot-diff-1");
    let mut holding = Target::start(&build_target("retained", &[]), &[]);
    let pid = holding.pid().to_string();
    retained.check(&json(&["scan", &pid, "--json", "--retained"]));
    let [old, new] = ["a.snap", "b.snap"].map(|name| folder.path(name));
    assert_eq!(run(&["scan", &pid, "--save", &old]).0, 0);
    holding.go();
    holding.expect("done");
    assert_eq!(run(&["scan", &pid, "--save", &new]).0, 0);
    schema.check(&json(&["diff", &old, &new, "--json"]));
    for schema in [retained, schema] {
        assert_eq!(schema.unseen(), [""; 0]);
    }
    let damaged = Target::start(&build_target("damaged_heap", &[]), &[]);
    let pid = damaged.pid().to_string();
    scan.check(&json_with(3, &["scan", &pid, "--json"]));
    for schema in [scan, census, reclaim] {
        assert_eq!(schema.unseen(), [""; 0]);
    }
}

#[test]
fn resident_memory() {
    let [rss, trim] = ["rss-1", "trim-1"].map(JsonSchema::load);
    let target = Target::start(&build_target("pinned_pages", &[]), &["1", "untrimmed"]);
    let pid = target.pid().to_string();
    rss.check(&json(&["rss", &pid, "--json"]));
    // There is too little memory for the copy, so the breakdown lacks the heap.
    let bare = json(&["rss", &pid, "--json", "--max-memory", "1"]);
    assert!(
        bare["notes"].to_string().contains("the heap is not split"),
        "{bare:#}"
    );
    rss.check(&bare);
    trim.check(&json(&["trim", &pid, "--json", "--dry-run"]));
    trim.check(&json(&["trim", &pid, "--json", "--max-hold", "20s"]));
    let mut on_jemalloc = Command::new(build_target("pinned_pages", &[]));
    on_jemalloc.args(["1", "untrimmed"]);
    let on_jemalloc =
        Target::run(on_jemalloc.env("LD_PRELOAD", installed_library("libjemalloc.so.2")));
    rss.check(&json(&["rss", &on_jemalloc.pid().to_string(), "--json"]));
    // Call stacks and ages are known only for traced processes.
    let unseen = rss.unseen();
    let of_frames = |field: &String| {
        ["frame", "stack", "oldest"]
            .iter()
            .any(|word| field.contains(word))
    };
    assert!(unseen.iter().all(of_frames), "{unseen:?}");
    assert_eq!(trim.unseen(), [""; 0]);
}

#[test]
fn verdicts() {
    let schema = JsonSchema::load("gate-1");
    let folder = Folder::new("schema-gate");
    let [file, baseline] = ["verdict.json", "baseline.json"].map(|name| folder.path(name));
    let cases = build_target("gate_cases", &["-O1", "-g"]);
    let verdict = |code: i32, options: &[&str], program, args: &[&str]| {
        let options = [&["gate", "--json", &file], options].concat();
        let (found, text, errors) = run_program(&options, &file, program, args);
        assert_eq!(found, Some(code), "{options:?}: {errors}");
        std::fs::remove_file(&file).expect("written");
        schema.check(&serde_json::from_str(&text).expect("JSON"));
    };
    verdict(0, &["--suppress", "nothing-like-it"], &cases, &["nothing"]);
    verdict(1, &["--fail-on", "live > 0"], &cases, &["list"]);
    let scored = [
        "--fail-on",
        "lifetime-score < .000001",
        "--fail-on",
        "live > 0",
    ];
    verdict(1, &scored, &cases, &["list"]);
    verdict(0, &["--suppress", "^block$"], &cases, &["plain"]);
    verdict(1, &["--write-baseline", &baseline], &cases, &["plain"]);
    verdict(128 + 15, &[], &cases, &["ends", "SIGTERM"]);
    // A site that leaks more than in the baseline.
    let known = std::fs::read_to_string(&baseline).expect("written");
    std::fs::write(&baseline, known.replace("960", "96")).expect("written");
    verdict(1, &["--baseline", &baseline], &cases, &["plain"]);
    let lossy = ["--on-full", "drop", "--set", "ring-size=64K"];
    verdict(3, &lossy, &cases, &["hammer"]);
    let possible = build_target("possible", &["-O1", "-g"]);
    verdict(1, &["--show-possible"], &possible, &[]);
    let family = build_target("gate_family", &["-O1", "-g", "-pthread"]);
    verdict(1, &["--follow-fork"], &family, &["fork", "0"]);
    // Process families in which some programs are not judged: one family with one judged process,
    // and one with two.
    let leaf = format!("{} leaf 0", family.display());
    let shell = installed("sh");
    let two = format!("{leaf}; {leaf}; true");
    verdict(1, &[], &shell, &["-c", &two]);
    verdict(0, &[], &shell, &["-c", "ls / >/dev/null; true"]);

    let pools = build_target("own_pools", &["-g", "-O2"]);
    let described = [
        "--allocators",
        "items: alloc slab_get(size=arg2) -> ptr; free slab_put(ptr=arg2)",
    ];
    verdict(1, &described, &pools, &[]);

    // A running service, a part of which keeps growing.
    let service = build_target("gate_service", &["-O1", "-g"]);
    let target = Target::start(&service, &["leak"]);
    let pid = target.pid().to_string();
    let judged = |duration: &str| {
        let growth = ["--growth", "--warmup", "500ms", "--duration", duration];
        run(&[&["gate", "--json", "-", "-p", &pid], &growth[..]].concat())
    };
    // Judges for longer if the service was suspended.
    let mut tries = ["3s", "10s", "20s"].into_iter().map(judged);
    let grown = tries.find(|(code, ..)| *code == 1);
    let (_, out, _) = grown.expect("it grows");
    schema.check(&document_in(&out));
    assert_eq!(unseen_but_estimates(&schema), [""; 0]);
}

/// Returns the line of JSON in the text.
fn document_in(out: &str) -> Value {
    let line = out.lines().find(|line| line.starts_with('{'));
    serde_json::from_str(line.expect("a line of JSON")).expect("JSON")
}

#[test]
fn probes() {
    let program = build_target("probed", &["-O2"]);
    let mut target = Target::start(&program, &["2", "100"]);
    let schema = JsonSchema::load("probe-1");
    let functions = "takes,relative,too_short,sleeps";
    let prober = Prober::start(&target, functions, &["--latency", "--args", "1", "--stack"]);
    for turn in ["s", "a"] {
        target.send(turn);
        target.expect("done");
    }
    schema.check(&prober.finish());
    assert_eq!(schema.unseen(), [""; 0]);
    let pid = target.pid().to_string();
    let schema = JsonSchema::load("probe-plan-1");
    let words = ["probe", &pid, "--func", "relative,too_short", "--dry-run"];
    schema.check(&json(&[&words[..], &["--json"]].concat()));
    assert_eq!(schema.unseen(), [""; 0]);
}

#[test]
fn schemas_are_named_after_what_they_describe() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/schemas");
    let entries = std::fs::read_dir(directory).expect("docs/schemas");
    let mut count = 0;
    for entry in entries {
        let path = entry.expect("readable").path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("text");
        let schema: Value = serde_json::from_str(&text).expect("JSON");
        let stem = path.file_stem().expect("a name").to_string_lossy();
        let (name, version) = stem.rsplit_once('-').expect("NAME-VERSION.json");
        assert_eq!(schema["title"], format!("memhook-rs/{name}/{version}"));
        let places = [
            &schema["properties"],
            &schema["$defs"]["verdict"]["properties"],
            // The schema of a stream describes several kinds of lines. The first kind contains the
            // field.
            &schema["oneOf"][0]["properties"],
        ];
        let own = places
            .iter()
            .any(|fields| fields["schema"]["const"] == schema["title"]);
        assert!(own, "{stem} says another name of itself");
        count += 1;
    }
    assert!(count >= 8, "{count} schemas");
}
