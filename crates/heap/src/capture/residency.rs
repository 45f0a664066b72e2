//! Which pages of a process are in memory, at the moment of the snapshot if there is time for that.

use crate::Error;
use crate::capture::pagemap;
use crate::ranges::Runs;
use memhook_inject::{PageScan, PageState};
use memhook_process::{MappingUse, smaps};
use std::time::{Duration, Instant};

/// What is in memory of a process.
pub struct Residency {
    /// All mappings, and what each of them holds.
    pub mappings: Vec<MappingUse>,
    /// The resident pages of private memory without a file.
    pub pages: Runs,
    /// It was read while all threads were held for the snapshot.
    pub is_of_snapshot: bool,
}

impl Residency {
    /// Looks at a process as it is now; `reader` is the thread by which /proc shows its memory.
    pub fn read(reader: i32) -> Result<Residency, Error> {
        let scan = PageScan::open(reader)?;
        let mappings = smaps(reader)?;
        let mut pages = Runs::new();
        for MappingUse { mapping, memory } in &mappings {
            let is_without_file = mapping.file_id.2 == 0 || mapping.path == "/dev/zero";
            let is_own = is_without_file && !mapping.shared && memory.rss > 0;
            if !is_own || mapping.path.starts_with("[v") {
                continue;
            }
            let (start, end) = (mapping.start, mapping.end);
            let before = pages.len();
            if scan
                .find(start..end, PageState::Resident, &mut pages)
                .is_err()
            {
                pages.truncate(before);
                // Before Linux 6.7.
                pages.extend(pagemap::resident(reader, start, end).unwrap_or_default());
            }
        }
        Ok(Residency {
            mappings,
            pages,
            is_of_snapshot: false,
        })
    }

    /// How long it takes to look at this process.
    pub(super) fn time(reader: i32) -> Result<Duration, Error> {
        let begin = Instant::now();
        Residency::read(reader)?;
        Ok(begin.elapsed())
    }
}

/// Whether and when to look.
#[derive(Default)]
pub(super) enum Look {
    /// Nobody has asked.
    #[default]
    No,
    /// It takes about so long.
    Takes(Duration),
    /// It was done while the threads were held.
    Done(Residency),
}
