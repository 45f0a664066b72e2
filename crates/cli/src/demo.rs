//! `demo`: a service that leaks on one path among many, traced live.

use anyhow::{Context, bail};
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::fs::OpenOptionsExt,
    process::{Child, Command, ExitCode, Stdio},
    time::Duration,
};

/// The service, an ordinary dynamically linked program.
const SERVICE: &[u8] = include_bytes!(env!("MEMHOOK_DEMO_SERVICE"));

/// Ends and collects the service whatever happens.
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start() -> anyhow::Result<Service> {
    let folder = std::env::temp_dir();
    let path = folder.join(format!("memhook-demo-service-{}", std::process::id()));
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o700)
        .open(&path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    file.write_all(SERVICE)?;
    drop(file);
    let started = Command::new(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", path.display()));
    let mut service = match started {
        Ok(child) => Service(child),
        Err(error) => {
            let _ = std::fs::remove_file(&path);
            return Err(error);
        }
    };
    let mut line = String::new();
    let output = service.0.stdout.take().context("the service's output")?;
    let read = BufReader::new(output).read_line(&mut line);
    // Its symbols are read through /proc/PID/map_files, which a deleted file does not hinder; but
    // without that privilege by this path, so it stays until the end.
    if read.is_err() || line.trim() != "ready" {
        let _ = std::fs::remove_file(&path);
        bail!("the demo service does not start: a C++ runtime (libstdc++) is needed");
    }
    Ok(service)
}

/// Runs the command.
pub fn run(duration: Duration) -> anyhow::Result<ExitCode> {
    let service = start()?;
    let pid = service.0.id() as i32;
    let path = std::env::temp_dir().join(format!("memhook-demo-service-{}", std::process::id()));
    println!(
        "Started a service of four threads as process {pid}. One of its request handlers leaks."
    );
    println!(
        "$ memhook-rs attach {pid} --duration {}s\n",
        duration.as_secs_f64()
    );
    let result = crate::attach::run(&crate::attach::Args::plain(pid, duration, 3));
    let _ = std::fs::remove_file(path);
    result
}
