//! Unwind tables: compile time, size, and the cost of a frame in the target, for a cached and for an uncached
//! backtrace.
//!
//! `cargo measure unwind`

use criterion::{BenchmarkId, SamplingMode, Throughput};
use memhook_measurements::{
    Figures, Measured, Memhook, Standing, Tool, alternate, bind_to, build, is_test, placement,
    programs,
};
use memhook_unwind::compile;
use std::{path::PathBuf, process::Command, time::Duration};

/// Returns modules of very different sizes that are installed on most build machines.
fn modules() -> Vec<(String, Vec<u8>)> {
    let mut paths = Vec::new();
    // The C++ compiler knows the paths of the target's libraries. This program is linked statically.
    for library in ["libc.so.6", "libstdc++.so.6"] {
        let option = format!("-print-file-name={library}");
        let output = Command::new("c++").arg(option).output();
        let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
        paths.push(PathBuf::from(text.unwrap_or_default().trim()));
    }
    paths.extend(programs::find("redis-server", "redis-server"));
    let sysroot = Command::new("rustc").args(["--print", "sysroot"]).output();
    if let Ok(output) = sysroot {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let files = std::fs::read_dir(PathBuf::from(text.trim()).join("lib"));
        let files = files.into_iter().flatten().flatten().map(|e| e.path());
        paths.extend(files.filter(|p| p.to_string_lossy().contains("librustc_driver")));
    }
    let named = |path: PathBuf| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some((name, std::fs::read(&path).ok()?))
    };
    paths.into_iter().filter_map(named).collect()
}

fn compiling(figures: &mut Figures) {
    for (name, bytes) in modules() {
        let table = match compile(&bytes) {
            Ok(table) => table,
            Err(error) => {
                eprintln!("{name}: {error}");
                continue;
            }
        };
        let rows = table.offsets.len();
        let size = size_of_val(&table.offsets[..]) + size_of_val(&table.row_rules[..]);
        let rules = size_of_val(&table.rules[..]);
        figures.fact(
            &format!("unwind table of {name}"),
            &format!(
                "{rows} rows, {} rules, {:.2} bytes a row, {} rows stop because they fit no rule",
                table.rules.len(),
                (size + rules) as f64 / rows.max(1) as f64,
                table.inexpressible
            ),
        );
        let mut group = figures.criterion().benchmark_group("unwind/compile");
        group.sampling_mode(SamplingMode::Flat);
        group.sample_size(10);
        group.warm_up_time(Duration::from_millis(50));
        group.measurement_time(Duration::from_secs(1));
        group.throughput(Throughput::Elements(rows as u64));
        group.bench_function(BenchmarkId::from_parameter(&name), |b| {
            b.iter(|| compile(&bytes));
        });
        group.finish();
    }
}

/// The slope over the depth is the cost per frame.
fn frames(figures: &mut Figures, name: &str, program: &str, args: &[&str]) {
    let place = placement();
    let tools = [5, 10, 20]
        .map(|depth| Memhook::new(&format!("table {depth}"), &format!("--depth {depth}")));
    let tools = tools.each_ref().map(|tool| tool as &dyn Tool);
    let names = tools.map(Tool::name);
    figures.add(&[name], &names, || {
        let mut target = Measured::start(&build(program, &[]), args, &place.target);
        let milliseconds = if is_test() { 10.0 } else { 150.0 };
        let mut subject = Standing {
            pid: target.pid(),
            measure: || target.round(milliseconds),
        };
        alternate(&mut subject, &tools, Figures::cycles())
    });
}

fn main() {
    let mut figures = Figures::new("unwind");
    bind_to(&placement().rest);
    compiling(&mut figures);
    frames(&mut figures, "remembered backtrace", "pair", &["20", "1"]);
    frames(&mut figures, "backtrace not remembered", "misses", &[]);
    figures.finish();
}
