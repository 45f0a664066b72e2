//! Searches the heap after each instruction of its allocator. Wherever a thread stops in malloc or free, the heap must
//! pass all checks, and no live or released block may be reported as leaked.

use crate::Scan;
use crate::capture::stopped;
use crate::graph::finder::MarkOptions;
use crate::snapshot::MUSL;
use memhook_process::{ModuleFiles, ModuleImage, mappings, modules};
use memhook_tests::{Target, build_on_musl};
use nix::libc::SYS_write;
use nix::sys::ptrace;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Number of searches at each instruction, for each command of the program.
const SEARCHES: u32 = 1;

fn lost(target: &mut Target) -> BTreeSet<u64> {
    target.go();
    let mut found = BTreeSet::new();
    loop {
        let line = target.expect("");
        let Some(address) = line.trim().strip_prefix("lost 0x") else {
            assert_eq!(line.trim(), "done");
            return found;
        };
        found.insert(u64::from_str_radix(address, 16).expect("an address"));
    }
}

/// A process in which one thread is single-stepped while the other threads sleep.
struct Stepped {
    pid: Pid,
    images: Vec<ModuleImage>,
    /// The blocks that the program has lost.
    lost: BTreeSet<u64>,
    /// Number of searches, and number of lost blocks that they missed.
    looks: usize,
    missed: usize,
    /// False statements, each preceded by the address of the instruction.
    faults: Vec<String>,
}

impl Stepped {
    fn of(target: &Target, lost: BTreeSet<u64>) -> Stepped {
        let pid = Pid::from_raw(target.pid() as i32);
        let maps = mappings(pid.as_raw()).expect("its mappings");
        let images = modules(pid.as_raw(), &maps, &mut ModuleFiles::new()).expect("its modules");
        ptrace::attach(pid).expect("it is ours");
        let stepped = Stepped {
            pid,
            images,
            lost,
            looks: 0,
            missed: 0,
            faults: Vec::new(),
        };
        stepped.wait();
        stepped
    }

    fn wait(&self) {
        let status = waitpid(self.pid, None).expect("it stops");
        assert!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
    }

    /// Single-steps the thread until its command is done, and searches on the way.
    fn run(&mut self, allocator: &str) {
        let mut seen: BTreeMap<u64, u32> = BTreeMap::new();
        loop {
            ptrace::step(self.pid, None).expect("it is stopped");
            self.wait();
            let registers = ptrace::getregs(self.pid).expect("it is stopped");
            if registers.orig_rax as i64 == SYS_write {
                return;
            }
            let times = seen.entry(registers.rip).or_default();
            *times += 1;
            if *times <= SEARCHES {
                self.search(allocator);
            }
        }
    }

    fn search(&mut self, allocator: &str) {
        let registers = ptrace::getregs(self.pid).expect("it is stopped");
        let snapshot = stopped(self.pid.as_raw(), &self.images, &registers);
        let at = registers.rip;
        let scan = match Scan::of(&snapshot, MarkOptions::to_report()) {
            Ok(scan) => scan,
            Err(error) => return self.faults.push(format!("{at:#x}: {error}")),
        };
        let heap = &scan.heap;
        let is_found = heap.others.iter().any(|other| other.allocator == allocator);
        if !is_found {
            self.faults.push(format!("{at:#x}: {:?}", heap.undissected));
        }
        let leaks = scan.leaks.iter();
        let leaks: BTreeSet<u64> = leaks.map(|l| heap.blocks.get(l.block).address).collect();
        let wrong = leaks.difference(&self.lost);
        self.faults
            .extend(wrong.map(|block| format!("{at:#x}: {block:#x} is called leaked")));
        self.looks += 1;
        self.missed += self.lost.difference(&leaks).count();
    }
}

fn check(program: &Path, allocator: &str) {
    let mut target = Target::run(&mut Command::new(program));
    let lost = lost(&mut target);
    let mut stepped = Stepped::of(&target, lost);
    for command in ["m", "s"] {
        target.send(command);
        stepped.run(allocator);
    }
    println!("{} searches missed {}", stepped.looks, stepped.missed);
    assert_eq!(stepped.faults, Vec::<String>::new());
    assert!(stepped.looks > 300 && stepped.missed * 10 < stepped.looks);
    ptrace::detach(stepped.pid, None).expect("it is stopped");
    assert!(target.finish().success());
}

#[test]
fn of_musl() {
    if let Some(program) = build_on_musl("allocator_steps", &["-static", "-pthread"]) {
        check(&program, MUSL);
    }
}
