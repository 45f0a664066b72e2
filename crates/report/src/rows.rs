//! The rows of every report: blocks grouped by a common property, sorted and limited in number.
//!
//! A running trace and a recording both provide [`Part`]s, and a [`NamedRun`] that maps their
//! numbers to names. Names are requested only if a row depends on them.

use crate::named_run::NamedRun;
use crate::types::{UNKNOWN_TYPE, one_spelling};
use crate::units::counted;
use crate::{AllocatorTime, CustomValues, GroupRow, SiteRow, StackFrame};
use memhook_ledger::{Estimate, TimeTaken};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Kind of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowsBy {
    /// Call stack of the allocation.
    Site,
    /// Call in the code. A block counts for every call on its stack.
    Frame,
    /// Function. A block counts for every function on its stack.
    Function,
    /// Module that called the allocator.
    Module,
    /// Type of the block, if the call stack reveals it.
    Type,
    /// Allocating thread.
    Thread,
    /// Block size.
    Size,
    /// Time from allocation to release. Available only in recordings.
    Lifetime,
}

impl RowsBy {
    /// Returns the kind's name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            RowsBy::Site => "site",
            RowsBy::Frame => "frame",
            RowsBy::Function => "function",
            RowsBy::Module => "module",
            RowsBy::Type => "type",
            RowsBy::Thread => "thread",
            RowsBy::Size => "size",
            RowsBy::Lifetime => "lifetime",
        }
    }

    /// Returns true if a block may be on more than one row.
    pub(crate) fn repeats_blocks(self) -> bool {
        matches!(self, RowsBy::Frame | RowsBy::Function)
    }

    /// Returns true if the number of a [`Part`] is a stack.
    pub(crate) fn is_of_stacks(self) -> bool {
        !matches!(self, RowsBy::Thread | RowsBy::Size | RowsBy::Lifetime)
    }
}

/// Order of the rows. The largest, oldest, worst-scored or slowest rows come first. A user-defined
/// score is given by its index in the list; its highest values come first, and unknown values last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the names are the definition
pub enum SortBy {
    Bytes,
    Count,
    Age,
    Growth,
    Score,
    Formula(usize),
    Time,
}

/// Blocks that always end up in the same rows. Depending on the kind of rows, the number is their
/// stack, thread, size in bytes or histogram bucket.
pub(crate) type Part = (u64, Sums);

/// Sums over the blocks of a part or of a row.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sums {
    pub amount: Estimate,
    /// Bytes of live blocks that have not been seen since a gap.
    pub unseen_bytes: f64,
    /// Unreachable blocks at the end of the run; `None` without a search.
    pub unreachable: Option<Estimate>,
    /// Change of the live bytes.
    pub growth_bytes: f64,
    /// Allocation time of the oldest live block in nanoseconds since the attach; `None` if no block
    /// is live.
    pub oldest_ns: Option<u64>,
    /// Blocks that this stack released.
    pub released: Estimate,
    /// Time that the allocations spent in the allocator. Covers zero calls if calls were not timed.
    pub in_allocator: TimeTaken,
}

impl std::ops::AddAssign for Sums {
    fn add_assign(&mut self, more: Sums) {
        self.amount += more.amount;
        self.unseen_bytes += more.unseen_bytes;
        if let Some(more) = more.unreachable {
            *self.unreachable.get_or_insert_default() += more;
        }
        self.growth_bytes += more.growth_bytes;
        let both = self.oldest_ns.into_iter().chain(more.oldest_ns);
        self.oldest_ns = both.min();
        self.released += more.released;
        self.in_allocator += more.in_allocator;
    }
}

/// Identity of a row. Rows with equal keys in two reports are compared to compute growth.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RowKey {
    /// Stack, return address, thread, size or bucket; 0 if the name alone identifies the row.
    pub number: u64,
    pub name: String,
}

/// One row.
#[derive(Clone, Default)]
pub(crate) struct Row {
    pub key: RowKey,
    pub sums: Sums,
    /// Bytes of blocks whose innermost frame is this row's.
    pub self_bytes: f64,
    /// Score of the row, or the user-defined score by which rows are sorted; `None` if unknown.
    pub score: Option<f64>,
}

impl Row {
    fn new(key: RowKey) -> Row {
        Row {
            key,
            ..Row::default()
        }
    }

    fn is_something(&self) -> bool {
        self.sums.amount != Estimate::default() || self.sums.released.blocks > 0.0
    }
}

/// Returns the addresses whose names determine which rows the parts belong to.
pub(crate) fn deciding_addresses(by: RowsBy, parts: &[Part], run: &dyn NamedRun) -> BTreeSet<u64> {
    let stacks = parts.iter().map(|part| run.addresses(part.0 as u32));
    match by {
        RowsBy::Function | RowsBy::Type => stacks.flatten().collect(),
        RowsBy::Module => stacks.filter_map(|s| s.first().copied()).collect(),
        _ => BTreeSet::new(),
    }
}

/// Groups the parts into rows, in the order of their first appearance.
pub(crate) fn rows(by: RowsBy, parts: &[Part], run: &dyn NamedRun) -> Vec<Row> {
    let mut table = Table::default();
    for &(number, sums) in parts {
        let on = table.rows_of(by, number, run);
        for (place, &at) in on.iter().enumerate() {
            // A recursive function has several frames, but a block counts once.
            if !on[..place].contains(&at) {
                table.rows[at].sums += sums;
            }
        }
        if let Some(&innermost) = on.first() {
            table.rows[innermost].self_bytes += sums.amount.bytes;
        }
    }
    table.rows.retain(Row::is_something);
    table.rows
}

/// The rows found so far.
#[derive(Default)]
struct Table {
    rows: Vec<Row>,
    of_key: FxHashMap<RowKey, usize>,
    /// Rows of a return address. They are cached, because one call is on many stacks.
    of_address: FxHashMap<u64, Vec<usize>>,
}

impl Table {
    fn row(&mut self, number: u64, name: String) -> usize {
        let key = RowKey { number, name };
        *self.of_key.entry(key).or_insert_with_key(|key| {
            self.rows.push(Row::new(key.clone()));
            self.rows.len() - 1
        })
    }

    /// Returns the rows that a part belongs to, the row of its innermost frame first.
    fn rows_of(&mut self, by: RowsBy, number: u64, run: &dyn NamedRun) -> Vec<usize> {
        let stack = number as u32;
        match by {
            RowsBy::Site => vec![self.row(number, String::new())],
            RowsBy::Thread => vec![self.row(number, thread_label(stack, run))],
            RowsBy::Size => vec![self.row(number, run.size_name(number))],
            RowsBy::Lifetime => vec![self.row(number, lifetime_class(number as u8))],
            RowsBy::Type => {
                let found = run.type_of(stack).map(one_spelling);
                vec![self.row(0, found.unwrap_or_else(|| UNKNOWN_TYPE.into()))]
            }
            RowsBy::Module => {
                let innermost = run.addresses(stack).first().copied();
                let module = innermost.and_then(|a| run.frames_at(a).into_iter().next()?.module);
                vec![self.row(0, module.unwrap_or("unknown".into()))]
            }
            RowsBy::Frame => {
                let addresses = run.addresses(stack).into_iter();
                addresses.map(|a| self.row(a, format!("{a:#x}"))).collect()
            }
            RowsBy::Function => {
                let addresses = run.addresses(stack);
                let mut all = Vec::with_capacity(addresses.len());
                for address in addresses {
                    if !self.of_address.contains_key(&address) {
                        let names = run.frames_at(address).into_iter().map(function_name);
                        let rows = names.map(|name| self.row(0, name)).collect();
                        self.of_address.insert(address, rows);
                    }
                    all.extend_from_slice(&self.of_address[&address]);
                }
                if all.is_empty() {
                    all.push(self.row(0, "unknown".into()));
                }
                all
            }
        }
    }
}

/// Suffix for an ended thread whose name is unknown.
const ENDED: &str = " (ended)";

fn thread_label(tid: u32, run: &dyn NamedRun) -> String {
    match (tid, run.thread_name(tid)) {
        (0, _) => "threads that were not recorded".to_owned(),
        (tid, name) if name.is_empty() => format!("thread {tid}{ENDED}"),
        (tid, name) => format!("thread {tid} ({name})"),
    }
}

fn function_name(frame: StackFrame) -> String {
    let module = frame.module.as_deref().unwrap_or("unknown");
    match &frame.function {
        Some(function) => format!("{function} ({module})"),
        // All unnamed code of a module shares one row.
        None => format!("{NAMELESS} ({module})"),
    }
}

/// Returns thread rows for a text report, with the ended threads merged into one row, because only
/// their ids distinguish them. Returns `None` if there is nothing to merge.
pub(crate) fn with_ended_as_one(by: RowsBy, rows: &[Row]) -> Option<Vec<Row>> {
    let is_ended = |row: &&Row| by == RowsBy::Thread && row.key.name.ends_with(ENDED);
    let count = rows.iter().filter(is_ended).count();
    if count < 2 {
        return None;
    }
    let mut one = Row::new(RowKey {
        number: 0,
        name: format!("{} that ended", counted(count as u64, "thread")),
    });
    let (ended, mut all): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(is_ended);
    for row in ended {
        one.sums += row.sums;
        one.self_bytes += row.self_bytes;
    }
    all.push(&one);
    Some(all.into_iter().cloned().collect())
}

/// Maps a floating-point number to an integer that preserves its order. IEEE 754 numbers of the
/// same sign are ordered like their bit patterns.
fn in_order(number: f64) -> i64 {
    // Both zeros are equal.
    let bits = (number + 0.0).to_bits() as i64;
    if bits < 0 { i64::MIN - bits } else { bits }
}

/// Row of code without symbols, before its module.
const NAMELESS: &str = "code without names";

/// Functions at the root of every stack of a thread or of the whole program: those of glibc and
/// musl, and `main`.
const ROOTS: [&str; 8] = [
    "_start",
    "__clone",
    "__libc_start_call_main",
    "__libc_start_main",
    "__libc_start_main_impl",
    "clone3",
    "main",
    "start_thread",
];

/// Returns true for rows without information: a function that is on nearly every stack, or code
/// without names.
fn is_root(row: &Row) -> bool {
    let function = row.key.name.split_once(" (");
    let says_nothing = |name| name == NAMELESS || ROOTS.contains(&name);
    function.is_some_and(|(name, _)| says_nothing(name)) && row.self_bytes == 0.0
}

/// Sorts rows. Rows of thread entry functions come last. Ties are broken by self bytes, then by
/// released bytes, largest first.
pub(crate) fn sort(rows: &mut [Row], by: SortBy) {
    let largest = |number: f64| Reverse(number.round() as i64);
    rows.sort_by_cached_key(|row| {
        let first = match by {
            SortBy::Bytes => largest(row.sums.amount.bytes),
            SortBy::Count => largest(row.sums.amount.blocks),
            SortBy::Time => largest(row.sums.in_allocator.time),
            SortBy::Growth => largest(row.sums.growth_bytes),
            SortBy::Score => Reverse(row.score.map_or(i64::MIN, |score| in_order(-score))),
            SortBy::Formula(_) => Reverse(row.score.map_or(i64::MIN, in_order)),
            SortBy::Age => Reverse(-row.sums.oldest_ns.map_or(i64::MAX, |ns| ns as i64)),
        };
        let released = largest(row.sums.released.bytes);
        (
            is_root(row),
            first,
            largest(row.self_bytes),
            released,
            row.key.clone(),
        )
    });
}

/// Converts internal rows to report rows. Ages refer to `now_ns`.
pub(crate) fn shown(
    by: RowsBy,
    rows: Vec<Row>,
    now_ns: u64,
    run: &dyn NamedRun,
) -> (Vec<SiteRow>, Vec<GroupRow>) {
    let (mut sites, mut groups) = (Vec::new(), Vec::new());
    let whole = |number: f64| number.round() as u64;
    for row in rows {
        let (bytes, blocks) = (whole(row.sums.amount.bytes), whole(row.sums.amount.blocks));
        let error_bytes = row.sums.amount.error_bytes();
        let allocator_time = AllocatorTime::of(row.sums.in_allocator);
        let unseen_bytes = whole(row.sums.unseen_bytes);
        let unreachable_bytes = row.sums.unreachable.map(|sum| whole(sum.bytes));
        let lost = row.sums.unreachable.filter(|sum| sum.bytes > 0.0);
        let unreachable_error_bytes = lost.and_then(|sum| sum.error_bytes());
        let growth_bytes = row.sums.growth_bytes.round() as i64;
        let age = |oldest: u64| (now_ns / 1_000_000).saturating_sub(oldest / 1_000_000);
        let oldest_ms = row.sums.oldest_ns.map_or(0, age);
        if by == RowsBy::Site {
            let stack = row.key.number as u32;
            let (kind, truncated) = run.call(stack);
            sites.push(SiteRow {
                stack_id: stack,
                scores: None,
                custom_scores: CustomValues::default(),
                bytes,
                blocks,
                unseen_bytes,
                unreachable_bytes,
                unreachable_error_bytes,
                error_bytes,
                allocator_time,
                growth_bytes,
                oldest_ms,
                heap: None,
                kind,
                truncated,
                cut: run.is_cut(stack),
                stack: run.stack(stack),
            });
            continue;
        }
        groups.push(GroupRow {
            frame: match by {
                // The row shows the function that contains the call, not functions inlined at that
                // address.
                RowsBy::Frame => run.frames_at(row.key.number).pop(),
                _ => None,
            },
            name: row.key.name,
            bytes,
            self_bytes: whole(row.self_bytes),
            blocks,
            unseen_bytes,
            unreachable_bytes,
            unreachable_error_bytes,
            error_bytes,
            allocator_time,
            growth_bytes,
            oldest_ms,
            heap: None,
            released_bytes: whole(row.sums.released.bytes),
            released_blocks: whole(row.sums.released.blocks),
        });
    }
    (sites, groups)
}

/// Formats the bucket of a power of two as a size range, such as 64 to 127 bytes.
pub(crate) fn size_class(bucket: u8) -> String {
    match bucket {
        0 => "0 bytes".into(),
        1 => "1 byte".into(),
        _ => {
            let first = 1u64 << (bucket - 1);
            let last = first.checked_mul(2).map_or(u64::MAX, |next| next - 1);
            format!("{first} to {last} bytes")
        }
    }
}

/// Formats the bucket of a power of two in nanoseconds in whole milliseconds, the resolution of
/// lifetimes.
fn lifetime_class(bucket: u8) -> String {
    if bucket == 0 {
        return "less than 1 ms".into();
    }
    let first_ns = 1u64 << (bucket - 1);
    let last_ns = first_ns.checked_mul(2).map_or(u64::MAX, |next| next - 1);
    let (first, last) = (first_ns.div_ceil(1_000_000), last_ns / 1_000_000);
    let time = crate::milliseconds;
    if first < last {
        format!("{} to {}", time(first), time(last))
    } else {
        time(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_ended_are_one_row() {
        let thread = |name: &str, bytes: f64| {
            let mut row = Row::new(RowKey {
                number: 7,
                name: name.to_owned(),
            });
            row.sums.amount.bytes = bytes;
            row
        };
        let all = [
            thread("thread 7 (worker)", 40.0),
            thread("thread 8 (ended)", 50.0),
            thread("thread 9 (ended)", 60.0),
        ];
        let mut folded = with_ended_as_one(RowsBy::Thread, &all).expect("rows");
        sort(&mut folded, SortBy::Bytes);
        let shown: Vec<_> = folded
            .iter()
            .map(|row| (row.key.name.as_str(), row.sums.amount.bytes))
            .collect();
        let expected = [("2 threads that ended", 110.0), ("thread 7 (worker)", 40.0)];
        assert_eq!(shown, expected);
        assert!(with_ended_as_one(RowsBy::Thread, &all[..2]).is_none());
        assert!(with_ended_as_one(RowsBy::Function, &all).is_none());
    }

    #[test]
    fn functions_that_every_stack_begins_with_come_last() {
        let function = |name: &str, bytes: f64, self_bytes: f64| {
            let name = name.to_owned();
            let mut row = Row::new(RowKey { number: 0, name });
            row.sums.amount.bytes = bytes;
            row.self_bytes = self_bytes;
            row
        };
        let mut rows = [
            function("clone3 (libc.so.6)", 100.0, 0.0),
            function("main (a)", 90.0, 0.0),
            function("work (a)", 80.0, 0.0),
            // A row that itself allocates stays in its place.
            function("start_thread (libc.so.6)", 70.0, 70.0),
        ];
        sort(&mut rows, SortBy::Bytes);
        let names = rows.map(|row| row.key.name);
        let expected = [
            "work (a)",
            "start_thread (libc.so.6)",
            "clone3 (libc.so.6)",
            "main (a)",
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn classes_have_names() {
        let sizes = [0, 1, 2, 7, 64].map(size_class);
        assert_eq!(
            sizes[..4],
            ["0 bytes", "1 byte", "2 to 3 bytes", "64 to 127 bytes"]
        );
        assert!(sizes[4].ends_with("to 18446744073709551615 bytes"));
        let lifetimes = [0, 20, 21, 22, 30].map(lifetime_class);
        let expected = [
            "less than 1 ms",
            "1 ms",
            "2 ms",
            "3 ms to 4 ms",
            "537 ms to 1.1 s",
        ];
        assert_eq!(lifetimes, expected);
    }
}
