//! Runs every command that makes statements about a program, in each of the situations of
//! `tests/truth`.

mod matrix;
mod situation;

use memhook_tests::programs::Folder;
use memhook_tests::{Attacher, Target, binary, run};
use serde_json::Value;
use situation::{Built, Situation};
use std::process::{Command, Stdio};

/// Exit code of a scan that did not search all of the heap.
const NOT_ALL: i32 = 3;

/// Returns blocks and bytes of the sites below a function.
fn below(report: &Value, function: &str) -> (u64, u64) {
    let is_below = |site: &&Value| {
        let frames = site["stack"].as_array().expect("a stack");
        let mut names = frames.iter().filter_map(|f| f["function"].as_str());
        names.any(|name| name.contains(function))
    };
    let number = |site: &Value, what: &str| site[what].as_u64().expect("a number");
    let sites = report["sites"].as_array().expect("sites");
    let sums = sites.iter().filter(is_below);
    sums.fold((0, 0), |(blocks, bytes), site| {
        (
            blocks + number(site, "blocks"),
            bytes + number(site, "bytes"),
        )
    })
}

/// Checks every site in a report, which must be complete, or absent if a trace cannot see it.
fn check_sites(what: &str, report: &Value, situation: &Situation) {
    assert_eq!(report["totals"]["lost_events"], 0, "{what}: {report:#}");
    if report["sampling"].is_object() {
        // Estimates have their own tests.
        return;
    }
    for site in &situation.site {
        let expected = match site.seen {
            true => (site.blocks, site.blocks * site.size),
            false => (0, 0),
        };
        let found = below(report, &site.function);
        assert_eq!(found, expected, "{what}: {}: {report:#}", site.function);
    }
}

fn json(args: &[&str]) -> Value {
    let (code, output, errors) = run(args);
    assert_eq!(code, 0, "{args:?}: {errors}");
    serde_json::from_str(&output).expect("JSON")
}

/// Returns the output of a command, which may exit with any code.
fn says(args: &[&str]) -> String {
    code_and_output(args).1
}

fn code_and_output(args: &[&str]) -> (i32, String) {
    let (code, output, errors) = run(args);
    assert!(matches!(code, 0 | 1 | 3), "{args:?}: {errors}");
    (code, output)
}

/// Checks the statements of a command about a process, and its exit code.
fn check_command(situation: &Situation, what: &str, args: &[&str]) {
    let (code, said) = code_and_output(args);
    situation.check(args[0], what, &said);
    situation.check_exit(args[0], what, code, &said);
    if args[0] == "scan" {
        // A command whose search is incomplete does not succeed, and says so first.
        let is_partial = said.starts_with("NOT SEARCHED");
        assert_eq!(code == NOT_ALL, is_partial, "{what}: {code}: {said}");
    }
}

fn attached(situation: &Situation, built: &Built, what: &str, folder: &Folder) {
    let file = folder.path("attach.mhk");
    let mut target = Target::run(&mut built.command());
    let pid = target.pid().to_string();
    let options = situation.options.iter().map(String::as_str);
    let options: Vec<&str> = ["-o", &file, "--rss"].into_iter().chain(options).collect();
    let attacher = Attacher::start(&target, &options);
    target.go();
    target.expect("done");
    let report = attacher.finish();
    check_sites(&format!("{what}: attach"), &report, situation);
    let pid = pid.as_str();
    for args in [
        &["rss", pid][..],
        &["scan", pid],
        &["gate", "-q", "-p", pid],
        &["advise", pid, "-d", "1s", "--json"],
    ] {
        check_command(situation, what, args);
    }
    if let Some(most) = situation.leaked_at_most {
        let found: Value = serde_json::from_str(&says(&["scan", pid, "--json"])).expect("JSON");
        let leaked = found["totals"]["leaked_blocks"].as_u64();
        assert!(leaked <= Some(most), "{what}: {found:#}");
    }
    assert!(target.finish().success(), "{what}");
    let of_file = json(&["report", &file, "--json", "-T", "1000"]);
    check_sites(&format!("{what}: report"), &of_file, situation);
    let text = says(&["report", "-q", &file]);
    situation.check("attach", what, &text);
    situation.check("report", what, &text);
}

fn run_from_the_start(situation: &Situation, built: &Built, what: &str, folder: &Folder) {
    let input = folder.path("input");
    std::fs::write(&input, "xx").expect("written");
    for is_json in [true, false] {
        let file = folder.path(if is_json { "run.json" } else { "run.txt" });
        let mut command = Command::new(binary());
        command.args(["run", "--on-full", "wait", "-T", "1000", "-o", &file]);
        command.args(&situation.options);
        // Some programs then skip their work before a trace.
        command.env("TRACED_FROM_START", "1");
        if is_json {
            command.arg("--json");
        }
        command.arg("--").arg(&built.program).args(&built.arguments);
        command.stdin(std::fs::File::open(&input).expect("the input"));
        let output = command.stdout(Stdio::null()).output().expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{what}: run: {errors}");
        let text = std::fs::read_to_string(&file).expect("a report");
        if is_json {
            let report = serde_json::from_str(&text).expect("JSON");
            check_sites(&format!("{what}: run"), &report, situation);
        } else {
            situation.check("run", what, &text);
            assert!(!text.contains("before the attach"), "{what}: {text}");
        }
    }
}

/// Returns the verdict on the program at its exit.
fn judged(situation: &Situation, built: &Built, what: &str, folder: &Folder) {
    let input = folder.path("judged");
    std::fs::write(&input, "xx").expect("written");
    let mut command = Command::new(binary());
    command.args(["gate", "-q", "--"]).arg(&built.program);
    command.args(&built.arguments).env("TRACED_FROM_START", "1");
    command.stdin(std::fs::File::open(&input).expect("the input"));
    let output = command.output().expect("it runs");
    let texts =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let code = output.status.code();
    let said = texts.concat();
    let code = code.expect("it ended by itself");
    assert!(matches!(code, 0 | 1 | 3), "{what}: {code} {said}");
    // If the program itself fails, its failure determines the exit code.
    assert!(
        code == 0 || !said.contains("PASSED"),
        "{what}: {code} {said}"
    );
    situation.check("gate", what, &said);
    situation.check("judged", what, &said);
    situation.check_exit("judged", what, code, &said);
}

fn check(name: &str) {
    let situation = Situation::read(name);
    let folder = Folder::new(&format!("truth-{name}"));
    for built in situation.build(&folder) {
        let what = format!("{name} {:?}", built.flags);
        let outputs = Folder::new(&format!("truth-outputs-{name}"));
        if situation.is_for("attach") {
            attached(&situation, &built, &what, &outputs);
        }
        if situation.is_for("run") {
            run_from_the_start(&situation, &built, &what, &outputs);
        }
        judged(&situation, &built, &what, &outputs);
    }
}

macro_rules! situations {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*

        #[test]
        fn every_folder_is_a_situation() {
            let mut named = vec![$(stringify!($name),)* matrix::FOLDER];
            named.sort_unstable();
            assert_eq!(Situation::folders(), named);
        }
    };
}

situations! {
    blocks_before_the_attach
    blocks_not_sampled
    busy_gperftools
    busy_threads
    damaged_heap
    data_like_headers
    deep_bound_library
    free_pages_of_other_allocators
    java_program
    mimalloc_in_rust
    pointers_from_dlsym
    preloaded_header
    program_in_an_emulator
    reallocated_mapped_blocks
    small_modules
    stacks_down_to_main
    tests_under_make
    thread_local_storage
    threads_not_joined
    two_c_libraries
    under_heaptrack
}
