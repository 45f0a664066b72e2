//! Short texts about several processes: those that were not judged, and those whose verdicts have
//! the same text.

use super::headline;
use crate::{NotJudged, Verdict};
use memhook_foreign::visible;
use memhook_report::{FormatOptions, count, counted};

/// Returns `; not judged: sh (3), ctest`; empty if all processes were judged.
pub(super) fn unjudged(programs: &[NotJudged]) -> String {
    /// Maximum number of programs that are named.
    const MOST: usize = 6;
    let mut named: Vec<String> = programs
        .iter()
        .take(MOST)
        .map(|one| match one.processes {
            1 => one.program.clone(),
            several => format!("{} ({})", one.program, count(several)),
        })
        .collect();
    if programs.len() > MOST {
        let others = (programs.len() - MOST) as u64;
        named.push(counted(others, "other program"));
    }
    match named.is_empty() {
        true => String::new(),
        false => format!("; not judged: {}", visible(&named.join(", "))),
    }
}

/// Names the programs of processes, each once: `./a, ./b, ./c and 12 more`.
pub(super) fn programs(verdicts: &[&Verdict], options: &FormatOptions) -> String {
    /// Maximum number of programs that are named.
    const MOST: usize = 3;
    let mut names: Vec<&str> = Vec::new();
    for verdict in verdicts {
        let name = verdict.evidence.command();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let shown = match options.lists_all {
        true => names.len(),
        false => MOST,
    };
    let mut text = names[..shown.min(names.len())].join(", ");
    if names.len() > shown {
        text += &format!(" and {} more", count((names.len() - shown) as u64));
    }
    visible(&text).into_owned()
}

/// Counts processes in words: `1 process`, `2 processes`.
pub(super) fn processes(number: usize) -> String {
    let ending = if number == 1 { "" } else { "es" };
    format!("{} process{ending}", count(number as u64))
}

/// Groups verdicts with equal texts, in the order of the first verdict of each group.
pub(super) fn alike<'a>(
    verdicts: impl Iterator<Item = &'a Verdict>,
) -> Vec<(String, Vec<&'a Verdict>)> {
    let mut lines: Vec<(String, Vec<&Verdict>)> = Vec::new();
    for verdict in verdicts {
        let line = headline(verdict);
        match lines.iter_mut().find(|(known, _)| *known == line) {
            Some((_, alike)) => alike.push(verdict),
            None => lines.push((line, vec![verdict])),
        }
    }
    lines
}
