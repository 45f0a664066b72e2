//! Throughput of real programs, untraced and traced: every allocation, and sampled.
//!
//! `cargo measure programs`

use memhook_measurements::programs::PROGRAMS;
use memhook_measurements::{
    Alternated, Figures, Measured, Memhook, Standing, Subject, Tool, alternate, bind_to, build,
    is_test, placement,
};

fn main() {
    let mut figures = Figures::new("programs");
    let place = placement();
    bind_to(&place.rest);
    let tools = [
        Memhook::new("table 10", "--depth 10"),
        Memhook::new("sample 512 KiB", "--sample 524288"),
    ];
    let tools: [&dyn Tool; 2] = [&tools[0], &tools[1]];
    let names = tools.map(Tool::name);
    let run =
        |subject: &mut dyn Subject, cycles| alternate(subject, &tools, Figures::cycles_of(cycles));
    for program in PROGRAMS {
        figures.add(program.works, &names, || match (program.start)(&place) {
            Ok(mut subject) => run(&mut *subject, program.cycles),
            Err(why) => Alternated::impossible(&names, &why),
        });
    }
    figures.add(&["mixed C++"], &names, || {
        let program = build("mixed", &[]);
        let mut target = Measured::start(&program, &[], &place.target);
        let milliseconds = if is_test() { 10.0 } else { 200.0 };
        let mut subject = Standing {
            pid: target.pid(),
            measure: || target.round(milliseconds),
        };
        run(&mut subject, 20)
    });
    figures.finish();
}
