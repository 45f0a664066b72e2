//! Runs `cc1plus`, the compiler that g++ starts, on a large file. Tools attach before it has read
//! the first line.

use super::{Program, find};
use crate::round::{Watch, resident_bytes};
use crate::{Figure, Round, Subject, Tool, is_test, processors::Placement};
use memhook_tests::programs::{Folder, many_templates};
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};
use std::{
    io::Write,
    process::{Command, Stdio},
    time::Instant,
};

pub(super) const PROGRAM: Program = Program {
    works: &["g++ -O1, a large file"],
    cycles: 12,
    stands: false,
    start: |place| compiler(place, &many_templates(if is_test() { 1 } else { 12 })),
};

struct Compiler {
    program: String,
    processor: String,
    source: Vec<u8>,
    /// Memory growth in the last round without a tool, in bytes.
    own_growth: i64,
}

/// Returns g++, which is installed wherever this crate is built, as a subject that compiles this
/// text.
pub fn compiler(place: &Placement, text: &str) -> Result<Box<dyn Subject>, String> {
    let driver = find("g++", "g++")?;
    let output = |command: &mut Command| {
        let output = command.output().map_err(|e| format!("g++: {e}"))?;
        Ok::<_, String>(output.stdout)
    };
    let program = output(Command::new(&driver).arg("-print-prog-name=cc1plus"))?;
    let folder = Folder::new("bench-compiler");
    let file = folder.path("large.cc");
    std::fs::write(&file, text).map_err(|e| e.to_string())?;
    let source = output(Command::new(&driver).args(["-E", "-P", &file]))?;
    if source.is_empty() {
        return Err("g++ -E gave nothing".into());
    }
    Ok(Box::new(Compiler {
        program: String::from_utf8_lossy(&program).trim().to_owned(),
        processor: place.target.clone(),
        source,
        own_growth: 0,
    }))
}

/// Returns the processor time of all children that were waited for (getrusage(2)). The running tool
/// is not yet among them.
fn ended_children_ns() -> i64 {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN);
    usage.map_or(0, |usage| {
        let total = usage.user_time() + usage.system_time();
        total.num_microseconds() * 1000
    })
}

impl Subject for Compiler {
    fn round(&mut self, tool: Option<&dyn Tool>) -> Result<Round, String> {
        let mut child = Command::new("taskset")
            .args(["-c", &self.processor, &self.program])
            .args(["-quiet", "-O1", "-fpreprocessed", "-", "-o", "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("cc1plus: {e}"))?;
        let mut input = child.stdin.take().expect("piped");
        let pid = child.id();
        // The compiler waits for input before it compiles anything, so the attach sees everything.
        let waits = || {
            let call = std::fs::read_to_string(format!("/proc/{pid}/syscall"));
            call.is_ok_and(|call| call.starts_with("0 0x0 "))
        };
        memhook_tests::until("the compiler reads", waits);
        let before = resident_bytes(pid);
        let running = tool.map(|tool| tool.start(pid)).transpose();
        let running = running.inspect_err(|_| {
            let _ = child.kill();
            let _ = child.wait();
        })?;
        let watch = running.as_ref().map(|running| Watch::start(&**running));
        let (start, cpu) = (Instant::now(), ended_children_ns());
        input.write_all(&self.source).map_err(|e| e.to_string())?;
        drop(input);
        // The memory of a process cannot be read after its end, so it is read repeatedly before.
        let mut resident = before;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
                break status;
            }
            resident = resident.max(resident_bytes(pid));
            std::thread::sleep(std::time::Duration::from_millis(1));
        };
        let ns = start.elapsed().as_nanos() as f64;
        let cpu_ns = Some((ended_children_ns() - cpu) as f64);
        let tool_cpu = watch.zip(running.as_ref());
        let tool_cpu = tool_cpu.map_or(0.0, |(watch, running)| watch.end(&**running));
        let outcome = running.map(|running| running.after_end()).transpose()?;
        if !status.success() {
            return Err(format!("cc1plus: {status}"));
        }
        let mut growth_bytes = resident - before;
        match tool {
            Some(_) => growth_bytes -= self.own_growth,
            None => self.own_growth = growth_bytes,
        }
        Ok(Round {
            figures: vec![Figure { ns, cpu_ns }],
            outcome: outcome.unwrap_or_default(),
            tool_cpu,
            growth_bytes,
        })
    }
}
