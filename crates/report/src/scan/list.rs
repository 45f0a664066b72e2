//! A list of every block of a heap, one per line, for programs that compare lists.

use memhook_foreign::visible;
use memhook_heap::{Scan, Snapshot, inside_malloc_note, unmoved_note};
use std::io::{Result, Write};

/// Writes address, usable bytes, and `leak` or `live` of each block; then arenas, mapped chunks, other
/// allocators and damage.
pub fn write_blocks(snapshot: &Snapshot, scan: &Scan, out: &mut impl Write) -> Result<()> {
    let mut leaks = scan.leaks.iter().peekable();
    for (number, block) in scan.heap.blocks.iter() {
        let leaked = leaks.next_if(|l| l.block == number).is_some();
        let word = if leaked { "leak" } else { "live" };
        writeln!(out, "{word} {:#x} {}", block.address, block.bytes)?;
    }
    for arena in &scan.heap.arenas {
        let c = &arena.counts;
        writeln!(
            out,
            "arena {:#x} system {} used {} cached {} fast {} free {} binned {} top {}",
            arena.address,
            arena.system_bytes,
            c.used_bytes,
            c.cached_bytes,
            c.fast_bytes,
            c.free_bytes,
            arena.binned_bytes,
            c.top_bytes
        )?;
    }
    let (chunks, bytes) = scan.heap.mmapped;
    writeln!(out, "mmapped {chunks} {bytes}")?;
    for other in &scan.heap.others {
        writeln!(out, "heap of {} {}", other.allocator, other.version)?;
        for counted in &other.counted {
            let (says, found) = (counted.allocator, counted.found);
            writeln!(out, "counted {}: {says}, found {found}", counted.what)?;
        }
    }
    if snapshot.meta.in_malloc > 0 {
        writeln!(out, "note {}", inside_malloc_note(snapshot.meta.in_malloc))?;
    }
    if snapshot.meta.unmoved > 0 {
        writeln!(out, "note {}", unmoved_note(snapshot.meta.unmoved))?;
    }
    for finding in &scan.heap.findings {
        let what = visible(&finding.what);
        writeln!(out, "finding {:#x} {what}", finding.address)?;
    }
    Ok(())
}
