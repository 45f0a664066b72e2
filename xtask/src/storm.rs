//! `cargo xtask storm`: attaches and detaches repeatedly, with kills and stops at random moments.

use crate::{
    check::{Footprint, healthy, resident_kib},
    debugged::is_shown_by_gdb,
    disturbance::{Disturbance, moment, one_in},
    kinds::Kind,
    looks::{Look, Outcome, waits_of},
    overcommit::Charging,
    slots_seen::SlotsSeen,
    tally::{Class, Failure, Tally, failed},
    victims::{Prey, fault_of},
};
use clap::ValueEnum;
use fastrand::Rng;
use memhook_tests::{binary, binary_is, patience::is_for_want_of_a_processor};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    time::{Duration, Instant},
};

/// Number of cycles after which a target is ended, checked, and replaced.
const CYCLES_OF_ONE_TARGET: u64 = 250;
/// Number of cycles after which resident memory is compared. The first attaches leave memory that later attaches reuse.
const CYCLES_TO_SETTLE: u64 = 5;
/// Later growth that counts as a leak. It exceeds the growth of the program itself.
const GROWTH_KIB: i64 = 32 << 10;

/// Maximum number of mappings that kills may leave in addition to the first attach's: a region and a copy of the hook.
/// Further kills must not add to them.
const MAPPINGS_LEFT: usize = 8;

/// Duration above which a cycle is reported as slow. Nothing failed, but the machine is busy, or something waits for a
/// long time.
const SLOW: Duration = Duration::from_secs(60);

/// Growth of locked memory that the program's own mappings may cause.
const LOCKED_KIB: i64 = 16 << 10;

#[derive(clap::Args)]
pub struct Args {
    /// Number of cycles for all kinds of targets together
    #[arg(long, default_value_t = 1000)]
    cycles: u64,
    /// Use only these kinds of targets
    #[arg(long, value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// Kill the attacher in one of N cycles; 0 means never
    #[arg(long, default_value_t = 5)]
    kill: u64,
    /// Stop the attacher (SIGSTOP) in one of N cycles, then continue or kill it; 0 means never
    #[arg(long, default_value_t = 8)]
    stop: u64,
    /// Run gdb after one of N cycles; 0 means never
    #[arg(long, default_value_t = 20)]
    gdb: u64,
    /// Operation on the targets; random by default
    #[arg(long, value_enum)]
    look: Option<Look>,
    /// Make the kernel charge memory when it is mapped (vm.overcommit_memory 2) during the storm; needs root
    #[arg(long)]
    charged: bool,
    /// Path of memhook-rs; built first by default
    #[arg(long)]
    binary: Option<String>,
    /// List the kinds of targets
    #[arg(long)]
    list: bool,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A target, and its earlier states.
struct Victim {
    kind: Kind,
    prey: Prey,
    /// Slots before the first attach.
    slots: Option<SlotsSeen>,
    /// State after the previous cycle, or initially before any attach.
    footprint: Footprint,
    /// Resident memory after the first cycles.
    resident_kib: Option<i64>,
    cycles: u64,
    disturbed: bool,
    /// Earlier operations. Each kind leaves memory that the next operation of the same kind reuses.
    looks: Vec<Look>,
    /// Number of our mappings after the first undisturbed cycle that began with some. 0 if there was no such cycle yet.
    tidy_mappings: usize,
}

impl Victim {
    fn new(kind: Kind, random: &mut Rng) -> Option<Victim> {
        let mut prey = kind.start(random)?;
        // This request makes the program create permanent mappings (arenas, reused stacks), so it is sent before the
        // first state is read.
        if kind.answers() {
            prey.target.send("u");
            prey.target.expect("usable");
        }
        Some(Victim {
            kind,
            // A library that has just been opened has new slots, which is not a failure.
            slots: (kind != Kind::Plugins)
                .then(|| SlotsSeen::of(prey.target.pid()))
                .flatten(),
            footprint: Footprint::settled(&prey.target),
            prey,
            resident_kib: None,
            cycles: 0,
            disturbed: false,
            looks: Vec::new(),
            tidy_mappings: 0,
        })
    }

    /// Returns the process to attach to.
    fn pid(&self, random: &mut Rng) -> u32 {
        let parent = self.prey.target.pid();
        if self.kind != Kind::Prefork {
            return parent;
        }
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        let children = children.unwrap_or_default();
        let mut all: Vec<u32> = children.split_whitespace().flat_map(str::parse).collect();
        all.push(parent);
        all[random.usize(..all.len())]
    }

    /// Checks that the target is healthy. A failure includes the kernel's report of its end.
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

    /// Checks that the target can still load a library, look up a user, open a character conversion, and create threads
    /// and children. A lock that was left locked would make one of these operations wait forever.
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

    /// Runs a command, with or without a disturbance, and checks the target afterwards.
    fn cycle(
        &mut self,
        look: Look,
        disturbance: Disturbance,
        random: &mut Rng,
        tally: &mut Tally,
    ) -> Result<(), Failure> {
        self.cycles += 1;
        let pid = self.pid(random);
        let is_parent = pid == self.prey.target.pid();
        let mut attacher = look.start(self.kind, pid, random);
        if self.kind.ends() {
            std::thread::sleep(moment(random));
            self.prey.have_end();
            let applied = disturbance.apply(&mut attacher, || Ok(()));
            let outcome = Outcome::of(attacher)?;
            applied.map_err(|what| Failure(Class::Stuck, what))?;
            if disturbance.kills() {
                return Ok(());
            }
            outcome.is_refused_or_reported(look)?;
            return outcome.says_that_it_ended();
        }
        let mut well = Ok(());
        let applied = disturbance.apply(&mut attacher, || {
            // If the attacher is stopped while it holds a thread, its watchdog continues the attacher until the hold
            // ends.
            well = self.is_well();
            Ok(())
        });
        let outcome = Outcome::of(attacher)?;
        self.disturbed |= disturbance != Disturbance::None;
        well?;
        applied.map_err(|what| Failure(Class::Stuck, what))?;
        self.is_well()?;
        self.is_usable()?;
        if disturbance.kills() {
            return Ok(());
        }
        let may_be_refused = self.kind.may_refuse()
            || !is_parent
            || self.disturbed
            // A search or a watch has more requirements than a trace.
            || !matches!(look, Look::Attach | Look::Follow);
        if outcome.code == Some(2) && may_be_refused {
            tally.refuse(&format!("{:?}, {look:?}: {}", self.kind, outcome.errors));
            return outcome.is_refused_or_reported(look);
        }
        if outcome.code.is_none() && outcome.errors.contains("watchdog") {
            // The attacher was stopped for longer than the watchdog can compensate.
            return Ok(());
        }
        if matches!(outcome.code, Some(1 | 2)) && is_for_want_of_a_processor(&outcome.errors) {
            // The target correctly continued without the attacher, or the attacher could hold none of the threads.
            tally.late += 1;
            return Ok(());
        }
        // The search may find the heap of a running process damaged.
        let is_well = outcome.code == Some(0) || (outcome.code == Some(3) && !look.traces());
        if !is_well && !self.kind.spoils_numbers() {
            let what = format!("exit code {:?}: {}", outcome.code, outcome.errors);
            return failed(Class::Attacher, what);
        }
        let reports: Result<Vec<serde_json::Value>, _> =
            outcome.output.lines().map(serde_json::from_str).collect();
        let reports = match reports {
            Ok(reports) if !reports.is_empty() => reports,
            Ok(_) => {
                let what = format!(
                    "no report, exit code {:?}: {}",
                    outcome.code, outcome.errors
                );
                return failed(Class::Attacher, what);
            }
            Err(error) => return failed(Class::Attacher, format!("the report: {error}")),
        };
        // While the attacher is stopped, its target does not wait for it.
        let lost = |report: &serde_json::Value| report["totals"]["lost_events"].as_u64();
        let lost = reports.iter().find(|r| lost(r).unwrap_or(0) != 0);
        if let Some(report) = lost
            && disturbance == Disturbance::None
            && !self.kind.spoils_numbers()
        {
            return failed(Class::Lost, format!("lost events: {}", report["totals"]));
        }
        // The next attacher repairs the state that a killed attacher left behind.
        if !is_parent || (self.disturbed && !look.traces()) {
            return Ok(());
        }
        if let Some(slots) = &self.slots {
            slots
                .compare(pid)
                .map_err(|what| Failure(Class::Slots, what))?;
        }
        self.compare_memory(tally)?;
        self.compare_footprint(look)
    }

    /// Runs a debugger on the target, and checks that the target continues afterwards.
    fn is_debuggable(&mut self) -> Result<(), Failure> {
        if !self.kind.may_be_debugged() {
            return Ok(());
        }
        is_shown_by_gdb(self.prey.target.pid())?;
        self.is_well()?;
        self.is_usable()
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

    fn compare_footprint(&mut self, look: Look) -> Result<(), Failure> {
        let target = &self.prey.target;
        // The first attach leaves a region and the hook. A kill leaves a region that the next attach adopts or
        // replaces.
        let is_first = !self.looks.contains(&look);
        if is_first {
            self.looks.push(look);
        }
        let may_map = std::mem::take(&mut self.disturbed) || is_first;
        let most_mappings = match self.tidy_mappings {
            0 => usize::MAX,
            _ if may_map => usize::MAX,
            tidy => tidy + MAPPINGS_LEFT,
        };
        let start = Instant::now();
        let now = loop {
            let now = Footprint::of(target);
            // Fewer mappings are also correct: a library file is open only while it is loaded, and an earlier region is
            // unmapped once no thread uses it.
            let before = &self.footprint;
            let is_well = now.blocked == before.blocked
                && now.files.len() <= before.files.len()
                && now.locked_kib <= before.locked_kib + LOCKED_KIB
                && (may_map || now.mappings <= before.mappings)
                && now.mappings <= most_mappings;
            if is_well {
                break now;
            }
            // fork briefly blocks all signals, and so does the remaining work of a thread whose attacher was killed. A
            // library file is open while it is loaded.
            if start.elapsed() > Duration::from_secs(2) {
                let before = std::mem::replace(&mut self.footprint, now.clone());
                let maps = target.maps();
                let ours: String = maps.lines().filter(|m| m.contains("memhook")).collect();
                let what = format!("{before:?} became {now:?}: {ours}");
                return failed(Class::Footprint, what);
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        if !may_map && self.tidy_mappings == 0 {
            self.tidy_mappings = now.mappings;
        }
        self.footprint = now;
        Ok(())
    }

    /// Ends the target. A target that hangs has no result.
    fn end(self, tally: &mut Tally) -> Result<(), Failure> {
        let Victim { kind, prey, .. } = self;
        let ended = catch_unwind(AssertUnwindSafe(|| kind.end(prey, tally)));
        ended.unwrap_or_else(|_| failed(Class::Stuck, "it does not end"))
    }
}

/// Runs all cycles for one kind of target.
fn storm(kind: Kind, cycles: u64, args: &Args, random: &mut Rng) -> Tally {
    let mut tally = Tally::default();
    let Some(mut victim) = Victim::new(kind, random) else {
        return tally;
    };
    for cycle in 0..cycles {
        let disturbance = Disturbance::choose(args.kill, args.stop, random);
        tally.cycles += 1;
        tally.killed += u64::from(disturbance.kills());
        tally.stopped += u64::from(matches!(disturbance, Disturbance::Stop(..)));
        let look = args.look.unwrap_or_else(|| Look::choose(kind, random));
        let start = Instant::now();
        let mut result = victim.cycle(look, disturbance, random, &mut tally);
        if result.is_ok() && one_in(args.gdb, random) {
            tally.debugged += u64::from(kind.may_be_debugged());
            result = victim.is_debuggable();
        }
        if start.elapsed() > SLOW {
            let time = start.elapsed().as_secs();
            println!("{kind:?}, {look:?}, cycle {cycle}, {disturbance:?}: {time} s");
        }
        if let Err(failure) = &result {
            println!(
                "{kind:?}, {look:?}, cycle {cycle}, {disturbance:?}: {:?}: {}",
                failure.0, failure.1
            );
            tally.count(failure);
        }
        let is_last = cycle + 1 == cycles || (cycle + 1) % CYCLES_OF_ONE_TARGET == 0;
        if is_last || result.is_err() || kind.is_renewed() {
            let Some(next) = Victim::new(kind, random) else {
                break;
            };
            let old = std::mem::replace(&mut victim, next);
            if let Err(failure) = old.end(&mut tally) {
                println!(
                    "{kind:?}, at the end, after cycle {cycle}: {:?}: {}",
                    failure.0, failure.1
                );
                // If `result` is an error, the failure was already counted.
                if result.is_ok() {
                    tally.count(&failure);
                }
            }
        }
    }
    tally
}

/// Runs the storm. The exit code is 1 if anything failed.
pub fn run(args: &Args) -> ExitCode {
    let kinds: Vec<Kind> = match args.kinds.as_slice() {
        [] => Kind::value_variants().to_vec(),
        kinds => kinds.to_vec(),
    };
    if args.list {
        for kind in kinds.iter().filter_map(Kind::to_possible_value) {
            let help = kind.get_help().map(ToString::to_string);
            println!("{:14} {}", kind.get_name(), help.unwrap_or_default());
        }
        return ExitCode::SUCCESS;
    }
    if let Some(path) = &args.binary {
        binary_is(path);
    }
    // The first use builds memhook-rs and the targets, which may take minutes on a busy machine.
    println!("Building memhook-rs and the targets");
    println!("{} is attached", binary().display());
    let _charging = match args.charged.then(Charging::begin).transpose() {
        Ok(charging) => charging,
        Err(error) => {
            eprintln!("storm: memory cannot be charged here: {error}");
            return ExitCode::from(2);
        }
    };
    let mut random = Rng::with_seed(args.seed);
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
