//! Combines a census and the looks into the stale blocks of each site.

use crate::looks::Looks;
use crate::sites::{Site, SiteBlocks, Stratum};
use crate::survival::Share;
use rustc_hash::FxHashMap;

/// Stale blocks of one site.
#[derive(Clone, Debug, PartialEq)]
pub struct SiteAnswer {
    /// The site.
    pub site: Site,
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Best estimate of the bytes that were not touched for the requested time.
    pub stale_bytes: u64,
    /// Low end of its 95 % interval.
    pub stale_bytes_low: u64,
    /// High end of the interval.
    pub stale_bytes_high: u64,
    /// Bytes of blocks that were certainly not written for the requested time.
    pub unwritten_bytes: u64,
    /// Part of the unwritten bytes that was certainly not read either.
    pub unaccessed_bytes: u64,
    /// Number of looks at words of the site's blocks, and number of looks that detected a touch.
    pub looks: (u64, u64),
    /// Last time at which a block of the site was certainly touched.
    pub last_access_ms: Option<u32>,
    /// Of the blocks that are probably stale, the one with the most bytes for the longest time;
    /// `None` if no block is.
    pub stale_block: Option<u64>,
    /// Stale bytes multiplied by the time without a touch, in seconds. It uses the best estimate if
    /// the state of the site is known, and the lower bound otherwise, so that no guess ranks above
    /// a known value.
    pub stale_byte_seconds: f64,
}

/// State of a site, as far as its interval shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Most of the site's bytes are stale.
    Stale,
    /// Most of the site's bytes are in use.
    InUse,
    /// The interval includes both.
    Unknown,
}

impl SiteAnswer {
    /// Returns the state of the site. The state is known if the interval lies completely above or
    /// completely below half of the site's bytes.
    pub fn state(&self) -> State {
        let half = self.live_bytes / 2;
        if self.stale_bytes_low > half {
            State::Stale
        } else if self.stale_bytes_high < half {
            State::InUse
        } else {
            State::Unknown
        }
    }
}

/// Available evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// True if words are watched, so that reads are seen.
    pub has_watchpoints: bool,
    /// True if the watch is shorter than the time in question.
    pub is_too_early: bool,
}

/// Combines the blocks and the looks of one site.
pub fn answer(
    site: Site,
    blocks: &SiteBlocks,
    looks: &Looks,
    older_ms: u32,
    evidence: Evidence,
) -> SiteAnswer {
    let idle = &blocks.idle;
    let unwritten = &blocks.parts[0];
    let open = &blocks.parts[1];
    let share = |stratum| match (evidence, stratum) {
        (
            Evidence {
                is_too_early: true, ..
            },
            _,
        ) => Share::unknown(0.0),
        // Without watchpoints, a block that was not written counts as stale.
        (
            Evidence {
                has_watchpoints: false,
                ..
            },
            Stratum::Unwritten,
        ) => Share::certain(1.0),
        (
            Evidence {
                has_watchpoints: false,
                ..
            },
            Stratum::Open,
        ) => Share::unknown(0.0),
        (_, stratum) => {
            let seen = |stratum| looks.share(site, stratum, older_ms);
            // Most blocks that are not written are not read either, and similar sites behave alike.
            let guess = match stratum {
                Stratum::Unwritten => 1.0,
                Stratum::Open => seen(Stratum::Unwritten).map_or(0.0, |share| share.estimate),
            };
            seen(stratum).unwrap_or(Share::unknown(guess))
        }
    };
    let (of_unwritten, of_open) = (share(Stratum::Unwritten), share(Stratum::Open));
    let sum = |part: fn(&Share) -> f64| {
        let looked_at =
            part(&of_unwritten) * unwritten.bytes as f64 + part(&of_open) * open.bytes as f64;
        idle.bytes as f64 + looked_at
    };
    // Blocks with a touched word are not stale, even if few other blocks were inspected.
    let most = idle.bytes + (unwritten.bytes + open.bytes).saturating_sub(blocks.hit_bytes);
    let bytes = |amount: f64| (amount.round() as u64).min(most);
    let stale = bytes(sum(|share| share.estimate));
    let byte_seconds = |part: fn(&Share) -> f64| {
        let looked_at =
            part(&of_unwritten) * unwritten.idle_byte_ms + part(&of_open) * open.idle_byte_ms;
        (idle.idle_byte_ms + looked_at) / 1e3
    };
    let mut found = SiteAnswer {
        site,
        live_bytes: blocks.live_bytes,
        live_blocks: blocks.live_blocks,
        stale_bytes: stale,
        stale_bytes_low: bytes(sum(|share| share.low)),
        stale_bytes_high: bytes(sum(|share| share.high)),
        unwritten_bytes: idle.bytes + unwritten.bytes,
        unaccessed_bytes: idle.bytes,
        looks: looks.counts(site),
        last_access_ms: blocks.last_access_ms,
        stale_block: [
            (Share::certain(1.0), idle.most_idle),
            (of_unwritten, unwritten.most_idle),
            (of_open, open.most_idle),
        ]
        .into_iter()
        .find_map(|(share, block)| block.filter(|_| share.estimate > 0.5 && stale > 0))
        .map(|block| block.address),
        stale_byte_seconds: byte_seconds(|share| share.estimate),
    };
    if found.state() == State::Unknown {
        found.stale_byte_seconds = byte_seconds(|share| share.low);
    }
    found
}

/// Marks the sites whose state is known, so that further looks go to the other sites.
pub(crate) fn note_known(
    sites: &mut FxHashMap<Site, SiteBlocks>,
    looks: &mut Looks,
    older_ms: u32,
    evidence: Evidence,
) {
    for (site, blocks) in sites {
        let found = || answer(*site, blocks, looks, older_ms, evidence).state() != State::Unknown;
        // Evaluating the looks takes a while, so it is done only when there are new ones.
        let is_known = looks.is_known(*site).unwrap_or_else(found);
        looks.note_known(*site, is_known);
        blocks.is_known = is_known;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::looks::Look;
    use crate::sites::LiveBlock;

    fn site(unwritten: u64, open: u64, hit: u64) -> SiteBlocks {
        let mut blocks = SiteBlocks {
            live_bytes: unwritten + open,
            live_blocks: 2,
            hit_bytes: hit,
            ..SiteBlocks::default()
        };
        blocks.parts[0].bytes = unwritten;
        blocks.parts[1].bytes = open;
        blocks
    }

    #[test]
    fn without_looks_the_interval_is_all_that_is_possible() {
        let (looks, site_id) = (Looks::default(), Site::Kind(0));
        let of = |has_watchpoints, is_too_early| {
            let evidence = Evidence {
                has_watchpoints,
                is_too_early,
            };
            let a = answer(site_id, &site(100, 10, 0), &looks, 1000, evidence);
            (a.stale_bytes_low, a.stale_bytes, a.stale_bytes_high)
        };
        assert_eq!(of(true, false), (0, 100, 110));
        assert_eq!(of(false, false), (100, 100, 110));
        assert_eq!(of(true, true), (0, 0, 110));
    }

    /// A large unknown site ranks after a small stale one.
    #[test]
    fn what_is_not_known_is_ranked_by_what_is_certain() {
        let evidence = Evidence {
            has_watchpoints: true,
            is_too_early: false,
        };
        let of = |idle: u64, unwritten: u64| {
            let mut blocks = site(unwritten, 0, 0);
            blocks.live_bytes += idle;
            blocks.idle.bytes = idle;
            blocks.idle.idle_byte_ms = idle as f64 * 1e3;
            blocks.parts[0].idle_byte_ms = unwritten as f64 * 1e3;
            answer(Site::Kind(0), &blocks, &Looks::default(), 1000, evidence)
        };
        let (unknown, known) = (of(10, 1000), of(100, 50));
        assert_eq!(unknown.state(), State::Unknown);
        assert_eq!(known.state(), State::Stale);
        assert!(unknown.stale_bytes > known.stale_bytes);
        assert_eq!(unknown.stale_byte_seconds, 10.0);
        assert_eq!(known.stale_byte_seconds, 150.0);
    }

    #[test]
    fn what_was_not_accessed_is_certain() {
        let mut blocks = site(100, 10, 10);
        blocks.idle.bytes = 1000;
        let evidence = Evidence {
            has_watchpoints: true,
            is_too_early: false,
        };
        let a = answer(Site::Kind(0), &blocks, &Looks::default(), 1000, evidence);
        let interval = (a.stale_bytes_low, a.stale_bytes, a.stale_bytes_high);
        assert_eq!(interval, (1000, 1100, 1100));
        assert_eq!((a.unwritten_bytes, a.unaccessed_bytes), (1100, 1000));
    }

    #[test]
    fn looks_decide_and_hits_bound() {
        let mut looks = Looks::default();
        let block = LiveBlock {
            address: 0x1000,
            bytes: 8,
            site: Site::Stack(1),
            allocated_ms: None,
        };
        for i in 0..40 {
            let look = Look {
                block,
                stratum: Stratum::Open,
                offset: 0,
                began_ms: 0,
                until_ms: 1000,
            };
            looks.ended(&look, (i % 2 == 0).then_some(5), 1000);
        }
        let evidence = Evidence {
            has_watchpoints: true,
            is_too_early: false,
        };
        let a = answer(Site::Stack(1), &site(0, 1000, 300), &looks, 1000, evidence);
        assert!((450..=550).contains(&a.stale_bytes), "{a:?}");
        assert!(
            a.stale_bytes_low > 200 && a.stale_bytes_high <= 700,
            "{a:?}"
        );
        assert_eq!(a.looks, (40, 20));
    }
}
