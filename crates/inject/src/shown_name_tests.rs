//! Kills the attacher while it loads an object. Debuggers then open the files that the loader's list names.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::kill_tests::{TARGET, Target, done, hold};
use crate::{Dlopen, Others, load_object};
use memhook_process::{RemoteAddress, mappings, read_memory};

/// Time limit for a debugger. Debugging a small program takes a second, but a debugger that reads from one of its own
/// pipes hangs.
const LIMIT_SECONDS: &str = "120";

/// Attacher that the next test runs in a separate process, with [`TARGET`] set.
#[test]
#[ignore = "the process to be killed, started by the other tests"]
fn loader() {
    let Ok(target) = std::env::var(TARGET) else {
        return;
    };
    let numbers: Vec<u64> = target.split(' ').map(|n| n.parse().unwrap()).collect();
    let object = std::fs::read(std::env::var("MEMHOOK_TEST_OBJECT").unwrap()).unwrap();
    let others = Others::of(numbers[0] as i32);
    let mut held = hold(numbers[0]);
    let dlopen = Dlopen {
        address: RemoteAddress(numbers[3]),
        internal_mode: false,
    };
    done(held.stop_others(&others));
    done(load_object(&mut held, dlopen, &object));
    held.let_others_go();
    done(held.release());
}

/// Returns the names of our objects in the heap, where the loader keeps its list.
fn names(pid: i32) -> Vec<String> {
    let maps = mappings(pid).expect("the target lives");
    let mut names = Vec::new();
    for heap in maps.iter().filter(|mapping| mapping.path == "[heap]") {
        let mut bytes = vec![0; (heap.end - heap.start) as usize];
        // The heap may have shrunk meanwhile.
        if read_memory(pid, RemoteAddress(heap.start), &mut bytes).is_err() {
            continue;
        }
        let texts = bytes.split(|&byte| byte == 0);
        let texts = texts.flat_map(|text| std::str::from_utf8(text));
        let ours = texts.filter(|text| text.starts_with("/proc/") || text.contains("[memhook"));
        names.extend(ours.map(str::to_owned));
    }
    names
}

/// Checks that no other process opens a file by these names.
fn lead_nowhere(names: &[String], when: &str) {
    for name in names {
        let folder = Path::new(name)
            .parent()
            .filter(|_| name.starts_with("/proc/"));
        assert!(!folder.is_some_and(Path::exists), "{when}: {name}");
        assert!(!Path::new(name).exists(), "{when}: {name}");
    }
}

/// Runs debuggers on the target.
fn debug(target: &Target, when: &str) {
    let id = target.program.pid().to_string();
    let core = std::env::temp_dir()
        .join("memhook-core")
        .display()
        .to_string();
    let gdb = ["gdb", "-nx", "-batch", "-p", &id];
    let look = ["-ex", "info sharedlibrary", "-ex", "bt"];
    let gcore = ["gcore", "-o", &core, &id];
    for command in [&[&gdb[..], &look[..]].concat(), &gcore[..]] {
        let output = Command::new("timeout")
            .args(["-s", "KILL", LIMIT_SECONDS])
            .args(command)
            // Otherwise the debugger would query the network.
            .env_remove("DEBUGINFOD_URLS")
            .stdin(Stdio::null())
            .output()
            .expect("timeout(1) runs");
        let (status, errors) = (output.status, String::from_utf8_lossy(&output.stderr));
        assert!(status.success(), "{when}: {command:?}: {status}: {errors}");
        target.works(&format!("{when}, after {command:?}"));
    }
    std::fs::remove_file(format!("{core}.{id}")).expect("a core file");
}

/// The attacher is killed at moments when any part of a name may have been overwritten.
#[test]
fn debuggers_come_and_go_after_a_killed_load() {
    if !memhook_tests::has_program("gdb") {
        return;
    }
    let mut seen = BTreeSet::new();
    let mut target = Target::start("canary", &[]);
    for step in 1.. {
        let is_loaded = target.run("shown_name_tests::loader", step, None);
        let when = match is_loaded {
            true => "undisturbed".to_owned(),
            false => format!("killed at step {step}"),
        };
        target.works(&when);
        let names = names(target.program.pid());
        if !names.is_empty() {
            lead_nowhere(&names, &when);
            if seen.insert(without_digits(&names)) {
                debug(&target, &when);
            }
            // If the target already has the object, the loader might return that object instead of the new one.
            let next = target.again("canary");
            std::mem::replace(&mut target, next).ends_well();
        }
        if is_loaded {
            break;
        }
    }
    target.ends_well();
    // In this order: the whole path, one of two names overwritten, both overwritten.
    assert!(seen.len() >= 3, "{seen:?}");
}

fn without_digits(names: &[String]) -> Vec<String> {
    let without = |name: &String| name.replace(|c: char| c.is_ascii_digit(), "");
    names.iter().map(without).collect()
}
