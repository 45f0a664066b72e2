//! Byma and Larus, "Detailed Heap Profiling": takes tables 1 to 6 from the benchmark that measures them.

use super::memcov::bench;
use super::sheet::{Sheet, Sheets};
use memhook_measurements::{CALLBACKS, output_folder};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Single-threaded programs, and the number of repetitions.
const ACCESSING: [(&str, &str); 2] = [("realistic", "5\n"), ("mixed", "5\n")];

pub fn protobuf(sheets: &mut Sheets) -> Result<(), String> {
    bench(sheets, "scores", &["3", "protobuf"])
}

pub fn memcached(sheets: &mut Sheets) -> Result<(), String> {
    bench(sheets, "scores", &["2", "memcached"])
}

pub fn bamtools(sheets: &mut Sheets) -> Result<(), String> {
    bench(sheets, "scores", &["2", "bamtools"])
}

/// Section 5.1: compiler-reported accesses that cannot be heap accesses.
pub fn stack_accesses(sheets: &mut Sheets) -> Result<(), String> {
    let targets = crate::root().join("benches/targets");
    let folder = output_folder();
    let compile = |arguments: &mut Command| match arguments.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{arguments:?} ends with {status}")),
        Err(error) => Err(format!("c++: {error}")),
    };
    let counters = folder.join("access_kinds.o");
    let mut command = Command::new("g++");
    command.args(["-std=c++20", "-O2", "-c"]);
    command.arg(targets.join("access_kinds.cc"));
    compile(command.arg("-o").arg(&counters))?;
    let mut sheet = Sheet::new(
        "Accesses that gcc reports, by kind of memory",
        &[
            "program",
            "accesses",
            "stack",
            "own data",
            "heap",
            "not the heap's",
        ],
    );
    for (name, input) in ACCESSING {
        let program = folder.join(format!("{name}-counted"));
        let mut command = Command::new("g++");
        command
            .args(["-std=c++20", "-O2", "-pthread"])
            .args(CALLBACKS);
        command.arg("-Wl,--wrap=main,--wrap=_exit");
        command
            .arg(targets.join(format!("{name}.cc")))
            .arg(&counters);
        compile(command.arg("-o").arg(&program))?;
        let [stack, own, heap] = counted(&program, input)?;
        let all = (stack + own + heap).max(1.0);
        let percent = |part: f64| format!("{:.1} %", part / all * 100.0);
        sheet.row(vec![
            name.to_owned(),
            format!("{all:.0}"),
            percent(stack),
            percent(own),
            percent(heap),
            percent(stack + own),
        ]);
    }
    sheets.add(&sheet);
    Ok(())
}

/// Runs a program that counts its own accesses. Returns the numbers of accesses to the stack, to static data and to the
/// heap.
fn counted(program: &Path, input: &str) -> Result<[f64; 3], String> {
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let mut questions = child.stdin.take().ok_or("no pipe")?;
    let sent = questions.write_all(input.as_bytes());
    sent.map_err(|error| error.to_string())?;
    drop(questions);
    let output = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().last().unwrap_or_default();
    let numbers: Vec<f64> = last
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    let numbers = numbers.try_into();
    numbers.map_err(|_| format!("{} says {text:?}", program.display()))
}
