//! `demo`: traces a service that leaks on one path among many.

use crate::output::say;
use anyhow::{Context, bail};
use clap::Parser;
use memhook_foreign::units;
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::{
        fs::{DirBuilderExt, OpenOptionsExt},
        process::CommandExt,
    },
    path::PathBuf,
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};

/// The service, an ordinary dynamically linked program.
const SERVICE: &[u8] = include_bytes!(env!("MEMHOOK_DEMO_SERVICE"));

/// The leak that a reader of the report should have found (`demo/service.cc`).
const LEAK: &str = "The leak: handle_export (demo/service.cc:55) returns without closing its session. So sessions \
                    (open_session) and their histories (export_history) are never released.";

/// The running service and its directory. Dropping this value ends the service and removes the
/// directory. If we are killed, the service ends itself (prctl PR_SET_PDEATHSIG).
struct Service {
    child: Option<Child>,
    directory: PathBuf,
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn start() -> anyhow::Result<(Service, i32)> {
    // The copy has its own directory, so that the program keeps its name in reports.
    let directory = std::env::temp_dir().join(format!("memhook-demo-{}", std::process::id()));
    let path = directory.join("demo-service");
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let mut service = Service {
        child: None,
        directory,
    };
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o700)
        .open(&path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    file.write_all(SERVICE)?;
    drop(file);
    let mut child = Command::new(&path)
        .arg(std::process::id().to_string())
        // Ctrl-C at the terminal requests the report from us, and must not reach the service.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", path.display()))?;
    let output = child.stdout.take();
    let pid = child.id() as i32;
    service.child = Some(child);
    let mut line = String::new();
    let read = BufReader::new(output.context("the service's output")?).read_line(&mut line);
    if read.is_err() || line.trim() != "ready" {
        bail!("the demo service does not start: it needs a C++ runtime (libstdc++6)");
    }
    Ok((service, pid))
}

/// Options of `demo`.
#[derive(clap::Args)]
pub struct Args {
    /// How long to trace
    #[arg(short, long, value_name = "TIME", value_parser = units::duration, default_value = "3s")]
    duration: Duration,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (_service, pid) = start()?;
    say!("Started a service of four threads as process {pid}. One of its request handlers leaks.");
    let seconds = args.duration.as_secs_f64();
    let line = format!("memhook-rs attach {pid} --duration {seconds}s --top 3");
    say!("Attaching as: {line}\n");
    let code = crate::run(crate::Cli::try_parse_from(line.split(' '))?.command)?;
    say!("\n{LEAK}");
    Ok(code)
}
