//! Judges a program that `gate` starts, when it ends. If its child processes are followed, judges
//! them too.

use super::scored::ScoreRecording;
use super::{add_heaps, evidence, reached_of_heaps};
use crate::exit_code;
use crate::gate::{Args, Measure};
use crate::live::ending::{end_as, of_program};
use crate::remedies::in_words;
use memhook_attach::{
    DEPTH_TO_ROOTS, End, Error, Job, Observer, Program, Session, Trace, TraceConfig, Work,
};
use memhook_gate::{
    Ending, Evidence, JudgedPrograms, NotJudged, Search, is_allocators, traced_blocks,
};
use memhook_heap::{Captured, capture_ending};
use memhook_inject::{Child, StartPoint};
use memhook_process::{
    ModuleFiles, ModuleImage, arguments, command_line, executable, mappings, modules as modules_of,
};
use memhook_recording::ScoreOptions;
use memhook_symbols::RunNames;
use std::{
    collections::{HashMap, HashSet},
    process::ExitCode,
    sync::{Arc, Mutex},
};

/// Runs the command. The program's own failure takes precedence over the verdict.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.tracing.refuse_sampled_accesses("gate")?;
    let measure = Measure::of(args, true)?;
    let config = args
        .tracing
        .with_depth(DEPTH_TO_ROOTS)
        .resolve_gated(&args.limits);
    let program = Program::start(&args.command, args.chosen.follows(), &config)?;
    let words = args.command.iter().map(|word| word.to_string_lossy());
    let mut trial = Trial {
        command: words.collect::<Vec<_>>().join(" "),
        first: program.pid(),
        needs_all_sites: measure.needs_all_sites(),
        scores: args.limits.scores(),
        config,
        finds_possible: args.show_possible,
        known_names: RunNames::default(),
        files: ModuleFiles::in_parts(),
        of_process: HashMap::new(),
        results: Vec::new(),
        chosen: args.chosen.programs(),
        of_command: String::new(),
        passed_over: HashSet::new(),
        not_judged: Vec::new(),
    };
    let status = program.run(&mut trial)?;
    let (all, not_judged) = trial.evidence();
    let verdict = measure.conclude_beside(all, not_judged)?;
    Ok(match of_program(status) {
        exit_code::DONE => ExitCode::from(verdict),
        _ => end_as(status),
    })
}

/// Returns the name by which a process was started.
fn program_name(pid: i32) -> String {
    let words = arguments(pid);
    let name = words.first().map_or("", String::as_str);
    let name = name.rsplit('/').next().unwrap_or_default();
    name.trim_start_matches('-').to_owned()
}

/// Finding about one process. The thread that handles the process sets it, or marks the process as
/// not traced.
#[derive(Clone, Default)]
struct Finding(Arc<Mutex<Slot>>);

#[derive(Default)]
struct Slot {
    captured: Option<Result<Captured, memhook_heap::Error>>,
    evidence: Option<Evidence>,
    /// True for the command and its forks, if the command is a system program.
    is_commands: bool,
}

impl Finding {
    fn with<T>(&self, work: impl FnOnce(&mut Slot) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(|e| e.into_inner()))
    }

    fn take(&self) -> Option<Evidence> {
        self.with(|slot| slot.evidence.take())
    }
}

/// The processes of a program, to be judged.
struct Trial {
    command: String,
    first: i32,
    needs_all_sites: bool,
    /// Options of scores, if scores are limited.
    scores: Option<ScoreOptions>,
    config: TraceConfig,
    finds_possible: bool,
    /// Names that processes needed so far.
    known_names: RunNames,
    /// Module files of processes that were not traced.
    files: ModuleFiles,
    of_process: HashMap<i32, Finding>,
    /// Findings sorted by the start of the processes. Each finding is about the last program that
    /// the process executed.
    results: Vec<Finding>,
    /// Rules that select the programs to judge.
    chosen: JudgedPrograms,
    /// Name of the command if it is a system program. The command is then judged only if no other
    /// process is.
    of_command: String,
    /// Processes whose program is not judged.
    passed_over: HashSet<i32>,
    /// Names of the programs of all skipped processes.
    not_judged: Vec<String>,
}

impl Trial {
    fn name(&self, pid: i32) -> String {
        if pid == self.first {
            self.command.clone()
        } else {
            format!("process {pid}: {}", command_line(pid))
        }
    }

    /// Returns true if a process is judged, according to the program that it executes.
    fn judges(&self, pid: i32) -> bool {
        let arguments = arguments(pid);
        // If the kernel does not report the program's name, the process is judged.
        executable(pid).is_none_or(|program| self.chosen.judges(&program, &arguments))
    }

    /// Returns true if a program other than the command's is judged.
    fn has_users(&self) -> bool {
        self.results
            .iter()
            .any(|finding| finding.with(|slot| !slot.is_commands))
    }

    /// Returns the evidence about judged processes, and the processes that were not judged.
    fn evidence(self) -> (Vec<Evidence>, Vec<NotJudged>) {
        let has_users = self.has_users();
        let mut not_judged = self.not_judged;
        let mut all = Vec::new();
        for finding in &self.results {
            let is_commands = finding.with(|slot| slot.is_commands);
            match finding.take() {
                Some(_) if is_commands && has_users => not_judged.push(self.of_command.clone()),
                Some(evidence) => all.push(evidence),
                None => {}
            }
        }
        (all, memhook_gate::not_judged(not_judged))
    }

    fn new_finding(&mut self, pid: i32, evidence: Option<Evidence>) -> Finding {
        let finding = Finding::default();
        finding.with(|slot| slot.evidence = evidence);
        self.of_process.insert(pid, finding.clone());
        self.results.push(finding.clone());
        finding
    }
}

impl Observer for Trial {
    fn begins(&mut self, session: &Session, point: StartPoint) -> Result<Work, Error> {
        let pid = session.pid();
        let scored = self.scores;
        let scored = scored.map(|options| ScoreRecording::create(pid, &self.config, options));
        let (scored, recording) = scored.transpose()?.unzip();
        let finding = self.new_finding(pid, None);
        if pid == self.first && !self.judges(pid) {
            self.of_command = program_name(pid);
            finding.with(|slot| slot.is_commands = true);
        }
        let judging = Judging {
            program: self.name(pid),
            needs_all_sites: self.needs_all_sites,
            finds_possible: self.finds_possible,
            finding,
            known_names: self.known_names.clone(),
            scored,
            began_with: (point == StartPoint::BeforeConstructors)
                .then(|| session.modules().iter().map(|m| m.start).collect()),
        };
        Ok(Work {
            job: Box::new(judging),
            recording,
        })
    }

    fn at_end(&mut self, child: &Child, pid: i32, modules: Option<Vec<ModuleImage>>) {
        match (self.of_process.get(&pid), modules) {
            (Some(finding), Some(modules)) => {
                let captured = capture_ending(child, pid, modules);
                finding.with(|slot| slot.captured = Some(captured));
            }
            (None, None) if pid != self.first && !self.passed_over.contains(&pid) => {
                let is_commands = !self.judges(pid);
                if is_commands && (self.has_users() || program_name(pid) != self.of_command) {
                    // The process is a fork of a process that is not judged.
                    return;
                }
                let found = mappings(pid);
                let mut files = self.files.for_another_process();
                let found = found.and_then(|maps| modules_of(pid, &maps, &mut files));
                let found = found.unwrap_or_default();
                files.keep_only(&found);
                self.files = files;
                let captured = capture_ending(child, pid, found);
                let memory = captured.as_ref().map(|captured| &captured.snapshot);
                let evidence = Evidence::forked(self.name(pid), memory);
                let finding = self.new_finding(pid, Some(evidence));
                finding.with(|slot| slot.is_commands = is_commands);
            }
            _ => {}
        }
    }

    fn executes(&mut self, pid: i32) {
        if let Some(finding) = self.of_process.remove(&pid) {
            finding.take();
        }
    }

    fn wants(&mut self, pid: i32) -> bool {
        if self.judges(pid) {
            self.passed_over.remove(&pid);
            return true;
        }
        // A process that executes another program is still one process.
        if self.passed_over.insert(pid) {
            self.not_judged.push(program_name(pid));
        }
        false
    }

    fn is_not_traced(&mut self, pid: i32, why: &Error) {
        let what = if pid == self.first {
            "it executes another program that is not traced"
        } else {
            "it is not traced"
        };
        let gap = format!("{what}: {}", in_words(why));
        let evidence = Evidence::lacking(self.name(pid), gap);
        self.new_finding(pid, Some(evidence));
    }

    fn ends(&mut self, pid: i32, status: Option<i32>) {
        // The id may soon belong to another process.
        self.passed_over.remove(&pid);
        let finding = match self.of_process.get(&pid) {
            Some(finding) => finding.clone(),
            // The process ended before it could be traced, for example because a library is
            // missing.
            None if pid == self.first => {
                let gap = "it ended before its first instruction";
                let evidence = Evidence::lacking(self.name(pid), gap.into());
                self.new_finding(pid, Some(evidence))
            }
            None => return,
        };
        finding.with(|slot| {
            if let (Some(evidence), Some(status)) = (&mut slot.evidence, status) {
                evidence.ending = Ending::of_status(status);
            }
        });
    }
}

/// Judges one process.
struct Judging {
    program: String,
    needs_all_sites: bool,
    finds_possible: bool,
    finding: Finding,
    known_names: RunNames,
    /// Recording for scores, if scores are limited.
    scored: Option<ScoreRecording>,
    /// Addresses of the modules that were loaded before any constructor ran, if the process was
    /// traced from that time.
    began_with: Option<HashSet<u64>>,
}

impl Judging {
    /// Returns true if all allocations of the program were traced. Constructors of a library that
    /// is opened later run before its slots are patched.
    fn is_complete(&self, session: &Session) -> bool {
        let now = session.modules().iter();
        session.gone_modules().is_empty()
            && session.unhookable().is_empty()
            && (self.began_with.as_ref())
                .is_some_and(|known| now.clone().all(|m| known.contains(&m.start)))
    }
}

impl Job for Judging {
    fn end(&mut self, trace: &mut Trace, end: &End) {
        let session = trace.session();
        let captured = self.finding.with(|slot| slot.captured.take());
        let ending = match end {
            End::Executed => return,
            End::LetGo | End::Gone | End::Detached(_) => Ending::Running,
            End::Ended(status) => Ending::of_status(*status),
        };
        let memory = match (&ending, &captured) {
            (Ending::Running, _) => {
                Err("it still runs, although the program that was started has ended".into())
            }
            (_, Some(Ok(captured))) => Ok(&captured.snapshot),
            (_, Some(Err(error))) => Err(format!("its memory could not be copied: {error}")),
            (_, None) => Err("it was killed before its memory could be searched".into()),
        };
        let state = trace.consumer().lock();
        let search = Search {
            before_ns: None,
            is_complete: self.is_complete(session),
            finds_possible: self.finds_possible,
        };
        let mut found = traced_blocks(&state.ledger, memory.clone(), search);
        let mut of_heaps = reached_of_heaps(trace, &state, memory.clone(), search).into_iter();
        let totals = state.ledger.totals();
        let totals_of_heaps: Vec<_> = state.heaps.iter().map(|h| h.ledger.totals()).collect();
        drop(state);
        if let Ok(snapshot) = memory {
            let caller = |id| session.stack(id)?.1.first().copied();
            let is_allocators = |caller| is_allocators(snapshot, caller);
            found
                .lost
                .retain(|stack, _| !stack.and_then(caller).is_some_and(is_allocators));
        }
        found.gaps.dedup();
        // The copy is freed first, because it may be large and the lookup of names may take a
        // while.
        drop(captured);
        let mut evidence = evidence(trace, &self.known_names, |names| {
            memhook_gate::evidence(self.needs_all_sites, names, &totals, found)
        });
        add_heaps(trace, &self.known_names, &mut evidence, |number, names| {
            let found = of_heaps.next().unwrap_or_default();
            memhook_gate::evidence(self.needs_all_sites, names, &totals_of_heaps[number], found)
        });
        evidence.program = std::mem::take(&mut self.program);
        evidence.ending = ending;
        if let Some(scored) = self.scored.take() {
            scored.finish(trace, &mut evidence);
        }
        self.finding.with(|slot| slot.evidence = Some(evidence));
    }

    fn notice(&mut self, text: &str) {
        eprintln!("memhook-rs: {text}");
    }
}
