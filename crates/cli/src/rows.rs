//! The rows of a report: live blocks grouped by site, frame, function, module, thread or size.

use crate::counts::Counts;
use crate::options::GroupBy;
use crate::session::Session;
use memhook_ledger::Ledger;
use memhook_symbols::{Location, Symbolizer};
use rustc_hash::FxHashMap;
use std::collections::{BTreeSet, HashMap};

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
    /// Bytes of blocks whose innermost frame this is.
    pub self_bytes: f64,
    /// Change of `bytes` since the last report.
    pub growth_bytes: f64,
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
    self_bytes: f64,
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
            self_bytes: 0.0,
            variance: 0.0,
            oldest_ns: u64::MAX,
            released_bytes: 0,
            released_blocks: 0,
        }
    }
}

impl Sum {
    fn add(&mut self, other: &Sum, innermost: bool) {
        self.bytes += other.bytes;
        self.blocks += other.blocks;
        self.self_bytes += if innermost { other.bytes } else { 0.0 };
        self.variance += other.variance;
        self.oldest_ns = self.oldest_ns.min(other.oldest_ns);
        self.released_bytes += other.released_bytes;
        self.released_blocks += other.released_blocks;
    }
}

/// Sums of the live blocks at one moment, by a number: of the stack, the thread or the size.
pub struct Sums {
    by: GroupBy,
    of: FxHashMap<u64, Sum>,
}

impl Sums {
    /// One walk over the live blocks. `before`: only those allocated before this time (ns since the
    /// attach).
    pub fn collect(by: GroupBy, ledger: &Ledger, counts: &Counts, before: Option<u64>) -> Sums {
        let mut of: FxHashMap<u64, Sum> = FxHashMap::default();
        let by_stack = !matches!(by, GroupBy::Thread | GroupBy::Size);
        let keeps_all = ledger.bounded().is_none_or(|bounded| !bounded.is_thinned);
        if by_stack && !counts.is_sampled() && keeps_all {
            for site in ledger.live_by(before) {
                let sum = of.entry(u64::from(site.stack)).or_default();
                sum.bytes = site.bytes as f64;
                sum.blocks = site.blocks as f64;
                sum.oldest_ns = site.oldest_ns;
            }
        } else {
            for block in ledger.live_blocks() {
                if before.is_some_and(|limit| block.time_ns >= limit) {
                    continue;
                }
                let number = match by {
                    GroupBy::Thread => u64::from(block.tid),
                    GroupBy::Size => block.size,
                    _ => u64::from(block.stack),
                };
                // Two samples, of which neither knows of the other.
                let weight = counts.weight(block.size) * ledger.weight(block.size);
                let sum = of.entry(number).or_default();
                sum.bytes += weight * block.size as f64;
                sum.blocks += weight;
                // Horvitz-Thompson: (1 - p) / p^2 * size^2 for each block, p = 1 / weight.
                sum.variance += (weight - 1.0) * weight * (block.size as f64).powi(2);
                sum.oldest_ns = sum.oldest_ns.min(block.time_ns);
            }
        }
        if matches!(by, GroupBy::Frame | GroupBy::Function) {
            for (stack, blocks, bytes) in ledger.release_sites() {
                let sum = of.entry(u64::from(stack)).or_default();
                sum.released_bytes += bytes;
                sum.released_blocks += blocks;
            }
        }
        Sums { by, of }
    }

    /// The return addresses whose names decide which row a block belongs to.
    pub fn addresses(&self, session: &Session) -> BTreeSet<u64> {
        let stacks = self.of.keys().filter_map(|&id| session.stack(id as u32));
        match self.by {
            GroupBy::Function => stacks.flat_map(|(_, frames)| frames).collect(),
            GroupBy::Module => stacks.filter_map(|(_, f)| f.first().copied()).collect(),
            _ => BTreeSet::new(),
        }
    }

    /// The rows, in no order. The names of [`Sums::addresses`] must be there.
    pub fn rows(&self, session: &Session, symbols: &Symbolizer) -> Vec<Row> {
        let mut found: HashMap<RowKey, Sum> = HashMap::new();
        for (number, sum) in &self.of {
            // A recursive function has a block on its row once.
            let mut keys: Vec<RowKey> = Vec::new();
            for key in self.keys(*number, session, symbols) {
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
            for (i, key) in keys.into_iter().enumerate() {
                found.entry(key).or_default().add(sum, i == 0);
            }
        }
        let row = |(key, sum): (RowKey, Sum)| Row {
            key,
            bytes: sum.bytes,
            blocks: sum.blocks,
            self_bytes: sum.self_bytes,
            growth_bytes: 0.0,
            variance: sum.variance,
            oldest_ns: if sum.blocks > 0.0 { sum.oldest_ns } else { 0 },
            released_bytes: sum.released_bytes,
            released_blocks: sum.released_blocks,
        };
        found.into_iter().map(row).collect()
    }

    /// The rows that blocks with this number belong to; the innermost frame's first.
    fn keys(&self, number: u64, session: &Session, symbols: &Symbolizer) -> Vec<RowKey> {
        let frames = || {
            let stack = session.stack(number as u32);
            stack.map(|(_, frames)| frames).unwrap_or_default()
        };
        let unknown = || vec![RowKey::Name("unknown".into())];
        match self.by {
            GroupBy::Site => vec![RowKey::Stack(number as u32)],
            GroupBy::Size => vec![RowKey::Size(number)],
            GroupBy::Thread => vec![RowKey::Thread(
                number as u32,
                session.thread_name(number as u32),
            )],
            GroupBy::Frame => frames().into_iter().map(RowKey::Frame).collect(),
            GroupBy::Function => {
                let locations = frames().into_iter().map(|a| symbols.location(a));
                let names: Vec<_> = locations.flat_map(|l| function_names(&l)).collect();
                match names.is_empty() {
                    true => unknown(),
                    false => names.into_iter().map(RowKey::Name).collect(),
                }
            }
            GroupBy::Module => match frames().first() {
                Some(&innermost) => {
                    let module = symbols.location(innermost).module;
                    vec![RowKey::Name(module.unwrap_or("unknown".into()))]
                }
                None => unknown(),
            },
        }
    }
}

/// The functions at a location, inlined ones too, innermost first.
fn function_names(location: &Location) -> Vec<String> {
    let module = location.module.as_deref().unwrap_or("unknown");
    let named = location.frames.iter().filter_map(|f| f.function.as_ref());
    let names: Vec<_> = named.map(|name| format!("{name} ({module})")).collect();
    match names.is_empty() {
        // Code without names: all of a module that is not known better is one row.
        true => vec![format!("code without names ({module})")],
        false => names,
    }
}
