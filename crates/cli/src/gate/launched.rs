//! A program that is started, and judged at its end; with its processes, if they are followed.

use super::judged::{Measure, bound, evidence};
use super::options::Args;
use crate::exit_code::{self, end_as};
use memhook_attach::{End, Error, Job, Observer, Program, Session, Trace, Work, command_line};
use memhook_gate::{Ending, Evidence, Reached, reached};
use memhook_heap::{Captured, Snapshot, capture_standing};
use memhook_inject::{Child, StartPoint};
use memhook_process::{ModuleFiles, ModuleImage, mappings, modules};
use std::{
    collections::{HashMap, HashSet},
    process::ExitCode,
    sync::{Arc, Mutex},
};

/// Runs the command. The program's own failure comes before the verdict.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let measure = Measure::of(args)?;
    let program = Program::start(
        &args.command,
        args.start.follow_fork,
        &args.tracing.resolve(),
    )?;
    let words = args.command.iter().map(|word| word.to_string_lossy());
    let mut trial = Trial {
        command: words.collect::<Vec<_>>().join(" "),
        first: program.pid(),
        needs_all_sites: measure.needs_all_sites(),
        of_process: HashMap::new(),
        results: Vec::new(),
    };
    let status = program.run(&mut trial)?;
    let all: Vec<Evidence> = trial.results.iter().filter_map(|r| r.take()).collect();
    let outcome = measure.conclude(args, all, true)?;
    Ok(match exit_code::of_program(status) {
        0 => ExitCode::from(outcome.exit_code(args.error_exitcode)),
        _ => end_as(status),
    })
}

/// What becomes known about one process: by its thread, or because it is not traced.
#[derive(Clone, Default)]
struct Finding(Arc<Mutex<Slot>>);

#[derive(Default)]
struct Slot {
    captured: Option<Result<Captured, memhook_heap::Error>>,
    evidence: Option<Evidence>,
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
    of_process: HashMap<i32, Finding>,
    /// In the order in which the processes began; of one process, the last program that it executed.
    results: Vec<Finding>,
}

impl Trial {
    fn name(&self, pid: i32) -> String {
        match pid == self.first {
            true => self.command.clone(),
            false => format!("process {pid}: {}", command_line(pid)),
        }
    }

    fn new_finding(&mut self, pid: i32) -> Finding {
        let finding = Finding::default();
        self.of_process.insert(pid, finding.clone());
        self.results.push(finding.clone());
        finding
    }
}

impl Observer for Trial {
    fn begins(&mut self, session: &Session, point: StartPoint) -> Result<Work, Error> {
        let pid = session.pid();
        let finding = self.new_finding(pid);
        let judging = Judging {
            program: self.name(pid),
            needs_all_sites: self.needs_all_sites,
            finding,
            began_with: (point == StartPoint::BeforeConstructors)
                .then(|| session.modules.iter().map(|m| m.start).collect()),
        };
        Ok(Work {
            job: Box::new(judging),
            recording: None,
        })
    }

    fn at_end(&mut self, child: &Child, pid: i32, modules: Option<Vec<ModuleImage>>) {
        match (self.of_process.get(&pid), modules) {
            (Some(finding), Some(modules)) => {
                let captured = capture(child, pid, modules);
                finding.with(|slot| slot.captured = Some(captured));
            }
            (None, None) if pid != self.first => {
                let evidence = of_a_copy(child, pid, self.name(pid));
                let finding = self.new_finding(pid);
                finding.with(|slot| slot.evidence = Some(evidence));
            }
            _ => {}
        }
    }

    fn executes(&mut self, pid: i32) {
        if let Some(finding) = self.of_process.remove(&pid) {
            finding.take();
        }
    }

    fn is_not_traced(&mut self, pid: i32, why: &Error) {
        let why = if pid == self.first {
            format!(
                "it executes another program that is not traced: {}",
                crate::printing::chain(why)
            )
        } else {
            format!("it is not traced: {}", crate::printing::chain(why))
        };
        let evidence = Evidence {
            program: self.name(pid),
            gaps: vec![why],
            ..Evidence::default()
        };
        let finding = self.new_finding(pid);
        finding.with(|slot| slot.evidence = Some(evidence));
    }

    fn ends(&mut self, pid: i32, status: Option<i32>) {
        let finding = match self.of_process.get(&pid) {
            Some(finding) => finding.clone(),
            // It ended before it could be traced: a library is missing, or the like.
            None if pid == self.first => {
                let finding = self.new_finding(pid);
                let evidence = Evidence {
                    program: self.name(pid),
                    gaps: vec!["it ended before its first instruction".into()],
                    ..Evidence::default()
                };
                finding.with(|slot| slot.evidence = Some(evidence));
                finding
            }
            None => return,
        };
        finding.with(|slot| {
            if let (Some(evidence), Some(status)) = (&mut slot.evidence, status) {
                evidence.ending = ending(status);
            }
        });
    }
}

/// Judges one process.
struct Judging {
    program: String,
    needs_all_sites: bool,
    finding: Finding,
    /// Addresses of its modules before any constructor ran, if it was traced from there.
    began_with: Option<HashSet<u64>>,
}

impl Judging {
    /// Whether all that the program has allocated was traced: constructors of a library that is opened later run
    /// before its slots are patched.
    fn is_complete(&self, session: &Session) -> bool {
        let now = session.modules.iter();
        session.gone.is_empty()
            && session.unhookable.is_empty()
            && (self.began_with.as_ref())
                .is_some_and(|known| now.clone().all(|m| known.contains(&m.start)))
    }
}

impl Job for Judging {
    fn end(&mut self, trace: &mut Trace, end: &End) {
        let session = trace.session();
        let captured = self.finding.with(|slot| slot.captured.take());
        let mut kept: Option<Captured> = None;
        let state = trace.consumer().lock();
        let (mut found, ending) = match (end, captured) {
            (End::Executed, _) => return,
            (End::LetGo | End::Gone | End::Detached(_), _) => {
                let still = "it still runs, the program that was started has ended";
                (without(still.into()), Ending::Running)
            }
            (End::Ended(status), Some(Ok(captured))) => {
                let captured = kept.insert(captured);
                let live = state.ledger.live_blocks();
                let is_complete = self.is_complete(session) && state.ledger.bounded().is_none();
                let found = reached(&captured.snapshot, live, None, is_complete);
                (found, ending(*status))
            }
            (End::Ended(status), Some(Err(error))) => {
                let why = format!("its memory could not be copied: {error}");
                (without(why), ending(*status))
            }
            (End::Ended(status), None) => {
                let why = "it was killed before its memory could be looked at";
                (without(why.into()), ending(*status))
            }
        };
        let totals = state.ledger.totals();
        if let Some(bound) = bound(&state.ledger, &totals) {
            found.gaps.push(bound);
            found.forget_unknown();
        }
        drop(state);
        if let Some(snapshot) = kept.map(|c| c.snapshot) {
            found
                .lost
                .retain(|stack, _| !is_allocators(session, &snapshot, *stack));
        }
        found.gaps.dedup();
        let mut evidence = evidence(self.needs_all_sites, session, &totals, found);
        evidence.program = std::mem::take(&mut self.program);
        evidence.ending = ending;
        self.finding.with(|slot| slot.evidence = Some(evidence));
    }
}

/// Whether the block is an allocator's own: what replaces malloc allocates its singletons with `new`.
fn is_allocators(session: &Session, snapshot: &Snapshot, stack: Option<u32>) -> bool {
    let Some((_, frames)) = stack.and_then(|id| session.stack(id)) else {
        return false;
    };
    let Some(caller) = frames.first() else {
        return false;
    };
    let mut modules = snapshot.meta.modules.iter();
    modules.any(|m| m.allocator.is_some() && (m.start..m.end).contains(caller))
}

/// A process that was made by fork and has executed nothing: what it allocated is not traced. If nothing in it is
/// unreachable it has leaked nothing.
fn of_a_copy(child: &Child, pid: i32, program: String) -> Evidence {
    let modules = mappings(pid).and_then(|maps| modules(pid, &maps, &mut ModuleFiles::new()));
    let captured = capture(child, pid, modules.unwrap_or_default());
    let mut found = match &captured {
        Ok(captured) => reached(&captured.snapshot, std::iter::empty(), None, false),
        Err(error) => without(format!("its memory could not be copied: {error}")),
    };
    let others = captured.iter().flat_map(|c| &c.snapshot.meta.modules);
    if let Some(allocator) = others.filter_map(|m| m.allocator.as_deref()).next() {
        found.gaps.push(format!(
            "it executed no program after its fork and was not traced, so what it has of {allocator}'s blocks is not \
             known"
        ));
    }
    let lost = found.leaked();
    if lost.blocks > 0 {
        found.gaps.push(format!(
            "it executed no program after its fork and was not traced: whether {} ({} bytes) \
             it has lost itself is not known",
            memhook_report::counted(lost.blocks, "unreachable block"),
            lost.bytes
        ));
    }
    Evidence {
        program: format!("{program} (forked)"),
        reachable: found.reachable,
        gaps: found.gaps,
        ..Evidence::default()
    }
}

fn capture(
    child: &Child,
    pid: i32,
    modules: Vec<ModuleImage>,
) -> Result<Captured, memhook_heap::Error> {
    let threads = child.ending_threads(pid).iter().map(|t| {
        // In a system call, vector registers hold what the last memcpy left: all of them are the
        // caller's to save (psABI 3.2.1), and a call of libc's was made before.
        let in_call = t.registers.orig_rax as i64 >= 0;
        let extended = if in_call { &[] } else { t.extended.as_slice() };
        (t.tid, &t.registers, extended)
    });
    capture_standing(pid, modules, threads)
}

fn without(gap: String) -> Reached {
    Reached {
        gaps: vec![gap],
        ..Reached::default()
    }
}

fn ending(status: i32) -> Ending {
    match libc::WIFSIGNALED(status) {
        true => Ending::Signaled(libc::WTERMSIG(status)),
        false => Ending::Exited(libc::WEXITSTATUS(status)),
    }
}
