//! `cargo xtask storm`: attach and detach again and again, with kills at random moments.

use crate::{
    check::{Footprint, healthy},
    victims::Kind,
};
use clap::ValueEnum;
use memhook_tests::{Target, binary};
use std::{
    io::Read,
    os::unix::process::ExitStatusExt,
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

/// An attach that takes longer than this hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// A kill comes at most this long after the start, injection included.
const LATEST_KILL_US: u64 = 120_000;
/// Cycles after which a target is ended, checked, and started anew.
const CYCLES_OF_ONE_TARGET: u64 = 250;

#[derive(clap::Args)]
pub struct Args {
    /// Cycles, over all kinds of targets
    #[arg(long, default_value_t = 1000)]
    cycles: u64,
    /// Only these kinds of targets
    #[arg(long, value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// One cycle in so many kills the attacher; 0: none
    #[arg(long, default_value_t = 5)]
    kill: u64,
    /// Of the random moments
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// xorshift64
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// How an attacher ended.
struct Outcome {
    code: Option<i32>,
    output: String,
    errors: String,
}

fn wait(mut child: Child) -> Result<Outcome, String> {
    let start = Instant::now();
    // Reports are smaller than a pipe's buffer.
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|e| e.to_string())? {
            break status;
        }
        if start.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("the attacher hung for {LIMIT:?}"));
        }
        std::thread::sleep(Duration::from_micros(500));
    };
    let (mut output, mut errors) = (String::new(), String::new());
    if let Some(mut pipe) = child.stdout.take() {
        let _ = pipe.read_to_string(&mut output);
    }
    if let Some(mut pipe) = child.stderr.take() {
        let _ = pipe.read_to_string(&mut errors);
    }
    if status
        .signal()
        .is_some_and(|signal| signal != libc::SIGKILL)
    {
        return Err(format!("the attacher crashed: {status}: {errors}"));
    }
    Ok(Outcome {
        code: status.code(),
        output,
        errors: errors.trim_end().to_owned(),
    })
}

fn attach(pid: u32, milliseconds: u64) -> Child {
    Command::new(binary())
        .args(["attach", "--json", "-q", "-i", "1h", "-T", "3", "-d"])
        .args([format!("{milliseconds}ms"), pid.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("memhook-rs starts")
}

/// One target and what it looked like after its first attach.
struct Victim {
    kind: Kind,
    target: Target,
    footprint: Option<Footprint>,
    killed: bool,
}

impl Victim {
    fn new(kind: Kind) -> Victim {
        Victim {
            kind,
            target: kind.start(),
            footprint: None,
            killed: false,
        }
    }

    /// An undisturbed attach and detach, or one that is killed.
    fn cycle(&mut self, kill: bool, random: &mut Random) -> Result<(), String> {
        let mut attacher = attach(self.target.pid(), 1 + random.below(40));
        if self.kind == Kind::Dying {
            std::thread::sleep(Duration::from_micros(random.below(LATEST_KILL_US)));
            self.target.signal(libc::SIGKILL);
            return refused_or_reported(&wait(attacher)?);
        }
        if kill {
            std::thread::sleep(Duration::from_micros(random.below(LATEST_KILL_US)));
            let _ = attacher.kill();
            self.killed = true;
            wait(attacher)?;
            return healthy(&self.target, self.kind == Kind::Stopped);
        }
        let outcome = wait(attacher)?;
        let stopped = self.kind == Kind::Stopped;
        healthy(&self.target, stopped)?;
        if stopped && outcome.code == Some(2) {
            return refused_or_reported(&outcome);
        }
        if outcome.code != Some(0) {
            return Err(format!("exit code {:?}: {}", outcome.code, outcome.errors));
        }
        let report: serde_json::Value =
            serde_json::from_str(outcome.output.trim()).map_err(|e| format!("the report: {e}"))?;
        if report["totals"]["lost_events"] != 0 {
            return Err(format!("lost events: {}", report["totals"]));
        }
        self.compare_footprint()
    }

    fn compare_footprint(&mut self) -> Result<(), String> {
        let start = Instant::now();
        let mut now = Footprint::of(&self.target);
        // fork blocks all signals for a moment.
        while self.footprint.as_ref().is_some_and(|before| *before != now)
            && start.elapsed() < Duration::from_millis(500)
        {
            std::thread::sleep(Duration::from_millis(2));
            now = Footprint::of(&self.target);
        }
        match &self.footprint {
            // A kill may leave a mapping that the next attach adopts or replaces.
            Some(before) if *before != now && !self.killed => {
                let message = format!("{before:?} became {now:?}");
                self.footprint = Some(now);
                Err(message)
            }
            _ => {
                self.footprint = Some(now);
                self.killed = false;
                Ok(())
            }
        }
    }
}

/// A target that is not there, or not to be had: one line; one that ends while it is traced: a
/// report.
fn refused_or_reported(outcome: &Outcome) -> Result<(), String> {
    match outcome.code {
        Some(0) if outcome.output.contains("\"final\":true") => Ok(()),
        Some(2) if outcome.errors.lines().count() == 1 => Ok(()),
        code => Err(format!("exit code {code:?}: {}", outcome.errors)),
    }
}

/// Runs the storm; exit code 1 if anything went wrong.
pub fn run(args: &Args) -> ExitCode {
    let kinds: Vec<Kind> = match args.kinds.as_slice() {
        [] => Kind::value_variants().to_vec(),
        kinds => kinds.to_vec(),
    };
    let mut random = Random(args.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut failures = 0u64;
    let mut done = 0;
    for (index, &kind) in kinds.iter().enumerate() {
        let cycles = (index as u64 + 1) * args.cycles / kinds.len() as u64 - done;
        let start = Instant::now();
        let before = failures;
        let mut victim = Victim::new(kind);
        for cycle in 0..cycles {
            let kill = args.kill > 0 && random.below(args.kill) == 0;
            let result = victim.cycle(kill, &mut random);
            let is_last = cycle + 1 == cycles || (cycle + 1) % CYCLES_OF_ONE_TARGET == 0;
            if let Err(what) = &result {
                failures += 1;
                println!(
                    "{kind:?}, cycle {cycle}{}: {what}",
                    if kill { ", killed" } else { "" }
                );
            }
            if is_last || result.is_err() || kind == Kind::Dying {
                let next = Victim::new(kind);
                let old = std::mem::replace(&mut victim, next);
                if let Err(what) = kind.end(old.target) {
                    failures += 1;
                    println!("{kind:?}, after cycle {cycle}: {what}");
                }
            }
        }
        done += cycles;
        println!(
            "{kind:?}: {} failures in {cycles} cycles, {:.0} ms a cycle",
            failures - before,
            start.elapsed().as_millis() as f64 / cycles.max(1) as f64
        );
    }
    println!("{failures} failures in {done} cycles (seed {})", args.seed);
    ExitCode::from(u8::from(failures > 0))
}
