//! Code that pads call to examine arguments and call stacks, with its data: unwind tables, memory for the counters, and
//! the bounds of stacks.
//!
//! The code records no events: threads count in their own blocks, which are read at the end.

use crate::error::Error;
use crate::hook::object::PROBE;
use crate::leave::guided::make_probe_region;
use crate::survey::limits::check_shared_memory;
use crate::survey::memory_allowance::Allowance;
use crate::survey::target_facts::{is_filtered, main_stack, tid_offset};
use crate::unwinding::tables::UnwindTables;
use memhook_abi::{LEAST_RING_BYTES, ProbeConfig, ProbeThread, region_bytes};
use memhook_inject::{Held, set_inherited};
use memhook_probe::CountsLayout;
use memhook_process::{
    Mapping, ModuleFiles, ModuleImage, RemoteAddress, is_ours, mappings, modules, vdso,
};
use memhook_stream::{Config, Region, ThreadNumbers};
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Time between two checks for new modules.
const MODULES_PAUSE: Duration = Duration::from_millis(200);

/// Parts of a call to examine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventOptions {
    /// Arguments whose values are counted; 0 is the first one.
    pub arguments: Vec<usize>,
    /// Maximum number of frames per call stack; `None`: no call stacks.
    pub depth: Option<u32>,
}

impl EventOptions {
    /// Returns true if any part is examined.
    pub fn is_any(&self) -> bool {
        !self.arguments.is_empty() || self.depth.is_some()
    }
}

/// Call stacks of a process: the region that holds them, and the modules needed for unwinding.
struct Stacks {
    region: Region,
    tables: UnwindTables,
    files: ModuleFiles,
    modules: Vec<ModuleImage>,
    /// Unloaded modules, which still explain addresses.
    gone: Vec<ModuleImage>,
    vdso: Option<ModuleImage>,
    /// Mappings of code at the last check of the modules.
    code: Vec<Mapping>,
    next_look: Instant,
    depth: u32,
}

/// Result of the preparations before a thread is held.
pub(super) struct Prepared(Option<(UnwindTables, ModuleFiles, Vec<ModuleImage>, Config)>);

/// Mapped code.
pub(super) struct Events {
    /// Address of the function that pads call (avma).
    pub hit: u64,
    stacks: Option<Stacks>,
    /// Thread of each block whose stack bounds were looked up.
    judged: Vec<u64>,
}

/// Does the slow part first: finds modules and their unwind tables.
pub(super) fn prepare(pid: i32, options: &EventOptions) -> Result<Prepared, Error> {
    let Some(depth) = options.depth else {
        return Ok(Prepared(None));
    };
    check_shared_memory(pid, region_bytes(LEAST_RING_BYTES) as u64)?;
    let maps = mappings(pid)?;
    let config = Config {
        epoch: 1,
        ring_bytes: LEAST_RING_BYTES as u64,
        depth,
        attacher_pid: std::process::id(),
        owner: 1,
        main_stack: main_stack(&maps),
        plan: Allowance::of(pid, LEAST_RING_BYTES as u64).plan()?,
        ..Config::default()
    };
    let mut files = ModuleFiles::in_parts();
    let loaded = modules(pid, &maps, &mut files)?;
    let mut tables = UnwindTables::default();
    tables.find_or_compile(&with(&loaded, &vdso(pid, &maps)));
    Ok(Prepared(Some((tables, files, loaded, config))))
}

impl Events {
    /// Maps the code and the region into the process of a held thread. `shared_at` is the address of the counters in
    /// that process.
    pub fn map(
        held: &mut Held,
        prepared: Prepared,
        options: &EventOptions,
        layout: &CountsLayout,
        shared_at: u64,
        counts: &File,
    ) -> Result<Events, Error> {
        let pid = held.pid();
        let mut stacks = None;
        let mut region_at = 0;
        if let Prepared(Some((tables, files, loaded, config))) = prepared {
            if tid_offset(held) == 0 {
                return Err(Error::NoThreadNumber { pid });
            }
            let bytes = region_bytes(LEAST_RING_BYTES) as u64;
            let made = make_probe_region(held, bytes)?;
            // Forked processes inherit the code that writes to the region.
            set_inherited(held, made.address, bytes, true)?;
            region_at = made.address.0;
            let region = made.region;
            region.initialize(&config)?;
            region.set_thread_numbers(ThreadNumbers {
                offset: tid_offset(held),
                ..ThreadNumbers::default()
            });
            region.set_syscalls_filtered(is_filtered(held, false));
            let maps = mappings(pid)?;
            let mut found = Stacks {
                region,
                tables,
                files,
                modules: loaded,
                gone: Vec::new(),
                vdso: vdso(pid, &maps),
                code: code_of(&maps),
                next_look: Instant::now() + MODULES_PAUSE,
                depth: config.depth,
            };
            found.publish()?;
            stacks = Some(found);
        }
        let base = PROBE.map(held)?;
        let config = ProbeConfig {
            region: region_at,
            blocks: shared_at + CountsLayout::FIRST_BLOCK,
            block_bytes: layout.block_bytes(),
            thread: layout.thread(),
            values: layout.values(),
            stacks: layout.stacks(),
            arguments: options
                .arguments
                .iter()
                .rev()
                .fold(0, |all, &one| all << 8 | one as u64),
            argument_count: options.arguments.len() as u64,
            tid_offset: u64::from(tid_offset(held)),
            depth: u64::from(stacks.as_ref().map_or(1, |stacks| stacks.depth)),
        };
        counts
            .write_all_at(&words_of(&config), CountsLayout::CONFIG)
            .map_err(|cause| crate::ProbeError::Pads { pid, cause })?;
        let begin = RemoteAddress(base) + PROBE.function("memhook_probe_begin")?;
        held.call(begin, &[shared_at + CountsLayout::CONFIG])?;
        Ok(Events {
            hit: base + PROBE.function("memhook_probe_hit")?,
            stacks,
            judged: Vec::new(),
        })
    }

    /// Updates stack bounds and modules of the process. Call it every few milliseconds. `blocks`: number of blocks that
    /// threads have taken.
    pub fn care(&mut self, pid: i32, counts: &File, layout: &CountsLayout, blocks: u64) {
        let Some(stacks) = &mut self.stacks else {
            return;
        };
        // Each block has a ring, which contains no events.
        stacks
            .region
            .grant((0..blocks as usize).map(|ring| (ring, 0)));
        self.judged.resize(blocks as usize, 0);
        let mut maps = None;
        for number in 1..blocks {
            let words = ThreadWords {
                counts,
                at: layout.block(number) + layout.thread(),
            };
            let tid = words.read(offset_of!(ProbeThread, tid));
            if tid == 0 || tid == self.judged[number as usize] {
                continue;
            }
            self.judged[number as usize] = tid;
            let maps: &Vec<Mapping> = maps.get_or_insert_with(|| mappings(pid).unwrap_or_default());
            let sp = words.read(offset_of!(ProbeThread, first_sp));
            let mut pointer = [0; 8];
            let read = counts.read_exact_at(&mut pointer, layout.block(number));
            let pointer = read.map_or(0, |()| u64::from_le_bytes(pointer));
            // Bounds are set only for the main stack, or for a mapping that contains the thread's TCB above the stack
            // pointer: such stacks stay mapped as long as the thread lives. Any other stack may belong to a coroutine.
            let Some(m) = maps.iter().find(|m| m.contains(sp)) else {
                continue;
            };
            let bounds = if m.path == "[stack]" {
                let stack = main_stack(maps);
                Some((stack.start, stack.end))
            } else {
                (pointer > sp && pointer < m.end).then_some((m.start, pointer))
            };
            if let Some((low, high)) = bounds {
                let ring = number as usize - 1;
                stacks.region.set_stack_of(ring, low, high, tid);
            }
        }
        if Instant::now() >= stacks.next_look {
            stacks.next_look = Instant::now() + MODULES_PAUSE;
            stacks.look_at_modules(pid);
        }
    }

    /// Returns the return addresses of a call stack, innermost first, and whether the stack was cut short.
    pub fn stack(&self, id: u32) -> Option<(Vec<u64>, bool)> {
        let stack = self.stacks.as_ref()?.region.stack(id)?;
        Some((stack.frames, stack.truncated))
    }

    /// Returns the modules that can contain the addresses.
    pub fn modules(&self) -> impl Iterator<Item = &ModuleImage> {
        let stacks = self.stacks.iter();
        stacks.flat_map(|stacks| stacks.modules.iter().chain(&stacks.gone))
    }

    /// Returns the number of frames collected per stack.
    pub fn depth(&self) -> u32 {
        self.stacks.as_ref().map_or(0, |stacks| stacks.depth)
    }
}

impl Stacks {
    fn publish(&mut self) -> Result<(), Error> {
        let all = with(&self.modules, &self.vdso);
        self.tables.publish(&self.region, &all, &[])
    }

    /// Compiles tables for new modules. Until then, stacks through a new module are cut short.
    fn look_at_modules(&mut self, pid: i32) {
        let Ok(maps) = mappings(pid) else { return };
        let code = code_of(&maps);
        if code == self.code {
            return;
        }
        self.code = code;
        let Ok(now) = modules(pid, &maps, &mut self.files) else {
            return;
        };
        let is_gone = |m: &ModuleImage| !now.iter().any(|n| n.base == m.base && n.path == m.path);
        let (gone, _): (Vec<_>, Vec<_>) = std::mem::take(&mut self.modules)
            .into_iter()
            .partition(is_gone);
        self.gone.extend(gone);
        self.modules = now;
        let _ = self.publish();
    }
}

/// Words of a thread in its block.
struct ThreadWords<'a> {
    counts: &'a File,
    at: u64,
}

impl ThreadWords<'_> {
    fn read(&self, offset: usize) -> u64 {
        let mut word = [0; 8];
        let read = self
            .counts
            .read_exact_at(&mut word, self.at + offset as u64);
        read.map_or(0, |()| u64::from_le_bytes(word))
    }
}

fn with(modules: &[ModuleImage], vdso: &Option<ModuleImage>) -> Vec<ModuleImage> {
    modules.iter().chain(vdso).cloned().collect()
}

/// Returns the mappings of code from files, without ours.
fn code_of(maps: &[Mapping]) -> Vec<Mapping> {
    let is_code = |m: &&Mapping| m.exec && m.file_id.2 != 0 && !is_ours(m);
    maps.iter().filter(is_code).cloned().collect()
}

/// Encodes the configuration for the code in the process.
fn words_of(config: &ProbeConfig) -> Vec<u8> {
    let words = [
        (offset_of!(ProbeConfig, region), config.region),
        (offset_of!(ProbeConfig, blocks), config.blocks),
        (offset_of!(ProbeConfig, block_bytes), config.block_bytes),
        (offset_of!(ProbeConfig, thread), config.thread),
        (offset_of!(ProbeConfig, values), config.values),
        (offset_of!(ProbeConfig, stacks), config.stacks),
        (offset_of!(ProbeConfig, arguments), config.arguments),
        (
            offset_of!(ProbeConfig, argument_count),
            config.argument_count,
        ),
        (offset_of!(ProbeConfig, tid_offset), config.tid_offset),
        (offset_of!(ProbeConfig, depth), config.depth),
    ];
    let mut bytes = vec![0; size_of::<ProbeConfig>()];
    for (offset, word) in words {
        bytes[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
