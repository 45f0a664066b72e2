//! Cost in the target of a malloc/free pair on a hot stack, and of replacing blocks from thousands of stacks, with one
//! and two threads, and with and without frame pointers.
//!
//! `cargo measure churn`

use memhook_measurements::uprobe::{Action, Uprobes};
use memhook_measurements::{
    AfterDetach, Figures, Measured, Memhook, Standing, Tool, alternate, bind_to, build, is_test,
    placement,
};

const WITH: &str = "-fno-omit-frame-pointer";
const WITHOUT: &str = "-fomit-frame-pointer";

struct Work {
    name: &'static str,
    program: &'static str,
    flags: &'static str,
    args: &'static [&'static str],
    threads: u32,
    tools: Vec<Box<dyn Tool>>,
}

fn memhook(name: &str, options: &str) -> Box<dyn Tool> {
    Box::new(Memhook::new(name, options))
}

fn uprobes(name: &str, both: bool, action: Action) -> Box<dyn Tool> {
    let places: &[_] = if both {
        &[("malloc", false), ("free", false)]
    } else {
        &[("malloc", false)]
    };
    Box::new(Uprobes::new(name, places, action))
}

fn works() -> Vec<Work> {
    let all = |depth: u32| {
        vec![
            memhook("table", &format!("--depth {depth}")),
            memhook("fp", &format!("--set unwind=fp --depth {depth}")),
        ]
    };
    let probes = || {
        vec![
            memhook("table", "--depth 10"),
            uprobes("uprobe, BPF, malloc", false, Action::Program),
            uprobes(
                "uprobe, BPF, stack 10, malloc",
                false,
                Action::ProgramWithStack,
            ),
            uprobes(
                "uprobe, BPF, stack 10, malloc and free",
                true,
                Action::ProgramWithStack,
            ),
        ]
    };
    let mut works = Vec::new();
    let mut add = |name, program, flags, args, threads, tools| {
        works.push(Work {
            name,
            program,
            flags,
            args,
            threads,
            tools,
        });
    };
    add("pair, depth 10", "pair", WITH, &["10", "1"], 1, all(10));
    add("pair, depth 20", "pair", WITH, &["20", "1"], 1, all(20));
    add(
        "pair, depth 10, no frame pointers",
        "pair",
        WITHOUT,
        &["10", "1"],
        1,
        vec![
            memhook("table", "--depth 10"),
            memhook("pass-through", "--size 1G.."),
            memhook("sample 512 KiB", "--sample 524288"),
            Box::new(AfterDetach),
        ],
    );
    add(
        "pair, depth 20, no frame pointers",
        "pair",
        WITHOUT,
        &["20", "1"],
        1,
        vec![memhook("table", "--depth 20")],
    );
    add(
        "pair, depth 10, 2 threads",
        "pair",
        WITHOUT,
        &["10", "2"],
        2,
        vec![
            memhook("table", "--depth 10"),
            memhook("sample 512 KiB", "--sample 524288"),
        ],
    );
    add(
        "pair, depth 10, probed",
        "pair",
        WITH,
        &["10", "1"],
        1,
        probes(),
    );
    add("many stacks", "many", WITH, &["1"], 1, all(12));
    add(
        "many stacks, no frame pointers",
        "many",
        WITHOUT,
        &["1"],
        1,
        vec![
            memhook("table", "--depth 12"),
            memhook("sample 512 KiB", "--depth 12 --sample 524288"),
        ],
    );
    add(
        "many stacks, 2 threads",
        "many",
        WITHOUT,
        &["2"],
        2,
        vec![memhook("table", "--depth 12")],
    );
    add("many stacks, probed", "many", WITH, &["1"], 1, probes());
    works
}

fn main() {
    let mut figures = Figures::new("churn");
    let place = placement();
    bind_to(&place.rest);
    for work in works() {
        let tools: Vec<&dyn Tool> = work.tools.iter().map(|tool| &**tool).collect();
        let names: Vec<&str> = tools.iter().map(|tool| tool.name()).collect();
        figures.add(&[work.name], &names, || {
            let program = build(work.program, &[work.flags]);
            // Two threads and the attacher share two processors. A thread waits while the attacher uses its processor.
            // That time is not counted for the thread, but shown as time of the tool.
            let processors = match work.threads {
                1 => &place.target,
                _ => &place.all,
            };
            let mut target = Measured::start(&program, work.args, processors);
            let milliseconds = if is_test() { 10.0 } else { 100.0 };
            let mut subject = Standing {
                pid: target.pid(),
                measure: || target.round(milliseconds),
            };
            alternate(&mut subject, &tools, Figures::cycles_of(16))
        });
    }
    for work in ["pair, depth 10, probed", "many stacks, probed"] {
        figures.compare(work, "table");
    }
    figures.finish();
}
