//! The rows of a report: live blocks grouped by site, frame, function, module, thread or size.

use crate::model::Counts;
use crate::options::GroupBy;
use crate::session::Session;
use memhook_ledger::Ledger;
use memhook_symbols::Symbolizer;
use std::collections::{HashMap, HashSet};

/// What a row is about; two reports' rows with equal keys are compared for growth.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowKey {
    /// Stack id.
    Stack(u32),
    /// Return address (avma).
    Frame(u64),
    /// Function or module.
    Name(String),
    /// Thread id and name.
    Thread(u32, String),
    /// Block size in bytes.
    Size(u64),
}

impl RowKey {
    /// As reports show it.
    pub fn name(&self) -> String {
        match self {
            RowKey::Stack(id) => format!("stack {id}"),
            RowKey::Frame(address) => format!("{address:#x}"),
            RowKey::Name(name) => name.clone(),
            RowKey::Thread(tid, name) if name.is_empty() => format!("thread {tid} (ended)"),
            RowKey::Thread(tid, name) => format!("thread {tid} ({name})"),
            RowKey::Size(size) => format!("{size} bytes"),
        }
    }
}

/// One row.
pub struct Row {
    pub key: RowKey,
    /// Live bytes and blocks, estimates when sampled.
    pub bytes: f64,
    pub blocks: f64,
    /// Estimated variance of `bytes`; 0 unless sampled.
    variance: f64,
    /// Allocation time of the oldest block, in nanoseconds since the attach.
    pub oldest_ns: u64,
    pub released_bytes: u64,
    pub released_blocks: u64,
}

impl Row {
    /// Standard error of `bytes`, if it is an estimate.
    pub fn error_bytes(&self) -> Option<u64> {
        (self.variance > 0.0).then(|| self.variance.sqrt().round() as u64)
    }
}

#[derive(Clone, Copy)]
struct Sum {
    bytes: f64,
    blocks: f64,
    variance: f64,
    oldest_ns: u64,
    released_bytes: u64,
    released_blocks: u64,
}

impl Default for Sum {
    fn default() -> Sum {
        Sum {
            bytes: 0.0,
            blocks: 0.0,
            variance: 0.0,
            oldest_ns: u64::MAX,
            released_bytes: 0,
            released_blocks: 0,
        }
    }
}

impl Sum {
    fn add(&mut self, other: &Sum) {
        self.bytes += other.bytes;
        self.blocks += other.blocks;
        self.variance += other.variance;
        self.oldest_ns = self.oldest_ns.min(other.oldest_ns);
        self.released_bytes += other.released_bytes;
        self.released_blocks += other.released_blocks;
    }
}

/// Live blocks summed by stack id, thread or size, and releases by stack id.
#[derive(Default)]
pub struct Sums(HashMap<u64, Sum>);

/// Sums up the live blocks; with `before` only those allocated before this time (ns since the
/// attach).
pub fn sum_up(by: GroupBy, ledger: &Ledger, counts: &Counts, before: Option<u64>) -> Sums {
    let mut sums: HashMap<u64, Sum> = HashMap::new();
    for block in ledger.live_blocks() {
        if before.is_some_and(|limit| block.time_ns >= limit) {
            continue;
        }
        let number = match by {
            GroupBy::Thread => u64::from(block.tid),
            GroupBy::Size => block.size,
            _ => u64::from(block.stack),
        };
        let weight = counts.weight(block.size);
        let sum = sums.entry(number).or_default();
        sum.bytes += weight * block.size as f64;
        sum.blocks += weight;
        // Horvitz-Thompson: (1 - p) / p^2 * size^2 for each block, p = 1 / weight.
        sum.variance += (weight - 1.0) * weight * (block.size as f64).powi(2);
        sum.oldest_ns = sum.oldest_ns.min(block.time_ns);
    }
    if by == GroupBy::Frame {
        for (stack, blocks, bytes) in ledger.release_sites() {
            let sum = sums.entry(u64::from(stack)).or_default();
            sum.released_bytes += bytes;
            sum.released_blocks += blocks;
        }
    }
    Sums(sums)
}

/// The rows, in no order.
pub fn rows(by: GroupBy, sums: &Sums, session: &Session, symbols: &mut Symbolizer) -> Vec<Row> {
    let mut found: HashMap<RowKey, Sum> = HashMap::new();
    for (number, sum) in &sums.0 {
        for key in keys(by, *number, session, symbols) {
            found.entry(key).or_default().add(sum);
        }
    }
    let row = |(key, sum): (RowKey, Sum)| Row {
        key,
        bytes: sum.bytes,
        blocks: sum.blocks,
        variance: sum.variance,
        oldest_ns: if sum.blocks > 0.0 { sum.oldest_ns } else { 0 },
        released_bytes: sum.released_bytes,
        released_blocks: sum.released_blocks,
    };
    found.into_iter().map(row).collect()
}

/// The rows that blocks with this number belong to.
fn keys(by: GroupBy, number: u64, session: &Session, symbols: &mut Symbolizer) -> Vec<RowKey> {
    let frames = || {
        let stack = session.stack(number as u32);
        stack.map(|(_, frames)| frames).unwrap_or_default()
    };
    match by {
        GroupBy::Site => vec![RowKey::Stack(number as u32)],
        GroupBy::Size => vec![RowKey::Size(number)],
        GroupBy::Thread => vec![RowKey::Thread(
            number as u32,
            session.thread_name(number as u32),
        )],
        // A recursive function has a block on its row once.
        GroupBy::Frame => {
            let distinct: HashSet<u64> = frames().into_iter().collect();
            distinct.into_iter().map(RowKey::Frame).collect()
        }
        GroupBy::Function | GroupBy::Module => {
            let frames = frames();
            let Some(&innermost) = frames.first() else {
                return vec![RowKey::Name("unknown".into())];
            };
            let location = symbols.resolve(innermost);
            let module = location.module.clone().unwrap_or("unknown".into());
            let function = location.frames.first().and_then(|f| f.function.clone());
            vec![RowKey::Name(match (by, function) {
                (GroupBy::Function, Some(function)) => format!("{function} ({module})"),
                (GroupBy::Function, None) => format!("{module}+{:#x}", location.svma),
                _ => module,
            })]
        }
    }
}
