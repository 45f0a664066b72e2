//! Table of the effects of each command on the process: the threads that it stops, the functions
//! that it makes them call, and the memory that it maps and writes.

use memhook_attach::Touches;
use memhook_checkup::callable_allocator;
use memhook_foreign::size_text;
use memhook_heap::{Limits, Method, usual_method};
use std::fmt::Write as _;

/// Returns the effects of all commands. `attach` has the effects of an attach, if one is possible.
pub fn of_commands(pid: i32, attach: Option<&Touches>) -> Vec<Touches> {
    let hold = Limits::default().hold.unwrap_or_default();
    let all = format!("all, {} ms at most (--max-hold)", hold.as_millis());
    let nothing = || "nothing".to_owned();
    let only_looks = |command| Touches {
        command,
        stops: format!("{all}, but none in a call that a stop would interrupt"),
        calls: Vec::new(),
        mapped_bytes: 0,
        writes: nothing(),
    };
    let scan = match usual_method(pid) {
        Method::Precopy => Touches {
            command: "scan",
            stops: format!("one thread for milliseconds; {all}"),
            calls: vec!["userfaultfd(2)".into()],
            mapped_bytes: 0,
            writes: "pages are write-protected while they are copied".into(),
        },
        _ => Touches {
            command: "scan",
            stops: all.clone(),
            calls: Vec::new(),
            mapped_bytes: 0,
            writes: nothing(),
        },
    };
    let found = callable_allocator(pid).ok().flatten();
    let allocator = found.map(|(allocator, _)| allocator);
    let with = |command, call: Option<String>| Touches {
        command,
        calls: scan.calls.iter().cloned().chain(call).collect(),
        ..scan.clone()
    };
    let asked = allocator.as_ref().filter(|found| found.has_statistics());
    let asked = asked.map(|found| format!("statistics of {}", found.name));
    let trimmed = match &allocator {
        Some(found) => format!("the function of {} that gives memory back", found.name),
        None => "malloc_trim".to_owned(),
    };
    let mut commands = vec![
        Touches {
            stops: "none".into(),
            ..only_looks("doctor --read-only")
        },
        Touches {
            stops: "one thread for milliseconds, unless a thread is seen at a safe point".into(),
            ..only_looks("doctor")
        },
        only_looks("scan --read-only"),
        only_looks("rss --read-only"),
        only_looks("advise --read-only"),
        Touches {
            stops: format!("{all}, two times, but none in a call that a stop would interrupt"),
            ..only_looks("stale --read-only")
        },
        scan.clone(),
        with("rss", asked),
        Touches {
            writes: format!("{}; blocks that nothing reaches are released", scan.writes),
            ..with("scan --reclaim", Some("free".into()))
        },
        Touches {
            writes: "free memory of the heap goes back".into(),
            ..with("trim", Some(trimmed))
        },
    ];
    if let Some(attach) = attach {
        let like_attach = |command, more: &str| Touches {
            command,
            writes: format!("{}{more}", attach.writes),
            ..attach.clone()
        };
        commands.extend([
            attach.clone(),
            like_attach("top, watch, advise", ""),
            like_attach("stale", "; pages are write-protected within --budget"),
        ]);
    }
    commands
}

/// Adds the table as text, one command on each line.
pub fn add(out: &mut String, commands: &[Touches]) -> std::fmt::Result {
    let width = commands.iter().map(|one| one.command.len()).max();
    let width = width.unwrap_or(0);
    writeln!(out, "\nWhat each command would do to the process:")?;
    for one in commands {
        let calls = match one.calls.is_empty() {
            true => "nothing".to_owned(),
            false => one.calls.join(", "),
        };
        let mapped = match one.mapped_bytes {
            0 => "nothing".to_owned(),
            bytes => format!("{} of address space", size_text(bytes)),
        };
        writeln!(out, "{:<width$}  stops: {}", one.command, one.stops)?;
        writeln!(out, "{:<width$}  calls: {calls}; maps: {mapped}", "")?;
        writeln!(out, "{:<width$}  writes: {}", "", one.writes)?;
    }
    Ok(())
}
