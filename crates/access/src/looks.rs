//! Chooses the words to watch, and keeps the results by site, stratum and place in the block.

use crate::pages::THRESHOLDS_MS;
use crate::random::Random;
use crate::sites::{LiveBlock, STRATA, Site, SiteBlocks, Stratum};
use crate::survival::{Share, Watched, stale_share};
use rustc_hash::FxHashMap;

/// One look: a word of a block, watched from a certain moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// The block.
    pub block: LiveBlock,
    /// Question about the block that pages leave open.
    pub stratum: Stratum,
    /// Offset of the word.
    pub offset: u64,
    /// Start of the look.
    pub began_ms: u32,
    /// Time at which the look is given up.
    pub until_ms: u32,
}

impl Look {
    /// Returns the address of the word.
    pub fn word(&self) -> u64 {
        (self.block.address + self.offset) & !7
    }
}

/// Results for the words at one offset.
#[derive(Clone, Copy, Debug, Default)]
struct Offset {
    looks: u32,
    /// Number of words touched within a second.
    quick: u32,
}

impl Offset {
    /// Returns the share of words that are touched soon (by the rule of succession), and its
    /// standard error.
    fn rate(&self) -> (f64, f64) {
        let looks = f64::from(self.looks) + 2.0;
        let rate = (f64::from(self.quick) + 1.0) / looks;
        (rate, (rate * (1.0 - rate) / looks).sqrt())
    }
}

#[derive(Clone, Debug, Default)]
struct SiteLooks {
    /// Offset in the block of the words that are watched for the estimate.
    main: u64,
    offsets: FxHashMap<u64, Offset>,
    /// Looks at words at `main`, each with the time of its end and its result.
    watched: [Vec<(u32, Watched)>; 2],
    /// True if the site's state is known; `None` if looks have ended since it was determined.
    is_known: Option<bool>,
}

/// Share (1/n) of the looks at a site that explore a different place in the block.
const EXPLORING: u64 = 4;
/// Expected length of the first look, in seconds.
const LOOK_S: f64 = 1.0;
/// Time for which a place is explored, long enough to see touches within a second.
const EXPLORED_MS: u32 = 2000;
/// Number of initial looks, which have a random length. Later looks last for the whole time.
const ENOUGH_SHORT: usize = 8;
/// Share (1/n) of the later looks that have a random length, so that changes in a part are noticed.
const SOMETIMES_SHORT: u64 = 8;
/// Number of looks at a place before it is compared.
const ENOUGH_LOOKS: u32 = 4;
/// Number of standard errors by which two places must differ, on each side.
const APART: f64 = 1.5;
/// Maximum number of offsets that are remembered for a site.
const MOST_OFFSETS: usize = 64;
/// Maximum number of looks that are remembered for a part of a site.
const MOST_LOOKS: usize = 1024;
/// Relative value of a look at a site with a known state. It is not 0, because the program may
/// change.
const WORTH_OF_KNOWN: f64 = 0.05;

/// All looks.
///
/// The question is whether a block is touched, but a look sees only one word of it. A block may be
/// in use although some of its words are never touched, and blocks of a site mostly have the same
/// layout. So the words of a site are watched at one offset in the block. At first this is the
/// first word (an object's vtable pointer, the head of a structure), and one look in four explores
/// a random offset. If it finds an offset that is touched more often, that offset is watched
/// instead.
#[derive(Clone, Debug, Default)]
pub struct Looks {
    sites: FxHashMap<Site, SiteLooks>,
}

impl Looks {
    /// Chooses the next look, in proportion to its expected information. Most looks go to sites
    /// with an unknown state, and are divided among the parts of these sites by bytes and
    /// uncertainty. Removes the chosen block from the drawn blocks.
    pub fn choose(
        &self,
        sites: &mut FxHashMap<Site, SiteBlocks>,
        older_ms: u32,
        now_ms: u32,
        random: &mut Random,
    ) -> Option<Look> {
        let older_s = f64::from(older_ms) / 1e3;
        let mut worths = Vec::new();
        let mut sum = 0.0;
        for (site, blocks) in sites.iter() {
            for (index, part) in blocks.parts.iter().enumerate() {
                if !part.drawn.is_empty() {
                    let worth = self.worth(*site, index, part.bytes, older_s);
                    sum += worth * if blocks.is_known { WORTH_OF_KNOWN } else { 1.0 };
                    worths.push((sum, *site, index));
                }
            }
        }
        let at = random.share() * sum;
        let &(_, site, index) = worths.iter().find(|(end, ..)| at < *end)?;
        let drawn = &mut sites.get_mut(&site)?.parts[index].drawn;
        let block = drawn.swap_remove(random.below(drawn.len() as u64) as usize);
        let words = (block.bytes / 8).max(1);
        let offset = match self.sites.get(&site) {
            // The layout of these pages is unknown, and the question is how many of their words are
            // touched.
            _ if site == Site::Pages => random.below(words) * 8,
            Some(looks) => looks.place(words, random),
            None => SiteLooks::default().place(words, random),
        };
        Some(Look {
            block,
            stratum: STRATA[index],
            offset,
            began_ms: now_ms,
            until_ms: now_ms + self.length_ms(site, index, offset, older_ms, random),
        })
    }

    /// Returns the maximum length of a look. A few short looks find the words that are touched all
    /// the time. After that, looks last for the whole time in question. Long looks are most
    /// informative about words that are touched occasionally, because such a look ends with the
    /// touch, which a short look would mostly miss.
    fn length_ms(
        &self,
        site: Site,
        index: usize,
        offset: u64,
        older_ms: u32,
        random: &mut Random,
    ) -> u32 {
        let known = self.sites.get(&site);
        let count = known.map_or(0, |looks| looks.watched[index].len());
        let is_main = known.is_none_or(|looks| looks.main == offset);
        if site != Site::Pages && !is_main {
            return EXPLORED_MS.min(older_ms);
        }
        if count >= ENOUGH_SHORT && random.below(SOMETIMES_SHORT) != 0 {
            return older_ms;
        }
        any_length_ms(older_ms, random)
    }

    /// Returns the weight of a part: about the standard error of its stale share, divided by the
    /// square root of the usual length of its looks. This is the best way to spend time on samples
    /// of several kinds (Neyman's allocation). The part's size enters as the square root of its
    /// bytes. With the bytes themselves, a large half-stale part would permanently take all looks
    /// from small parts. A look without a touch counts in proportion to its length, because a short
    /// look shows little.
    fn worth(&self, site: Site, index: usize, bytes: u64, older_s: f64) -> f64 {
        let watched = self.sites.get(&site).map(|looks| &looks.watched[index]);
        let (mut touched, mut untouched, mut seconds) = (0.0, 0.0, 0.0);
        for (_, one) in watched.into_iter().flatten() {
            if one.is_touched {
                touched += 1.0;
            } else {
                untouched += (one.seconds / older_s).min(1.0);
            }
            seconds += one.seconds;
        }
        let looks = watched.map_or(0, Vec::len) as f64;
        let usual_s = (seconds + LOOK_S) / (looks + 1.0);
        let count = touched + untouched + 1.0;
        let share = (touched + 0.5) / count;
        (bytes as f64 * (share * (1.0 - share) + 0.02) / count / usual_s).sqrt()
    }

    /// Returns true if a site's state is known; `None` if looks have ended since it was determined.
    pub(crate) fn is_known(&self, site: Site) -> Option<bool> {
        self.sites.get(&site)?.is_known
    }

    /// Records whether a site's state is known.
    pub(crate) fn note_known(&mut self, site: Site, is_known: bool) {
        if let Some(looks) = self.sites.get_mut(&site) {
            looks.is_known = Some(is_known);
        }
    }

    /// Records the result of a look: whether its word was touched, or has not been touched so far.
    /// The block must still be live.
    pub fn ended(&mut self, look: &Look, touched_ms: Option<u32>, now_ms: u32) {
        let site = self.sites.entry(look.block.site).or_default();
        site.is_known = None;
        let end_ms = touched_ms.unwrap_or(now_ms);
        let watched = Watched {
            seconds: (f64::from(end_ms.saturating_sub(look.began_ms)) / 1e3).max(1e-3),
            is_touched: touched_ms.is_some(),
        };
        let index = STRATA.iter().position(|s| *s == look.stratum).unwrap_or(0);
        if look.block.site == Site::Pages {
            site.note(index, now_ms, watched);
            return;
        }
        if site.offsets.len() < MOST_OFFSETS || site.offsets.contains_key(&look.offset) {
            let offset = site.offsets.entry(look.offset).or_default();
            offset.looks += 1;
            offset.quick += u32::from(watched.is_touched && watched.seconds <= 1.0);
        }
        if look.offset == site.main {
            site.note(index, now_ms, watched);
        }
        site.choose_main();
    }

    /// Forgets looks that ended before this moment, because the program may behave differently by
    /// now.
    pub fn forget_before(&mut self, moment_ms: u32) {
        for site in self.sites.values_mut() {
            for list in &mut site.watched {
                let before = list.len();
                list.retain(|(at, _)| *at >= moment_ms);
                if list.len() < before {
                    site.is_known = None;
                }
            }
        }
    }

    /// Returns the stale share of a part of a site, or `None` if no look at it has ended. Memory
    /// that was touched before the time in question may have become stale since then, so earlier
    /// looks count only if they agree with the later ones.
    pub fn share(&self, site: Site, stratum: Stratum, older_ms: u32) -> Option<Share> {
        let index = STRATA.iter().position(|s| *s == stratum)?;
        let watched = &self.sites.get(&site)?.watched[index];
        let latest_ms = watched.iter().map(|(at, _)| *at).max()?;
        let is_late = |at: u32| at.saturating_add(older_ms) > latest_ms;
        let of = |late: bool| {
            let chosen = watched.iter().filter(|(at, _)| is_late(*at) == late);
            let chosen: Vec<Watched> = chosen.map(|(_, watched)| *watched).collect();
            stale_share(&chosen, f64::from(older_ms) / 1e3)
        };
        let late = of(true)?;
        let agrees = |a: Share, b: Share| (a.low..=a.high).contains(&b.estimate);
        match of(false) {
            Some(early) if agrees(early, late) && agrees(late, early) => {
                let all: Vec<Watched> = watched.iter().map(|(_, watched)| *watched).collect();
                stale_share(&all, f64::from(older_ms) / 1e3)
            }
            _ => Some(late),
        }
    }

    /// Returns the number of finished looks at words of a site, and the number of looks that found
    /// a touch.
    pub fn counts(&self, site: Site) -> (u64, u64) {
        let lists = self.sites.get(&site).map(|looks| &looks.watched);
        let all = lists.into_iter().flatten().flatten();
        all.fold((0, 0), |(looks, touched), (_, watched)| {
            (looks + 1, touched + u64::from(watched.is_touched))
        })
    }
}

impl SiteLooks {
    fn note(&mut self, index: usize, now_ms: u32, watched: Watched) {
        let list = &mut self.watched[index];
        list.push((now_ms, watched));
        if list.len() > MOST_LOOKS {
            list.drain(..MOST_LOOKS / 2);
        }
    }

    /// Returns the most touched of the other known places.
    fn best_other(&self) -> Option<(u64, Offset)> {
        let others = self.offsets.iter();
        let others = others.filter(|(at, offset)| **at != self.main && offset.quick > 0);
        let best = others.max_by(|a, b| a.1.rate().0.total_cmp(&b.1.rate().0));
        best.map(|(at, offset)| (*at, *offset))
    }

    /// Chooses the place of the next look at a block of `words` words.
    fn place(&self, words: u64, random: &mut Random) -> u64 {
        let fits = |offset: &u64| *offset < words * 8;
        if random.below(EXPLORING) != 0 {
            return Some(self.main).filter(fits).unwrap_or(0);
        }
        // A place that was touched once is checked again, in case the touch was a coincidence.
        let known = self.best_other().map(|(at, _)| at).filter(fits);
        let known = known.filter(|_| random.below(2) == 0);
        known.unwrap_or_else(|| random.below(words) * 8)
    }

    fn choose_main(&mut self) {
        let of_main = self.offsets.get(&self.main).copied().unwrap_or_default();
        let Some((at, best)) = self.best_other() else {
            return;
        };
        if of_main.looks < ENOUGH_LOOKS || best.looks < ENOUGH_LOOKS {
            return;
        }
        let ((here, here_error), (there, there_error)) = (of_main.rate(), best.rate());
        if there - APART * there_error > here + APART * here_error {
            // Results from another place say nothing about the words here.
            *self = SiteLooks {
                main: at,
                offsets: std::mem::take(&mut self.offsets),
                watched: Default::default(),
                is_known: None,
            };
        }
    }
}

/// Returns the time for which looks are remembered.
pub fn kept_ms(older_ms: u32) -> u32 {
    older_ms.saturating_mul(4).max(20_000)
}

/// Lengths of short looks. Many short looks fit into the time of a long one.
const SHORT_MS: [u32; 2] = [100, 300];

/// Returns one of these lengths or the whole time. Each choice takes up an equal share of the total
/// watching time.
fn any_length_ms(older_ms: u32, random: &mut Random) -> u32 {
    let lengths = SHORT_MS.into_iter().chain(THRESHOLDS_MS);
    let lengths = lengths.filter(|&ms| ms < older_ms);
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

    /// The program uses only one word of each block. The looks find that word, and the estimate is
    /// based on it.
    #[test]
    fn the_place_that_is_used_is_found() {
        let mut random = Random::seeded(3);
        let mut looks = Looks::default();
        let mut site = SiteBlocks::default();
        site.parts[1].bytes = 64;
        for now in (0..400_000).step_by(1000) {
            site.parts[1].drawn = vec![block(64)];
            let mut sites = FxHashMap::from_iter([(Site::Stack(1), site.clone())]);
            let look = looks.choose(&mut sites, 5000, now, &mut random).unwrap();
            let again = looks.choose(&mut sites, 5000, now, &mut random);
            assert_eq!(again, None, "each block once");
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
            let block = LiveBlock {
                site: site_id,
                ..block(1024)
            };
            site.parts[0].drawn = vec![block; 4000];
            sites.insert(site_id, site);
        }
        let mut counts = [0; 2];
        for now in 0..2000 {
            let look = looks.choose(&mut sites, 1000, now, &mut random).unwrap();
            counts[usize::from(look.block.site == Site::Stack(2))] += 1;
            looks.ended(&look, None, now + 500);
        }
        assert!(counts[0] > 5 * counts[1] && counts[1] > 0, "{counts:?}");
        let mut none = FxHashMap::default();
        assert_eq!(looks.choose(&mut none, 1000, 0, &mut random), None);
    }
}
