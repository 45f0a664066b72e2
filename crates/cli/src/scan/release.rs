//! Releasing blocks of a running process by calls of its own `free`.

use super::budget::Budget;
use crate::safe_point::unwind_for_safety;
use crate::signals;
use crate::unwind_tables::UnwindTables;
use anyhow::{Context, bail};
use memhook_heap::{Captured, Heap, unchanged};
use memhook_inject::{Held, HoldOptions, Registers, hold};
use memhook_process::{ElfView, ModuleImage, mappings, unsafe_ranges, vdso};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How long to wait for a thread at a safe point.
const SAFE_POINT_LIMIT: Duration = Duration::from_secs(2);
/// Compared of each block while a thread is held for it; all of it was compared just before.
const HEAD_BYTES: u64 = 64;
/// Since this version of glibc (2.34) `__free_hook` is not called.
const NO_HOOKS_SINCE: u32 = 34;

/// What was done.
#[derive(Default)]
pub struct Released {
    /// The blocks released.
    pub released: Vec<u32>,
    /// How often a thread was held.
    pub holds: u64,
    /// For how long at most.
    pub longest: Duration,
    /// Why it ended early.
    pub failed: Option<anyhow::Error>,
}

/// Releases blocks of a heap, those that are still what they were in the snapshot.
///
/// After a failure it is not known which blocks of the last batch were released: they count as kept,
/// and only another scan can tell.
///
/// `memory`: /proc/PID/mem, opened before the snapshot was taken.
pub fn release(
    pid: i32,
    captured: &Captured,
    memory: &File,
    heap: &Heap,
    blocks: &[u32],
) -> Released {
    let mut done = Released::default();
    if !blocks.is_empty() {
        done.failed = try_release(pid, captured, memory, heap, blocks, &mut done).err();
    }
    done
}

fn try_release(
    pid: i32,
    captured: &Captured,
    memory: &File,
    heap: &Heap,
    blocks: &[u32],
    done: &mut Released,
) -> anyhow::Result<()> {
    let snapshot = &captured.snapshot;
    let free = find_free(pid, captured, heap)?;
    let mut modules = captured.images.clone();
    modules.extend(vdso(pid, &mappings(pid)?));
    let mut tables = UnwindTables::default();
    tables.compile(&modules);
    let tables = tables.table_modules(&modules);
    let ranges = unsafe_ranges(&captured.images);
    let unwind = |registers: &Registers, read: &dyn Fn(u64) -> Option<u64>| {
        let start = (registers.rip, registers.rsp, registers.rbp);
        unwind_for_safety(&tables, &ranges, start, read)
    };
    let options = HoldOptions {
        need_safe_point: true,
        thread: None,
        deadline: SAFE_POINT_LIMIT,
        unsafe_ranges: ranges.clone(),
        unwind: Some(&unwind),
    };
    let still = unchanged(pid, snapshot, heap, blocks, u64::MAX);
    let mut left: Vec<u32> = blocks
        .iter()
        .zip(still)
        .filter_map(|(&b, same)| same.then_some(b))
        .collect();
    // From the end: the last ones are taken off.
    left.reverse();
    let mut budget = Budget::new();
    while !left.is_empty() && !signals::stop_requested() {
        let mut held = hold(pid, &options)?;
        done.holds += 1;
        if !is_same_program(memory, heap.blocks.get(left[0]).address) {
            bail!("process {pid} has started another program");
        }
        let released = release_some(
            &mut held,
            free,
            captured,
            heap,
            &mut left,
            &mut budget,
            done,
        );
        let begin = Instant::now();
        let held = held.release();
        budget.finished(begin.elapsed());
        done.longest = done.longest.max(*held.as_ref().unwrap_or(&Duration::ZERO));
        released?;
        held?;
    }
    Ok(())
}

/// Whether the address space is still that of the snapshot: of one that has ended nothing can be read.
/// None can end while one of its threads is held, but by its death.
fn is_same_program(memory: &File, address: u64) -> bool {
    matches!(memory.read_at(&mut [0], address), Ok(1))
}

/// As many as fit into one hold.
fn release_some(
    held: &mut Held,
    free: u64,
    captured: &Captured,
    heap: &Heap,
    left: &mut Vec<u32>,
    budget: &mut Budget,
    done: &mut Released,
) -> anyhow::Result<()> {
    let mut begin = Instant::now();
    let until = budget.end(begin, held.held_for());
    let mut is_first = true;
    // However slow the machine, each hold gets somewhere.
    while !left.is_empty() && (is_first || begin < until) {
        is_first = false;
        let count = budget.fitting(until.saturating_duration_since(begin), Held::MAX_CALLS);
        let from = left.len().saturating_sub(count);
        let mut batch = left.split_off(from);
        batch.reverse();
        let still = unchanged(held.pid(), &captured.snapshot, heap, &batch, HEAD_BYTES);
        let mut same = still.iter();
        batch.retain(|_| same.next().copied().unwrap_or(false));
        let addresses: Vec<u64> = batch.iter().map(|&b| heap.blocks.get(b).address).collect();
        let count = held.call_each(free, &addresses, until)?;
        let rest = batch.split_off(count.min(batch.len()));
        done.released.extend(batch);
        left.extend(rest.into_iter().rev());
        let now = Instant::now();
        if count > 0 {
            budget.called(count, now - begin);
        }
        begin = now;
    }
    Ok(())
}

/// The address of `free` in the C library whose heap this is.
fn find_free(pid: i32, captured: &Captured, heap: &Heap) -> anyhow::Result<u64> {
    let libc = captured.snapshot.libc();
    let image = captured
        .images
        .iter()
        .find(|m| libc.is_some_and(|l| l.start == m.start))
        .context("the process has no C library")?;
    let exported = |name: &str| symbol(image, name);
    if heap.glibc_minor < NO_HOOKS_SINCE
        && let Some(address) = exported("__free_hook")
    {
        let mut word = [0; 8];
        memhook_process::read_memory(pid, address, &mut word)?;
        if word != [0; 8] {
            bail!("nothing is released: the program has its own hook for free() (__free_hook)");
        }
    }
    exported("free").context("the process's C library exports no free()")
}

fn symbol(image: &ModuleImage, name: &str) -> Option<u64> {
    let elf = ElfView::parse(&image.bytes).ok()?;
    let found = elf.exported(name).filter(|e| !e.is_ifunc)?;
    Some(image.base + found.svma)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn another_program_in_the_same_process() {
        let mut child = Command::new("sh")
            .args(["-c", "read line; exec sleep 60"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let id = child.id();
        let name = || std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap();
        while name() != "sh\n" {
            std::thread::yield_now();
        }
        let memory = File::open(format!("/proc/{id}/mem")).unwrap();
        let maps = mappings(id as i32).unwrap();
        let stack = maps.iter().find(|m| m.path == "[stack]").unwrap();
        let before = is_same_program(&memory, stack.end - 8);
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"\n").unwrap();
        while name() != "sleep\n" {
            std::thread::yield_now();
        }
        let after = is_same_program(&memory, stack.end - 8);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((before, after), (true, false));
    }
}
