//! A program that is started, and judged at its end.

use super::judged::Measure;
use super::options::Args;
use super::reached::{Reached, reached};
use crate::consumer::Consumer;
use crate::program::{Attached, Program, end_as, exit_code};
use crate::{plan, session::Session};
use memhook_gate::{Ending, Evidence};
use memhook_heap::{Captured, capture_standing};
use memhook_inject::Event;
use std::{process::ExitCode, sync::Arc};

/// Runs the command. The program's own failure comes before the verdict.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let config = args.tracing.config()?;
    let functions = plan::selected_functions(&args.tracing.functions)?;
    let measure = Measure::of(args)?;
    let mut program = Program::start(&args.command)?;
    let mut is_first = true;
    loop {
        let mut session = match program.attach(&config, &functions) {
            Ok(Attached::Traced(session, _)) => session,
            Ok(Attached::Ended(status)) => {
                let why = "it ended before its first instruction".to_owned();
                return unseen(args, measure, status, why);
            }
            Err(error) if is_first => {
                program.child.kill();
                return Err(error);
            }
            Err(error) => {
                let why = format!("it executes another program that is not traced: {error:#}");
                program.child.set_off()?;
                let status = program.finish()?;
                return unseen(args, measure, status, why);
            }
        };
        is_first = false;
        let region = Arc::clone(session.shared_region());
        let consumer = Consumer::new(&region, &args.tracing);
        let event = program.run(&mut session, &consumer, &mut |_| {})?;
        if event == Event::Executed {
            continue;
        }
        let captured = match event {
            Event::Ending(_) => Some(capture(&program, &session)),
            _ => None,
        };
        // From here on the copy is looked at.
        let status = program.finish()?;
        let state = consumer.lock();
        let mut found = match captured {
            Some(Ok(captured)) => reached(&captured.snapshot, state.ledger.live_blocks()),
            Some(Err(error)) => without(format!("its memory could not be copied: {error}")),
            None => without("it was killed before its memory could be looked at".into()),
        };
        let totals = state.ledger.totals();
        drop(state);
        found.gaps.dedup();
        let evidence =
            measure.evidence(command_line(args), ending(status), &session, &totals, found);
        return finish(args, measure, status, evidence);
    }
}

fn capture(program: &Program, session: &Session) -> Result<Captured, memhook_heap::Error> {
    let threads = program.child.ending_threads().iter().map(|t| {
        // In a system call, vector registers hold what the last memcpy left: all of them are the
        // caller's to save (psABI 3.2.1), and a call of libc's was made before.
        let in_call = t.registers.orig_rax as i64 >= 0;
        let extended = if in_call { &[] } else { t.extended.as_slice() };
        (t.tid, &t.registers, extended)
    });
    let (pid, modules) = (program.child.pid(), session.modules.clone());
    capture_standing(pid, modules, threads)
}

fn without(gap: String) -> Reached {
    Reached {
        gaps: vec![gap],
        ..Reached::default()
    }
}

/// A program of which nothing was seen.
fn unseen(args: &Args, measure: Measure, status: i32, why: String) -> anyhow::Result<ExitCode> {
    let evidence = Evidence {
        program: command_line(args),
        ending: ending(status),
        gaps: vec![why],
        ..Evidence::default()
    };
    finish(args, measure, status, evidence)
}

fn finish(
    args: &Args,
    measure: Measure,
    status: i32,
    evidence: Evidence,
) -> anyhow::Result<ExitCode> {
    let verdict = measure.conclude(args, evidence, true)?;
    Ok(match exit_code(status) {
        0 => ExitCode::from(verdict.exit_code(args.error_exitcode)),
        _ => end_as(status),
    })
}

fn ending(status: i32) -> Ending {
    match libc::WIFSIGNALED(status) {
        true => Ending::Signaled(libc::WTERMSIG(status)),
        false => Ending::Exited(libc::WEXITSTATUS(status)),
    }
}

fn command_line(args: &Args) -> String {
    let words = args.command.iter().map(|word| word.to_string_lossy());
    words.collect::<Vec<_>>().join(" ")
}
