//! Adds names to results about sites, for a report.

use crate::live::signals::NameWait;
use memhook_access::{EarlierBlocks, SeenAccess, Site, SiteAnswer, State};
use memhook_attach::Session;
use memhook_checkup::SessionStacks;
use memhook_process::TargetRoot;
use memhook_report::{Backtraces, CaughtAccess, Progress, StaleSite, frames_at};
use memhook_symbols::Symbolizer;
use std::time::Duration;

/// Length of one wait for names, after which signals are checked.
const NAMES_PAUSE: Duration = Duration::from_millis(50);

/// Source of names for results.
pub struct Naming {
    symbols: Symbolizer,
    /// Source of the names. It stays valid after the process has ended.
    _root: TargetRoot,
    depth: usize,
}

/// The last access that was caught at a site, and its frames.
pub struct Caught {
    seen: SeenAccess,
    frames: Vec<u64>,
}

impl Caught {
    /// Unwinds the stack of the access. Call it while the process is traced.
    pub fn of(session: &Session, seen: &SeenAccess, depth: usize) -> Caught {
        let frames = seen.access.as_ref().map_or(Vec::new(), |access| {
            if access.registers.0 == 0 {
                return Vec::new();
            }
            session.unwind(access.registers, &|at| access.stack_word(at), depth)
        });
        Caught {
            seen: seen.clone(),
            frames,
        }
    }
}

impl Naming {
    /// Creates a source of names for a process.
    pub fn of(pid: i32, depth: usize) -> Naming {
        let root = TargetRoot::of(pid);
        Naming {
            symbols: Symbolizer::new(root.search_order()),
            _root: root,
            depth,
        }
    }

    /// Returns the maximum number of frames that are collected from a stack.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Returns one row with symbol names for each site in `found`. If `waits` is true, waits for
    /// the names, but only for a limited time.
    pub fn sites(
        &mut self,
        session: &Session,
        earlier: &EarlierBlocks,
        found: &[(SiteAnswer, Option<Caught>)],
        now_ms: u32,
        waits: bool,
    ) -> Vec<StaleSite> {
        self.symbols.set_modules(session.module_files());
        let backtrace = |site: Site| match site {
            Site::Stack(id) => SessionStacks(session).backtrace(id),
            Site::Kind(_) | Site::Pages => None,
        };
        let stacks = found
            .iter()
            .filter_map(|(answer, _)| backtrace(answer.site));
        let addresses: Vec<u64> = stacks
            .flat_map(|stack| stack.addresses)
            .chain(
                found
                    .iter()
                    .flat_map(|(_, caught)| caught.iter().flat_map(|c| c.frames.clone())),
            )
            .collect();
        self.symbols.request(addresses);
        if waits {
            let _progress = Progress::start("looking up names");
            let wait = NameWait::begin();
            while !self.symbols.is_ready(NAMES_PAUSE) && !wait.is_over() {}
        } else {
            self.symbols.is_ready(Duration::ZERO);
        }
        let named = |frames: &[u64]| {
            let frames = frames.iter();
            frames
                .flat_map(|&at| frames_at(&self.symbols, at))
                .collect()
        };
        let ago = |at_ms: u32| f64::from(now_ms.saturating_sub(at_ms)) / 1e3;
        let row = |(answer, caught): &(SiteAnswer, Option<Caught>)| {
            let stack = backtrace(answer.site);
            let kind = match answer.site {
                Site::Kind(_) | Site::Pages => earlier.name(answer.site),
                Site::Stack(_) => stack.as_ref().and_then(|s| s.kind()).map(str::to_owned),
            };
            StaleSite {
                kind: kind.unwrap_or_else(|| "an unknown function".into()),
                before_attach: !matches!(answer.site, Site::Stack(_)),
                truncated: stack.as_ref().is_some_and(|stack| stack.truncated),
                stack: stack.map_or(Vec::new(), |stack| named(&stack.addresses)),
                live_bytes: answer.live_bytes,
                live_blocks: answer.live_blocks,
                stale_bytes: answer.stale_bytes,
                stale_bytes_low: answer.stale_bytes_low,
                stale_bytes_high: answer.stale_bytes_high,
                state: match answer.state() {
                    State::Stale => "stale",
                    State::InUse => "in_use",
                    State::Unknown => "unknown",
                }
                .into(),
                last_access_s: answer.last_access_ms.map(ago),
                unwritten_bytes: answer.unwritten_bytes,
                unaccessed_bytes: answer.unaccessed_bytes,
                looks: answer.looks.0,
                touched: answer.looks.1,
                stale_block: answer.stale_block.map(|address| format!("{address:#x}")),
                reachability: None,
                caught: caught.as_ref().map(|caught| {
                    let access = caught.seen.access.as_ref();
                    CaughtAccess {
                        ago_s: ago(caught.seen.at_ms),
                        block: format!("{:#x}", caught.seen.block.address),
                        offset: caught.seen.offset,
                        tid: access.map(|access| access.tid),
                        by_kernel: access.is_some_and(|access| access.by_kernel),
                        stack: named(&caught.frames),
                    }
                }),
            }
        };
        found.iter().map(row).collect()
    }
}
