//! The last check of blocks before a thread is made to release them.
//!
//! The blocks are leaked, so no code should be able to free them. But a program may have hidden
//! their addresses, and may have freed some since the search. An allocator may leave a freed block
//! unchanged. Then only the allocator's own structures show that the block was freed, and they are
//! reliable only while all other threads are stopped outside the allocator. The threads run again
//! before the first block is released. If a thread uses a hidden address to free one of the blocks
//! within the millisecond that the calls take, the block is freed twice. This cannot be detected.

use crate::allocators::live_check::{LiveCheck, Standstill};
use crate::arch::native;
use crate::blocks::Block;
use crate::capture::settle::{MallocPlaces, is_inside_by};
use crate::live_memory::LiveMemory;
use crate::snapshot::Snapshot;
use memhook_inject::{Error, Held, Others, Registers};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum time for which all threads are stopped for one check.
const LOOK: Duration = Duration::from_millis(8);

/// Times for which a thread inside an allocator may continue: the first step, the longest step, and
/// the total.
const STEP: Duration = Duration::from_micros(30);
const MOST_STEP: Duration = Duration::from_micros(200);
const SETTLE: Duration = Duration::from_millis(4);

/// Method to check blocks of one allocator.
pub(super) struct Look {
    check: Arc<dyn LiveCheck>,
    malloc: MallocPlaces,
    /// Code that no allocator calls.
    program: Vec<Range<u64>>,
}

/// Reason why a check had no result.
pub(super) enum InVain {
    /// A thread was inside the allocator. A later check may succeed.
    Inside(&'static str),
    /// The check is impossible, for example because the process is gone.
    Failed(Error),
}

impl Look {
    /// Prepares a check in the process of a snapshot.
    pub fn new(check: Arc<dyn LiveCheck>, snapshot: &Snapshot) -> Look {
        let modules = &snapshot.meta.modules;
        let is_called = |name: &str| name.starts_with("libpthread") || name.starts_with("ld-");
        let program = modules
            .iter()
            .filter(|module| module.glibc_minor.is_none() && !is_called(module.name()));
        Look {
            check,
            malloc: MallocPlaces::of(modules),
            program: program.map(|module| module.start..module.end).collect(),
        }
    }

    /// Returns true if the check requires that the other threads are stopped.
    pub fn needs_standstill(&self) -> bool {
        self.check.needs_standstill()
    }

    /// Returns, for each block, whether it is live. If the check requires it, the other threads are
    /// stopped first, and stay stopped.
    pub fn at(
        &self,
        held: &mut Held,
        others: Option<&Others>,
        memory: &File,
        blocks: &[Block],
    ) -> Result<Vec<bool>, InVain> {
        if let Some(others) = others {
            self.stop_outside(held, others, memory)?;
        }
        let threads = held
            .other_threads()
            .map(|(_, registers)| native::thread_pointer(registers))
            .chain([native::thread_pointer(held.registers())]);
        let memory = LiveMemory::new(memory, Instant::now() + LOOK);
        let still = Standstill {
            thread_pointers: threads.collect(),
            memory: &memory,
        };
        let live = self
            .check
            .are_live(&still, blocks)
            .map_err(InVain::Inside)?;
        if memory.is_late() {
            return Err(InVain::Inside("it has too many free blocks to check"));
        }
        Ok(live)
    }

    /// Stops all other threads outside the allocator. A thread inside the allocator continues until
    /// it has left.
    fn stop_outside(&self, held: &mut Held, others: &Others, memory: &File) -> Result<(), InVain> {
        let begin = Instant::now();
        if !held.stop_others(others).map_err(InVain::Failed)? {
            return Err(InVain::Inside("one did not stop in time"));
        }
        let mut step = STEP;
        loop {
            let threads = held.other_threads();
            let inside = threads.filter(|(_, registers)| self.is_inside(memory, registers));
            let inside: Vec<i32> = inside.map(|(tid, _)| tid).collect();
            if inside.is_empty() {
                return Ok(());
            }
            if begin.elapsed() > SETTLE {
                return Err(InVain::Inside("one was inside of it"));
            }
            if held.let_others_run(&inside, step).is_err() {
                return Err(InVain::Inside("one did not stop in time"));
            }
            step = (step * 2).min(MOST_STEP);
        }
    }

    fn is_inside(&self, memory: &File, registers: &Registers) -> bool {
        let pc = native::program_counter(registers);
        let read = |at: u64, into: &mut [u8]| memory.read_at(into, at).unwrap_or(0);
        let is_program = |code: &Range<u64>| code.contains(&pc);
        if self.program.iter().any(is_program) {
            return is_inside_by(registers, &self.malloc, read);
        }
        // The thread may be in code that the kernel maps, such as code that reads a clock.
        is_inside_by(registers, &self.malloc.called_at(pc), read)
    }
}
