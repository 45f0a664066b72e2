//! Heaps of user-described allocators in a report.

use crate::rows::SortBy;
use crate::units::{bytes, change, count, counted};
use crate::{AllocatorTime, ReportModel, ReportTotals, SiteRow, gaps};
use serde::Serialize;
use std::cmp::Reverse;

/// Name of the heap of malloc and its relatives.
pub const MAIN_HEAP: &str = "malloc";

/// The sums of a heap.
#[derive(Clone, Debug, Serialize)]
pub struct HeapTotals {
    /// Name of the heap.
    pub name: String,
    /// Functions that the user described; empty for the first heap.
    pub functions: Vec<String>,
    /// Allocations per second of the covered time.
    pub allocations_per_s: f64,
    /// Bytes allocated per second.
    pub allocated_bytes_per_s: f64,
    /// Bytes released per second.
    pub released_bytes_per_s: f64,
    /// Sums of the heap.
    pub totals: ReportTotals,
}

impl HeapTotals {
    fn of(name: &str, functions: Vec<String>, report: &ReportModel) -> HeapTotals {
        let seen = gaps::seen_seconds(&report.gaps, report.from_s, report.elapsed_s).max(1e-3);
        let totals = report.totals;
        HeapTotals {
            name: name.to_owned(),
            functions,
            allocations_per_s: totals.allocations as f64 / seen,
            allocated_bytes_per_s: totals.allocated_bytes as f64 / seen,
            released_bytes_per_s: totals.released_bytes as f64 / seen,
            totals,
        }
    }

    /// Returns the heap's line in a report.
    pub(crate) fn in_words(&self, since_last_s: Option<f64>) -> String {
        let t = &self.totals;
        let growth = match since_last_s {
            Some(_) => format!(", {}", change(t.live_growth_bytes)),
            None => String::new(),
        };
        let peak = match t.peak_live_bytes {
            0 => String::new(),
            peak => format!(", peak {}", bytes(peak)),
        };
        let known = t.releases.saturating_sub(t.unknown_releases);
        let unknown = match t.unknown_releases {
            0 => String::new(),
            n => format!("; {} more whose allocation was not seen", count(n)),
        };
        format!(
            "{} live in {}{growth}{peak}; allocated {} in {} ({}/s), released {} in {}{unknown}",
            bytes(t.live_bytes),
            counted(t.live_blocks, "block"),
            bytes(t.allocated_bytes),
            counted(t.allocations, "block"),
            bytes(self.allocated_bytes_per_s as u64),
            bytes(t.released_bytes),
            counted(known, "block"),
        )
    }
}

impl ReportModel {
    /// Adds the rows and sums of these heaps. Each is given by its name, its functions and a report
    /// about it.
    pub fn with_heaps(
        mut self,
        heaps: Vec<(String, Vec<String>, ReportModel)>,
        sort: SortBy,
    ) -> ReportModel {
        self.heaps
            .push(HeapTotals::of(MAIN_HEAP, Vec::new(), &self));
        self.name_heap(MAIN_HEAP);
        for (name, functions, mut report) in heaps {
            // Losses are reported only once.
            (report.totals.lost_events, report.totals.truncated_stacks) = (0, 0);
            (report.totals.reentrant_calls, report.totals.unkept_stacks) = (0, 0);
            report.totals.unwatched_libraries = 0;
            self.heaps.push(HeapTotals::of(&name, functions, &report));
            report.name_heap(&name);
            self.sites.append(&mut report.sites);
            self.groups.append(&mut report.groups);
            self.releases.append(&mut report.releases);
            self.more_rows += report.more_rows;
            // A single list has the rows of all heaps.
            self.folded = None;
        }
        // The rows of each heap are already sorted.
        self.sites.sort_by_key(|row| place(row, sort));
        self.groups.sort_by_key(|row| match sort {
            SortBy::Count => Reverse(row.blocks as i64),
            SortBy::Growth => Reverse(row.growth_bytes),
            SortBy::Age => Reverse(row.oldest_ms as i64),
            SortBy::Time => Reverse(nanoseconds(row.allocator_time)),
            _ => Reverse(row.bytes as i64),
        });
        self.releases.sort_by_key(|row| Reverse(row.bytes));
        self
    }

    /// Assigns all rows of the report to this heap.
    pub(crate) fn of_heap(mut self, name: &str, functions: Vec<String>) -> ReportModel {
        self.heaps.push(HeapTotals::of(name, functions, &self));
        self.name_heap(name);
        self
    }

    fn name_heap(&mut self, name: &str) {
        let of_sites = self.sites.iter_mut().map(|row| &mut row.heap);
        let of_groups = self.groups.iter_mut().map(|row| &mut row.heap);
        let of_releases = self.releases.iter_mut().map(|row| &mut row.heap);
        for heap in of_sites.chain(of_groups).chain(of_releases) {
            *heap = Some(name.to_owned());
        }
    }

    /// Names the total to which percentages refer, in the page's terms.
    pub(crate) fn whole_text(&self) -> String {
        let whole = match self.measured.measure {
            "peak" => "all bytes at the peak".to_owned(),
            measure => format!("all {measure} bytes"),
        };
        // If the user described heaps, percentages refer to the row's heap.
        match self.heaps.len() > 1 {
            true => format!("{whole} of their heap"),
            false => whole,
        }
    }

    /// Returns the total that includes a row's bytes.
    pub(crate) fn bytes_of_heap(&self, heap: Option<&str>) -> u64 {
        let described = self.heaps.iter().skip(1);
        let found = described.into_iter().find(|h| Some(&*h.name) == heap);
        found.map_or(self.measured.bytes, |heap| heap.totals.live_bytes)
    }
}

fn nanoseconds(time: Option<AllocatorTime>) -> i64 {
    time.map_or(0, |time| time.ns as i64)
}

fn place(row: &SiteRow, sort: SortBy) -> Reverse<i64> {
    Reverse(match sort {
        SortBy::Count => row.blocks as i64,
        SortBy::Growth => row.growth_bytes,
        SortBy::Age => row.oldest_ms as i64,
        SortBy::Time => nanoseconds(row.allocator_time),
        _ => row.bytes as i64,
    })
}
