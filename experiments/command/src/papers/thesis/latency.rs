//! Tables 5.1 and 5.3: duration of malloc by size, untraced, with user probes, through a hook that records nothing, and
//! traced.

use super::super::sheet::{Sheet, Sheets, effect, number};
use super::super::spawned::bpftrace;
use crate::line_chart::{Chart, Line};
use memhook_measurements::uprobe::{Action, Uprobes};
use memhook_measurements::{
    Alternated, Measured, Memhook, Standing, Tool, alternate, build, placement,
};

/// Sizes in the order of the target's answers.
pub const SIZES: [(&str, f64); 9] = [
    ("16 B", 16.0),
    ("32 B", 32.0),
    ("64 B", 64.0),
    ("128 B", 128.0),
    ("256 B", 256.0),
    ("512 B", 512.0),
    ("1 KiB", 1024.0),
    ("4 KiB", 4096.0),
    ("64 KiB", 65536.0),
];
/// Numbers of consecutive mallocs: as in the thesis, and fewer for probes, which are slower by two orders of magnitude.
const COUNT: f64 = 100_000.0;
const PROBED_COUNT: f64 = 3_000.0;

/// Boxed tool.
pub type Boxed = Box<dyn Tool>;

/// Runs alternating rounds, without and with each tool, of a target that answers with nanoseconds.
pub fn rounds(target: &mut Measured, tools: &[Boxed], question: f64, cycles: usize) -> Alternated {
    let tools: Vec<&dyn Tool> = tools.iter().map(|tool| &**tool).collect();
    let mut subject = Standing {
        pid: target.pid(),
        measure: || target.round(question),
    };
    alternate(&mut subject, &tools, cycles)
}

/// Returns a table by size, and the lines of its plot.
pub fn by_size(title: &str, groups: &[Alternated]) -> (Sheet, Vec<Line>) {
    let mut columns = vec!["size".to_owned(), "untraced, ns".to_owned()];
    let tools = groups.iter().flat_map(|all| &all.traced);
    columns.extend(tools.map(|traced| format!("{}, ns (ratio)", traced.tool)));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut sheet = Sheet::new(title, &columns);
    let mut lines: Vec<Line> = vec![("untraced".to_owned(), Vec::new())];
    for all in groups {
        lines.extend(all.traced.iter().map(|of| (of.tool.clone(), Vec::new())));
    }
    for (work, (name, bytes)) in SIZES.iter().enumerate() {
        let mut cells = vec![(*name).to_owned(), String::new()];
        let mut line = 1;
        for all in groups {
            for tool in 0..all.traced.len() {
                let cell = match effect(all, tool, work) {
                    Ok(effect) => {
                        if cells[1].is_empty() {
                            cells[1] = number(effect.untraced);
                            lines[0].1.push((*bytes, effect.untraced));
                        }
                        lines[line].1.push((*bytes, effect.traced));
                        let ratio = number(effect.ratio.median);
                        format!("{} ({ratio})", number(effect.traced))
                    }
                    Err(why) => why,
                };
                cells.push(cell);
                line += 1;
            }
        }
        sheet.row(cells);
    }
    (sheet, lines)
}

pub fn run(sheets: &mut Sheets) -> Result<(), String> {
    let place = placement();
    let program = build("sizes", &["-fno-omit-frame-pointer"]);
    let mut target = Measured::start(&program, &[], &place.target);
    let hooks: [Boxed; 2] = [
        Box::new(Memhook::new("hook that records nothing", "--size 1G..")),
        Box::new(Memhook::new("attach, 10 frames", "--depth 10")),
    ];
    let hooked = rounds(&mut target, &hooks, COUNT, 10);
    let (entry, exit) = (("malloc", false), ("malloc", true));
    let uprobes = |name: &str, places: &[(&'static str, bool)], action| -> Boxed {
        Box::new(Uprobes::new(name, places, action))
    };
    let probes = [
        uprobes("uprobe at entry, BPF", &[entry], Action::Program),
        uprobes("at return", &[exit], Action::Program),
        uprobes("both", &[entry, exit], Action::Program),
        uprobes(
            "at entry, 10 frames by BPF",
            &[entry],
            Action::ProgramWithStack,
        ),
        Box::new(bpftrace(
            "bpftrace, ustack at entry",
            "uprobe:LIBC:malloc { @[ustack(10)] = count(); }",
        )),
    ];
    let probed = rounds(&mut target, &probes, PROBED_COUNT, 5);
    let (sheet, mut lines) = by_size("Nanoseconds a malloc", &[hooked, probed]);
    sheets.add(&sheet);
    lines.retain(|(_, points)| !points.is_empty());
    let chart = Chart {
        title: "What a malloc takes".into(),
        x: "bytes",
        y: "ns",
        log_x: true,
        log_y: true,
    };
    sheets.plot("", &chart, &lines);
    Ok(())
}
