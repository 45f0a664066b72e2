//! The compiled unwind tables against gimli's own interpretation of the same call frame
//! information, at the places where programs that nobody here built happen to stop.
//!
//! `MEMHOOK_STACKS=3000 cargo test -p memhook-tests --test unwinding` compares so many of each.

mod stack_reference;

use memhook_inject::{HoldOptions, hold};
use memhook_tests::build_target;
use memhook_unwind::reference::End;
use memhook_unwind::walk;
use stack_reference::{Busy, DEPTH, Modules, count};
use std::process::Command;
use std::time::Duration;

struct Sample {
    registers: [u64; 3],
    all: [Option<u64>; 17],
    /// The stack from rsp on, at most this much.
    stack: Vec<u8>,
}

impl Sample {
    fn read(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(self.registers[1])?).ok()?;
        let bytes = self.stack.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

fn sample(pid: i32) -> Sample {
    let options = HoldOptions {
        need_safe_point: false,
        thread: None,
        deadline: Duration::from_secs(5),
        unsafe_ranges: Vec::new(),
        unwind: None,
    };
    let held = hold(pid, &options).expect("a thread stops");
    let r = *held.registers();
    let maps = memhook_process::mappings(pid).expect("maps");
    let end = maps
        .iter()
        .find(|m| r.rsp >= m.start && r.rsp < m.end)
        .map_or(r.rsp, |m| m.end);
    let mut stack = vec![0; (end - r.rsp).min(1 << 20) as usize];
    memhook_process::read_memory(pid, r.rsp, &mut stack).expect("the stack is readable");
    held.release().expect("released");
    // By DWARF number (x86-64 psABI, figure 3.36).
    let all = [
        r.rax, r.rdx, r.rcx, r.rbx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12,
        r.r13, r.r14, r.r15, r.rip,
    ];
    Sample {
        registers: [r.rip, r.rsp, r.rbp],
        all: all.map(Some),
        stack,
    }
}

/// Compares `samples` backtraces; returns how many frames they had.
fn compare(program: &str, busy: &Busy, samples: usize) -> usize {
    let pid = busy.pid();
    let modules = Modules::of(pid);
    let mut frames = 0;
    let mut cut = 0;
    for _ in 0..samples {
        let sample = sample(pid);
        let read = |address| sample.read(address);
        let [pc, sp, rbp] = sample.registers;
        let (found, complete) = walk(&modules.tables, (pc, sp, rbp), &read, DEPTH);
        let expected = modules.reference.backtrace(sample.all, &read, DEPTH);
        let names = |frames: &[u64]| modules.names(frames);
        if found.len() < expected.frames.len() {
            // Rules that one word cannot hold end a table's backtrace; what it has must agree.
            cut += 1;
            assert_eq!(found, expected.frames[..found.len()]);
            continue;
        }
        assert_eq!(
            found,
            expected.frames,
            "{program} at\n{}\nby gimli\n{}",
            names(&found),
            names(&expected.frames)
        );
        assert!(complete || expected.end != End::Bottom, "{}", names(&found));
        frames += found.len();
        std::thread::sleep(Duration::from_micros(300));
    }
    assert!(
        cut * 50 <= samples,
        "{program}: {cut} of {samples} backtraces cut short"
    );
    frames
}

#[test]
fn tables_agree_with_gimli_on_distribution_builds() {
    let python = "x = {}\nwhile True:\n  for i in range(1000): x[str(i)] = [sorted([j, 'a', str(j)], key=str) for j in range(9)]";
    let sql = "with recursive c(x) as (values(1) union all select x+1 from c) select sum(length(printf('%d %s', x, hex(randomblob(9))))) from c;";
    for (program, args) in [
        ("python3", vec!["-c", python]),
        ("sqlite3", vec![":memory:", sql]),
    ] {
        let samples = count(1500);
        let frames = compare(program, &Busy::start(program, &args), samples);
        assert!(frames > 3 * samples, "{program}: only {frames} frames");
    }
}

#[test]
fn tables_agree_with_gimli_in_servers_under_load() {
    for (name, busy) in [("redis-server", Busy::redis()), ("nginx", Busy::nginx())] {
        let samples = count(600);
        let frames = compare(name, &busy, samples);
        assert!(frames > 3 * samples, "{name}: only {frames} frames");
    }
}

#[test]
fn tables_agree_with_gimli_through_templates_and_exceptions() {
    let program = build_target("templates", &["-fomit-frame-pointer"]);
    let busy = Busy::start(program.to_str().expect("UTF-8"), &[]);
    let samples = count(1000);
    let frames = compare("templates", &busy, samples);
    assert!(frames > 3 * samples, "only {frames} frames");
}

#[test]
fn tables_agree_with_gimli_in_the_compiler() {
    let cc1plus = Command::new("g++")
        .arg("-print-prog-name=cc1plus")
        .output()
        .expect("g++");
    let cc1plus = String::from_utf8(cc1plus.stdout).expect("a path");
    // Enough instantiations to keep the compiler busy for longer than the test.
    let source = std::env::temp_dir().join(format!("unwinding-{}.cc", std::process::id()));
    let mut text = String::from(
        "#include <algorithm>\n#include <map>\n#include <string>\n#include <vector>\n",
    );
    for i in 0..2000 {
        text += &format!(
            "struct T{i} {{ int a; bool operator<(const T{i}& o) const {{ return a < o.a; }} }};\n\
             std::map<T{i}, std::string> m{i}; void f{i}(std::vector<T{i}> v) {{ std::sort(v.begin(), v.end()); m{i}[v[0]] = std::to_string({i}); }}\n"
        );
    }
    std::fs::write(&source, text).expect("a temporary file");
    let preprocessed = source.with_extension("ii");
    let status = Command::new("g++")
        .args(["-E", "-o"])
        .args([&preprocessed, &source])
        .status()
        .expect("g++");
    assert!(status.success());
    let path = preprocessed.to_str().expect("UTF-8");
    let args = ["-quiet", "-O2", "-fpreprocessed", path, "-o", "/dev/null"];
    let samples = count(800);
    let busy = Busy::start(cc1plus.trim(), &args);
    let frames = compare("cc1plus", &busy, samples);
    for file in [&source, &preprocessed] {
        let _ = std::fs::remove_file(file);
    }
    assert!(frames > 5 * samples, "only {frames} frames");
}
