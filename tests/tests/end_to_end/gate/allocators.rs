//! The gate on programs with allocators other than glibc's.

use memhook_tests::programs::installed;
use memhook_tests::releases::Release;
use memhook_tests::{Sites, binary, build_on_musl, build_target, has_library, not_run};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const LIBRARIES: [&str; 2] = ["libjemalloc.so.2", "libtcmalloc_minimal.so.4"];

/// Returns the exit code, and the JSON verdict on the first process.
fn judged(command: &mut Command) -> (Option<i32>, Value) {
    let output = command.output().expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    let json: Value = serde_json::from_slice(&output.stdout).expect(&errors);
    (output.status.code(), json)
}

fn gate(library: Option<&str>, program: &Path, arguments: &[&str]) -> (Option<i32>, Value) {
    let mut command = Command::new(binary());
    command.args(["gate", "--json", "-", "--"]).arg(program);
    command.args(arguments);
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    judged(&mut command)
}

/// Returns the sum of direct and indirect leaks by the function that leaked them.
fn leaked(json: &Value) -> Sites {
    let verdict = json;
    let sites = verdict["evidence"]["sites"].as_array().expect("sites");
    let name = |number: &Value| {
        let site = &sites[number.as_u64().expect("a number") as usize];
        let frames = site["stack"].as_array().expect("a stack");
        let names = frames.iter().filter_map(|f| f["function"].as_str());
        let planted = names.clone().find(|name| name.starts_with("leak_"));
        let name = planted.or(names.clone().next()).unwrap_or("?");
        (
            name.split('(').next().unwrap_or(name).to_owned(),
            site["kind"].as_str().expect("a kind").to_owned(),
        )
    };
    let mut found = Sites::new();
    let mut add = |site: &Value, sum: &Value| {
        let known = found.entry(name(site)).or_default();
        known.0 += sum["blocks"].as_u64().expect("blocks");
        known.1 += sum["bytes"].as_u64().expect("bytes");
    };
    for finding in verdict["findings"].as_array().expect("findings") {
        let leak = &finding["leak"];
        add(&leak["site"], &leak["direct"]);
        for indirect in leak["indirect"].as_array().expect("a list") {
            add(&indirect[0], &indirect[1]);
        }
    }
    found
}

fn planted() -> Sites {
    let all = [
        ("leak_small", "malloc", 3, 3 * 77),
        ("leak_large", "malloc", 2, 3_050_000),
        ("leak_new", "new", 1, 48),
        ("leak_list", "malloc", 100, 4800),
        ("leak_in_thread", "malloc", 1, 333),
    ];
    let all = all
        .map(|(name, kind, blocks, bytes)| ((name.to_owned(), kind.to_owned()), (blocks, bytes)));
    all.into()
}

fn check(library: Option<&str>, program: &Path, what: &str) {
    let (code, json) = gate(library, program, &[]);
    assert_eq!(leaked(&json), planted(), "{what}: {json:#}");
    assert_eq!(code, Some(1), "{what}: {json:#}");
    let (code, json) = gate(library, program, &["without"]);
    assert_eq!(leaked(&json), Sites::new(), "{what}: {json:#}");
    assert_eq!(code, Some(0), "{what}: {json:#}");
    assert_eq!(json["evidence"]["gaps"], serde_json::json!([]));
}

#[test]
fn leaks_are_found_with_every_allocator() {
    memhook_tests::patiently(|| {
        let program = build_target("gate_allocators", &[]);
        check(None, &program, "glibc");
        for library in LIBRARIES.into_iter().filter(|l| has_library(l)) {
            check(Some(library), &program, library);
        }
    });
}

#[test]
fn leaks_are_found_on_other_releases() {
    for release in Release::all() {
        check(
            None,
            &release.build_target("gate_allocators", &[]),
            &release.name,
        );
    }
}

#[test]
fn a_linked_allocator_is_like_a_preloaded_one() {
    for library in LIBRARIES.into_iter().filter(|l| has_library(l)) {
        let link = format!("-l:{library}");
        let program = build_target("gate_allocators", &["-Wl,--no-as-needed", &link]);
        check(None, &program, &link);
    }
}

/// Checks Debian's redis, which is linked to jemalloc, and a program with a built-in allocator,
/// whose calls are direct: its blocks are not seen, so there is no verdict.
#[test]
fn a_built_in_allocator_gives_no_verdict() {
    let program = build_target("built_in_allocator", &["-O1"]);
    let (code, json) = gate(None, &program, &[]);
    assert_eq!(code, Some(3), "{json:#}");
    let gap = json["evidence"]["gaps"][0].as_str().expect("a gap");
    assert!(
        gap.starts_with("jemalloc is part of built_in_allocator"),
        "{gap}"
    );
}

#[test]
fn redis_passes() {
    memhook_tests::patiently(|| {
        let commands =
            "SET a 1\\r\\nRPUSH b 1 2 3\\r\\nHSET c d e\\r\\nDEL a\\r\\nSHUTDOWN NOSAVE\\r\\n";
        let folder = memhook_tests::programs::Folder::new("gate-redis");
        let socket = folder.path("socket");
        let talk = format!(
            "import socket, time
s = socket.socket(socket.AF_UNIX)
while True:
    try: s.connect('{socket}'); break
    except OSError: time.sleep(0.01)
s.sendall(b'{commands}')
while s.recv(4096): pass"
        );
        let mut client = Command::new(installed("python3"))
            .args(["-c", &talk])
            .spawn()
            .expect("it starts");
        let mut command = Command::new(binary());
        command.args(["gate", "--json", "-", "--"]);
        command.arg(installed("redis-server"));
        command.args(["--port", "0", "--save", "", "--appendonly", "no"]);
        command.args(["--loglevel", "warning", "--logfile", "/dev/null"]);
        command.args(["--unixsocket", &socket]);
        let (code, json) = judged(&mut command);
        client.wait().expect("it ends");
        let allocations = json["evidence"]["allocations"].as_u64();
        assert!(allocations > Some(500), "{json:#}");
        assert_eq!(json["evidence"]["gaps"], serde_json::json!([]));
        assert_eq!(code, Some(0), "{json:#}");
    });
}

/// Checks musl's allocator, which has blocks among the data of the C library, between thread
/// stacks, and around the TLS of the initial thread.
#[test]
fn programs_on_musl_that_keep_blocks_get_a_verdict() {
    let Some(library) = build_on_musl("on_musl_library", &["-shared", "-fPIC"]) else {
        return not_run("there is no musl-gcc");
    };
    let opened = format!("-DLIBRARY=\"{}\"", library.display());
    for flag in [
        "-DTHREADS",
        "-DCONSTRUCTORS",
        "-DDATA",
        "-DTHREAD_LOCAL",
        "-DC_LIBRARY",
        // Constructors may have allocated before the slots of the library were patched. The heap
        // contains these blocks.
        &opened,
    ] {
        let program = build_on_musl("on_musl_kept", &[flag]).expect("built with it before");
        let (code, json) = gate(None, &program, &[]);
        assert_eq!(leaked(&json), Sites::new(), "{flag}: {json:#}");
        assert_eq!(code, Some(0), "{flag}: {json:#}");
        let (code, json) = gate(None, &program, &["LEAK"]);
        let lost = [(("keep".to_owned(), "malloc".to_owned()), (1, 51))];
        assert_eq!(leaked(&json), lost.into(), "{flag}: {json:#}");
        assert_eq!(code, Some(1), "{flag}: {json:#}");
    }
}
