//! Profiles of a running trace, one for each interval, as profile stores expect them: live memory
//! at the end of the interval, and allocations within it.

use crate::named_run::{Backtrace, Backtraces};
use crate::profile_tables::{ProfileTables, hex};
use crate::{Amount, Measures, Profile, ProfileFrame, ProfileModule, ProfileSite};
use memhook_symbols::{ModuleFile, Symbolizer};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::time::Duration;

/// Name of the frame that represents all sites that do not fit into a profile.
pub const OTHER_SITES: &str = "other";

/// Sums of the blocks of one call stack.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LiveSite {
    /// The id of the call stack.
    pub stack: u32,
    /// Live memory.
    pub live: Amount,
    /// Memory allocated since the attach.
    pub allocated: Amount,
}

/// A profile that waits for the names of its stacks.
struct Begun {
    profile: Profile,
    tables: ProfileTables,
    /// Stack of each site of the profile.
    backtraces: Vec<Backtrace>,
    other: Measures,
}

/// Makes the profiles of one attach.
pub struct LiveProfiler {
    symbols: Symbolizer,
    /// Allocations of each call stack up to the end of the previous interval.
    allocated: FxHashMap<u32, Amount>,
    from_ns: u64,
    most_sites: usize,
    begun: Option<Begun>,
}

impl LiveProfiler {
    /// Creates a profiler. `symbols` resolves the target's names. A profile has at most
    /// `most_sites` sites; if there are more, the last entry stands for all the others.
    pub fn new(symbols: Symbolizer, most_sites: usize) -> LiveProfiler {
        LiveProfiler {
            symbols,
            allocated: FxHashMap::default(),
            from_ns: 0,
            most_sites: most_sites.max(1),
            begun: None,
        }
    }

    /// Returns true if a profile waits for its names.
    pub fn is_busy(&self) -> bool {
        self.begun.is_some()
    }

    /// Ends an interval, and starts to look up the names for its profile. `sites` contains every
    /// call stack seen so far. `facts` is the profile at the end of the interval, without sites and
    /// names. The caller must have taken the profile of the previous interval, because its
    /// allocations are not reported again.
    pub fn begin(
        &mut self,
        stacks: &dyn Backtraces,
        modules: Vec<ModuleFile>,
        sites: Vec<LiveSite>,
        facts: Profile,
    ) {
        let mut numbers: Vec<(u32, Measures)> = Vec::with_capacity(sites.len());
        for site in sites {
            let before = self.allocated.insert(site.stack, site.allocated);
            let allocated = since(site.allocated, before.unwrap_or_default());
            if allocated.blocks != 0 || site.live.blocks != 0 {
                let measures = Measures {
                    live: site.live,
                    allocated,
                    ..Measures::default()
                };
                numbers.push((site.stack, measures));
            }
        }
        let weight = |m: &Measures| m.live.bytes.max(m.allocated.bytes);
        numbers.sort_by_key(|(stack, measures)| (Reverse(weight(measures)), *stack));
        let mut other = Measures::default();
        if numbers.len() > self.most_sites {
            let left_out = numbers.drain(self.most_sites - 1..);
            other = together(left_out.map(|(_, measures)| measures));
        }
        let (mut sites, mut backtraces) = (Vec::new(), Vec::new());
        for (stack, measures) in numbers {
            let backtrace = stacks.backtrace(stack);
            let kind = backtrace.as_ref().and_then(Backtrace::kind);
            sites.push(ProfileSite {
                kind: kind.unwrap_or("unknown").to_owned(),
                truncated: backtrace.as_ref().is_some_and(|b| b.truncated),
                measures,
                ..ProfileSite::default()
            });
            backtraces.push(backtrace.unwrap_or_default());
        }
        let of_modules = modules.iter().map(|module| ProfileModule {
            path: module.path.clone(),
            build_id: hex(module.build_id.as_deref().unwrap_or_default()),
            start: module.start,
            end: module.end,
            bias: module.base,
        });
        let unnamed = modules.iter().enumerate().filter(|(_, module)| {
            // Code without a file gets its names only here.
            !self.symbols.reads_files() && module.named_by.is_none()
        });
        let unnamed_modules = unnamed.map(|(at, _)| at as u32).collect();
        let tables = ProfileTables::new(of_modules.collect(), facts.depth);
        self.symbols.set_modules(modules);
        let addresses = backtraces.iter().flat_map(|b| b.addresses.iter().copied());
        self.symbols.request(addresses);
        let profile = Profile {
            from_ns: std::mem::replace(&mut self.from_ns, facts.to_ns),
            sites,
            unnamed_modules,
            ..facts
        };
        self.begun = Some(Begun {
            profile,
            tables,
            backtraces,
            other,
        });
    }

    /// Returns the current profile, if its names arrive within `wait`.
    pub fn poll(&mut self, wait: Duration) -> Option<Profile> {
        if self.begun.is_none() || !self.symbols.is_ready(wait) {
            return None;
        }
        self.give_up_names()
    }

    /// Closes the files of modules in which no profile had a new address for this long.
    pub fn close_unused(&mut self, time: Duration) {
        self.symbols.close_unused(time);
    }

    /// Stops waiting for names. Returns the current profile with the names that have arrived.
    pub fn give_up_names(&mut self) -> Option<Profile> {
        let Begun {
            mut profile,
            mut tables,
            backtraces,
            other,
        } = self.begun.take()?;
        for (site, backtrace) in profile.sites.iter_mut().zip(backtraces) {
            site.stack = tables.push(&backtrace.addresses, backtrace.truncated, &self.symbols);
        }
        let mut profile = tables.fill(profile);
        if other != Measures::default() {
            profile.push_others(other);
        }
        Some(profile)
    }
}

/// Sums up sites into one site that represents all of them.
fn together(sites: impl Iterator<Item = Measures>) -> Measures {
    sites.fold(Measures::default(), |mut sum, measures| {
        sum.live += measures.live;
        sum.allocated += measures.allocated;
        sum
    })
}

fn since(now: Amount, before: Amount) -> Amount {
    Amount {
        blocks: now.blocks.saturating_sub(before.blocks),
        bytes: now.bytes.saturating_sub(before.bytes),
        variance: (now.variance - before.variance).max(0.0),
        unhit: now.unhit,
    }
}

impl Profile {
    /// Returns the profile without directories. Each path keeps only its last part.
    pub fn without_directories(mut self) -> Profile {
        fn shorten(path: &mut String) {
            if let Some((_, name)) = path.rsplit_once('/') {
                *path = name.to_owned();
            }
        }
        shorten(&mut self.target.exe);
        self.modules.iter_mut().for_each(|m| shorten(&mut m.path));
        for frame in &mut self.frames {
            let frame = &mut frame.frame;
            frame.module.iter_mut().for_each(shorten);
            frame.file.iter_mut().for_each(shorten);
        }
        self
    }

    /// Returns the profile with at most `most` sites. The last site represents all others.
    pub fn with_fewer_sites(mut self, most: usize) -> Profile {
        if self.sites.len() <= most {
            return self;
        }
        // Sites are ordered by weight. The site that represents others comes last.
        let left_out = self.sites.drain(most.saturating_sub(1)..);
        let other = together(left_out.map(|site| site.measures));
        self.push_others(other);
        self
    }

    /// Adds the site that represents all omitted sites.
    fn push_others(&mut self, measures: Measures) {
        let mut frame = ProfileFrame::cut_root();
        frame.frame.function = Some(OTHER_SITES.to_owned());
        self.stacks.push(vec![self.frames.len() as u32]);
        self.frames.push(frame);
        self.sites.push(ProfileSite {
            stack: self.stacks.len() as u32 - 1,
            kind: "unknown".to_owned(),
            measures,
            ..ProfileSite::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Backtrace;

    struct Stacks;

    impl Backtraces for Stacks {
        fn backtrace(&self, id: u32) -> Option<Backtrace> {
            Some(Backtrace {
                function: 0,
                addresses: vec![u64::from(id) * 16, 8],
                truncated: false,
            })
        }
    }

    fn site(stack: u32, live: u64, allocated: u64) -> LiveSite {
        let amount = |bytes| Amount {
            blocks: bytes / 10,
            bytes,
            ..Amount::default()
        };
        LiveSite {
            stack,
            live: amount(live),
            allocated: amount(allocated),
        }
    }

    fn next(profiler: &mut LiveProfiler, to_ns: u64, sites: Vec<LiveSite>) -> Profile {
        let facts = Profile {
            to_ns,
            depth: 64,
            ..Profile::default()
        };
        profiler.begin(&Stacks, Vec::new(), sites, facts);
        profiler
            .poll(Duration::from_secs(60))
            .expect("no names to be found")
    }

    fn sums(profile: &Profile) -> (u64, u64) {
        let live: Amount = profile.sites.iter().map(|s| s.measures.live).sum();
        let allocated: Amount = profile.sites.iter().map(|s| s.measures.allocated).sum();
        (live.bytes, allocated.bytes)
    }

    /// Live sums are those of the end of the interval, allocated sums are those of the interval,
    /// and all other sites are merged into one.
    #[test]
    fn intervals_add_up_and_sums_are_kept() {
        let symbols = Symbolizer::new(Vec::new());
        let mut profiler = LiveProfiler::new(symbols, 3);
        let first = next(&mut profiler, 5, vec![site(1, 100, 200), site(2, 50, 50)]);
        assert_eq!((first.from_ns, first.to_ns), (0, 5));
        assert_eq!(sums(&first), (150, 250));
        let many = vec![
            site(1, 0, 200),
            site(2, 50, 60),
            site(3, 10, 10),
            site(4, 20, 20),
            site(5, 40, 400),
        ];
        let second = next(&mut profiler, 9, many);
        assert_eq!((second.from_ns, second.to_ns), (5, 9));
        // Site 1 has no live memory, and allocated nothing in this interval.
        assert_eq!(sums(&second), (120, 440));
        assert_eq!(second.sites.len(), 3);
        let last = second.sites.last().expect("three");
        assert_eq!(
            (last.measures.live.bytes, last.measures.allocated.bytes),
            (30, 30)
        );
        let frame = second.stacks[last.stack as usize][0];
        let name = second.frames[frame as usize].frame.function.as_deref();
        assert_eq!(name, Some(OTHER_SITES));
        assert_eq!(second.sites[0].measures.allocated.bytes, 400);
        let fewer = second.with_fewer_sites(2);
        assert_eq!((sums(&fewer), fewer.sites.len()), ((120, 440), 2));
    }
}
