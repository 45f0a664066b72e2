//! Counts live objects by class, or by call stack if the class is unknown: `census PID
//! SECONDS`.

use memhook::{Attached, BacktraceId, Error, Options, Profiler};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::time::Duration;

/// A profiler that needs no data of its own, only what the library keeps.
pub struct Census;

impl Profiler for Census {
    type Data = ();
}

/// Live blocks of one kind.
#[derive(Default)]
struct Living {
    objects: u64,
    bytes: u64,
}

/// Writes the number of live objects of each kind, the largest sum of bytes first.
pub fn count(attached: &Attached<Census>, out: &mut impl Write) -> Result<(), Error> {
    attached.catch_up();
    let by_stack: HashMap<BacktraceId, Living> = attached.with(|heap| {
        let mut sums: HashMap<BacktraceId, Living> = HashMap::new();
        for (block, ()) in heap.blocks() {
            let sum = sums.entry(block.backtrace).or_default();
            sum.objects += 1;
            sum.bytes += block.size;
        }
        sums
    });
    let mut by_kind: BTreeMap<String, Living> = BTreeMap::new();
    for (id, found) in by_stack {
        let sum = by_kind.entry(kind(attached, id)?).or_default();
        sum.objects += found.objects;
        sum.bytes += found.bytes;
    }
    let mut rows: Vec<(String, Living)> = by_kind.into_iter().collect();
    rows.sort_by_key(|(_, living)| std::cmp::Reverse(living.bytes));
    for (kind, Living { objects, bytes }) in rows {
        // A reader that has gone away is not an error.
        let _ = writeln!(out, "{objects} objects, {bytes} bytes: {kind}");
    }
    Ok(())
}

/// Returns the class of the objects that a call stack allocates, or the function and line of
/// the program that allocates them.
fn kind(attached: &Attached<Census>, id: BacktraceId) -> Result<String, Error> {
    let backtrace = attached.backtrace(id)?;
    if let Some(class) = backtrace.class {
        return Ok(class);
    }
    let is_own =
        |function: &str| !function.starts_with("operator new") && !function.contains("std::");
    let frames = backtrace.frames.iter();
    let mut own = frames.filter(|frame| frame.function.as_deref().is_some_and(is_own));
    let called = backtrace.called.unwrap_or_default();
    Ok(match own.next() {
        Some(frame) => format!("{called} in {}", frame.function.clone().unwrap_or_default()),
        None => format!("{called} in an unknown function"),
    })
}

#[allow(dead_code)] // the tests call `count`
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pid, seconds] = arguments.as_slice() else {
        return Err("usage: census PID SECONDS".into());
    };
    let attached = memhook::attach(pid.parse()?, &Options::new(), Census)?;
    attached.wait(Duration::from_secs(seconds.parse()?));
    count(&attached, &mut std::io::stdout())?;
    attached.detach()?;
    Ok(())
}
