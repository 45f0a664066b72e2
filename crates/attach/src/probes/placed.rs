//! Probes that are in place.

use super::error::ProbeError;
use super::gaps::places_near;
use super::planned::{PlannedFunction, ProbePlan, RefusedFunction};
use super::removal;
use super::threads::ThreadNames;
use crate::claim::{Claim, claim};
use crate::error::Error;
use crate::hook_presence::any_point;
use crate::limits::check_file_size;
use memhook_inject::{
    CodeArea, CodeExchange, Exchanged, Region, create_region, exchange_code, hold, map_code_area,
    write_bytes,
};
use memhook_probe::{Area, AreaHeader, AreaPlan, Condition, CountsLayout, Pad};
use memhook_process::{Mapping, RemoteAddress, mappings};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How often a function that is in use is tried.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(5);
/// How often another place is tried because the process has mapped something there first.
const PLACE_TRIES: usize = 8;
/// Modules that are this close share an area.
const CLUSTER_BYTES: u64 = 1 << 30;

/// How often one function was called.
#[derive(Clone, Debug, Default)]
pub struct FunctionCount {
    /// By all threads.
    pub calls: u64,
    /// By each thread that called it.
    pub threads: Vec<ThreadCount>,
}

/// How often one thread called a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadCount {
    /// Thread id, if it was seen alive.
    pub tid: Option<i32>,
    /// Its name.
    pub name: String,
    /// Calls.
    pub calls: u64,
}

/// Probes in a process. Dropping this takes them out as [`Probes::remove`] does.
pub struct Probes {
    pid: i32,
    functions: Vec<PlannedFunction>,
    refused: Vec<RefusedFunction>,
    conditions: Vec<Condition>,
    layout: CountsLayout,
    counts: File,
    /// Where the pads are mapped; forked processes map the same file.
    areas: Vec<Mapping>,
    /// Which of the functions have a probe.
    is_placed: Vec<bool>,
    names: ThreadNames,
    held: Duration,
    placed_in: Duration,
    is_removed: bool,
    _claim: Claim,
}

/// An area that is mapped, and the numbers of its functions.
struct Mapped {
    area: CodeArea,
    functions: Vec<usize>,
    bytes: u64,
}

impl Probes {
    /// Places the probes of a plan.
    pub fn place(plan: ProbePlan) -> Result<Probes, Error> {
        let begin = Instant::now();
        let pid = plan.pid;
        let claim = claim(pid)?;
        // What a killed attacher left.
        removal::remove(pid)?;
        let layout = CountsLayout {
            probes: plan.functions.len(),
        };
        let (counts, header, mapped) = match map_all(pid, &plan, &layout) {
            Ok(mapped) => mapped,
            Err(error) => {
                let _ = removal::remove(pid);
                return Err(error);
            }
        };
        let mut probes = Probes {
            pid,
            is_placed: vec![true; plan.functions.len()],
            functions: plan.functions,
            refused: plan.refused,
            conditions: plan.conditions,
            layout,
            counts,
            areas: removal::area_mappings(pid),
            names: ThreadNames::default(),
            held: Duration::ZERO,
            placed_in: Duration::ZERO,
            is_removed: false,
            _claim: claim,
        };
        // Failing from here on drops `probes`, which puts everything back.
        probes.exchange(&mapped, header)?;
        probes.placed_in = begin.elapsed();
        if !probes.is_placed.contains(&true) {
            let why = probes
                .refused
                .first()
                .map_or_else(String::new, refusal_text);
            return Err(ProbeError::AllRefused(why).into());
        }
        Ok(probes)
    }

    fn exchange(&mut self, mapped: &[Mapped], header: AreaHeader) -> Result<(), Error> {
        // What is still to be done: function, exchange.
        let mut open: Vec<(usize, CodeExchange)> = Vec::new();
        let mut refused: Vec<(usize, String)> = Vec::new();
        for part in mapped {
            let built = build(
                &self.functions,
                part,
                &self.conditions,
                header,
                &self.layout,
            );
            let area = built.map_err(|refusal| ProbeError::AllRefused(refusal.to_string()))?;
            part.area
                .fill(&area.bytes)
                .map_err(|cause| ProbeError::Pads {
                    pid: self.pid,
                    cause,
                })?;
            for (&number, pad) in part.functions.iter().zip(&area.pads) {
                match pad {
                    Ok(pad) => open.push((number, exchange_of(&self.functions[number], pad))),
                    Err(refusal) => refused.push((number, refusal.to_string())),
                }
            }
        }
        for attempt in 0..TRIES {
            if open.is_empty() {
                break;
            }
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            let exchanges: Vec<CodeExchange> = open.iter().map(|(_, e)| e.clone()).collect();
            let result = exchange_code(self.pid, &exchanges, &[], true)?;
            self.held = self.held.max(result.held);
            self.names.learn(self.pid, &result.thread_pointers);
            let mut still = Vec::new();
            for (one, done) in open.into_iter().zip(result.done) {
                match done {
                    Exchanged::Done => {}
                    Exchanged::InUse => still.push(one),
                    Exchanged::Differs => {
                        refused.push((one.0, "its code has changed meanwhile".into()))
                    }
                }
            }
            open = still;
        }
        let in_use = "a thread is, or may return, inside of its first bytes";
        refused.extend(
            open.into_iter()
                .map(|(number, _)| (number, in_use.to_owned())),
        );
        for (number, why) in refused {
            let function = &self.functions[number];
            self.refused.push(RefusedFunction {
                function: function.function.clone(),
                module: function.module.clone(),
                why,
            });
            self.is_placed[number] = false;
        }
        Ok(())
    }

    /// The process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The functions that have a probe, with their numbers.
    pub fn functions(&self) -> impl Iterator<Item = (usize, &PlannedFunction)> {
        let placed = self.functions.iter().enumerate().zip(&self.is_placed);
        placed
            .filter(|(_, is_placed)| **is_placed)
            .map(|(numbered, _)| numbered)
    }

    /// The functions that have no probe.
    pub fn refused(&self) -> &[RefusedFunction] {
        &self.refused
    }

    /// For how long all threads were held, at most.
    pub fn held(&self) -> Duration {
        self.held
    }

    /// How long it took to place the probes.
    pub fn placed_in(&self) -> Duration {
        self.placed_in
    }

    /// Whether the process still has the pads: it has neither ended nor executed another program.
    pub fn is_in_place(&self) -> bool {
        removal::is_probed(self.pid)
    }

    /// Notes who the threads are that count; to be called now and then, because the threads of a process end.
    pub fn follow_threads(&mut self) {
        if let Ok(blocks) = self.blocks() {
            self.names
                .look(self.pid, blocks.iter().map(|block| block.pointer));
        }
    }

    /// How often each function was called so far, by number. What the process has counted stays readable after its end.
    pub fn counts(&self) -> std::io::Result<Vec<FunctionCount>> {
        let mut counts: Vec<FunctionCount> = vec![FunctionCount::default(); self.functions.len()];
        for block in self.blocks()? {
            let thread = self.names.of(block.pointer);
            for (count, &calls) in counts
                .iter_mut()
                .zip(&block.calls)
                .filter(|(_, calls)| **calls > 0)
            {
                count.calls += calls;
                let tid = thread.map(|(tid, _)| tid);
                match count
                    .threads
                    .iter_mut()
                    .find(|t| t.tid == tid && tid.is_some())
                {
                    Some(known) => known.calls += calls,
                    None => count.threads.push(ThreadCount {
                        tid,
                        name: thread.map_or_else(String::new, |(_, name)| name.to_owned()),
                        calls,
                    }),
                }
            }
        }
        for count in &mut counts {
            count
                .threads
                .sort_by_key(|thread| (std::cmp::Reverse(thread.calls), thread.tid));
        }
        Ok(counts)
    }

    fn blocks(&self) -> std::io::Result<Vec<Block>> {
        let mut taken = [0; 8];
        self.counts.read_exact_at(&mut taken, CountsLayout::TAKEN)?;
        let blocks = CountsLayout::blocks_to_read(u64::from_le_bytes(taken));
        let mut bytes = vec![0; 8 + 8 * self.layout.probes];
        let mut found = Vec::new();
        for number in 0..blocks {
            self.counts
                .read_exact_at(&mut bytes, self.layout.block(number))?;
            let mut words = bytes
                .as_chunks::<8>()
                .0
                .iter()
                .map(|w| u64::from_le_bytes(*w));
            let pointer = words.next().unwrap_or(0);
            found.push(Block {
                pointer,
                calls: words.collect(),
            });
        }
        Ok(found)
    }

    /// Puts the original code back, gives the pads' memory back, and returns how many functions still have a jump.
    pub fn remove(&mut self) -> Result<u64, Error> {
        self.is_removed = true;
        let left = removal::remove(self.pid);
        removal::remove_from_forked(self.pid, &self.areas);
        Ok(left?.unwrap_or(0))
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        if !self.is_removed {
            let _ = self.remove();
        }
    }
}

/// What one thread has counted.
struct Block {
    pointer: u64,
    calls: Vec<u64>,
}

/// Why a function has no probe, as one line.
pub(super) fn refusal_text(refused: &RefusedFunction) -> String {
    format!(
        "cannot probe {} of {}: {}",
        refused.function, refused.module, refused.why
    )
}

fn exchange_of(function: &PlannedFunction, pad: &Pad) -> CodeExchange {
    CodeExchange {
        at: RemoteAddress(function.plan.at.wrapping_add(function.base)),
        from: function.plan.original.to_vec(),
        to: pad.jump.to_vec(),
    }
}

pub(super) fn area_plan<'p>(
    functions: &'p [PlannedFunction],
    numbers: &[usize],
    conditions: &'p [Condition],
) -> AreaPlan<'p> {
    let parts = numbers
        .iter()
        .map(|&n| (&functions[n].plan, functions[n].base, n));
    AreaPlan::new(parts.collect(), conditions)
}

fn build(
    functions: &[PlannedFunction],
    part: &Mapped,
    conditions: &[Condition],
    header: AreaHeader,
    layout: &CountsLayout,
) -> Result<Area, memhook_probe::Refusal> {
    let header = AreaHeader {
        bytes: part.bytes,
        ..header
    };
    area_plan(functions, &part.functions, conditions).build(part.area.address.0, header, layout)
}

/// Functions whose modules are close to each other: numbers, and the range of the modules.
pub(super) fn clusters(functions: &[PlannedFunction]) -> Vec<(Vec<usize>, Range<u64>)> {
    let mut order: Vec<usize> = (0..functions.len()).collect();
    order.sort_by_key(|&n| functions[n].module_range.start);
    let mut found: Vec<(Vec<usize>, Range<u64>)> = Vec::new();
    for n in order {
        let range = &functions[n].module_range;
        match found.last_mut() {
            Some((numbers, all)) if range.end - all.start.min(range.start) <= CLUSTER_BYTES => {
                numbers.push(n);
                all.end = all.end.max(range.end);
            }
            _ => found.push((vec![n], range.clone())),
        }
    }
    found
}

/// Maps the counters, the table of threads and the areas, all of them without an effect so far.
fn map_all(
    pid: i32,
    plan: &ProbePlan,
    layout: &CountsLayout,
) -> Result<(File, AreaHeader, Vec<Mapped>), Error> {
    let areas: Vec<u64> = clusters(&plan.functions)
        .iter()
        .map(|(functions, _)| area_plan(&plan.functions, functions, &plan.conditions).bytes())
        .collect();
    let largest = areas.into_iter().max().unwrap_or(0);
    check_file_size(pid, layout.shared_bytes().max(largest))?;
    let mut held = hold(pid, &any_point())?;
    let region = create_region(
        &mut held,
        c"memhook-probe-counts",
        layout.shared_bytes(),
        None,
    )?;
    let mut mapped: Vec<Mapped> = Vec::new();
    for (functions, near) in clusters(&plan.functions) {
        let bytes = area_plan(&plan.functions, &functions, &plan.conditions).bytes();
        // The table of threads is behind the first area.
        let wiped = if mapped.is_empty() {
            CountsLayout::TABLE_BYTES
        } else {
            0
        };
        let places = places_near(&mappings(pid)?, &near, bytes + wiped);
        let mut area = None;
        for at in places.into_iter().take(PLACE_TRIES) {
            area = map_code_area(&mut held, RemoteAddress(at), bytes, wiped)?;
            if area.is_some() {
                break;
            }
        }
        let module = || plan.functions[functions[0]].module.clone();
        let area = area.ok_or_else(|| ProbeError::NoRoom {
            pid,
            module: module(),
        })?;
        mapped.push(Mapped {
            area,
            functions,
            bytes,
        });
    }
    held.release()?;
    let (counts, header) = prepared(pid, region, &mapped, layout)?;
    Ok((counts, header, mapped))
}

/// Fills in where the counters are.
fn prepared(
    pid: i32,
    region: Region,
    mapped: &[Mapped],
    layout: &CountsLayout,
) -> Result<(File, AreaHeader), Error> {
    let counts = File::from(region.fd);
    let cannot = |cause| ProbeError::Pads { pid, cause };
    counts
        .write_all_at(&CountsLayout::shared_words(), CountsLayout::TAKEN)
        .map_err(cannot)?;
    let mut header = AreaHeader {
        attacher: std::process::id(),
        shared_at: region.address.0,
        shared_bytes: layout.shared_bytes(),
        ..AreaHeader::default()
    };
    if let Some(first) = mapped.first() {
        let table = first.area.address + first.bytes;
        header.table_at = table.0;
        header.table_bytes = CountsLayout::TABLE_BYTES;
        let words = CountsLayout::table_words(region.address.0);
        write_bytes(pid, table + CountsLayout::IS_LIVE, &words)?;
    }
    Ok((counts, header))
}
