//! Probes in a process.

use super::error::ProbeError;
use super::events::{EventOptions, Events};
use super::mapped::{Mapped, map_all, places};
use super::planned::{PlannedFunction, ProbePlan, RefusedFunction};
use super::removal;
use super::threads::ThreadNames;
use crate::claim::{Claim, claim};
use crate::error::Error;
use crate::hold::code_exchanges::exchange_each;
use crate::leave::probe_areas;
use memhook_inject::{CodeExchange, TimeStampClock, memory_of_code};
use memhook_probe::{AreaHeader, CountsLayout, Histogram, Pad, StackCounts, Values};
use memhook_process::{Mapping, ModuleImage, RemoteAddress};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Number of calls of one function.
#[derive(Clone, Debug, Default)]
pub struct FunctionCount {
    /// Calls by all threads.
    pub calls: u64,
    /// Calls by each calling thread.
    pub threads: Vec<ThreadCount>,
    /// Latency of calls, in ticks of the time stamp counter.
    pub latency: Histogram,
}

/// Number of calls of a function by one thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadCount {
    /// Thread id, if the thread was seen alive.
    pub tid: Option<i32>,
    /// Its name.
    pub name: String,
    /// Calls.
    pub calls: u64,
}

/// Probes in a process. Dropping this value removes them like [`Probes::remove`].
pub struct Probes {
    pid: i32,
    plan: ProbePlan,
    clock: TimeStampClock,
    layout: CountsLayout,
    counts: File,
    /// Counters of arguments and stacks.
    events: Option<Events>,
    /// Mappings of the pads; forked processes map the same file.
    areas: Vec<Mapping>,
    /// True for each function that has a probe.
    is_placed: Vec<bool>,
    names: ThreadNames,
    held: Duration,
    placed_in: Duration,
    is_removed: bool,
    _claim: Claim,
}

impl Probes {
    /// Places the probes of a plan.
    pub fn place(plan: ProbePlan) -> Result<Probes, Error> {
        let begin = Instant::now();
        let pid = plan.pid;
        let claim = claim(pid)?;
        // This removes probes that a killed attacher left.
        removal::remove(pid)?;
        let layout = plan.layout();
        let memory = memory_of_code(pid)?;
        let mapped = match map_all(pid, &plan, &layout) {
            Ok(mapped) => mapped,
            Err(error) => {
                let _ = removal::remove(pid);
                return Err(error);
            }
        };
        let mut probes = Probes {
            pid,
            is_placed: vec![true; plan.functions.len()],
            plan,
            clock: TimeStampClock::start(),
            layout,
            counts: mapped.counts,
            events: mapped.events,
            areas: probe_areas::area_mappings(pid),
            names: ThreadNames::default(),
            held: Duration::ZERO,
            placed_in: Duration::ZERO,
            is_removed: false,
            _claim: claim,
        };
        // An error from here on drops `probes`, which restores everything.
        probes.exchange(&memory, &mapped.areas, mapped.header)?;
        probes.placed_in = begin.elapsed();
        if !probes.is_placed.contains(&true) {
            let why = probes
                .plan
                .refused
                .first()
                .map_or_else(String::new, refusal_text);
            return Err(ProbeError::AllRefused(why).into());
        }
        Ok(probes)
    }

    fn exchange(
        &mut self,
        memory: &File,
        mapped: &[Mapped],
        header: AreaHeader,
    ) -> Result<(), Error> {
        // Remaining work: function and exchange.
        let mut open: Vec<(usize, CodeExchange)> = Vec::new();
        let mut refused: Vec<(usize, String)> = Vec::new();
        for part in mapped {
            let (area, owners) = places(&self.plan, &part.functions);
            let area = area.calling(self.events.as_ref().map_or(0, |events| events.hit));
            let header = AreaHeader {
                bytes: part.bytes,
                ..header
            };
            let area = area
                .build(part.area.address.0, header, &self.layout)
                .map_err(|refusal| ProbeError::AllRefused(refusal.to_string()))?;
            part.area
                .fill(&area.bytes)
                .map_err(|cause| ProbeError::Pads {
                    pid: self.pid,
                    cause,
                })?;
            for (&number, pad) in owners.iter().zip(&area.pads) {
                match pad {
                    Ok(pad) => open.push((number, exchange_of(pad))),
                    Err(refusal) => refused.push((number, refusal.to_string())),
                }
            }
        }
        open.retain(|(number, _)| refused.iter().all(|(other, _)| other != number));
        let (_, in_the_way) = exchange_each(self.pid, memory, open, true, |exchanges| {
            self.held = self.held.max(exchanges.held);
            self.names.learn(self.pid, &exchanges.thread_pointers);
        })?;
        refused.extend(in_the_way);
        for (number, why) in refused {
            // One reason is enough for a function with several pads.
            if !self.is_placed[number] {
                continue;
            }
            let function = &self.plan.functions[number];
            self.plan.refused.push(RefusedFunction {
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

    /// Returns the functions that have a probe, with their numbers.
    pub fn functions(&self) -> impl Iterator<Item = (usize, &PlannedFunction)> {
        let placed = self.plan.functions.iter().enumerate().zip(&self.is_placed);
        placed
            .filter(|(_, is_placed)| **is_placed)
            .map(|(numbered, _)| numbered)
    }

    /// Returns all functions of the plan by number, including functions without a probe.
    pub fn planned(&self) -> impl Iterator<Item = &PlannedFunction> {
        self.plan.functions.iter()
    }

    /// Returns the functions that have no probe.
    pub fn refused(&self) -> &[RefusedFunction] {
        &self.plan.refused
    }

    /// Returns the longest time that all threads were held.
    pub fn held(&self) -> Duration {
        self.held
    }

    /// Returns how long it took to place the probes.
    pub fn placed_in(&self) -> Duration {
        self.placed_in
    }

    /// Returns true if the process still has the pads, that is, if it has neither ended nor executed another program.
    pub fn is_in_place(&self) -> bool {
        probe_areas::is_probed(self.pid)
    }

    /// Updates the ids of the counting threads. Call this periodically, because threads of the process may end.
    pub fn follow_threads(&mut self) {
        let Ok(blocks) = self.blocks_taken() else {
            return;
        };
        let pointers = (0..blocks).filter_map(|number| {
            let mut pointer = [0; 8];
            let read = self
                .counts
                .read_exact_at(&mut pointer, self.layout.block(number));
            read.ok().map(|()| u64::from_le_bytes(pointer))
        });
        self.names
            .look(self.pid, pointers.collect::<Vec<_>>().into_iter());
        if let Some(events) = &mut self.events {
            events.care(self.pid, &self.counts, &self.layout, blocks);
        }
    }

    /// Returns the counts of each function, by the number of the function. They stay readable after the end of the
    /// process.
    pub fn counts(&self) -> std::io::Result<Vec<FunctionCount>> {
        let mut counts: Vec<FunctionCount> =
            vec![FunctionCount::default(); self.plan.functions.len()];
        for block in self.blocks()? {
            let thread = self.names.of(block.pointer);
            for (count, words) in counts.iter_mut().zip(&block.latencies) {
                count.latency.add(words);
            }
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

    fn blocks_taken(&self) -> std::io::Result<u64> {
        let mut taken = [0; 8];
        self.counts.read_exact_at(&mut taken, CountsLayout::TAKEN)?;
        Ok(CountsLayout::blocks_to_read(u64::from_le_bytes(taken)))
    }

    fn blocks(&self) -> std::io::Result<Vec<Block>> {
        (0..self.blocks_taken()?)
            .map(|number| self.block(number))
            .collect()
    }

    fn block(&self, number: u64) -> std::io::Result<Block> {
        let mut bytes = vec![0; self.layout.counting_bytes() as usize];
        self.counts
            .read_exact_at(&mut bytes, self.layout.block(number))?;
        let words = bytes.as_chunks::<8>().0.iter();
        let mut words = words.map(|word| u64::from_le_bytes(*word));
        let pointer = words.next().unwrap_or(0);
        let probes = if self.layout.has_latency {
            self.layout.probes
        } else {
            0
        };
        Ok(Block {
            pointer,
            calls: words.take(self.layout.probes).collect(),
            latencies: (0..probes)
                .map(|n| self.layout.histogram_words(&bytes, n))
                .collect(),
        })
    }

    /// Returns the values of the selected arguments, by function and in the order of the selection.
    pub fn values(&self) -> std::io::Result<Vec<Vec<Values>>> {
        let layout = &self.layout;
        let mut all = vec![vec![Values::default(); layout.arguments]; layout.probes];
        for block in 1..self.blocks_taken()? {
            for (probe, values) in all.iter_mut().enumerate() {
                for (argument, values) in values.iter_mut().enumerate() {
                    let mut table = [0; Values::TABLE_BYTES];
                    let at = layout.block(block) + layout.value_table(probe, argument);
                    self.counts.read_exact_at(&mut table, at)?;
                    values.add(&table);
                }
            }
        }
        Ok(all)
    }

    /// Returns the number of calls by function and call stack.
    pub fn stack_counts(&self) -> std::io::Result<StackCounts> {
        let mut all = StackCounts::default();
        if self.layout.has_stacks {
            let mut table = vec![0; StackCounts::TABLE_BYTES];
            for block in 1..self.blocks_taken()? {
                let at = self.layout.block(block) + self.layout.stacks();
                self.counts.read_exact_at(&mut table, at)?;
                all.add(&table);
            }
        }
        Ok(all)
    }

    /// Returns the return addresses of a call stack, innermost first and beginning with the caller. The flag is true if
    /// the stack was cut short.
    pub fn stack(&self, id: u32) -> Option<(Vec<u64>, bool)> {
        self.events.as_ref()?.stack(id)
    }

    /// Returns the modules that call stacks lead through.
    pub fn modules(&self) -> impl Iterator<Item = &ModuleImage> {
        self.events.iter().flat_map(Events::modules)
    }

    /// Returns the number of frames collected per stack.
    pub fn depth(&self) -> u32 {
        self.events.as_ref().map_or(0, Events::depth)
    }

    /// Returns the parts of calls that are examined.
    pub fn events(&self) -> &EventOptions {
        &self.plan.events
    }

    /// Returns the ticks of the time stamp counter per millisecond.
    pub fn clock_rate(&self) -> u64 {
        self.clock.rate()
    }

    /// Returns true if the latency of calls is measured.
    pub fn has_latency(&self) -> bool {
        self.layout.has_latency
    }

    /// Restores the original code, frees the pads' memory, and returns the number of functions that still have a jump.
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

/// Counters of one thread.
struct Block {
    pointer: u64,
    calls: Vec<u64>,
    latencies: Vec<Vec<u64>>,
}

/// Describes in one line why a function has no probe.
pub(super) fn refusal_text(refused: &RefusedFunction) -> String {
    format!(
        "cannot probe {} of {}: {}",
        refused.function, refused.module, refused.why
    )
}

fn exchange_of(pad: &Pad) -> CodeExchange {
    CodeExchange {
        at: RemoteAddress(pad.from),
        from: pad.original.to_vec(),
        to: pad.jump.to_vec(),
    }
}
