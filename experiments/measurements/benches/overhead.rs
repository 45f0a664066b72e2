//! Loss of throughput under a budget, once the budget has settled.
//!
//! `cargo measure overhead`; takes a long time, because each round begins with the settling time.

use memhook_measurements::programs::PROGRAMS;
use memhook_measurements::{
    Alternated, Figures, Measured, Memhook, Standing, Subject, Tool, alternate, bind_to, build,
    is_test, placement,
};
use std::time::Duration;

/// Settling time of the budget's controller.
const SETTLES_IN: Duration = Duration::from_secs(2);

fn main() {
    let mut figures = Figures::new("overhead");
    let place = placement();
    bind_to(&place.rest);
    let settles_in = if is_test() {
        Duration::ZERO
    } else {
        SETTLES_IN
    };
    let tools = [
        ("overhead 2 %", "--overhead 2%"),
        ("overhead 5 %", "--overhead 5%"),
    ]
    .map(|(name, options)| Memhook::new(name, options).settling(settles_in));
    let tools: [&dyn Tool; 2] = [&tools[0], &tools[1]];
    let names = tools.map(Tool::name);
    let run =
        |subject: &mut dyn Subject, cycles| alternate(subject, &tools, Figures::cycles_of(cycles));
    for (works, program, arguments) in [
        ("pair, depth 10", "pair", &["10", "1"][..]),
        ("many stacks", "many", &["1"]),
        ("mixed C++", "mixed", &[]),
    ] {
        figures.add(&[works], &names, || {
            let program = build(program, &[]);
            let mut target = Measured::start(&program, arguments, &place.target);
            let milliseconds = if is_test() { 10.0 } else { 500.0 };
            let mut subject = Standing {
                pid: target.pid(),
                measure: || target.round(milliseconds),
            };
            run(&mut subject, 12)
        });
    }
    // Only programs that keep running while tools attach and detach. A compiler ends before the budget has settled.
    for program in PROGRAMS.iter().filter(|program| program.stands) {
        figures.add(program.works, &names, || match (program.start)(&place) {
            Ok(mut subject) => run(&mut *subject, program.cycles),
            Err(why) => Alternated::impossible(&names, &why),
        });
    }
    figures.finish();
}
