//! Reports of `scan`: leaks in groups, and sums; the census of a heap; the reason why a block is
//! alive; the result of a round of reclaiming.

mod census;
mod groups;
mod growth;
mod list;
mod not_reported;
mod page;
mod reclaim_round;
mod retained;
mod text;
mod why;

pub use groups::LeakGroup;
pub use list::write_blocks;
pub use not_reported::not_searched;
pub use reclaim_round::ReclaimRound;

pub use census::CensusReport;
pub use growth::GrowthReport;
pub use retained::RetainedReport;

use groups::group;
use memhook_heap::{Cause, Heap, Leak, Scan, Snapshot, Types};
use not_reported::in_no_heap;
use serde::Serialize;

/// Name of the JSON schema.
const SCHEMA: &str = "memhook-rs/scan/1";

/// A whole report.
#[derive(Clone, Debug, Serialize)]
pub struct ScanReport {
    /// Name of the schema.
    pub schema: &'static str,
    /// The process.
    pub pid: i32,
    /// The snapshot.
    pub snapshot: SnapshotPart,
    /// Sums.
    pub totals: ScanTotals,
    /// Groups of leaked blocks, largest first.
    pub leaks: Vec<LeakGroup>,
    /// Number of unlisted groups.
    pub more_groups: u64,
    /// Possibly lost blocks, if the user asked for them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub possible: Option<PossiblyLost>,
    /// True if the whole heap could be parsed.
    pub whole: bool,
    /// Parts of the heap in which the search would miss a leak.
    pub not_searched: Vec<String>,
    /// Places where the heap does not parse.
    pub findings: Vec<Place>,
    /// Further notes.
    pub notes: Vec<String>,
}

/// A place where a heap does not parse.
#[derive(Clone, Debug, Serialize)]
pub struct Place {
    /// Address of the place.
    pub address: u64,
    /// Damage found at the place.
    pub what: String,
    /// Cause of the damage.
    pub cause: Cause,
}

impl Place {
    fn all_of(heap: &Heap) -> Vec<Place> {
        let place = |finding: &memhook_heap::Finding| Place {
            address: finding.address,
            what: finding.what.clone(),
            cause: heap.cause_of(finding),
        };
        heap.findings.iter().map(place).collect()
    }
}

/// Reachable blocks that only pointers into blocks reach.
#[derive(Clone, Debug, Serialize)]
pub struct PossiblyLost {
    /// Usable bytes.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Groups of these blocks, largest first.
    pub groups: Vec<LeakGroup>,
    /// Number of unlisted groups.
    pub more_groups: u64,
}

/// Facts about the snapshot.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotPart {
    /// `precopy` or `stop`.
    pub method: &'static str,
    /// Milliseconds for which all threads were held.
    pub held_ms: f64,
    /// Milliseconds for which one thread was held before the scan, to prepare it.
    pub prepare_held_ms: f64,
    /// Milliseconds that the whole snapshot took.
    pub taken_ms: f64,
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Bytes copied while the threads were held.
    pub held_bytes: u64,
    /// Bytes searched for pointers.
    pub scanned_bytes: u64,
    /// Milliseconds that the search took.
    pub mark_ms: f64,
    /// Number of threads.
    pub threads: u64,
    /// Number of threads that were inside malloc. Structures that these threads were changing may
    /// look damaged.
    pub in_malloc: u32,
}

/// Sums over the heap, in usable bytes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ScanTotals {
    /// Bytes of leaked blocks.
    pub leaked_bytes: u64,
    /// Number of leaked blocks.
    pub leaked_blocks: u64,
    /// Number of leaked blocks that no other leaked block points to.
    pub direct_blocks: u64,
    /// Bytes of reachable blocks.
    pub live_bytes: u64,
    /// Number of reachable blocks.
    pub live_blocks: u64,
}

/// Builds the report. `leaks` contains all or some of the leaks that the scan found.
pub fn scan_report(
    snapshot: &Snapshot,
    scan: &Scan,
    leaks: &[Leak],
    types: &mut Types,
    top: usize,
) -> ScanReport {
    let Scan { heap, marked, .. } = scan;
    let mut totals = ScanTotals::default();
    let (mut all_bytes, mut all_blocks) = (0, 0);
    for (_, block) in heap.blocks.iter() {
        all_bytes += block.bytes;
        all_blocks += 1;
    }
    for leak in leaks {
        totals.leaked_bytes += heap.blocks.get(leak.block).bytes;
        totals.leaked_blocks += 1;
        totals.direct_blocks += u64::from(leak.is_direct());
    }
    totals.live_bytes = all_bytes - totals.leaked_bytes;
    totals.live_blocks = all_blocks - totals.leaked_blocks;
    let mut groups = group(snapshot, &heap.blocks, leaks, types);
    let more = groups.len().saturating_sub(top) as u64;
    groups.truncate(top);
    let meta = &snapshot.meta;
    let mut notes = meta.notes.clone();
    notes.extend(in_no_heap(snapshot, heap, all_bytes));
    ScanReport {
        schema: SCHEMA,
        pid: meta.pid,
        snapshot: SnapshotPart {
            method: meta.method.name(),
            held_ms: meta.held_ms,
            prepare_held_ms: meta.prepare_held_ms,
            taken_ms: meta.taken_ms,
            copied_bytes: snapshot.copied_bytes(),
            held_bytes: meta.held_bytes,
            scanned_bytes: marked.scanned_bytes,
            mark_ms: marked.took.as_secs_f64() * 1e3,
            threads: meta.threads.len() as u64,
            in_malloc: meta.in_malloc,
        },
        totals,
        leaks: groups,
        more_groups: more,
        possible: None,
        whole: heap.is_whole(),
        not_searched: not_searched(snapshot, heap),
        findings: Place::all_of(heap),
        notes,
    }
}

impl ScanReport {
    /// Adds the possibly lost blocks.
    pub fn add_possible(
        &mut self,
        snapshot: &Snapshot,
        scan: &Scan,
        possible: &[Leak],
        types: &mut Types,
        top: usize,
    ) {
        let blocks = &scan.heap.blocks;
        let mut groups = group(snapshot, blocks, possible, types);
        let more_groups = groups.len().saturating_sub(top) as u64;
        groups.truncate(top);
        self.possible = Some(PossiblyLost {
            bytes: possible.iter().map(|p| blocks.get(p.block).bytes).sum(),
            blocks: possible.len() as u64,
            groups,
            more_groups,
        });
    }
}
