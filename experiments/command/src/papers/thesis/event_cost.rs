//! Table 2.1: cost that each tracer adds to one event, with today's tools next to those of the
//! table.

use super::super::sheet::{Sheet, Sheets, effect, number};
use super::super::spawned::{bpftrace, gdb, ltrace, strace};
use super::latency::{Boxed, rounds};
use memhook_measurements::{
    Alternated, FunctionProbe, Measured, Memhook, Outcome, Placed, Running, Tool, build, placement,
};

/// Probe at the function of `increment.cc`.
struct AtFunction {
    name: &'static str,
    probe: FunctionProbe,
}

impl Tool for AtFunction {
    fn name(&self) -> &str {
        self.name
    }

    fn start(&self, pid: u32) -> Result<Box<dyn Running>, String> {
        let (placed, _) = self.probe.place_at(pid, "bar")?;
        Ok(Box::new(Probing(placed)))
    }
}

struct Probing(Placed);

impl Running for Probing {
    fn cpu_ns(&self) -> u64 {
        0 // The calls are counted in the target or in the kernel.
    }

    fn finish(self: Box<Self>) -> Result<Outcome, String> {
        let events = self.0.finish()?;
        Ok(Outcome { lost: 0, events })
    }
}

fn add(sheet: &mut Sheet, all: &Alternated, event: &str, events: f64) {
    for (tool, traced) in all.traced.iter().enumerate() {
        let cells = match effect(all, tool, 0) {
            Ok(effect) => [
                number(effect.untraced / events),
                format!("{:.4}", effect.added / events / 1e3),
            ],
            Err(why) => ["-".into(), why],
        };
        let names = [traced.tool.clone(), event.to_owned()];
        sheet.row(names.into_iter().chain(cells).collect());
    }
}

pub fn run(sheets: &mut Sheets) -> Result<(), String> {
    let place = placement();
    let mut sheet = Sheet::new(
        "What a tracer adds to an event",
        &["tool", "event", "untraced, ns", "added, µs"],
    );
    let mut calls = Measured::start(&build("increment", &["-rdynamic"]), &[], &place.target);
    let at_function = |name, probe| -> Boxed { Box::new(AtFunction { name, probe }) };
    let probes = [
        at_function("memhook-rs probe", FunctionProbe::Count),
        at_function("uprobe, counting in the kernel", FunctionProbe::Uprobe),
    ];
    add(
        &mut sheet,
        &rounds(&mut calls, &probes, 60.0, 7),
        "a function",
        1.0,
    );
    let debugger: [Boxed; 1] = [Box::new(gdb("bar"))];
    add(
        &mut sheet,
        &rounds(&mut calls, &debugger, 60.0, 3),
        "a function",
        1.0,
    );
    drop(calls);

    let mut pairs = Measured::start(&build("pair", &[]), &["10", "1"], &place.target);
    let ours: [Boxed; 1] = [Box::new(Memhook::new(
        "memhook-rs attach, 10 frames",
        "--depth 10",
    ))];
    add(
        &mut sheet,
        &rounds(&mut pairs, &ours, 60.0, 7),
        "malloc or free",
        2.0,
    );
    let slow: [Boxed; 1] = [Box::new(ltrace())];
    add(
        &mut sheet,
        &rounds(&mut pairs, &slow, 60.0, 3),
        "malloc or free",
        2.0,
    );
    drop(pairs);

    let mut calls = Measured::start(&build("system_calls", &[]), &[], &place.target);
    let tools: [Boxed; 2] = [
        Box::new(strace()),
        Box::new(bpftrace(
            "kprobe, by bpftrace",
            "kprobe:__x64_sys_getppid { @ = count(); }",
        )),
    ];
    add(
        &mut sheet,
        &rounds(&mut calls, &tools, 60.0, 5),
        "a system call",
        1.0,
    );
    sheets.add(&sheet);
    Ok(())
}
