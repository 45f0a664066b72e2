//! `emit`: reports a process's allocations to other programs, through the probes of OpenTelemetry's
//! memory contract.

use super::attach::hooked;
use super::ending::of_trace;
use super::signals;
use crate::output::say;
use crate::target::Target;
use memhook_attach::{
    Detached, Emission, End, HookFile, Job, Listening, Trace, TraceConfig, refuse,
};
use memhook_foreign::units;
use memhook_foreign::{size_text, visible, visible_json};
use memhook_process::process_name;
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Mean distance at which every allocation is reported.
const EVERY_BYTE: u64 = 1;

/// Options of `emit`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Report about one allocation per BYTES (64K, 1M)
    ///
    /// This is an average, and 1 reports every allocation. Larger blocks are reported with a higher probability, and
    /// weighted_bytes corrects for that.
    // jemalloc samples in the same way (lg_prof_sample:19), and the contract assumes this.
    #[arg(long, value_name = "BYTES", value_parser = units::size, default_value = "512K")]
    sample: u64,
    /// Load the hook from a file here, for listeners that read files
    ///
    /// An absolute path of a directory, as the process sees it. The file is called memhook-hook-PID.so and is removed
    /// at the end. Without this option, the hook is only in memory.
    #[arg(long, value_name = "DIRECTORY")]
    object_dir: Option<PathBuf>,
    /// Leave that file where it is, for the next time
    ///
    /// The next run reuses the same copy of the hook.
    #[arg(long, requires = "object_dir")]
    keep_object: bool,
    /// End after this time (500ms, 30s, 10m)
    #[arg(short, long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// Write where the probes are as JSON
    #[arg(short, long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let pid = args.target.pid()?;
    let mut config = TraceConfig {
        sample_bytes: (args.sample != EVERY_BYTE).then_some(args.sample),
        emits: Some(Emission::from_memory()),
        ..TraceConfig::default()
    };
    refuse(pid, &config)?;
    // Stop signals are caught first, because otherwise a signal would end us and the file would remain.
    signals::catch_stops();
    let mut file = match &args.object_dir {
        Some(folder) => Some(HookFile::write(pid, folder)?),
        None => None,
    };
    if let Some(file) = &mut file {
        config.emits = Some(file.emission());
    }
    let mut trace = Trace::start(pid, config)?;
    let listening = trace.session().listening()?;
    if let Some(file) = &mut file
        && args.keep_object
    {
        file.keep();
    }
    let mut job = Emit {
        pid,
        args,
        listening,
        code: 0,
    };
    trace.run(args.duration, &mut job);
    Ok(ExitCode::from(job.code))
}

struct Emit<'a> {
    pid: i32,
    args: &'a Args,
    listening: Listening,
    code: u8,
}

impl Emit<'_> {
    fn document(&self, trace: &Trace) -> String {
        let (slots, modules) = trace.session().patched();
        let probes = self.listening.probes.iter().map(|probe| {
            json!({
                "provider": probe.provider,
                "name": probe.name,
                "offset": probe.offset,
                "semaphore_offset": probe.semaphore_offset,
                "arguments": probe.arguments,
            })
        });
        let probes: Vec<_> = probes.collect();
        json!({
            "schema": "memhook-rs/emit/1",
            "pid": self.pid,
            "path": self.listening.path.display().to_string(),
            "is_file": self.listening.is_file,
            "probes": probes,
            "sample_bytes": self.args.sample,
            "slots": slots,
            "modules": modules,
        })
        .to_string()
    }

    /// Returns instructions for listeners.
    fn advice(&self) -> String {
        let path = self.listening.path.display();
        // The bpftrace command has no -p. With -p, bpftrace would look for the probe's arguments below /proc/PID/root,
        // where in-memory objects do not exist. The file belongs to this process anyway.
        format!("bpftrace -e 'usdt:{path}:otel_memory:alloc {{ @bytes[ustack] = sum(arg2); }}'")
    }
}

impl Job for Emit<'_> {
    fn begin(&mut self, trace: &Trace) {
        let hooked = hooked(trace.session());
        let told = match self.args.sample {
            EVERY_BYTE => "each allocation".into(),
            bytes => format!("one allocation in {}", size_text(bytes)),
        };
        let name = process_name(self.pid);
        eprintln!(
            "Emitting from {} ({}): listeners see {told}; {hooked}. Ctrl-C ends it",
            self.pid,
            visible(&name)
        );
        if self.args.json {
            let document = visible_json(&self.document(trace)).into_owned();
            // A reader that has closed the pipe is not an error.
            let _ = writeln!(std::io::stdout(), "{document}");
            let _ = std::io::stdout().flush();
        } else {
            say!(
                "Listen as root, for example:\n  {}",
                visible(&self.advice())
            );
        }
    }

    /// Only a dlopen of the process needs a turn of this thread, and the dlopen requests it.
    fn pace(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn end(&mut self, _: &mut Trace, end: &End) {
        self.code = of_trace(end, self.pid);
        match end {
            End::Detached(Detached::Clean) => {
                eprintln!("Detached from {}: it emits nothing any more", self.pid);
            }
            End::Gone => eprintln!(
                "Process {} has ended, or executes another program",
                self.pid
            ),
            _ => {}
        }
    }

    fn notice(&mut self, text: &str) {
        eprintln!("memhook-rs: {text}");
    }
}
