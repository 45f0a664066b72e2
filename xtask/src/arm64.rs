//! `cargo xtask arm64`: runs a command on AArch64, in an emulated machine with Debian's kernel.

use memhook_tests::arm64::{
    Machine, build_command, build_for_glibc, build_for_musl, missing_tools,
};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

/// Options of the task.
#[derive(clap::Args)]
pub struct Args {
    /// Processor of the machine: max, neoverse-n1, cortex-a53, or another name that QEMU accepts
    #[arg(long, default_value = "max")]
    cpu: String,
    /// Time limit of the command in seconds
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Program of tests/targets to compile and copy into the machine, such as leaks.cc
    #[arg(long, value_name = "FILE")]
    target: Vec<String>,
    /// C program of tests/targets to compile for musl and copy into the machine; -musl is added to
    /// its name
    #[arg(long, value_name = "FILE")]
    musl: Vec<String>,
    /// Other file to copy into the command's working directory in the machine
    #[arg(long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Existing directory that receives the files that the command leaves in its working directory
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
    /// The command and its arguments; a single word is run as a shell script
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Runs the command, and passes on its output, standard error and exit code.
pub fn run(args: &Args) -> ExitCode {
    ended(args).unwrap_or_else(|why| {
        eprintln!("arm64: {why}");
        ExitCode::FAILURE
    })
}

fn ended(args: &Args) -> Result<ExitCode, String> {
    if let Some(missing) = missing_tools() {
        return Err(missing.to_owned());
    }
    let mut machine = Machine::new(&args.cpu, Duration::from_secs(args.seconds))?;
    machine.put(&build_command()?, "bin/memhook-rs");
    for name in &args.target {
        machine.put(&build_for_glibc(name), &format!("bin/{}", stem(name)));
    }
    for name in &args.musl {
        let program = build_for_musl(machine.root(), name, &[]);
        machine.put(&program, &format!("bin/{}-musl", stem(name)));
    }
    for file in &args.file {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        machine.put(file, &format!("results/files/{name}"));
    }
    let ended = machine.run(&script(&args.command))?;
    let failed = |e: std::io::Error| e.to_string();
    std::io::stdout().write_all(&ended.stdout).map_err(failed)?;
    std::io::stderr().write_all(&ended.stderr).map_err(failed)?;
    if let Some(folder) = &args.output {
        let from = ended.files.join(".");
        let copied = Command::new("cp").arg("-r").arg(from).arg(folder).status();
        if !copied.is_ok_and(|status| status.success()) {
            return Err(format!("cannot write into {}", folder.display()));
        }
    }
    Ok(ExitCode::from(u8::try_from(ended.code).unwrap_or(1)))
}

fn stem(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

/// Quotes the command for a shell.
fn script(words: &[String]) -> String {
    if let [script] = words {
        return script.clone();
    }
    let quoted = words
        .iter()
        .map(|word| format!("'{}'", word.replace('\'', "'\\''")));
    quoted.collect::<Vec<String>>().join(" ")
}
