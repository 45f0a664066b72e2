//! Requests of `--when` and `--then` while a process is traced.

use anyhow::bail;
use memhook_attach::{Action, Again, Condition, Trace, Triggers};
use memhook_ledger::Observer;
use memhook_process::MemoryPressure;
use memhook_report::milliseconds;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time between two checks of the numbers.
const PERIOD: Duration = Duration::from_millis(100);

/// Conditions and actions.
#[derive(clap::Args, Clone)]
#[group(skip)]
#[command(next_help_heading = "Triggers")]
pub struct Args {
    /// Do something when this becomes true: 'live > 2G'
    ///
    /// A condition compares live (bytes), blocks (live ones), rss (bytes in memory), growth (live bytes a minute,
    /// over the last minute), limit (memory in use, as 90% or 512M of the limit of its memory cgroup or of the
    /// machine) or psi (share of the last second in which processes waited for memory) with a number by >, >=, < or
    /// <=; several are joined by 'and'. Each --when needs a --then. It is checked ten times a second, and acts again
    /// only after it has been false.
    #[arg(long, value_name = "CONDITION", value_parser = condition)]
    when: Vec<Condition>,
    /// What to do: report, mark, detach, exec=...
    ///
    /// report writes a report, mark sets a mark named after the condition (or mark=NAME), detach ends the trace, and
    /// exec=COMMAND runs a shell command, which finds the condition in MEMHOOK_WHEN and the process in MEMHOOK_PID.
    #[arg(long, value_name = "ACTION", value_parser = action)]
    then: Vec<Action>,
}

fn condition(text: &str) -> Result<Condition, String> {
    text.parse()
        .map_err(|error: memhook_attach::ConditionError| error.to_string())
}

fn action(text: &str) -> Result<Action, String> {
    text.parse().map_err(str::to_owned)
}

impl Args {
    /// Refuses conditions without an action, actions without a condition, and quantities that the kernel does not
    /// count.
    pub fn check(&self) -> anyhow::Result<()> {
        let (conditions, actions) = (self.when.len(), self.then.len());
        if conditions != actions {
            bail!(
                "--when was given {conditions} times and --then {actions} times: each condition needs one action"
            );
        }
        check_pressure(self.when.iter())
    }

    /// Returns the triggers for the trace of a process.
    pub fn of(&self, pid: i32) -> Triggered {
        let pairs = self.when.iter().cloned().zip(self.then.iter().cloned());
        Triggered {
            pid,
            triggers: Triggers::new(pid, Again::Anew, pairs),
            next: Duration::ZERO,
            running: Vec::new(),
        }
    }
}

/// Refuses conditions about pressure if the kernel does not count it.
pub fn check_pressure<'a>(mut all: impl Iterator<Item = &'a Condition>) -> anyhow::Result<()> {
    if all.any(Condition::needs_pressure) {
        MemoryPressure::of(None)?;
    }
    Ok(())
}

/// Requests to the job of a trace.
#[derive(Default)]
pub struct Asked {
    /// Write a report.
    pub report: bool,
    /// End the trace.
    pub detach: bool,
}

/// The triggers of one trace.
pub struct Triggered {
    pid: i32,
    triggers: Triggers,
    next: Duration,
    /// Commands that had not ended at the last check.
    running: Vec<Child>,
}

impl Triggered {
    /// Checks the numbers, and performs the actions that need no job.
    pub fn turn<O: Observer + Send>(&mut self, trace: &Trace<O>) -> Asked {
        let now = trace.consumer().elapsed();
        let mut asked = Asked::default();
        if self.triggers.is_empty() || now < self.next {
            return asked;
        }
        self.next = now + PERIOD;
        self.running
            .retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        let totals = trace.consumer().lock().ledger.totals();
        let measured = self.triggers.measure(&totals);
        for (condition, action) in self.triggers.due(now, &measured) {
            let at = milliseconds(now.as_millis() as u64);
            eprintln!(
                "memhook-rs: {condition}: process {}, {at} after the attach",
                self.pid
            );
            match action {
                Action::Report => asked.report = true,
                Action::Detach => asked.detach = true,
                Action::Mark(name) => {
                    let name = name.unwrap_or_else(|| condition.to_string());
                    trace.session().region().set_mark(&name);
                }
                Action::Run(command) => self.run(&command, &condition),
            }
        }
        asked
    }

    /// Starts a command without waiting for it, because the process may need us meanwhile.
    fn run(&mut self, command: &str, condition: &Condition) {
        let child = Command::new("sh")
            .args(["-c", command])
            .env("MEMHOOK_WHEN", condition.to_string())
            .env("MEMHOOK_PID", self.pid.to_string())
            .stdin(Stdio::null())
            .spawn();
        match child {
            Ok(child) => self.running.push(child),
            Err(error) => eprintln!("memhook-rs: sh: {error}"),
        }
    }
}
