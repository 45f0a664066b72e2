//! Table and figure 6.1: duration of malloc with call stacks of 5, 10 and 20 frames, unwound by our tables and by
//! glibc's backtrace(3).

use super::super::sheet::{Sheet, Sheets, effect, number};
use super::latency::{Boxed, by_size, rounds};
use crate::line_chart::Chart;
use memhook_measurements::{
    Measured, Memhook, Outcome, Running, Tool, build, build_library, placement,
};
use std::path::{Path, PathBuf};
use std::process::Command;

const DEPTHS: [u32; 3] = [5, 10, 20];
const COUNT: f64 = 100_000.0;
const MANY_MS: f64 = 150.0;

/// The malloc of `backtraced.cc`. It reads the number of frames from a file that both processes map.
struct Backtrace {
    name: String,
    depth: u32,
    file: PathBuf,
}

fn set(file: &Path, depth: u32) -> Result<(), String> {
    // The file is written in place, because the target has it mapped.
    let open = std::fs::OpenOptions::new().write(true).open(file);
    let mut open = open.map_err(|error| error.to_string())?;
    std::io::Write::write_all(&mut open, &depth.to_le_bytes()).map_err(|error| error.to_string())
}

impl Tool for Backtrace {
    fn name(&self) -> &str {
        &self.name
    }

    fn start(&self, _: u32) -> Result<Box<dyn Running>, String> {
        set(&self.file, self.depth)?;
        Ok(Box::new(Backtracing(self.file.clone())))
    }
}

struct Backtracing(PathBuf);

impl Running for Backtracing {
    fn cpu_ns(&self) -> u64 {
        0 // All of its work is the target's.
    }

    fn finish(self: Box<Self>) -> Result<Outcome, String> {
        set(&self.0, 0)?;
        Ok(Outcome::default())
    }
}

pub fn run(sheets: &mut Sheets) -> Result<(), String> {
    let place = placement();
    let file = sheets.file("backtrace-depth");
    std::fs::write(&file, 0u32.to_le_bytes()).map_err(|error| error.to_string())?;
    let library = build_library("backtraced", "backtraced.so");
    let start = |name: &str, flags: &[&str], arguments: &[&str]| {
        let mut command = Command::new("taskset");
        command.args(["-c", &place.target, "env"]);
        command.arg(format!("LD_PRELOAD={}", library.display()));
        command.arg(format!("BACKTRACE_DEPTH={}", file.display()));
        Measured::run(command.arg(build(name, flags)).args(arguments))
    };
    let mut target = start("sizes", &["-fno-omit-frame-pointer"], &[]);
    let ours = DEPTHS.map(|depth| -> Boxed {
        let options = format!("--depth {depth}");
        Box::new(Memhook::new(&format!("attach, {depth} frames"), &options))
    });
    let glibc = DEPTHS.map(|depth| -> Boxed {
        Box::new(Backtrace {
            name: format!("backtrace(3), {depth} frames"),
            depth,
            file: file.clone(),
        })
    });
    let groups = [
        rounds(&mut target, &ours, COUNT, 8),
        rounds(&mut target, &glibc, COUNT, 4),
    ];
    let (sheet, lines) = by_size("Nanoseconds a malloc on one call stack", &groups);
    sheets.add(&sheet);
    let chart = Chart {
        title: "Duration of malloc, by method of unwinding".into(),
        x: "bytes",
        y: "ns",
        log_x: true,
        log_y: true,
    };
    sheets.plot("", &chart, &lines);
    drop(target);

    let mut target = start("many", &[], &["1"]);
    let mut sheet = Sheet::new(
        "Replacing one of 100,000 blocks of random sizes, from 4,096 call stacks",
        &["tool", "untraced, ns", "traced, ns", "added, ns", "ratio"],
    );
    for (tools, cycles) in [(&ours, 8), (&glibc, 4)] {
        let all = rounds(&mut target, tools, MANY_MS, cycles);
        for (tool, traced) in all.traced.iter().enumerate() {
            let effect = effect(&all, tool, 0)?;
            let figures = [
                effect.untraced,
                effect.traced,
                effect.added,
                effect.ratio.median,
            ];
            let cells = std::iter::once(traced.tool.clone()).chain(figures.map(number));
            sheet.row(cells.collect());
        }
    }
    sheets.add(&sheet);
    drop(target);
    let _ = std::fs::remove_file(&file);
    Ok(())
}
