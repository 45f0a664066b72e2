//! The rows of a recording's report: blocks of one measure, grouped.

use memhook_report::{Amount, Measure, Profile, ProfileFrame, StackFrame};
use rustc_hash::FxHashMap;

/// What the rows are.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum RowsBy {
    /// Call stack of the allocation
    Site,
    /// Call in the code: every call on a stack carries the block
    Frame,
    /// Function: every function on a stack carries the block
    Function,
    /// Module that called the allocator
    Module,
    /// Allocating thread
    Thread,
    /// Block size
    Size,
    /// Time from allocation to release
    Lifetime,
}

impl RowsBy {
    /// The word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            RowsBy::Site => "site",
            RowsBy::Frame => "frame",
            RowsBy::Function => "function",
            RowsBy::Module => "module",
            RowsBy::Thread => "thread",
            RowsBy::Size => "size",
            RowsBy::Lifetime => "lifetime",
        }
    }
}

/// One row.
#[derive(Default)]
pub struct Row {
    /// Tells rows of equal size apart.
    pub order: (u64, String),
    pub name: String,
    /// Index of the stack, allocating function, whether the stack was cut short; only of sites.
    pub stack: Option<(u32, String, bool)>,
    /// Only of calls.
    pub frame: Option<StackFrame>,
    pub amount: Amount,
    /// Bytes of blocks whose innermost frame this is.
    pub self_bytes: u64,
    pub growth_bytes: i64,
    pub oldest_ns: Option<u64>,
    /// Released below this call.
    pub released: Amount,
}

impl Row {
    fn add(&mut self, site: &memhook_report::ProfileSite, measure: Measure, innermost: bool) {
        let amount = measure.of(&site.measures);
        self.amount += amount;
        self.self_bytes += if innermost { amount.bytes } else { 0 };
        self.growth_bytes += site.measures.live.bytes as i64 - site.before.bytes as i64;
        self.oldest_ns = match (self.oldest_ns, site.oldest_ns) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

/// The rows in no order but that of sizes and lifetimes.
pub fn rows(profile: &Profile, by: RowsBy, measure: Measure) -> Vec<Row> {
    match by {
        RowsBy::Size if measure == Measure::Live => {
            let sizes = profile.live_sizes.iter();
            let row =
                |&(size, amount): &(u64, Amount)| plain(size, format!("{size} bytes"), amount);
            return sizes.map(row).collect();
        }
        RowsBy::Size => {
            let classes = profile.allocated_sizes.iter();
            let row = |&(bucket, amount): &(u8, Amount)| {
                plain(u64::from(bucket), size_class(bucket), amount)
            };
            return classes.map(row).collect();
        }
        RowsBy::Lifetime => {
            let classes = profile.lifetimes.iter();
            let row = |&(bucket, amount): &(u8, Amount)| {
                plain(u64::from(bucket), lifetime_class(bucket), amount)
            };
            return classes.map(row).collect();
        }
        _ => {}
    }
    let mut found: FxHashMap<(u64, String), Row> = FxHashMap::default();
    for site in &profile.sites {
        let mut seen: Vec<(u64, String)> = Vec::new();
        for key in keys(profile, by, site) {
            if seen.contains(&key) {
                // A recursive function has a block once.
                continue;
            }
            let row = found.entry(key.clone()).or_default();
            row.add(site, measure, seen.is_empty());
            if by == RowsBy::Site {
                row.stack = Some((site.stack, site.kind.clone(), site.truncated));
            }
            seen.push(key);
        }
    }
    if matches!(by, RowsBy::Frame | RowsBy::Function) {
        add_releases(profile, by, &mut found);
    }
    let frames = match by {
        RowsBy::Frame => frames_by_address(profile),
        _ => FxHashMap::default(),
    };
    let rows = found.into_iter().map(|(key, mut row)| {
        row.frame = frames.get(&key.0).map(|&frame| frame.clone());
        row.name = key.1.clone();
        row.order = key;
        row
    });
    let is_something = |row: &Row| row.amount != Amount::default() || row.released.blocks > 0;
    rows.filter(is_something).collect()
}

fn plain(order: u64, name: String, amount: Amount) -> Row {
    Row {
        order: (order, String::new()),
        name,
        amount,
        self_bytes: amount.bytes,
        growth_bytes: amount.bytes as i64,
        ..Row::default()
    }
}

/// The rows that a site belongs to, the innermost frame's first.
fn keys(profile: &Profile, by: RowsBy, site: &memhook_report::ProfileSite) -> Vec<(u64, String)> {
    match by {
        RowsBy::Site => vec![(u64::from(site.stack), String::new())],
        RowsBy::Thread => {
            let name = match (site.tid, site.thread.as_str()) {
                (0, _) => "threads that were not recorded".to_owned(),
                (tid, "") => format!("thread {tid} (ended)"),
                (tid, name) => format!("thread {tid} ({name})"),
            };
            vec![(u64::from(site.tid), name)]
        }
        RowsBy::Module => {
            let innermost = profile.stacks[site.stack as usize].first();
            let frame = innermost.map(|&frame| &profile.frames[frame as usize]);
            let module = frame.and_then(|frame| frame.frame.module.clone());
            vec![(0, module.unwrap_or("unknown".into()))]
        }
        _ => stack_keys(profile, by, site.stack),
    }
}

fn stack_keys(profile: &Profile, by: RowsBy, stack: u32) -> Vec<(u64, String)> {
    let frames = profile.stacks[stack as usize].iter();
    let frames = frames.map(|&frame| &profile.frames[frame as usize]);
    let keys: Vec<(u64, String)> = match by {
        RowsBy::Frame => frames.map(|frame| (frame.address, String::new())).collect(),
        _ => frames.map(|frame| (0, function_name(frame))).collect(),
    };
    match (keys.is_empty(), by) {
        (true, RowsBy::Function) => vec![(0, "unknown".into())],
        _ => keys,
    }
}

fn function_name(frame: &ProfileFrame) -> String {
    let module = frame.frame.module.as_deref().unwrap_or("unknown");
    match &frame.frame.function {
        Some(function) => format!("{function} ({module})"),
        // Code without names: all of a module that is not known better is one row.
        None => format!("code without names ({module})"),
    }
}

/// By address: the function that the call stands in, not those inlined there.
fn frames_by_address(profile: &Profile) -> FxHashMap<u64, &StackFrame> {
    let frames = profile.frames.iter();
    frames.map(|frame| (frame.address, &frame.frame)).collect()
}

fn add_releases(profile: &Profile, by: RowsBy, found: &mut FxHashMap<(u64, String), Row>) {
    for released in &profile.releases {
        if profile.stacks[released.by as usize].is_empty() {
            continue;
        }
        let mut keys = stack_keys(profile, by, released.by);
        keys.sort_unstable();
        keys.dedup();
        for key in keys {
            let row = found.entry(key).or_default();
            row.released += released.amount;
        }
    }
}

/// A power of two: 64 to 127 bytes.
fn size_class(bucket: u8) -> String {
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

/// A power of two in nanoseconds, as the whole milliseconds in it: lifetimes are known to those.
fn lifetime_class(bucket: u8) -> String {
    if bucket == 0 {
        return "less than 1 ms".into();
    }
    let first_ns = 1u64 << (bucket - 1);
    let last_ns = first_ns.checked_mul(2).map_or(u64::MAX, |next| next - 1);
    let (first, last) = (first_ns.div_ceil(1_000_000), last_ns / 1_000_000);
    let time = memhook_report::milliseconds;
    match first < last {
        true => format!("{} to {}", time(first), time(last)),
        false => time(first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
