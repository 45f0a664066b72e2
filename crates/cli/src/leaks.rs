//! `attach --leaks`: what nothing reaches at the end of the trace, with the call stacks of what was traced.

use crate::model::Reporter;
use memhook_attach::{Consumer, Session};
use memhook_gate::{Lost, Reached, reached};
use memhook_heap::{Captured, capture};
use memhook_report::{LeakSite, LeakTotals, Leaks, SnapshotTaken, StackFrame};
use std::cmp::Reverse;
use std::collections::HashMap;

/// The process's memory at the end of a trace.
pub struct LastLook {
    captured: Result<Captured, String>,
    /// Before it was copied, on the ledger's clock.
    moment_ns: u64,
}

impl LastLook {
    /// Copies it. To be called while it is still traced: a block allocated later would be in no ledger.
    pub fn take(pid: i32, consumer: &Consumer) -> LastLook {
        let moment_ns = consumer.moment_ns();
        let captured = capture(pid, None);
        LastLook {
            moment_ns,
            captured: captured.map_err(|e| format!("its memory could not be copied: {e}")),
        }
    }

    /// Of a process that has ended.
    pub fn too_late() -> LastLook {
        LastLook {
            moment_ns: 0,
            captured: Err("the process ended before its memory could be looked at".into()),
        }
    }

    /// Searches the copy, when the ledger has all events up to the detach. Shows the `top` largest sites.
    pub fn leaks(
        self,
        session: &Session,
        consumer: &Consumer,
        reporter: &mut Reporter,
        top: usize,
    ) -> Leaks {
        let captured = match self.captured {
            Ok(captured) => captured,
            Err(gap) => {
                return Leaks {
                    gaps: vec![gap],
                    ..Leaks::default()
                };
            }
        };
        let snapshot = &captured.snapshot;
        let state = consumer.lock();
        let mut found = reached(
            snapshot,
            state.ledger.live_blocks(),
            Some(self.moment_ns),
            false,
        );
        if let Some(bounded) = state.ledger.bounded() {
            found.gaps.push(format!(
                "the ledger reached --max-memory: stacks and sizes of {} are known, those of the others are not",
                memhook_report::counted(bounded.kept_blocks, "live block")
            ));
        }
        drop(state);
        let totals = totals(&found);
        let mut sites = sites(found.lost, session, reporter);
        let more_sites = sites.len().saturating_sub(top) as u64;
        sites.truncate(top);
        Leaks {
            snapshot: Some(SnapshotTaken {
                method: snapshot.meta.method.name(),
                held_ms: snapshot.meta.held_ms,
                prepare_held_ms: snapshot.meta.prepare_held_ms,
                copied_bytes: snapshot.copied_bytes(),
            }),
            totals,
            sites,
            more_sites,
            gaps: found.gaps,
        }
    }
}

fn totals(found: &Reached) -> LeakTotals {
    let all = found.leaked();
    LeakTotals {
        leaked_bytes: all.bytes,
        leaked_blocks: all.blocks,
        direct_blocks: found.lost.values().map(|lost| lost.direct.blocks).sum(),
        reachable_bytes: found.reachable.bytes,
        reachable_blocks: found.reachable.blocks,
    }
}

/// One row for each stack, those that read alike together, the largest first.
fn sites(
    lost: HashMap<Option<u32>, Lost>,
    session: &Session,
    reporter: &mut Reporter,
) -> Vec<LeakSite> {
    reporter.look_up(session, lost.keys().copied().flatten());
    let mut sites: Vec<LeakSite> = Vec::new();
    for (stack, lost) in lost {
        let held = lost.held();
        let (kind, truncated, stack) = match stack {
            Some(id) => reporter.stack(session, id),
            None => ("an unknown caller".to_owned(), false, Vec::new()),
        };
        let row = LeakSite {
            bytes: lost.direct.bytes,
            blocks: lost.direct.blocks,
            held_bytes: held.bytes,
            held_blocks: held.blocks,
            kind,
            truncated,
            stack,
        };
        let alike =
            |known: &&mut LeakSite| known.kind == row.kind && reads_alike(&known.stack, &row.stack);
        match sites.iter_mut().find(alike) {
            Some(known) => {
                known.bytes += row.bytes;
                known.blocks += row.blocks;
                known.held_bytes += row.held_bytes;
                known.held_blocks += row.held_blocks;
            }
            None => sites.push(row),
        }
    }
    let place = |s: &LeakSite| {
        s.stack
            .iter()
            .map(|f| f.address.clone())
            .collect::<Vec<_>>()
    };
    sites.sort_by_cached_key(|s| (Reverse(s.bytes + s.held_bytes), s.kind.clone(), place(s)));
    sites
}

/// The same lines: the compiler has copies of a call where it unrolls and inlines.
fn reads_alike(a: &[StackFrame], b: &[StackFrame]) -> bool {
    let same = |(a, b): (&StackFrame, &StackFrame)| {
        let text = |f: &StackFrame| {
            (
                f.function.clone(),
                f.module.clone(),
                f.file.clone(),
                f.line,
                f.inlined,
            )
        };
        text(a) == text(b) && (a.function.is_some() || a.offset == b.offset)
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}
