//! A process whose children are traced from their birth: maps regions for the children in it, and unmaps these regions
//! again.

use super::births::Births;
use crate::hook::presence::{any_point, hold_with_hook};
use crate::job::{End, Job};
use crate::leave::guided::{REGION_PATH, make_region};
use crate::running::upkeep::Turn;
use crate::session::Session;
use crate::trace::Trace;
use crossbeam_channel::Select;
use memhook_abi::{GUIDE_BYTES, SPARES_BEHIND_GATE};
use memhook_inject::{Held, hold, set_inherited, unmap_region, write_bytes};
use memhook_process::{RemoteAddress, hook_copies, mappings, proc_path, proc_text};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

/// Number of regions that wait for children. Each is mapped during a short hold of one thread.
const WAITING: usize = 8;
/// Maximum number of mapped regions. Living children use them up, and each region makes a fork of the parent a little
/// slower.
const MOST: usize = 48;
/// Number of failures after which no more regions are mapped.
const MOST_FAILURES: u32 = 3;

/// Wraps the job of a process whose children are traced, and does the additional work that these children require.
pub(super) struct Parent {
    job: Box<dyn Job + Send>,
    births: Arc<Births>,
    gate: u64,
    /// Addresses of the mapped regions (avma).
    mapped: Vec<u64>,
    /// Number of regions in the list for children.
    listed: u64,
    bytes: u64,
    failures: u32,
    /// Bytes that regions occupy before a child uses them, mainly for unwind tables.
    filled: u64,
    /// Longest hold of a thread for one region.
    held: Duration,
}

impl Parent {
    pub fn new(job: Box<dyn Job + Send>, births: Arc<Births>) -> Parent {
        Parent {
            job,
            births,
            gate: 0,
            mapped: Vec::new(),
            listed: 0,
            bytes: 0,
            failures: 0,
            filled: 0,
            held: Duration::ZERO,
        }
    }

    /// Sets the current heritage of children.
    fn hand_down(&self, session: &Session) {
        if let Some(heritage) = session.heritage() {
            self.births.inherit(heritage);
        }
    }

    fn list(&self) -> RemoteAddress {
        RemoteAddress(self.gate) + SPARES_BEHIND_GATE
    }

    fn add_as_needed(&mut self, session: &Session) {
        // All regions take about the same memory. If memory is limited, there must be space for the next region too.
        let each = self.filled / self.mapped.len().max(1) as u64;
        let fits = self.filled.saturating_add(each) <= session.memory_allowance();
        if fits && self.failures < MOST_FAILURES && self.births.wants_more(WAITING, MOST) {
            let added = self.add(session);
            self.failures += u32::from(added.is_none());
        }
    }

    /// Maps the first regions before the first event is taken.
    pub fn prepare(&mut self, session: &mut Session) {
        let pid = session.pid();
        let gate = mappings(pid).ok().and_then(|maps| {
            let copies = hook_copies(pid, &maps);
            let hook = copies.iter().find(|c| c.base == session.hook_base())?;
            hook.gate()
        });
        self.bytes = session.region().len() as u64;
        let Some(gate) = gate.filter(|_| has_room(pid)) else {
            return;
        };
        self.gate = gate;
        self.births.begin_program(gate);
        self.hand_down(session);
        // The first children must already be traced by the time the attach is announced.
        for _ in 0..WAITING {
            self.add_as_needed(session);
        }
        session.note_held(self.held);
    }

    /// Maps one more region; `None` if that is not possible.
    fn add(&mut self, session: &Session) -> Option<()> {
        let pid = session.pid();
        let mut held = hold_with_hook(pid, session.hook_base()).ok()?;
        let made = make_region(&mut held, self.bytes).ok();
        let is_listed = made.as_ref().and_then(|made| {
            self.mapped.push(made.address.0);
            // A child would get its own copy of the guide, and the attacher cannot write to that copy.
            let is_private = made.is_private;
            (!is_private).then(|| self.list_it(&mut held, made.address))?
        });
        self.held = self.held.max(held.release().ok()?);
        is_listed?;
        let made = made?;
        self.filled += self.births.add(made.region)?;
        Some(())
    }

    /// Makes children inherit a region, and adds it to their list. They claim it when it is offered. A child unmaps the
    /// listed regions that it does not claim. If a child is forked between these two steps, the region is not in its
    /// list.
    fn list_it(&mut self, held: &mut Held, region: RemoteAddress) -> Option<()> {
        set_inherited(held, region, self.bytes, true).ok()?;
        // The list is written word by word, so a fork sees each word completely or not at all.
        let at = self.list() + 8 * self.listed;
        write_bytes(held.pid(), at, &region.0.to_le_bytes()).ok()?;
        self.listed += 1;
        Some(())
    }

    /// Removes all regions. No thread of this process accesses them: only a forked child, whose gate the fork has
    /// wiped, does so.
    fn take_away(&mut self, session: &Session) {
        self.births.close();
        let pid = session.pid();
        if self.mapped.is_empty() {
            return;
        }
        let empty = vec![0; self.listed as usize * 8];
        // While the regions are listed, they must stay mapped.
        if write_bytes(pid, self.list(), &empty).is_err() {
            return;
        }
        let Ok(mut held) = hold(pid, &any_point()) else {
            return;
        };
        let is_ours = memhook_process::mappings(pid).is_ok_and(|maps| {
            let is_region = |&at: &u64| {
                let behind = at + GUIDE_BYTES as u64;
                let mut found = maps.iter().filter(|m| m.start == behind);
                found.any(|m| m.path == REGION_PATH && m.end == at + self.bytes)
            };
            self.mapped.iter().all(is_region)
        });
        if is_ours {
            for at in self.mapped.drain(..) {
                let _ = unmap_region(&mut held, RemoteAddress(at), self.bytes);
            }
        }
        let _ = held.release();
    }
}

/// Returns true if the process's address space is unlimited. Otherwise, the regions for children would count towards
/// its limit.
fn has_room(pid: i32) -> bool {
    let limits = proc_text(proc_path(pid, "limits")).unwrap_or_default();
    let mut lines = limits.lines();
    let line = lines.find_map(|line| line.strip_prefix("Max address space"));
    line.is_some_and(|line| line.split_whitespace().next() == Some("unlimited"))
}

impl Job for Parent {
    fn begin(&mut self, trace: &Trace) {
        self.job.begin(trace);
    }

    fn listen<'a>(&'a self, select: &mut Select<'a>) {
        self.job.listen(select);
    }

    fn pace(&self) -> Duration {
        self.job.pace()
    }

    fn turn(&mut self, trace: &Trace, turn: &Turn) -> ControlFlow<()> {
        if self.gate != 0 && !turn.gone && !turn.is_last {
            if turn.modules_changed {
                self.hand_down(trace.session());
            }
            self.add_as_needed(trace.session());
        }
        self.job.turn(trace, turn)
    }

    fn before_detach(&mut self, trace: &Trace) {
        self.take_away(trace.session());
        self.job.before_detach(trace);
    }

    fn end(&mut self, trace: &mut Trace, end: &End) {
        self.job.end(trace, end);
    }

    fn notice(&mut self, text: &str) {
        self.job.notice(text);
    }
}
