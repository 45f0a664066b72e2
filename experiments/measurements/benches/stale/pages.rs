//! Cost of allocating, touching, resizing and freeing a page, measured with the loop of the paper's figures 7 and 8.

use super::{attached, ended};
use memhook_measurements::{Spread, bind_to, build, placement};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

const STEPS: [&str; 5] = ["allocate", "touch", "resize", "touch", "free"];
/// Figures 7 and 8, in thousands of cycles: glibc, Memcov, and Memcov on top of glibc.
const PAPER: [[f64; 3]; 5] = [
    [13.4, 38.8, 39.7],
    [0.27, 24.5, 0.21],
    [21.0, 3008.7, 60.7],
    [0.30, 23.3, 0.31],
    [2.61, 108.3, 26.3],
];
const CYCLES: usize = 6;
/// Time until the pages of a heap are watched.
const SETTLED: Duration = Duration::from_secs(4);
const MEASURED: Duration = Duration::from_secs(3);

struct Loop {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Loop {
    fn start() -> Loop {
        let program = build("pages", &["-O2"]);
        let mut child = placement()
            .command(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program");
        let input = child.stdin.take().expect("piped");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        output.read_line(&mut String::new()).expect("ready");
        Loop {
            child,
            input,
            output,
        }
    }

    /// Returns for each step the thousands of time-stamp counter ticks per block, as the median of many rounds.
    fn measure(&mut self, time: Duration) -> [f64; 5] {
        let mut steps = [const { Vec::new() }; 5];
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.input.write_all(b"1\n").expect("it listens");
            let mut line = String::new();
            self.output.read_line(&mut line).expect("an answer");
            let counts = line
                .split_whitespace()
                .filter_map(|n| n.parse::<f64>().ok());
            for (step, count) in steps.iter_mut().zip(counts) {
                step.push(count / 1e3);
            }
        }
        steps.map(|counts| Spread::of(counts).map_or(f64::NAN, |spread| spread.median))
    }
}

pub fn measure() {
    bind_to(&placement().rest);
    let mut target = Loop::start();
    let pid = target.child.id().to_string();
    let ways: [&[&str]; 3] = [
        &[],
        &["attach", &pid, "--json", "-i", "1h", "-T", "1"],
        &[
            "stale", &pid, "--older", "1s", "-d", "1h", "--json", "-T", "1",
        ],
    ];
    let mut of_ways = [const { [const { Vec::new() }; 5] }; 3];
    for _ in 0..CYCLES {
        for (arguments, of_way) in ways.iter().zip(&mut of_ways) {
            let attacher = (!arguments.is_empty()).then(|| attached(arguments));
            target.measure(SETTLED);
            let counts = target.measure(MEASURED);
            for (all, count) in of_way.iter_mut().zip(counts) {
                all.push(count);
            }
            attacher.map(ended);
        }
    }
    let _ = target.child.kill();
    let _ = target.child.wait();
    println!(
        "thousands of counts a block: untraced, traced, watched; in the paper: glibc, Memcov, Memcov2"
    );
    let medians = of_ways
        .map(|steps| steps.map(|of_step| Spread::of(of_step).map_or(f64::NAN, |s| s.median)));
    for (at, step) in STEPS.iter().enumerate() {
        let [untraced, traced, watched] = [0, 1, 2].map(|way: usize| medians[way][at]);
        let [glibc, memcov, second] = PAPER[at];
        println!(
            "{step:<9} {untraced:>8.2} {traced:>8.2} {watched:>8.2}   {glibc:>8.2} {memcov:>8.1} {second:>8.2}"
        );
    }
}
