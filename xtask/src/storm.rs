//! `cargo xtask storm`: attach and detach again and again, with kills and stops at random moments.

use crate::{
    check::{Footprint, healthy, resident_kib},
    disturbance::{Disturbance, Random},
    slots_seen::SlotsSeen,
    tally::{Class, Failure, Tally, failed},
    victims::{Kind, Prey, fault_of},
};
use clap::ValueEnum;
use memhook_tests::binary;
use std::{
    io::Read,
    os::unix::process::ExitStatusExt,
    panic::{AssertUnwindSafe, catch_unwind},
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

/// An attach that takes longer than this hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// Cycles after which a target is ended, checked, and started anew.
const CYCLES_OF_ONE_TARGET: u64 = 250;
/// From then on its resident memory is compared: the first attaches leave what later ones use again.
const CYCLES_TO_SETTLE: u64 = 5;
/// Growth from then on that is a leak, whatever the program itself does.
const GROWTH_KIB: i64 = 32 << 10;

/// What kills may leave mapped beyond what the first attach has: a region and a copy of the hook, and no more by each
/// of them.
const MAPPINGS_LEFT: usize = 8;

/// Locked memory may grow by what the program itself maps.
const LOCKED_KIB: i64 = 16 << 10;

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
    /// One cycle in so many stops the attacher (SIGSTOP), and continues or kills it; 0: none
    #[arg(long, default_value_t = 8)]
    stop: u64,
    /// What is done with the targets
    #[arg(long, value_enum, default_value_t = Look::Attach)]
    look: Look,
    /// Of the random moments
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What a target is tormented with.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Look {
    /// Every allocation is traced
    Attach,
    /// What is not touched is looked for, too, with as many watchpoints and marks as there can be
    Stale,
    /// Allocations are traced, and what is done with their blocks is sampled
    Access,
    /// Children are traced, too, from their birth
    Follow,
}

impl Look {
    fn command(self) -> &'static [&'static str] {
        match self {
            Look::Attach => &["attach", "-i", "1h"],
            Look::Follow => &["attach", "-i", "1h", "--follow-fork"],
            Look::Stale => &["stale", "--older", "5ms", "--budget", "50%"],
            Look::Access => &[
                "attach",
                "-i",
                "1h",
                "--scores",
                "--access",
                "sampled",
                "--access-budget",
                "50%",
            ],
        }
    }
}

/// How an attacher ended.
struct Outcome {
    code: Option<i32>,
    output: String,
    errors: String,
}

/// What each thread of a process that hangs is doing: its name, state, system call with arguments, and the
/// kernel function that it waits in.
fn waits_of(pid: u32) -> String {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let mut waits = String::new();
    for thread in threads.into_iter().flatten().flatten() {
        let read = |name: &str| {
            let text = std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
            text.trim_end().replace('\n', " < ")
        };
        let stat = read("stat");
        let state = stat.rsplit(") ").next().and_then(|rest| rest.get(..1));
        waits += &format!(
            "\n    {} ({}) {}: {}; in {}; {}",
            thread.file_name().to_string_lossy(),
            read("comm"),
            state.unwrap_or("?"),
            read("syscall"),
            read("wchan"),
            read("stack"),
        );
    }
    waits
}

fn wait(mut child: Child) -> Result<Outcome, Failure> {
    let start = Instant::now();
    // Reports are smaller than a pipe's buffer.
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {}
            Err(error) => return failed(Class::Attacher, error.to_string()),
        }
        if start.elapsed() > LIMIT {
            let waits = waits_of(child.id());
            let _ = child.kill();
            let _ = child.wait();
            return failed(Class::Attacher, format!("it hung for {LIMIT:?}: {waits}"));
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
        return failed(Class::Attacher, format!("crashed: {status}: {errors}"));
    }
    Ok(Outcome {
        code: status.code(),
        output,
        errors: errors.trim_end().to_owned(),
    })
}

fn attach(look: Look, pid: u32, milliseconds: u64) -> Child {
    Command::new(binary())
        .args(look.command())
        .args(["--json", "-q", "-T", "3", "-d"])
        .args([format!("{milliseconds}ms"), pid.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("memhook-rs starts")
}

/// One target and what it looked like before.
struct Victim {
    kind: Kind,
    look: Look,
    prey: Prey,
    /// Before the first attach.
    slots: Option<SlotsSeen>,
    /// After the cycle before; at first, what it is before any attach.
    footprint: Footprint,
    /// After some.
    resident_kib: Option<i64>,
    cycles: u64,
    disturbed: bool,
    /// Mappings of ours after the first cycle that began with some and was not disturbed; 0: there was none yet.
    tidy_mappings: usize,
}

impl Victim {
    fn new(kind: Kind, look: Look) -> Option<Victim> {
        let mut prey = kind.start()?;
        // What this maps for good (arenas, stacks that are used again) is the program's own.
        if kind.answers() {
            prey.target.send("u");
            prey.target.expect("usable");
        }
        Some(Victim {
            kind,
            look,
            // A library that has just been opened is no failure.
            slots: (kind != Kind::Plugins)
                .then(|| SlotsSeen::of(prey.target.pid()))
                .flatten(),
            footprint: Footprint::settled(&prey.target),
            prey,
            resident_kib: None,
            cycles: 0,
            disturbed: false,
            tidy_mappings: 0,
        })
    }

    /// The process to attach to.
    fn pid(&self, random: &mut Random) -> u32 {
        let parent = self.prey.target.pid();
        if self.kind != Kind::Prefork {
            return parent;
        }
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        let children = children.unwrap_or_default();
        let mut all: Vec<u32> = children.split_whitespace().flat_map(str::parse).collect();
        all.push(parent);
        all[random.below(all.len() as u64) as usize]
    }

    /// Whether the target is well; else with what the kernel says of its end.
    fn is_well(&self) -> Result<(), Failure> {
        let stopped = self.kind == Kind::Stopped;
        match healthy(&self.prey.target, stopped) {
            Ok(()) => Ok(()),
            Err(what) if self.prey.target.is_alive() => failed(Class::Stuck, what),
            Err(what) => {
                let fault = fault_of(self.prey.target.pid());
                failed(Class::Died, what + &fault)
            }
        }
    }

    /// Whether it can still load a library, look up a user, open a character conversion, and make threads and children:
    /// what waits for ever for a lock that was left behind.
    fn is_usable(&mut self) -> Result<(), Failure> {
        if !self.kind.answers() {
            return Ok(());
        }
        let target = &mut self.prey.target;
        target.send("u");
        let answer = catch_unwind(AssertUnwindSafe(|| target.expect("usable")));
        answer.map(drop).or_else(|_| {
            let waits = waits_of(target.pid());
            failed(Class::Unusable, format!("a lock was left behind:{waits}"))
        })
    }

    /// An attach and detach, disturbed or not.
    fn cycle(
        &mut self,
        disturbance: Disturbance,
        random: &mut Random,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        self.cycles += 1;
        let pid = self.pid(random);
        let is_parent = pid == self.prey.target.pid();
        let mut attacher = attach(self.look, pid, 1 + random.below(40));
        if self.kind == Kind::Dying {
            std::thread::sleep(random.moment());
            self.prey.target.signal(libc::SIGKILL);
            return refused_or_reported(&wait(attacher)?);
        }
        let mut well = Ok(());
        let applied = disturbance.apply(&mut attacher, || {
            // Stopped while it holds a thread, it is continued by its watchdog to the end of that hold.
            well = self.is_well();
            Ok(())
        });
        let outcome = wait(attacher)?;
        self.disturbed |= disturbance != Disturbance::None;
        well?;
        applied.map_err(|what| Failure(Class::Stuck, what))?;
        self.is_well()?;
        self.is_usable()?;
        if disturbance.kills() {
            return Ok(());
        }
        let refusing = [
            Kind::Stopped,
            Kind::Bounded,
            Kind::Closing,
            Kind::Dispatching,
        ];
        let may_be_refused = refusing.contains(&self.kind) || !is_parent || self.disturbed;
        if outcome.code == Some(2) && may_be_refused {
            tally.refused += 1;
            return refused_or_reported(&outcome);
        }
        if outcome.code.is_none() && outcome.errors.contains("watchdog") {
            // Stopped longer than the watchdog could help.
            return Ok(());
        }
        let gave_up = outcome.errors.contains("waited too long for memhook-rs");
        if disturbance != Disturbance::None && outcome.code == Some(1) && gave_up {
            // Stopped with a thread waiting for room in its ring, which rightly went on without it.
            return Ok(());
        }
        if outcome.code != Some(0) {
            let what = format!("exit code {:?}: {}", outcome.code, outcome.errors);
            return failed(Class::Attacher, what);
        }
        let report: serde_json::Value = match serde_json::from_str(outcome.output.trim()) {
            Ok(report) => report,
            Err(error) => return failed(Class::Attacher, format!("the report: {error}")),
        };
        // While it stands stopped, its target does not wait for it.
        let lost = report["totals"]["lost_events"].as_u64();
        // A child that is forked after the slots were restored has the region, while its last numbers are read.
        let is_spoiled = self.kind == Kind::Intruding;
        if lost.unwrap_or(0) != 0 && disturbance == Disturbance::None && !is_spoiled {
            return failed(Class::Lost, format!("lost events: {}", report["totals"]));
        }
        if !is_parent {
            return Ok(());
        }
        if let Some(slots) = &self.slots {
            slots
                .compare(pid)
                .map_err(|what| Failure(Class::Slots, what))?;
        }
        self.compare_memory(tally)?;
        self.compare_footprint()
    }

    fn compare_memory(&mut self, tally: &mut Tally) -> Result<(), Failure> {
        if self.cycles < CYCLES_TO_SETTLE {
            return Ok(());
        }
        let now = resident_kib(&self.prey.target);
        let before = *self.resident_kib.get_or_insert(now);
        let growth = now - before;
        tally.growth_kib = growth;
        tally.growth_cycles = self.cycles - CYCLES_TO_SETTLE;
        if growth > GROWTH_KIB {
            self.resident_kib = Some(now);
            return failed(Class::Memory, format!("{before} KiB became {now} KiB"));
        }
        Ok(())
    }

    fn compare_footprint(&mut self) -> Result<(), Failure> {
        let target = &self.prey.target;
        // The first attach leaves a region and the hook; a kill leaves a region that the next attach adopts or replaces.
        let may_map = std::mem::take(&mut self.disturbed) || self.footprint.mappings == 0;
        let most_mappings = match self.tidy_mappings {
            0 => usize::MAX,
            _ if may_map => usize::MAX,
            tidy => tidy + MAPPINGS_LEFT,
        };
        let start = Instant::now();
        let now = loop {
            let now = Footprint::of(target);
            // Fewer is well: a library is open while it is loaded, and a region of before goes when no thread
            // is inside it any more.
            let before = &self.footprint;
            let is_well = now.blocked == before.blocked
                && now.files.len() <= before.files.len()
                && now.locked_kib <= before.locked_kib + LOCKED_KIB
                && (may_map || now.mappings <= before.mappings)
                && now.mappings <= most_mappings;
            if is_well {
                break now;
            }
            // fork blocks all signals for a moment, and so does what a killed attacher leaves a thread to
            // do; a library is open while it is loaded.
            if start.elapsed() > Duration::from_secs(2) {
                let before = std::mem::replace(&mut self.footprint, now.clone());
                return failed(Class::Footprint, format!("{before:?} became {now:?}"));
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        if !may_map && self.tidy_mappings == 0 {
            self.tidy_mappings = now.mappings;
        }
        self.footprint = now;
        Ok(())
    }

    /// Ends it; a target that does not end has no result.
    fn end(self, tally: &mut Tally) -> Result<(), Failure> {
        let Victim { kind, prey, .. } = self;
        let ended = catch_unwind(AssertUnwindSafe(|| kind.end(prey, tally)));
        ended.unwrap_or_else(|_| failed(Class::Stuck, "it does not end"))
    }
}

/// A target that is not there, or not to be had: one line; one that ends while it is traced: a
/// report.
fn refused_or_reported(outcome: &Outcome) -> Result<(), Failure> {
    match outcome.code {
        Some(0) if outcome.output.contains("\"final\":true") => Ok(()),
        Some(2) if outcome.errors.lines().count() == 1 => Ok(()),
        code => {
            let begin: String = outcome.output.chars().take(200).collect();
            let what = format!("exit code {code:?}: {}: {begin}", outcome.errors);
            failed(Class::Attacher, what)
        }
    }
}

/// All cycles of one kind.
fn storm(kind: Kind, cycles: u64, args: &Args, random: &mut Random) -> Tally {
    let mut tally = Tally::default();
    let Some(mut victim) = Victim::new(kind, args.look) else {
        return tally;
    };
    for cycle in 0..cycles {
        let disturbance = Disturbance::choose(args.kill, args.stop, random);
        tally.cycles += 1;
        tally.killed += u64::from(disturbance.kills());
        tally.stopped += u64::from(matches!(disturbance, Disturbance::Stop(..)));
        let result = victim.cycle(disturbance, random, &mut tally);
        if let Err(failure) = &result {
            println!(
                "{kind:?}, cycle {cycle}, {disturbance:?}: {:?}: {}",
                failure.0, failure.1
            );
            tally.count(failure);
        }
        let is_last = cycle + 1 == cycles || (cycle + 1) % CYCLES_OF_ONE_TARGET == 0;
        if is_last || result.is_err() || kind.is_renewed() {
            let Some(next) = Victim::new(kind, args.look) else {
                break;
            };
            let old = std::mem::replace(&mut victim, next);
            if let Err(failure) = old.end(&mut tally) {
                println!(
                    "{kind:?}, at the end, after cycle {cycle}: {:?}: {}",
                    failure.0, failure.1
                );
                // Counted once.
                if result.is_ok() {
                    tally.count(&failure);
                }
            }
        }
    }
    tally
}

/// Runs the storm; exit code 1 if anything went wrong.
pub fn run(args: &Args) -> ExitCode {
    let kinds: Vec<Kind> = match args.kinds.as_slice() {
        [] => Kind::value_variants().to_vec(),
        kinds => kinds.to_vec(),
    };
    // The first use of either builds them, which may take minutes on a busy machine.
    println!("Building memhook-rs and the targets");
    println!("{} is attached", binary().display());
    let mut random = Random::new(args.seed);
    let mut total = Tally::default();
    let mut done = 0;
    for (index, &kind) in kinds.iter().enumerate() {
        let cycles = (index as u64 + 1) * args.cycles / kinds.len() as u64 - done;
        done += cycles;
        let start = Instant::now();
        let tally = storm(kind, cycles, args, &mut random);
        let time = start.elapsed().as_millis() as f64 / cycles.max(1) as f64;
        println!("{kind:?}: {}; {time:.0} ms a cycle", tally.text());
        total.add(&tally);
    }
    println!("All: {} (seed {})", total.text(), args.seed);
    ExitCode::from(u8::from(total.failures() > 0))
}
