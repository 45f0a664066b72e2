//! Resident pages of a process, at the moment of the snapshot if time allows.

use crate::Error;
use crate::capture::pagemap;
use crate::ranges::Runs;
use memhook_inject::PageScan;
use memhook_process::{
    Mapping, MappingUse, MemoryUse, ResidentCounters, mappings, resident_counters, smaps,
};
use rustc_hash::FxHashSet;
use std::time::{Duration, Instant};

/// Number of pages by which each per-CPU part of a kernel counter may be off: the kernel batches
/// updates per processor (`percpu_counter_batch` of lib/percpu_counter.c).
const LEAST_PAGES_APART: u64 = 32;
const PAGE_BYTES: u64 = 4096;

/// Pages of a process that are in memory.
pub struct Residency {
    /// All mappings, with the resident bytes of each, and the number of these bytes in huge pages.
    /// The other counters are filled only if `has_shares`.
    pub mappings: Vec<MappingUse>,
    /// Sum over the mappings.
    pub memory: MemoryUse,
    /// The resident pages of private memory without a file.
    pub pages: Runs,
    /// Resident pages that are part of huge pages. Empty before Linux 6.7.
    pub huge: Runs,
    /// True if the pages were read while all threads were held for the snapshot.
    pub is_of_snapshot: bool,
    /// True if it is known which pages were written and how many processes map them.
    pub has_shares: bool,
}

impl Residency {
    /// Reads which pages of a process are resident now. `reader` is the thread through which /proc
    /// shows its memory.
    ///
    /// For smaps, the kernel inspects each page to see whether it was written and how many
    /// processes map it. Whether a page is present at all can be seen in the page tables. So
    /// normally only the page tables are walked, and the sum is compared with the counters of the
    /// process. If the two differ, which happens with device memory, or if the kernel cannot walk
    /// page tables, smaps is read.
    pub fn read(reader: i32) -> Result<Residency, Error> {
        match Residency::by_page_tables(reader)? {
            Some(found) => Ok(found),
            None => Residency::by_smaps(reader),
        }
    }

    /// Like [`Residency::read`], from smaps.
    fn by_smaps(reader: i32) -> Result<Residency, Error> {
        let scan = PageScan::open(reader)?;
        let mappings = smaps(reader)?;
        let mut found = Residency::empty();
        for used in &mappings {
            found.memory.add(&used.memory);
            if is_own(&used.mapping) && used.memory.rss > 0 {
                found.add_pages(&scan, reader, &used.mapping);
            }
        }
        Ok(Residency {
            mappings,
            has_shares: true,
            ..found
        })
    }

    fn empty() -> Residency {
        Residency {
            mappings: Vec::new(),
            memory: MemoryUse::default(),
            pages: Runs::new(),
            huge: Runs::new(),
            is_of_snapshot: false,
            has_shares: false,
        }
    }

    /// Reads the page tables. Returns `None` if they cannot be walked, or if they disagree with the
    /// kernel's counters.
    fn by_page_tables(reader: i32) -> Result<Option<Residency>, Error> {
        let scan = PageScan::open(reader)?;
        let before = resident_counters(reader).filter(|counters| counters.hugetlb == 0);
        let Some(before) = before else {
            return Ok(None);
        };
        let mut found = Residency::empty();
        let mut of_others = (Runs::new(), Runs::new());
        for mapping in mappings(reader)? {
            let (pages, huge) = if is_own(&mapping) {
                (&mut found.pages, &mut found.huge)
            } else {
                of_others.0.clear();
                of_others.1.clear();
                (&mut of_others.0, &mut of_others.1)
            };
            let mut memory = MemoryUse::default();
            // The kernel adds mappings to every process (vDSO, vvar). Of these, its counters
            // include only the code as resident.
            if !mapping.path.starts_with("[v") || mapping.path == "[vdso]" {
                match scan.find_resident(mapping.start..mapping.end, pages, huge) {
                    Ok(bytes) => (memory.rss, memory.huge_pages) = bytes,
                    // Kernels before Linux 6.7.
                    Err(_) => return Ok(None),
                }
            }
            found.memory.add(&memory);
            found.mappings.push(MappingUse { mapping, memory });
        }
        let Some(after) = resident_counters(reader) else {
            return Ok(None);
        };
        found.memory.swap = after.swap;
        Ok(agree(found.memory.rss, &before, &after).then_some(found))
    }

    /// Adds the resident pages of a mapping.
    fn add_pages(&mut self, scan: &PageScan, reader: i32, mapping: &Mapping) {
        let (start, end) = (mapping.start, mapping.end);
        let before = (self.pages.len(), self.huge.len());
        let found = scan.find_resident(start..end, &mut self.pages, &mut self.huge);
        if found.is_err() {
            self.pages.truncate(before.0);
            self.huge.truncate(before.1);
            // Kernels before Linux 6.7.
            let pages = pagemap::resident(reader, start, end);
            self.pages.extend(pages.unwrap_or_default());
        }
    }

    /// Merges mappings that were split at these addresses.
    pub(super) fn join_mappings(&mut self, cuts: &FxHashSet<u64>) {
        let kind = |m: &Mapping| (m.read, m.write, m.exec, m.shared);
        self.mappings.dedup_by(|next, before| {
            let (last, mapping) = (&mut before.mapping, &next.mapping);
            let is_cut = last.end == mapping.start
                && cuts.contains(&mapping.start)
                && kind(last) == kind(mapping)
                && last.path == mapping.path;
            if is_cut {
                last.end = mapping.end;
                before.memory.add(&next.memory);
            }
            is_cut
        });
    }

    /// Returns the time that it takes to read the resident pages of this process once.
    pub(super) fn time(reader: i32) -> Result<Duration, Error> {
        let begin = Instant::now();
        Residency::read(reader)?;
        Ok(begin.elapsed())
    }
}

/// Decision about reading the pages.
#[derive(Default)]
pub(super) enum Look {
    /// Nobody asked for the pages.
    #[default]
    No,
    /// A reading is wanted, and takes about this long.
    Takes(Duration),
    /// The pages were read while the threads were held.
    Done(Residency),
}

/// Returns true for private memory without a file.
fn is_own(mapping: &Mapping) -> bool {
    let is_without_file = mapping.file_id.2 == 0 || mapping.path == "/dev/zero";
    is_without_file && !mapping.shared && !mapping.path.starts_with("[v")
}

/// Returns true if a sum lies between two readings of the counters, or differs from them by at most
/// a hundredth.
fn agree(sum: u64, before: &ResidentCounters, after: &ResidentCounters) -> bool {
    let (before, after) = (before.resident(), after.resident());
    let processors = std::thread::available_parallelism().map_or(1, |number| number.get() as u64);
    let batch = LEAST_PAGES_APART.max(2 * processors) * PAGE_BYTES;
    let apart = before.max(after) / 100 + batch * processors;
    (before.min(after).saturating_sub(apart)..=before.max(after) + apart).contains(&sum)
}
