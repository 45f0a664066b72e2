//! Heaps of language runtimes. They lie in mappings outside the C heap, and only the runtime's own
//! tool can analyse them.

use crate::{Facts, Finding, Kind, balance};
use memhook_report::{RssReport, bytes};

/// Share of the resident memory at or above which a runtime's heap is reported as a finding.
const LEAST_SHARE: f64 = 0.4;

/// A runtime that is recognized by a module.
struct Runtime {
    /// Prefixes of file names.
    modules: &'static [&'static str],
    name: &'static str,
    /// Command of the tool, in which `PID` stands for the process id.
    tool: &'static str,
}

const RUNTIMES: [Runtime; 4] = [
    Runtime {
        modules: &["libjvm.so"],
        name: "the Java heap and other memory of the JVM",
        tool: "jcmd PID GC.heap_info, and jcmd PID VM.native_memory in a JVM that was started with -XX:NativeMemoryTracking=summary",
    },
    Runtime {
        modules: &["libcoreclr.so"],
        name: "the heap of .NET",
        tool: "dotnet-gcdump collect -p PID",
    },
    Runtime {
        modules: &["libnode.so", "node"],
        name: "the heap of V8",
        tool: "kill -USR1 PID, then a heap snapshot from chrome://inspect",
    },
    Runtime {
        modules: &["libpython", "python"],
        name: "arenas of Python's own allocator",
        tool: "memray attach PID",
    },
];
/// First address of the Go runtime's heap (runtime/malloc.go, `arenaBaseOffset` and `hint`). It is
/// recognized by this address, because the Go runtime is not a separate module.
const GO_HEAP: &str = "anonymous, 0xc0000";

/// Finds the heap of a runtime, if much of the memory is in mappings outside the C heap.
pub fn heap(facts: &Facts<'_>, account: &RssReport) -> Option<Finding> {
    let mapped = size(account);
    if (mapped as f64) < LEAST_SHARE * account.rss_bytes as f64 || mapped < facts.least() {
        return None;
    }
    let (name, tool) = runtime(facts, account)?;
    let grown = balance::grown(facts, "mappings").unwrap_or(0.0);
    let grown = (grown >= facts.least() as f64).then_some(grown);
    Some(Finding {
        kind: Kind::Managed,
        found: format!(
            "{} are in mappings outside the C heap: {name}",
            bytes(mapped)
        ),
        place: None,
        gain_bytes: grown.unwrap_or(0.0) as u64,
        gain_bytes_an_hour: grown.map(|grown| facts.an_hour(grown).max(0) as u64),
        certainty: "estimated",
        remedy: format!(
            "Look into it with its own tool: {}",
            tool.replace("PID", &facts.target())
        ),
        cost: "the cost of that tool",
        evidence: format!("memhook-rs rss {}", facts.target()),
    })
}

/// Returns the bytes of the mappings that contain a runtime's heap.
pub fn size(account: &RssReport) -> u64 {
    balance::part(account, "mappings")
}

/// Puts a runtime's heap before findings that would return less than the heap holds, up to the
/// first finding of growing memory. It is unknown how much of the heap could be returned, but the
/// heap is most of the memory.
pub fn put_before_smaller(findings: &mut [Finding], account: &RssReport) {
    let Some(at) = findings.iter().position(|one| one.kind == Kind::Managed) else {
        return;
    };
    let is_smaller = |one: &Finding| {
        let grows = matches!(one.kind, Kind::Leak | Kind::Growth);
        !grows && one.gain_bytes < size(account)
    };
    let smaller = findings[..at]
        .iter()
        .rev()
        .take_while(|one| is_smaller(one));
    let to = at - smaller.count();
    findings[to..=at].rotate_right(1);
}

fn runtime(facts: &Facts<'_>, account: &RssReport) -> Option<(&'static str, &'static str)> {
    let file_name = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
    let modules = facts.profile.modules.iter();
    let modules: Vec<String> = modules.map(|module| file_name(&module.path)).collect();
    let is_there = |runtime: &&Runtime| {
        let begins = |module: &String| {
            let mut names = runtime.modules.iter();
            names.any(
                |name| match name.ends_with(".so") || name.starts_with("lib") {
                    true => module.starts_with(name),
                    // The module is a program: `python3.11`, but not `python-helper`.
                    false => module
                        .strip_prefix(name)
                        .is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.')),
                },
            )
        };
        modules.iter().any(begins)
    };
    if let Some(found) = RUNTIMES.iter().find(is_there) {
        return Some((found.name, found.tool));
    }
    let is_go = account
        .holdings
        .iter()
        .any(|one| one.name.starts_with(GO_HEAP));
    is_go.then_some((
        "the heap of Go",
        "go tool pprof http://HOST/debug/pprof/heap, where the program serves net/http/pprof",
    ))
}
