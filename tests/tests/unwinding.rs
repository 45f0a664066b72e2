//! The compiled unwind tables against gimli's own interpretation of the same call frame
//! information, at the places where programs that nobody here built happen to stop.

use memhook_inject::{HoldOptions, hold};
use memhook_unwind::reference::{End, Unwinder};
use memhook_unwind::{TableModule, compile, walk};
use std::collections::HashMap;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const DEPTH: usize = 64;

/// A program that works until it is killed.
struct Busy(Child);

impl Busy {
    fn start(program: &str, args: &[&str]) -> Busy {
        let child = Command::new(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap_or_else(|e| panic!("{program}, which this test needs, does not start: {e}"));
        // Past its start, however busy the machine: nanoseconds on a CPU, proc_pid_schedstat.
        let busy = Busy(child);
        let ran = format!("/proc/{}/schedstat", busy.0.id());
        memhook_tests::until("the program works", || {
            let text = std::fs::read_to_string(&ran).expect("it lives");
            let ns: u64 = text
                .split(' ')
                .next()
                .unwrap_or("")
                .parse()
                .expect("a number");
            ns > 250_000_000
        });
        busy
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

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
fn compare(program: &str, args: &[&str], samples: usize) -> usize {
    let busy = Busy::start(program, args);
    let pid = busy.0.id() as i32;
    let maps = memhook_process::mappings(pid).expect("maps");
    let mut modules = memhook_process::modules(pid, &maps, &mut HashMap::new()).expect("modules");
    modules.extend(memhook_process::vdso(pid, &maps));
    let mut reference = Unwinder::default();
    let mut tables = Vec::new();
    for m in &modules {
        reference.add_module(m.base, m.start, m.end, m.bytes.clone());
        tables.push(TableModule {
            base: m.base,
            start: m.start,
            end: m.end,
            table: Arc::new(compile(&m.bytes).unwrap_or_default()),
        });
    }
    let mut frames = 0;
    let mut cut = 0;
    for _ in 0..samples {
        let sample = sample(pid);
        let read = |address| sample.read(address);
        let [pc, sp, rbp] = sample.registers;
        let (found, complete) = walk(&tables, (pc, sp, rbp), &read, DEPTH);
        let expected = reference.backtrace(sample.all, &read, DEPTH);
        let names = |frames: &[u64]| {
            let module = |pc: &u64| modules.iter().find(|m| m.contains(*pc));
            let named =
                |pc| module(pc).map_or("?".into(), |m| format!("{}+{:#x}", m.name(), pc - m.base));
            frames.iter().map(named).collect::<Vec<_>>().join("\n")
        };
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
        let frames = compare(program, &args, 1500);
        assert!(frames > 5000, "{program}: only {frames} frames");
    }
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
    let frames = compare(
        cc1plus.trim(),
        &["-quiet", "-O2", "-fpreprocessed", path, "-o", "/dev/null"],
        800,
    );
    for file in [&source, &preprocessed] {
        let _ = std::fs::remove_file(file);
    }
    assert!(frames > 5000, "only {frames} frames");
}
