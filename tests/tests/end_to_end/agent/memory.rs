//! Memory use of the agent with many targets.

use memhook_tests::agents::{Agent, Pprof};
use memhook_tests::programs::{Folder, copy_program};
use memhook_tests::{Target, build_target, until};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const TARGETS: usize = 12;
/// Size of the program's debug information, which the agent reads completely for one name.
const DEBUG_MEGABYTES: u64 = 40;

/// Adds names of types and variables to the program's debug information.
fn lengthen_debug_information(program: &str, folder: &Folder) {
    let names = folder.path("names");
    let objcopy = |option: String| {
        let status = Command::new("objcopy").args([&option, program]).status();
        assert!(status.is_ok_and(|status| status.success()), "{option}");
    };
    objcopy(format!("--dump-section=.debug_str={names}"));
    let mut bytes = std::fs::read(&names).expect("dumped");
    bytes.resize((DEBUG_MEGABYTES << 20) as usize, b'x');
    bytes.push(0);
    std::fs::write(&names, bytes).expect("written");
    objcopy(format!("--update-section=.debug_str={names}"));
}

fn peak_megabytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = peak.and_then(|peak| peak.split_ascii_whitespace().next()?.parse().ok());
    kilobytes.map_or(0, |kilobytes: u64| kilobytes >> 10)
}

/// Returns the number of heaps of arenas other than the main arena. Each reserves 64 MiB of
/// addresses, a part of which is usable (`HEAP_MAX_SIZE` in glibc's arena.c).
fn arenas(pid: u32) -> usize {
    const HEAP_BYTES: u64 = 64 << 20;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it lives");
    let parsed = maps.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let address = |text| u64::from_str_radix(text, 16).ok();
        Some((address(start)?, address(end)?, words.next()?.to_owned()))
    });
    let all: Vec<_> = parsed.collect();
    let is_heap = |pair: &&[(u64, u64, String)]| {
        let ((start, middle, used), (next, end, rest)) = (&pair[0], &pair[1]);
        start % HEAP_BYTES == 0
            && middle == next
            && *end == start + HEAP_BYTES
            && (used.as_str(), rest.as_str()) == ("rw-p", "---p")
    };
    all.windows(2).filter(is_heap).count()
}

/// Checks the memory when all targets need names from one set of files at the same time.
#[test]
fn debug_information_is_read_once_for_all_targets() {
    let folder = Arc::new(Folder::new("agent-memory"));
    let program = folder.path("served");
    copy_program(build_target("served", &["-g"]), &program);
    lengthen_debug_information(&program, &folder);
    let start = |_| Target::start(Path::new(&program), &[]);
    let mut targets: Vec<Target> = (0..TARGETS).map(start).collect();
    let profiles = folder.path("profiles");
    let agent = Agent::start(
        &folder,
        &format!(
            "[files]\ndirectory = \"{profiles}\"\n[[rule]]\nname = \"web\"\nexecutable = \"{program}\"\n\
             mode = \"exact\"\nsend = [\"files\"]\ninterval = \"500ms\"\n"
        ),
    );
    for target in &targets {
        agent.await_phase(target.pid(), "traced");
    }
    for target in &mut targets {
        target.send("l");
        target.expect("done");
    }
    // Each target has names.
    let is_named = |pid: u32| {
        let entries = std::fs::read_dir(&profiles).expect("a directory").flatten();
        let of_target = entries.filter(|entry| {
            let name = entry.file_name().into_string().unwrap_or_default();
            name.contains(&format!("-{pid}-")) && !name.ends_with("part")
        });
        of_target
            .filter_map(|entry| std::fs::read(entry.path()).ok())
            .any(|bytes| Pprof::read(&bytes).of("inuse_space", "planted_leak") == 100_000)
    };
    for target in &targets {
        until("a profile has names", || is_named(target.pid()));
    }
    // The agent needs twice the size while the reader passes the information to the symbol lookup.
    // The limit allows the same amount for everything else.
    let peak = peak_megabytes(agent.pid());
    assert!(peak > DEBUG_MEGABYTES, "{peak} MB: it was not read");
    assert!(peak < 4 * DEBUG_MEGABYTES, "{peak} MB");
    // With more arenas, long-lived blocks would be scattered among short-lived blocks.
    assert_eq!(arenas(agent.pid()), 1);
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    for target in targets {
        assert!(target.finish().success());
    }
}
