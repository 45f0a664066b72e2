//! Repeats the evaluation of Memoro (Byma and Larus, "Detailed Heap Profiling", ISMM 2018): protobuf with and without
//! arenas, leveldb's fillseq, memcached, and bamtools. Compares scores from all accesses with scores from watched
//! blocks. Also compares run time and memory untraced, with lifetimes alone, with both sources, and under valgrind's
//! dhat.
//!
//! `cargo measure scores -- [ROUNDS] [NAME]`, with 3 rounds by default, takes some minutes. It needs protoc,
//! libprotobuf-dev, libleveldb-dev and valgrind. The last two programs, whose sources apt fetches, also need clang,
//! cmake, libevent-dev and libjsoncpp-dev.
//!
//! "All accesses" means the accesses of code that is compiled here: memcached, bamtools, and the other programs
//! including inline code from library headers. Accesses in Debian's compiled libraries are not included, except for
//! calls of the C library.

mod debian;
mod memcached;
mod reads;

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Program to measure.
struct Program {
    name: &'static str,
    /// Paths of the builds without and with callbacks.
    plain: PathBuf,
    telling: PathBuf,
    arguments: Vec<String>,
    /// Directory that is passed as the last argument and must be new in each run.
    folder: Option<PathBuf>,
    work: Work,
    /// Figures of the paper: lifetime, usage, useful lifetime, and slowdown.
    paper: &'static str,
}

/// memcached sets its soft and hard descriptor limits to 1,024. Valgrind permits this only if its own limit is the
/// same.
const DHAT: [&str; 6] = [
    "prlimit",
    "--nofile=1024:4096",
    "valgrind",
    "-q",
    "--tool=dhat",
    "--dhat-out-file=/dev/null",
];

/// Workload of a program.
enum Work {
    /// The arguments determine the work. The program prints its cost at the end.
    Own,
    /// The program answers memcached requests until it is terminated.
    Requests,
}

/// Cost of a run.
#[derive(Clone, Copy, Default)]
struct Cost {
    /// Run time without waits for a processor. For a server, the processor time of 10,000 requests.
    milliseconds: f64,
    /// Peak resident memory.
    kib: f64,
}

fn main() {
    let rounds = std::env::args().skip(1).find_map(|word| word.parse().ok());
    let rounds: usize = rounds.unwrap_or(3);
    memhook_tests::binary();
    let folder = memhook_measurements::output_folder().join("scores");
    std::fs::create_dir_all(&folder).expect("a folder");
    println!("| program | source | lifetime | usage | useful lifetime | sites | time | memory |");
    println!("|---|---|---|---|---|---|---|---|");
    let wanted = std::env::args().skip(1);
    let wanted: Vec<String> = wanted
        .filter(|word| !word.starts_with('-') && word.parse::<usize>().is_err())
        .collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|word| name.contains(word));
    let mut all = Vec::new();
    if ["protobuf", "leveldb"].into_iter().any(is_wanted) {
        all.extend(programs(&folder));
    }
    if is_wanted("memcached") {
        all.extend(debian::memcached(&folder));
    }
    if is_wanted("bamtools") {
        all.extend(debian::bamtools(&folder));
    }
    for program in all {
        measure(&program, &folder, rounds);
    }
}

fn run_command(command: &mut Command) {
    let status = command
        .status()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(status.success(), "{command:?}");
}

fn programs(folder: &Path) -> Vec<Program> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/targets");
    run_command(
        Command::new("protoc")
            .arg(format!("--proto_path={}", sources.display()))
            .arg(format!("--cpp_out={}", folder.display()))
            .arg(sources.join("record.proto")),
    );
    let messages = folder.join("record.pb.cc").to_string_lossy().into_owned();
    let compiled = |name: &str, tells: bool, more: &[&str]| {
        let path = folder.join(if tells {
            format!("{name}-telling")
        } else {
            name.to_owned()
        });
        let mut command = Command::new("g++");
        command.args(["-std=c++20", "-O2", "-g", "-I"]).arg(folder);
        if tells {
            command.args(debian::CALLBACKS);
        }
        command.arg(sources.join(format!("{name}.cc"))).args(more);
        if tells {
            command.arg(memhook_tests::access_runtime().join("memhook_access.o"));
        }
        run_command(command.arg("-o").arg(&path));
        path
    };
    let protobuf = [messages.as_str(), "-lprotobuf", "-pthread"];
    let leveldb = ["-lleveldb", "-pthread"];
    let of_protobuf = |name, arena: Option<&str>, paper| Program {
        name,
        plain: compiled("protobuf", false, &protobuf),
        telling: compiled("protobuf", true, &protobuf),
        arguments: std::iter::once("20000")
            .chain(arena)
            .map(str::to_owned)
            .collect(),
        folder: None,
        work: Work::Own,
        paper,
    };
    vec![
        of_protobuf(
            "protobuf",
            None,
            "lifetime .40, usage .94, useful lifetime .72; 21.1 times, memory 9.6 times",
        ),
        of_protobuf(
            "protobuf, arena",
            Some("arena"),
            "lifetime .60, usage .74, useful lifetime .37; 24.9 times, memory 5.5 times",
        ),
        Program {
            name: "leveldb fillseq",
            plain: compiled("fillseq", false, &leveldb),
            telling: compiled("fillseq", true, &leveldb),
            arguments: vec!["400000".into()],
            folder: Some(folder.join("database")),
            work: Work::Own,
            paper: "30.8 times (13.5 without locks)",
        },
    ]
}

/// Runs a program under the wrapper command `with`. Returns its reported time and its peak memory.
fn cost(program: &Program, path: &Path, with: &[&str]) -> Cost {
    if let Some(folder) = &program.folder {
        let _ = std::fs::remove_dir_all(folder);
    }
    let (first, others) = match with {
        [first, others @ ..] => (
            Path::new(first),
            [others, &[path.to_str().expect("UTF-8")]].concat(),
        ),
        [] => (path, Vec::new()),
    };
    let mut command = Command::new(first);
    command.args(others).args(&program.arguments);
    command.args(&program.folder).stdin(Stdio::null());
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let mut numbers = text.split_whitespace().filter_map(|word| word.parse().ok());
    Cost {
        milliseconds: numbers.next().expect("a time"),
        kib: numbers.next().expect("a size"),
    }
}

/// Returns the median of some costs or ratios.
fn median(costs: impl Iterator<Item = f64>) -> f64 {
    let mut costs: Vec<f64> = costs.collect();
    costs.sort_by(f64::total_cmp);
    costs[costs.len() / 2]
}

fn measure(program: &Program, folder: &Path, rounds: usize) {
    let binary = memhook_tests::binary().to_string_lossy().into_owned();
    let file = folder.join("run.mhk").to_string_lossy().into_owned();
    let run = ["run", "-q", "--force", "-o", &file];
    let of =
        |access: &'static str| [&[binary.as_str()][..], &run, &["--access", access, "--"]].concat();
    let sources = [
        ("without us", &program.plain, Vec::new()),
        ("lifetimes alone", &program.plain, of("off")),
        ("watched blocks", &program.plain, of("sampled")),
        ("compiled, nobody listens", &program.telling, Vec::new()),
        ("all accesses", &program.telling, of("on")),
        ("dhat", &program.plain, DHAT.to_vec()),
    ];
    let mut scores = vec!["| - | - | - | -".to_owned(); sources.len()];
    let mut costs: Vec<Vec<Cost>> = vec![Vec::new(); sources.len()];
    // The runs are compared within rounds, because the speed of a machine varies over time.
    for round in 0..rounds {
        for (number, (name, path, with)) in sources.iter().enumerate() {
            if *name == "dhat" && round > 0 {
                continue;
            }
            costs[number].push(match program.work {
                Work::Own => cost(program, path, with),
                Work::Requests => memcached::cost(path, with),
            });
            if with.first() == Some(&binary.as_str()) {
                scores[number] = scores_of(&binary, &file);
            }
        }
    }
    let bases = costs[0].clone();
    for (((name, ..), scores), costs) in sources.iter().zip(scores).zip(&costs) {
        let of = |of: fn(&Cost) -> f64| median(costs.iter().map(of));
        let times = |of: fn(&Cost) -> f64| {
            median(
                costs
                    .iter()
                    .zip(&bases)
                    .map(|(cost, base)| of(cost) / of(base)),
            )
        };
        println!(
            "| {} | {name} {scores} | {:.0} ms, {:.2} times | {:.1} MiB, {:.2} times |",
            program.name,
            of(|cost| cost.milliseconds),
            times(|cost| cost.milliseconds),
            of(|cost| cost.kib) / 1024.0,
            times(|cost| cost.kib)
        );
    }
    println!("| {} | the paper: {} |", program.name, program.paper);
}

fn scores_of(binary: &str, file: &str) -> String {
    let output = Command::new(binary)
        .args(["report", file, "--scores", "--json", "-T", "1"])
        .output()
        .expect("memhook-rs");
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let run = &report["scores"];
    let score = |name: &str| match (run[name].as_f64(), run[format!("{name}_error")].as_f64()) {
        (Some(value), Some(error)) => format!("{value:.3} +- {error:.3}"),
        (Some(value), None) => format!("{value:.3}"),
        (None, _) => "unknown".into(),
    };
    format!(
        "| {} | {} | {} | {} of {}",
        score("lifetime"),
        score("usage"),
        score("useful_lifetime"),
        run["accessed_sites"],
        run["sites"]
    )
}
