//! Cost of malloc in the target by size: untraced, through a hook that records nothing, with each kind of unwinding at
//! each depth, sampled, and with user probes of the kernel.
//!
//! `cargo measure latency`

use memhook_measurements::uprobe::{Action, Uprobes};
use memhook_measurements::{
    Figures, Measured, Memhook, Standing, Tool, alternate, bind_to, build, is_test, placement,
};

const SIZES: [&str; 9] = [
    "16 B", "32 B", "64 B", "128 B", "256 B", "512 B", "1 KiB", "4 KiB", "64 KiB",
];
/// Consecutive mallocs of each size in each round.
const COUNT: u32 = 100_000;
/// Consecutive mallocs with probes, which are slower by two orders of magnitude.
const SLOW_COUNT: u32 = 10_000;

fn main() {
    let mut figures = Figures::new("latency");
    let place = placement();
    bind_to(&place.rest);
    // A cycle has few tools, so that the round without a tool is recent.
    for tools in [
        &[
            ("pass-through", "--size 1G.."),
            ("sample 512 KiB", "--sample 524288"),
        ][..],
        &[
            ("fp 5", "--set unwind=fp --depth 5"),
            ("fp 10", "--set unwind=fp --depth 10"),
            ("fp 20", "--set unwind=fp --depth 20"),
        ],
        &[
            ("table 5", "--depth 5"),
            ("table 10", "--depth 10"),
            ("table 20", "--depth 20"),
        ],
    ] {
        let tools = tools
            .iter()
            .map(|(name, options)| Memhook::new(name, options));
        let tools: Vec<Box<dyn Tool>> = tools.map(|tool| Box::new(tool) as _).collect();
        measure(&mut figures, &tools, COUNT, &place.target);
    }
    let (entry, both) = (("malloc", false), [("malloc", false), ("malloc", true)]);
    let exit = ("malloc", true);
    let mut probes: Vec<Box<dyn Tool>> = Vec::new();
    for (kind, action) in [
        ("uprobe", Action::Count),
        ("uprobe, BPF", Action::Program),
        ("uprobe, BPF, stack 10", Action::ProgramWithStack),
        ("uprobe, call chain 10", Action::Callchain),
    ] {
        for (at, places) in [
            ("entry", &[entry][..]),
            ("return", &[exit]),
            ("both", &both),
        ] {
            probes.push(Box::new(Uprobes::new(
                &format!("{kind}, {at}"),
                places,
                action,
            )));
        }
    }
    for tools in probes.chunks(3) {
        measure(&mut figures, tools, SLOW_COUNT, &place.target);
    }
    figures.finish();
}

fn measure(figures: &mut Figures, tools: &[Box<dyn Tool>], count: u32, processor: &str) {
    let tools: Vec<&dyn Tool> = tools.iter().map(|tool| &**tool).collect();
    let names: Vec<&str> = tools.iter().map(|tool| tool.name()).collect();
    let count = f64::from(if is_test() { 1000 } else { count });
    figures.add(&SIZES, &names, || {
        let program = build("sizes", &["-fno-omit-frame-pointer"]);
        let mut target = Measured::start(&program, &[], processor);
        let pid = target.pid();
        let mut subject = Standing {
            pid,
            measure: || target.round(count),
        };
        alternate(&mut subject, &tools, Figures::cycles())
    });
}
