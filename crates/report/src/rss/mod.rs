//! Resident memory of a process by its parts, as text and JSON.

mod release_calls;
mod text;
mod trim;

pub use release_calls::release_call;
pub use trim::TrimReport;

use crate::{Document, StackFrame, Style};
use memhook_heap::{Account, ArenaUse, Meta, Part};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Name of the JSON schema.
const SCHEMA: &str = "memhook-rs/rss/1";

fn schema() -> &'static str {
    SCHEMA
}

/// Parts that every report has, even if they are empty.
const PARTS: [Part; 10] = [
    Part::LiveHeap,
    Part::AllocatorOverhead,
    Part::FreeInAllocator,
    Part::Fragmentation,
    Part::Stacks,
    Part::Mappings,
    Part::Files,
    Part::Shared,
    Part::Ourselves,
    Part::Unknown,
];

/// The account of a process's resident memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RssReport {
    /// Name of the schema.
    #[serde(skip_deserializing, default = "schema")]
    pub schema: &'static str,
    /// Process id.
    pub pid: i32,
    /// Resident bytes, according to the kernel's own sum over the process's pages.
    pub rss_bytes: u64,
    /// Resident bytes with each page divided by the number of processes that map it; `None` if not
    /// requested.
    pub pss_bytes: Option<u64>,
    /// Resident bytes that only this process maps, and that were written; `None` if not requested.
    pub private_dirty_bytes: Option<u64>,
    /// Bytes in swap, which are not resident.
    pub swap_bytes: u64,
    /// Resident bytes in huge pages.
    pub huge_page_bytes: u64,
    /// Bytes in huge pages that are all zeros, and were most likely never written; `None` if not
    /// examined.
    #[serde(default)]
    pub huge_zero_bytes: Option<u64>,
    /// Bytes of hugetlbfs, which the kernel does not count as resident.
    pub hugetlb_bytes: u64,
    /// Parts of the resident memory. Their sum is the total.
    pub parts: Vec<RssPart>,
    /// Bytes that a trim would return.
    pub trim_bytes: u64,
    /// Free pages of allocators other than glibc's.
    #[serde(default)]
    pub other_allocators: Vec<OtherFreePages>,
    /// Statistics of an allocator other than glibc's, if the process has one that could be queried.
    pub allocator: Option<RssAllocator>,
    /// The arenas of glibc's malloc, the main one first.
    pub arenas: Vec<ArenaUse>,
    /// Resident bytes of live blocks that have their own mapping.
    pub mapped_bytes: u64,
    /// Stacks, mappings and files, largest first.
    pub holdings: Vec<RssHolding>,
    /// Number of unlisted holdings.
    pub more_holdings: u64,
    /// Blocks that pin memory, in order of the pinned bytes.
    pub pins: Vec<PinRow>,
    /// Number of unlisted rows.
    pub more_pins: u64,
    /// Details of the copy of the memory.
    pub snapshot: Option<RssSnapshot>,
    /// Notes about these figures.
    pub notes: Vec<String>,
    #[serde(skip)]
    lists_pins: bool,
}

/// One part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RssPart {
    /// Name of the part.
    pub name: Cow<'static, str>,
    /// Resident bytes.
    pub bytes: u64,
}

/// Free pages of an allocator other than glibc's, according to its heap.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OtherFreePages {
    /// Name of the allocator.
    pub name: Cow<'static, str>,
    /// Resident bytes.
    pub bytes: u64,
    /// True if a trim asks this allocator.
    pub is_trimmed: bool,
}

/// An allocator's own statistics.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RssAllocator {
    /// Name of the allocator.
    pub name: Cow<'static, str>,
    /// The allocator's figures, under its own names.
    pub counters: Vec<RssPart>,
    /// How long one thread was held to query the allocator, in milliseconds.
    pub held_ms: f64,
}

/// Resident bytes of a stack, a mapping or a file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RssHolding {
    /// The part that the holding belongs to.
    pub part: Cow<'static, str>,
    /// Name of the stack, mapping or file.
    pub name: String,
    /// Resident bytes.
    pub bytes: u64,
}

/// Blocks of one call stack, or of one type or size if the stack is unknown.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PinRow {
    /// Type or size of the blocks; for traced blocks, the function that allocated them.
    pub name: String,
    /// The call stack that allocated the blocks, innermost frame first; empty if they were not
    /// traced.
    pub stack: Vec<StackFrame>,
    /// Age of the oldest block in ms, if the blocks were traced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_ms: Option<u64>,
    /// Id of the call stack, and allocation time of the oldest block in nanoseconds since the attach.
    #[serde(skip)]
    traced: Option<(u32, u64)>,
    /// Number of blocks.
    pub own_blocks: u64,
    /// Usable bytes of the blocks.
    pub own_bytes: u64,
    /// Resident bytes that would be returned if the blocks were freed and the heap trimmed.
    pub pinned_bytes: u64,
    /// Bytes that a malloc_trim returns while the blocks live.
    pub trimmable_bytes: u64,
}

/// Cost of the copy for the process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RssSnapshot {
    /// Method: precopy, fork or stop.
    pub method: Cow<'static, str>,
    /// Milliseconds for which all threads were held.
    pub held_ms: f64,
    /// Milliseconds for which one thread was held before that.
    pub prepare_held_ms: f64,
}

/// Choice of the contents of an account.
#[derive(Clone, Copy, Debug)]
pub struct RssView {
    /// Number of holdings and pins to show.
    pub top: usize,
    /// True if the text lists the blocks that pin memory.
    pub pins: bool,
}

impl RssReport {
    /// Builds the report from an account. `meta` holds the facts of the snapshot, if the memory could be copied.
    pub fn new(pid: i32, account: &Account, meta: Option<&Meta>, view: RssView) -> RssReport {
        let of_part = |part: Part| account.parts.get(&part).copied().unwrap_or(0);
        let is_always_shown = |part: &Part| PARTS.contains(part);
        let others = account.parts.iter();
        let others = others.filter(|(part, bytes)| !is_always_shown(part) && **bytes > 0);
        let parts = PARTS.map(|part| (part, of_part(part))).into_iter();
        let parts = parts.chain(others.map(|(part, bytes)| (*part, *bytes)));
        let holdings = account.holdings.iter().map(|holding| RssHolding {
            part: holding.part.name().into(),
            name: holding.name.clone(),
            bytes: holding.bytes,
        });
        let pins = account.pins.iter().map(|(name, pinned)| PinRow {
            name: name.name.clone(),
            stack: Vec::new(),
            oldest_ms: None,
            traced: name.traced,
            own_blocks: pinned.blocks,
            own_bytes: pinned.own_bytes,
            pinned_bytes: pinned.pinned_bytes,
            trimmable_bytes: pinned.trimmable_bytes,
        });
        let mut notes = meta.map(|meta| meta.notes.clone()).unwrap_or_default();
        // Only a search for pointers needs these notes.
        notes.retain(|note| !note.starts_with("not searched"));
        notes.extend(account.notes.iter().cloned());
        let memory = account.memory;
        RssReport {
            schema: SCHEMA,
            pid,
            rss_bytes: memory.rss,
            pss_bytes: account.has_shares.then_some(memory.pss),
            private_dirty_bytes: account.has_shares.then_some(memory.private_dirty),
            swap_bytes: memory.swap,
            huge_page_bytes: memory.huge_pages,
            huge_zero_bytes: account.huge_zero_bytes,
            hugetlb_bytes: memory.hugetlb,
            parts: parts
                .map(|(part, bytes)| RssPart {
                    name: part.name().into(),
                    bytes,
                })
                .collect(),
            trim_bytes: account.trim_bytes,
            other_allocators: account
                .other_allocators
                .iter()
                .map(|one| OtherFreePages {
                    name: one.allocator.into(),
                    bytes: one.bytes,
                    is_trimmed: one.is_trimmed,
                })
                .collect(),
            allocator: account.allocator.as_ref().map(|said| RssAllocator {
                name: said.allocator.into(),
                counters: said
                    .counters
                    .iter()
                    .map(|counter| RssPart {
                        name: counter.name.into(),
                        bytes: counter.bytes,
                    })
                    .collect(),
                held_ms: said.held.as_secs_f64() * 1e3,
            }),
            arenas: account.arenas.clone(),
            mapped_bytes: account.mapped_bytes,
            more_holdings: account.holdings.len().saturating_sub(view.top) as u64,
            holdings: holdings.take(view.top).collect(),
            more_pins: account.pins.len().saturating_sub(view.top) as u64,
            pins: pins.take(view.top).collect(),
            snapshot: meta.map(|meta| RssSnapshot {
                method: meta.method.name().into(),
                held_ms: meta.held_ms,
                prepare_held_ms: meta.prepare_held_ms,
            }),
            notes,
            lists_pins: view.pins,
        }
    }
}

impl RssReport {
    /// Iterates over the call stacks of the listed rows.
    pub fn stacks(&self) -> impl Iterator<Item = u32> + '_ {
        self.pins.iter().filter_map(|pin| Some(pin.traced?.0))
    }

    /// Replaces the ids of call stacks with frames. `now_ns` is the time in nanoseconds since the attach.
    pub fn name_stacks(&mut self, now_ns: u64, mut frames: impl FnMut(u32) -> Vec<StackFrame>) {
        for pin in &mut self.pins {
            let Some((stack, oldest_ns)) = pin.traced else {
                continue;
            };
            pin.stack = frames(stack);
            pin.name = crate::labels::site_name(&pin.stack);
            pin.oldest_ms = Some(now_ns.saturating_sub(oldest_ns) / 1_000_000);
        }
    }
}

impl Document for RssReport {
    fn text(&self, style: Style) -> String {
        text::text(self, style)
    }
}
