//! Pads in a process.

use super::described::TracedHeap;
use super::planned::{PadPlan, PlannedPad, RefusedPad, releases};
use crate::error::Error;
use crate::hold::code_exchanges::exchange_each;
use crate::hold::reach::Reach;
use crate::hook::presence::any_point;
use crate::leave::pad_areas::{cell_slot, entries, put_back};
use crate::probes::map_near;
use crate::survey::limits::check_shared_memory;
use crate::survey::memory_allowance::check_charge;
use memhook_abi::{
    DescribedFunction, DescribedRole, FIRST_DESCRIBED, HOOKED_FUNCTIONS, MAX_DESCRIBED,
    MAX_VARIANTS,
};
use memhook_inject::{CodeArea, CodeExchange, memory_of_code, write_bytes};
use memhook_probe::{RedirectEntry, Redirected, Redirects, redirect_bytes};
use memhook_process::{
    Behind, HookCopy, ModuleImage, RemoteAddress, Slot, SlotScan, behind, mappings, read_memory,
    read_word, thread_ids,
};
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::time::Duration;

/// Name of the memory in /proc.
const NAME: &std::ffi::CStr = c"memhook-pads";
const PAGE_BYTES: u64 = 4096;

/// Pads of one attach. Until [`Pads::keep`] is called, dropping this value removes the jumps.
pub(crate) struct Pads {
    pid: i32,
    /// Functions with a pad, and their entries in the pad's journal.
    placed: Vec<(PlannedPad, RedirectEntry)>,
    /// Functions without a pad.
    pub refused: Vec<RefusedPad>,
    /// True if exceptions may pass through a function. This requires a hook that the loader has loaded.
    pub may_be_thrown_through: bool,
    /// Longest time that threads were held.
    pub held: Duration,
    is_kept: bool,
}

impl Pads {
    /// Places the pads. `is_wanted` selects the hooked functions to trace.
    pub fn place(
        reach: &mut Reach<'_>,
        pid: i32,
        plan: PadPlan,
        is_wanted: &dyn Fn(usize) -> bool,
    ) -> Result<Pads, Error> {
        let memory = memory_of_code(pid)?;
        let mut pads = Pads {
            pid,
            placed: Vec::new(),
            refused: plan.refused,
            may_be_thrown_through: plan.may_be_thrown_through,
            held: Duration::ZERO,
            is_kept: false,
        };
        // All pads of a module share an area, which contains all of the module's functions, so that the next attach can
        // use the area for any of them.
        let biases: BTreeSet<u64> = plan.pads.iter().map(|pad| pad.bias).collect();
        for bias in biases {
            let of_module = plan.pads.iter().filter(|pad| pad.bias == bias);
            pads.place_in_module(reach, of_module.cloned().collect())?;
        }
        pads.refused.retain(|refused| is_wanted(refused.function));
        pads.placed.retain(|(pad, _)| is_wanted(pad.function));
        // An error from here on drops `pads`, which restores everything.
        match reach {
            Reach::Running => pads.exchange(&memory)?,
            Reach::AtStart(_) => pads.exchange_at_start(reach)?,
        }
        pads.refusal_of_described().map_or(Ok(pads), Err)
    }

    /// Reuses memory left by an earlier attach, or maps new memory.
    fn place_in_module(
        &mut self,
        reach: &mut Reach<'_>,
        pads: Vec<PlannedPad>,
    ) -> Result<(), Error> {
        let maps = mappings(self.pid)?;
        let present = entries(self.pid, &maps);
        let of = |pad: &PlannedPad| {
            let at = pad.plan.at.wrapping_add(pad.bias);
            let is_same = |e: &&RedirectEntry| {
                e.at == at && e.original == pad.plan.original && e.bias == pad.bias
            };
            present.iter().find(is_same).copied()
        };
        let (known, pads): (Vec<_>, Vec<_>) = pads
            .into_iter()
            .map(|pad| (of(&pad), pad))
            .partition(|(entry, _)| entry.is_some());
        let known = known
            .into_iter()
            .filter_map(|(entry, pad)| Some((pad, entry?)));
        self.placed.extend(known);
        let pads: Vec<PlannedPad> = pads.into_iter().map(|(_, pad)| pad).collect();
        if pads.is_empty() {
            return Ok(());
        }
        let functions: Vec<Redirected<'_>> = pads
            .iter()
            .map(|pad| Redirected {
                plan: &pad.plan,
                bias: pad.bias,
                inner: pad.inner.as_ref(),
            })
            .collect();
        let area = self.map(reach, &pads)?;
        let made = Redirects::new(&functions, area.address.0);
        let filled = area.fill(&made.bytes);
        filled.map_err(|cause| crate::probes::error::ProbeError::Pads {
            pid: self.pid,
            cause,
        })?;
        for (pad, entry) in pads.into_iter().zip(made.entries) {
            match entry {
                Ok(entry) => self.placed.push((pad, entry)),
                Err(refusal) => self.refused.push(refused(pad, refusal.to_string())),
            }
        }
        Ok(())
    }

    fn map(&mut self, reach: &mut Reach<'_>, pads: &[PlannedPad]) -> Result<CodeArea, Error> {
        let (pid, bytes) = (self.pid, redirect_bytes(pads.len()));
        let pages: BTreeSet<u64> = pads
            .iter()
            .map(|pad| pad.plan.at.wrapping_add(pad.bias) / PAGE_BYTES)
            .collect();
        check_shared_memory(pid, bytes)?;
        check_charge(pid, bytes + pages.len() as u64 * PAGE_BYTES)?;
        let mut held = reach.hold(pid, &any_point())?;
        let area = map_near(&mut held, NAME, &pads[0].range, bytes, 0)?;
        self.held = self.held.max(held.release()?);
        let module = pads[0].module.clone();
        Ok(area.ok_or(crate::probes::error::ProbeError::NoRoom { pid, module })?)
    }

    /// Writes the jumps with all threads held.
    fn exchange(&mut self, memory: &File) -> Result<(), Error> {
        let open = std::mem::take(&mut self.placed).into_iter();
        let open = open
            .map(|one| {
                let exchange = exchange_of(&one.1);
                (one, exchange)
            })
            .collect();
        let (placed, in_the_way) = exchange_each(self.pid, memory, open, false, |exchanges| {
            self.held = self.held.max(exchanges.held);
        })?;
        self.placed = placed;
        let in_the_way = in_the_way.into_iter();
        self.refused
            .extend(in_the_way.map(|((pad, _), why)| refused(pad, why)));
        // Blocks with unseen releases would look like leaks.
        if self
            .refused
            .iter()
            .any(|refused| releases(refused.function))
            && !self.placed.is_empty()
        {
            put_back(self.pid)?;
            let why = "another function of the allocator cannot be traced";
            let placed = std::mem::take(&mut self.placed).into_iter();
            self.refused
                .extend(placed.map(|(pad, _)| refused(pad, why.to_owned())));
        }
        Ok(())
    }

    /// Writes the jumps in a program that has not started to run: its only thread is stopped, and none of these
    /// functions is on that thread's stack.
    fn exchange_at_start(&mut self, reach: &mut Reach<'_>) -> Result<(), Error> {
        let pid = self.pid;
        let held = reach.hold(pid, &any_point())?;
        let is_alone = thread_ids(pid).is_ok_and(|threads| threads.len() == 1);
        let mut placed = std::mem::take(&mut self.placed);
        for (pad, entry) in placed.drain(..) {
            let mut now = [0; memhook_probe::JUMP_BYTES];
            let at = RemoteAddress(entry.at);
            let is_original = read_memory(pid, at, &mut now).is_ok() && now == entry.original;
            if is_alone && is_original {
                write_bytes(pid, at, &entry.jump)?;
                self.placed.push((pad, entry));
            } else {
                let why = "its code cannot be patched at the start of the program".to_owned();
                self.refused.push(refused(pad, why));
            }
        }
        held.release()?;
        Ok(())
    }

    /// Returns the reason why a described function has no pad.
    fn refusal_of_described(&self) -> Option<Error> {
        let mut refused = self.refused.iter();
        let found = refused.find(|refused| refused.function >= FIRST_DESCRIBED)?;
        let (name, module, why) = (&found.name, &found.module, &found.why);
        Some(Error::Refused(format!(
            "{module}!{name} cannot be traced as a function of an allocator: {why}"
        )))
    }

    /// Assigns variant numbers to the described functions: the number that a function's trampoline had in an earlier
    /// attach, or an unused number. `variants`: the hook's variants by function and original.
    pub fn number_described(&mut self, variants: &HashMap<(usize, u64), u32>) -> Result<(), Error> {
        let mut free: BTreeSet<usize> =
            (FIRST_DESCRIBED..FIRST_DESCRIBED + MAX_DESCRIBED).collect();
        let originals = |function: usize| variants.keys().filter(move |(f, _)| *f == function);
        let described = self.placed.iter_mut().filter(|(pad, _)| pad.does.is_some());
        let mut new = Vec::new();
        for (pad, entry) in described {
            let known = free
                .iter()
                .copied()
                .find(|id| variants.contains_key(&(*id, entry.trampoline)));
            match known {
                Some(id) => {
                    free.remove(&id);
                    pad.function = id;
                }
                None => new.push(pad),
            }
        }
        for pad in new {
            let least = free.iter().copied().min_by_key(|id| originals(*id).count());
            let roomy = least.filter(|id| originals(*id).count() < MAX_VARIANTS);
            let Some(id) = roomy else {
                return Err(Error::Refused(format!(
                    "process {}: earlier attaches have traced too many different allocator functions",
                    self.pid
                )));
            };
            free.remove(&id);
            pad.function = id;
        }
        Ok(())
    }

    /// Returns the numbers and effects of the described functions.
    pub fn described(&self) -> impl Iterator<Item = (usize, DescribedFunction)> + '_ {
        let placed = self.placed.iter();
        placed.filter_map(|(pad, _)| Some((pad.function.checked_sub(FIRST_DESCRIBED)?, pad.does?)))
    }

    /// Returns the described heaps in their order.
    pub fn heaps(&self, names: impl Iterator<Item = String>) -> Vec<TracedHeap> {
        let mut heaps: Vec<TracedHeap> = names
            .map(|name| TracedHeap {
                name,
                functions: Vec::new(),
                releases: false,
            })
            .collect();
        for (pad, _) in &self.placed {
            if let Some(does) = pad.does
                && let Some(heap) = heaps.get_mut(usize::from(does.heap))
            {
                heap.releases |= does.role == DescribedRole::Releases;
                heap.functions.push((pad.function as u8, pad.name.clone()));
            }
        }
        heaps
    }

    /// Returns the id of the function whose cell has this address.
    pub fn function_of_cell(&self, address: u64) -> Option<usize> {
        let mut placed = self.placed.iter();
        let (pad, _) = placed.find(|(_, entry)| entry.cell == address)?;
        Some(pad.function)
    }

    /// Returns the refusal if a function without a pad makes tracing impossible.
    pub fn refusal(&self) -> Option<Error> {
        let first = self.refused.first()?;
        Some(Error::Refused(format!(
            "process {} cannot be traced: {} of {} cannot have a jump to the hook: {}",
            self.pid, first.name, first.module, first.why
        )))
    }

    /// Leaves the jumps in place, to be removed by the detach.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Adds the cells that contain no wrapper, and removes slots that lead to the same functions. If both existed, a
    /// call would pass through two wrappers and count twice in a sample.
    pub fn add_to(&self, scan: &mut SlotScan, modules: &[ModuleImage], copies: &[HookCopy]) {
        let own = self.placed.iter().filter(|(pad, _)| pad.does.is_none());
        let addresses: BTreeSet<u64> = own.map(|(pad, _)| pad.address).collect();
        scan.slots.retain(|slot| !addresses.contains(&slot.target));
        scan.slots.extend(self.slots(modules, copies));
    }

    /// Returns the cells that hold no wrapper, as slots.
    fn slots(&self, modules: &[ModuleImage], copies: &[HookCopy]) -> Vec<Slot> {
        let slots = self.placed.iter().filter_map(|(pad, entry)| {
            let module = modules.iter().position(|m| m.base == entry.bias)?;
            let value = read_word(self.pid, RemoteAddress(entry.cell))?;
            let hooked = HOOKED_FUNCTIONS.get(pad.function);
            let symbol = hooked.map_or(&*pad.name, |f| f.name).to_owned();
            let is_free = behind(copies, value) == Behind::Itself;
            is_free.then(|| cell_slot(entry, value, module, symbol))
        });
        slots.collect()
    }

    /// Returns an empty set for a process that needs no pads.
    pub fn none(pid: i32) -> Pads {
        Pads {
            pid,
            placed: Vec::new(),
            refused: Vec::new(),
            may_be_thrown_through: false,
            held: Duration::ZERO,
            is_kept: true,
        }
    }

    /// Returns true if no function has a pad.
    pub fn is_empty(&self) -> bool {
        self.placed.is_empty()
    }

    /// Returns true if a cell has this address.
    pub fn has_cell(&self, address: u64) -> bool {
        self.placed.iter().any(|(_, entry)| entry.cell == address)
    }

    /// Returns true if all functions of the module's own allocator have a pad.
    pub fn cover(&self, module: &ModuleImage) -> bool {
        let mut placed = self.placed.iter().filter(|(pad, _)| pad.does.is_none());
        placed.any(|(_, entry)| entry.bias == module.base)
            && !self
                .refused
                .iter()
                .any(|refused| refused.module == module.name())
    }
}

impl Drop for Pads {
    fn drop(&mut self) {
        if !self.is_kept {
            // Functions whose code cannot be restored jump to the trampolines, and `detach` can restore them later.
            let _ = put_back(self.pid);
        }
    }
}

fn refused(pad: PlannedPad, why: String) -> RefusedPad {
    RefusedPad {
        name: pad.name,
        function: pad.function,
        address: pad.address,
        module: pad.module,
        why,
    }
}

fn exchange_of(entry: &RedirectEntry) -> CodeExchange {
    CodeExchange {
        at: RemoteAddress(entry.at),
        from: entry.original.to_vec(),
        to: entry.jump.to_vec(),
    }
}
