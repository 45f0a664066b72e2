//! Which words to watch, and what has come of it: by site, stratum and place in the block.

use crate::pages::THRESHOLDS_MS;
use crate::random::Random;
use crate::sites::{LiveBlock, STRATA, Site, SiteBlocks, Stratum};
use crate::survival::{Share, Watched, stale_share};
use rustc_hash::FxHashMap;

/// One look: a word of a block, watched from a moment on.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// The block.
    pub block: LiveBlock,
    /// What pages told of it.
    pub stratum: Stratum,
    /// Offset of the word.
    pub offset: u64,
    /// When it began.
    pub began_ms: u32,
    /// When it is given up.
    pub until_ms: u32,
}

impl Look {
    /// Address of the word.
    pub fn word(&self) -> u64 {
        (self.block.address + self.offset) & !7
    }
}

/// What was learnt of the words at one offset.
#[derive(Clone, Copy, Debug, Default)]
struct Offset {
    looks: u32,
    /// Touched within a second.
    quick: u32,
}

#[derive(Clone, Debug, Default)]
struct SiteLooks {
    /// The place in the block whose words are watched for the estimate.
    main: u64,
    offsets: FxHashMap<u64, Offset>,
    /// Looks at words at `main`: when they ended, and what came of them.
    watched: [Vec<(u32, Watched)>; 2],
}

/// Of the looks at a site, one in so many explores another place of the block.
const EXPLORING: u64 = 4;
/// Looks at a place before it is compared.
const ENOUGH_LOOKS: u32 = 3;
/// Another place is better if so many more of its words are touched at once.
const BETTER: f64 = 0.25;
/// Offsets that are remembered of a site.
const MOST_OFFSETS: usize = 64;
/// Looks that are remembered of a part of a site.
const MOST_LOOKS: usize = 1024;

/// All looks.
///
/// The question is whether a block is touched, and a look sees one word of it. Words of a block that is touched
/// may themselves never be, and blocks of a site mostly have the same layout. So the words of a site are
/// watched at one place of the block, at first the first word (an object's table of functions, the head of a
/// structure), and one look in four explores a place chosen by chance; where a place is found that is
/// touched more often, it becomes the one that is watched.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    sites: FxHashMap<Site, SiteLooks>,
}

impl Looks {
    /// Chooses the next look, in proportion to what it may tell: the uncertain bytes of each part of a site.
    pub fn choose(
        &self,
        sites: &FxHashMap<Site, SiteBlocks>,
        older_ms: u32,
        now_ms: u32,
        random: &mut Random,
    ) -> Option<Look> {
        let parts = || {
            sites.iter().flat_map(move |(site, blocks)| {
                let parts = blocks.parts.iter().zip(STRATA).enumerate();
                let drawable = parts.filter(|(_, (part, _))| !part.drawn.is_empty());
                drawable.map(move |(i, (part, stratum))| (*site, i, part, stratum))
            })
        };
        let worth = |site: &Site, index: usize, bytes: u64| {
            let watched = self.sites.get(site).map(|looks| &looks.watched[index]);
            let (looks, touched) = watched.map_or((0, 0), |watched| {
                let touched = watched.iter().filter(|w| w.1.is_touched).count();
                (watched.len(), touched)
            });
            let share = (touched as f64 + 0.5) / (looks as f64 + 1.0);
            bytes as f64 * ((share * (1.0 - share) + 0.02) / (looks as f64 + 1.0)).sqrt()
        };
        let sum: f64 = parts()
            .map(|(site, i, part, _)| worth(&site, i, part.bytes))
            .sum();
        let mut at = random.share() * sum;
        let (site, _, part, stratum) = parts().find(|(site, i, part, _)| {
            at -= worth(site, *i, part.bytes);
            at < 0.0
        })?;
        let block = part.drawn[random.below(part.drawn.len() as u64) as usize];
        let words = (block.bytes / 8).max(1);
        let main = self.sites.get(&site).map_or(0, |looks| looks.main);
        let offset = if random.below(EXPLORING) == 0 {
            random.below(words) * 8
        } else if main < words * 8 {
            main
        } else {
            0
        };
        Some(Look {
            block,
            stratum,
            offset,
            began_ms: now_ms,
            until_ms: now_ms + length_ms(older_ms, random),
        })
    }

    /// A look has ended: the word was touched, or not until now. The block still lives.
    pub fn ended(&mut self, look: &Look, touched_ms: Option<u32>, now_ms: u32) {
        let site = self.sites.entry(look.block.site).or_default();
        let end_ms = touched_ms.unwrap_or(now_ms);
        let watched = Watched {
            seconds: (f64::from(end_ms.saturating_sub(look.began_ms)) / 1e3).max(1e-3),
            is_touched: touched_ms.is_some(),
        };
        if site.offsets.len() < MOST_OFFSETS || site.offsets.contains_key(&look.offset) {
            let offset = site.offsets.entry(look.offset).or_default();
            offset.looks += 1;
            offset.quick += u32::from(watched.is_touched && watched.seconds <= 1.0);
        }
        if look.offset == site.main {
            let index = STRATA.iter().position(|s| *s == look.stratum).unwrap_or(0);
            let list = &mut site.watched[index];
            list.push((now_ms, watched));
            if list.len() > MOST_LOOKS {
                list.drain(..MOST_LOOKS / 2);
            }
        }
        site.choose_main();
    }

    /// Forgets looks that ended before this moment: the program may do something else by now.
    pub fn forget_before(&mut self, moment_ms: u32) {
        for site in self.sites.values_mut() {
            for list in &mut site.watched {
                list.retain(|(at, _)| *at >= moment_ms);
            }
        }
    }

    /// The stale share of a part of a site; `None` if no look at it has ended.
    pub fn share(&self, site: Site, stratum: Stratum, older_ms: u32) -> Option<Share> {
        let index = STRATA.iter().position(|s| *s == stratum)?;
        let watched = self.sites.get(&site)?.watched[index].iter();
        let watched: Vec<Watched> = watched.map(|(_, watched)| *watched).collect();
        stale_share(&watched, f64::from(older_ms) / 1e3)
    }

    /// Looks at words of a site that have ended, and how many of them were touched.
    pub fn counts(&self, site: Site) -> (u64, u64) {
        let lists = self.sites.get(&site).map(|looks| &looks.watched);
        let all = lists.into_iter().flatten().flatten();
        all.fold((0, 0), |(looks, touched), (_, watched)| {
            (looks + 1, touched + u64::from(watched.is_touched))
        })
    }
}

impl SiteLooks {
    fn choose_main(&mut self) {
        let rate = |offset: &Offset| f64::from(offset.quick) / f64::from(offset.looks.max(1));
        let of_main = self.offsets.get(&self.main).copied().unwrap_or_default();
        if of_main.looks < ENOUGH_LOOKS {
            return;
        }
        let others = self
            .offsets
            .iter()
            .filter(|(at, o)| **at != self.main && o.quick > 0);
        let best = others.max_by(|a, b| rate(a.1).total_cmp(&rate(b.1)));
        if let Some((&at, best)) = best
            && rate(best) > rate(&of_main) + BETTER
        {
            // What was seen elsewhere tells nothing of the words here.
            *self = SiteLooks {
                main: at,
                offsets: std::mem::take(&mut self.offsets),
                watched: Default::default(),
            };
        }
    }
}

/// How long a look lasts at most: one of the thresholds or the whole time, each with the same share of the
/// time in which words are watched.
fn length_ms(older_ms: u32, random: &mut Random) -> u32 {
    let lengths = THRESHOLDS_MS.into_iter().filter(|&ms| ms < older_ms);
    let lengths: Vec<u32> = lengths.chain([older_ms]).collect();
    let sum: f64 = lengths.iter().map(|&ms| 1.0 / f64::from(ms)).sum();
    let mut at = random.share() * sum;
    let chosen = lengths.iter().find(|&&ms| {
        at -= 1.0 / f64::from(ms);
        at < 0.0
    });
    chosen.copied().unwrap_or(older_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(bytes: u64) -> LiveBlock {
        LiveBlock {
            address: 0x1000,
            bytes,
            site: Site::Stack(1),
            allocated_ms: None,
        }
    }

    /// Blocks of which only one word is used: it is found, and the estimate is of that word.
    #[test]
    fn the_place_that_is_used_is_found() {
        let mut random = Random::seeded(3);
        let mut looks = Looks::default();
        let mut site = SiteBlocks::default();
        site.parts[1].bytes = 64;
        site.parts[1].drawn = vec![block(64)];
        let sites = FxHashMap::from_iter([(Site::Stack(1), site)]);
        for now in (0..400_000).step_by(1000) {
            let look = looks.choose(&sites, 5000, now, &mut random).unwrap();
            assert!(look.offset < 64 && look.word() % 8 == 0 && look.until_ms > now);
            let touched = (look.offset == 40).then_some(now + 10);
            looks.ended(&look, touched, now + 1000);
        }
        assert_eq!(looks.sites[&Site::Stack(1)].main, 40);
        let share = looks.share(Site::Stack(1), Stratum::Open, 5000).unwrap();
        assert!(share.estimate < 0.05, "{share:?}");
        looks.forget_before(u32::MAX);
        assert_eq!(looks.share(Site::Stack(1), Stratum::Open, 5000), None);
    }

    #[test]
    fn looks_go_where_most_is_uncertain() {
        let mut random = Random::seeded(5);
        let mut looks = Looks::default();
        let mut sites = FxHashMap::default();
        for (id, bytes) in [(1, 1 << 20), (2, 1 << 10)] {
            let mut site = SiteBlocks::default();
            site.parts[0].bytes = bytes;
            let site_id = Site::Stack(id);
            site.parts[0].drawn = vec![LiveBlock {
                site: site_id,
                ..block(1024)
            }];
            sites.insert(site_id, site);
        }
        let mut counts = [0; 2];
        for now in 0..2000 {
            let look = looks.choose(&sites, 1000, now, &mut random).unwrap();
            counts[usize::from(look.block.site == Site::Stack(2))] += 1;
            looks.ended(&look, None, now);
        }
        assert!(counts[0] > 10 * counts[1] && counts[1] > 0, "{counts:?}");
        assert!(
            looks
                .choose(&FxHashMap::default(), 1000, 0, &mut random)
                .is_none()
        );
    }
}
