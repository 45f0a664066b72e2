//! A run with simulated events, and its profile.

use memhook_report::*;
use std::collections::{BTreeMap, BTreeSet};

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % end
    }
}

/// Functions with characters that a format might mishandle.
const FUNCTIONS: [&str; 12] = [
    "main",
    "serve(int)",
    "Server::handle(Request const&)",
    "std::vector<Order, std::allocator<Order> >::push_back(Order&&)",
    "parse<char const*, std::map<int, std::string> >(char const*)",
    "operator<<(std::ostream&, Row const&)",
    "run()::{lambda(int)#2}::operator()(int) const",
    "quote\"d & <marked>; up\u{e9}\u{4e16}\u{754c}",
    "weird name\nwith a line end",
    "cache_insert",
    "cache_grow",
    "n12: 34 0x5: looks_like_a_node",
];

const DEPTH: u64 = 6;

#[derive(Clone, Copy, Default)]
struct Sum {
    live: Amount,
    measures: Measures,
}

fn add(amount: &mut Amount, bytes: u64) {
    amount.blocks += 1;
    amount.bytes += bytes;
}

fn subtract(amount: &mut Amount, bytes: u64) {
    amount.blocks -= 1;
    amount.bytes -= bytes;
}

struct Block {
    site: usize,
    bytes: u64,
}

/// Returns the profile of a run with the given numbers of events and stacks.
pub fn profile(seed: u64, events: u64, stacks: u64) -> Profile {
    let mut random = Random(seed * 2 + 1);
    let mut profile = tables(&mut random, stacks);
    let mut sums: Vec<Sum> = profile.sites.iter().map(|_| Sum::default()).collect();
    let mut sizes: Vec<BTreeMap<u8, u64>> = vec![BTreeMap::new(); sums.len()];
    let mut blocks: Vec<Block> = Vec::new();
    // For each thread, the site of its last allocation, if the thread has released nothing since
    // then.
    let mut last: BTreeMap<u32, usize> = BTreeMap::new();
    let mut changed = BTreeSet::new();
    let mut is_at_peak = false;
    let (mut live, mut peak) = (Amount::default(), 0);
    let (mut allocated, mut temporary) = (Amount::default(), Amount::default());
    for event in 0..events {
        let time_ns = event * 1_000_003;
        let grows = random.below(100) < if event < events * 2 / 3 { 52 } else { 45 };
        if blocks.is_empty() || grows {
            let site = random.below(sums.len() as u64) as usize;
            let bytes = match random.below(10) {
                0 => 0,
                1 => random.below(100_000),
                _ => random.below(400),
            };
            changed.insert(site);
            let sum = &mut sums[site];
            add(&mut sum.live, bytes);
            add(&mut sum.measures.allocated, bytes);
            add(&mut live, bytes);
            add(&mut allocated, bytes);
            *sizes[site]
                .entry((64 - bytes.leading_zeros()) as u8)
                .or_default() += 1;
            last.insert(profile.sites[site].tid, blocks.len());
            blocks.push(Block { site, bytes });
            if live.bytes > peak {
                peak = live.bytes;
                profile.peak_ns = time_ns;
                is_at_peak = true;
            }
        } else {
            if std::mem::take(&mut is_at_peak) {
                sums.iter_mut().for_each(|sum| sum.measures.peak = sum.live);
            }
            // Half of the releases are of the latest block.
            let at = match random.below(2) {
                0 => blocks.len() - 1,
                _ => random.below(blocks.len() as u64) as usize,
            };
            let block = blocks.swap_remove(at);
            let moved = blocks.len();
            changed.insert(block.site);
            let tid = profile.sites[block.site].tid;
            let is_temporary = last.get(&tid) == Some(&at);
            last.retain(|_, index| *index != at);
            last.values_mut()
                .filter(|index| **index == moved)
                .for_each(|index| *index = at);
            let sum = &mut sums[block.site];
            subtract(&mut sum.live, block.bytes);
            add(&mut sum.measures.released, block.bytes);
            subtract(&mut live, block.bytes);
            if is_temporary {
                add(&mut sum.measures.temporary, block.bytes);
                add(&mut temporary, block.bytes);
            }
        }
        if event.is_multiple_of((events / 300).max(1)) || event + 1 == events {
            let point = profile.timeline.len() as u32;
            for site in std::mem::take(&mut changed) {
                profile.changes.push(SitePoint {
                    point,
                    site: site as u32,
                    live: sums[site].live,
                    allocated: sums[site].measures.allocated,
                });
            }
            profile.timeline.push(Point {
                time_ns,
                live,
                allocated,
                temporary,
            });
        }
    }
    if is_at_peak {
        sums.iter_mut().for_each(|sum| sum.measures.peak = sum.live);
    }
    profile.to_ns = events * 1_000_003;
    let sites = profile.sites.iter_mut().zip(&sums).zip(&sizes);
    for ((site, sum), sizes) in sites {
        site.measures = sum.measures;
        site.measures.live = sum.live;
        site.sizes = sizes.iter().map(|(&bucket, &n)| (bucket, n)).collect();
    }
    profile.totals.peak_live_bytes = peak;
    profile
}

fn tables(random: &mut Random, stacks: u64) -> Profile {
    let mut profile = Profile {
        target: Target {
            pid: 4242,
            name: "shop".into(),
            exe: "/opt/shop".into(),
        },
        began_unix_ms: 1_700_000_000_000,
        depth: DEPTH as u32,
        modules: vec![
            module("/opt/shop", 0x5555_0000_0000),
            module("/lib/libshop & sons.so", 0x7fff_0000_0000),
        ],
        ..Profile::default()
    };
    for address in 0..60_u64 {
        frames(&mut profile, random, address);
    }
    // Frames of an address are adjacent, and the last of them is not inlined.
    let mut groups: Vec<Vec<u32>> = vec![Vec::new()];
    for (index, frame) in profile.frames.iter().enumerate() {
        groups.last_mut().expect("one").push(index as u32);
        if !frame.frame.inlined {
            groups.push(Vec::new());
        }
    }
    groups.pop();
    profile.cut_root = Some(profile.frames.len() as u32);
    profile.frames.push(ProfileFrame::cut_root());
    for stack in 0..stacks {
        // One stack is empty.
        let depth = if stack == 0 {
            0
        } else {
            1 + random.below(DEPTH)
        };
        let chosen =
            (0..depth).flat_map(|_| groups[random.below(groups.len() as u64) as usize].clone());
        let cut = profile.cut_root.filter(|_| depth == DEPTH);
        profile.stacks.push(chosen.chain(cut).collect());
        let tid = 4242 + (stack % 3) as u32;
        profile.sites.push(ProfileSite {
            stack: stack as u32,
            kind: ["malloc", "new", "realloc"][(stack % 3) as usize].into(),
            tid,
            thread: format!("worker {}", tid - 4242),
            truncated: stack.is_multiple_of(7),
            ..ProfileSite::default()
        });
    }
    profile
}

fn module(path: &str, start: u64) -> ProfileModule {
    ProfileModule {
        path: path.into(),
        build_id: format!("{start:020x}"),
        start,
        end: start + 0x10_0000,
        bias: start,
    }
}

fn frames(profile: &mut Profile, random: &mut Random, number: u64) {
    let module = random.below(2) as u32;
    let address = profile.modules[module as usize].start + 0x100 + number * 16;
    let inlined = random.below(3);
    for level in (0..=inlined).rev() {
        let function = FUNCTIONS[random.below(FUNCTIONS.len() as u64) as usize];
        let is_known = random.below(6) > 0 || inlined > 0;
        let has_line = is_known && random.below(3) > 0;
        profile.frames.push(ProfileFrame {
            address,
            module: Some(module),
            frame: StackFrame {
                address: format!("{address:#x}"),
                module: Some(["shop", "libshop & sons.so"][module as usize].into()),
                offset: Some(format!("{:#x}", 0x100 + number * 16)),
                function: is_known.then(|| function.to_owned()),
                file: has_line.then(|| format!("/src/shop/{}.cc", number % 9)),
                line: has_line.then_some(number as u32 + 1),
                inlined: level > 0,
            },
        });
    }
}
