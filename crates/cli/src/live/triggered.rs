//! Requests of `--when` while a process is traced.

use super::watching::check_pressure;
use memhook_attach::Trace;
use memhook_ledger::Observer;
use memhook_report::milliseconds;
use memhook_triggers::{Action, Again, Condition, Triggers};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Time between two checks of the numbers.
const PERIOD: Duration = Duration::from_millis(100);

/// Conditions and actions.
#[derive(clap::Args, Clone)]
#[group(skip)]
#[command(next_help_heading = "Triggers")]
pub struct Args {
    /// Act when a condition becomes true: 'live > 2G then report'
    ///
    /// A condition compares a value with a number by >, >=, < or <=. The values are live (bytes), blocks (live blocks),
    /// rss (resident bytes), growth (live bytes per minute, over the last minute), limit (memory in use, as 90% or 512M
    /// of the limit of its memory cgroup or of the machine) and psi (share of the last second in which processes waited
    /// for memory). Several conditions are joined by 'and'. They are checked ten times a second, and act again only
    /// after they have been false.
    ///
    /// The action report writes a report, mark sets a mark named after the condition (or mark=NAME), detach ends the
    /// trace, and exec=COMMAND runs a shell command, which finds the condition in MEMHOOK_WHEN and the process in
    /// MEMHOOK_PID. May be given several times.
    #[arg(long, value_name = "CONDITION then ACTION", value_parser = trigger)]
    when: Vec<(Condition, Action)>,
}

fn trigger(text: &str) -> Result<(Condition, Action), String> {
    let (condition, action) = text
        .split_once(" then ")
        .ok_or("expected CONDITION then ACTION, as in 'live > 2G then report'")?;
    let condition = condition
        .parse()
        .map_err(|error: memhook_triggers::ConditionError| error.to_string())?;
    Ok((condition, action.trim().parse()?))
}

impl Args {
    /// Refuses quantities that the kernel does not count.
    pub fn check(&self) -> anyhow::Result<()> {
        check_pressure(self.when.iter().map(|(condition, _)| condition))
    }

    /// Returns the triggers for the trace of a process.
    pub fn of(&self, pid: i32) -> Triggered {
        Triggered {
            pid,
            triggers: Triggers::new(pid, Again::Anew, self.when.iter().cloned()),
            next: Duration::ZERO,
            running: Vec::new(),
        }
    }
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

    /// Starts a command without waiting for it, because the process may need us in the meantime.
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
