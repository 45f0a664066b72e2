//! A live process, watched within a budget.

use crate::ages::{AgeHistory, AgePoint};
use crate::answer::{Evidence, SiteAnswer, answer, note_known};
use crate::controller::{Controller, Settings};
use crate::error::Error;
use crate::looks::{Looks, kept_ms};
use crate::marked_pages::MarkedPages;
use crate::measure::measure;
use crate::page_watch::PageWatch;
use crate::random::Random;
use crate::sites::{Census, LiveBlock, Site, SiteBlocks};
use crate::word_watch::{Ended, WordWatch};
use memhook_inject::Access;
use memhook_stream::monotonic_ns;
use rustc_hash::FxHashMap;
use std::time::Duration;

/// Minimum time between two checks of the pages, which may take only a small share of our time.
const SECOND_MS: u32 = 1000;
const LOOKING_SHARE: u32 = 5;
/// Maximum delay until a release is seen. An access within that time may have been made by free().
const RELEASE_DELAY_MS: u32 = 500;

/// Last observed access at a site.
#[derive(Clone, Debug)]
pub struct SeenAccess {
    /// Time of the access.
    pub at_ms: u32,
    /// The block.
    pub block: LiveBlock,
    /// Offset of the word in the block.
    pub offset: u64,
    /// Details, if the kernel recorded them.
    pub access: Option<Access>,
}

/// Watches a process.
pub struct Watcher {
    controller: Controller,
    began_ms: u32,
    pages: Option<PageWatch>,
    words: Option<WordWatch>,
    ended: Vec<Ended>,
    looks: Looks,
    hits: FxHashMap<u64, u32>,
    accesses: FxHashMap<Site, SeenAccess>,
    sites: FxHashMap<Site, SiteBlocks>,
    history: AgeHistory,
    random: Random,
    next_second_ms: u32,
    notes: Vec<String>,
}

impl Watcher {
    /// Begins to watch a process. In all methods, `now_ms` is the time since the attach in ms.
    ///
    /// # Errors
    /// Fails if neither pages nor words can be watched.
    pub fn start(pid: i32, settings: Settings, now_ms: u32) -> Result<Watcher, Error> {
        let means = measure();
        let mut notes = Vec::new();
        let mut not_seen = |why| notes.push(why);
        let pages = PageWatch::start(pid, &means).map_err(&mut not_seen).ok();
        let budget = settings.budget;
        let words = WordWatch::start(pid, &means, budget, now_ms, &mut notes);
        let words = words.map_err(|why| notes.push(why)).ok();
        if pages.is_none() && words.is_none() {
            return Err(Error::NoEvidence {
                pid,
                why: notes.join("; "),
            });
        }
        let mut watcher = Watcher {
            controller: Controller::new(settings, means.costs),
            began_ms: now_ms,
            pages,
            words,
            ended: Vec::new(),
            looks: Looks::default(),
            hits: FxHashMap::default(),
            accesses: FxHashMap::default(),
            sites: FxHashMap::default(),
            history: AgeHistory::default(),
            random: Random::seeded(monotonic_ns()),
            next_second_ms: now_ms,
            notes,
        };
        watcher.look(now_ms);
        Ok(watcher)
    }

    /// Returns the limitations of the watch, with reasons.
    pub fn notes(&self, now_ms: u32) -> Vec<String> {
        let mut notes = self.notes.clone();
        let words = self.words.as_ref();
        notes.extend(words.and_then(|words| words.rest_note(self.watched_ms(now_ms), now_ms)));
        notes.extend(self.marks().and_then(MarkedPages::given_up));
        notes.extend(words.and_then(WordWatch::threads_note));
        notes
    }

    /// Returns the controller.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Returns true if words are watched.
    pub fn has_watchpoints(&self) -> bool {
        self.words.is_some()
    }

    /// Returns true if pages are watched.
    pub fn has_pages(&self) -> bool {
        self.pages.is_some()
    }

    /// Returns how often the accessed bits in the page tables were cleared, and how long the
    /// slowest clearing took.
    pub fn clears(&self) -> (u64, Duration) {
        self.marks()
            .map_or((0, Duration::ZERO), MarkedPages::clears)
    }

    fn marks(&self) -> Option<&MarkedPages> {
        self.pages.as_ref().map(|pages| &pages.marks)
    }

    /// Returns the length of the watch in ms.
    pub fn watched_ms(&self, now_ms: u32) -> u32 {
        now_ms.saturating_sub(self.began_ms)
    }

    /// Returns the share of the process's time that watching has cost so far.
    pub fn cost(&self, now_ms: u32) -> f64 {
        let time_ns = f64::from(self.watched_ms(now_ms).max(1)) * 1e6;
        self.controller.spent_ns() / time_ns
    }

    /// Takes a turn; call it every few milliseconds.
    pub fn turn(&mut self, now_ms: u32) {
        self.poll(now_ms);
        if let Some(words) = &mut self.words {
            words.turn(&mut self.controller, &mut self.ended, now_ms);
        }
        if now_ms >= self.next_second_ms {
            self.look(now_ms);
        }
        if let Some(pages) = &mut self.pages {
            pages.go_on(&mut self.controller, now_ms);
        }
        if let Some(words) = &mut self.words {
            let (looks, sites) = (&self.looks, &mut self.sites);
            words.arm(&mut self.controller, looks, sites, &mut self.random, now_ms);
        }
    }

    /// Checks the pages now. Call it before the last census, so that the census describes this
    /// moment.
    pub fn look_again(&mut self, now_ms: u32) {
        self.poll(now_ms);
        self.look(now_ms);
        if let Some(pages) = &mut self.pages {
            pages.look_again(now_ms);
        }
    }

    fn poll(&mut self, now_ms: u32) {
        if let Some(words) = &mut self.words {
            words.poll(&mut self.controller, &mut self.ended, now_ms);
        }
    }

    fn look(&mut self, now_ms: u32) {
        let Some(pages) = &mut self.pages else {
            return;
        };
        let looked = pages.look(&mut self.controller, now_ms);
        if let Err(why) = &looked {
            self.notes.push(why.clone());
            self.pages = None;
            self.controller.pages.set_areas(&[], now_ms);
        }
        if let Ok(took) = looked {
            let took_ms = took.as_millis() as u32;
            let apart_ms = took_ms.saturating_mul(LOOKING_SHARE).max(SECOND_MS);
            self.next_second_ms = now_ms.saturating_add(apart_ms);
        }
    }

    /// Takes a census of the live blocks, which `each_block` enumerates.
    pub fn census(&mut self, now_ms: u32, each_block: impl FnOnce(&mut dyn FnMut(LiveBlock))) {
        let older_ms = self.controller.settings().older_ms;
        let is_due = |ended: &Ended| now_ms.saturating_sub(ended.ended_ms) >= RELEASE_DELAY_MS;
        let (due, waiting) = std::mem::take(&mut self.ended)
            .into_iter()
            .partition(is_due);
        self.ended = waiting;
        let due: Vec<Ended> = due;
        let mut lives: FxHashMap<LiveKey, bool> = due
            .iter()
            .map(|ended| (key(&ended.look.block), false))
            .collect();
        let random = Random::seeded(self.random.number());
        let mut census = Census::new(older_ms, now_ms, &self.hits, random);
        let (pages, marks) = (&self.controller.pages, self.marks());
        each_block(&mut |block| {
            if !lives.is_empty()
                && let Some(lives) = lives.get_mut(&key(&block))
            {
                *lives = true;
            }
            let range = block.address..block.address.saturating_add(block.bytes);
            let written_ms = pages.may_be_written(range.clone());
            let idle = marks.and_then(|marks| marks.idle_since(range.clone(), older_ms));
            census.add(&block, pages.writes(range, older_ms), written_ms, idle);
        });
        self.history.add(AgePoint {
            at_ms: now_ms,
            bytes: census.ages,
            pages: pages.thresholds(),
        });
        self.sites = census.sites;
        for ended in due {
            if lives.get(&key(&ended.look.block)) == Some(&true) {
                self.believe(ended);
            }
        }
        let kept_ms = kept_ms(older_ms);
        self.looks.forget_before(now_ms.saturating_sub(kept_ms));
        let evidence = Evidence {
            has_watchpoints: self.has_watchpoints(),
            is_too_early: false,
        };
        note_known(&mut self.sites, &mut self.looks, older_ms, evidence);
        self.hits
            .retain(|_, at| now_ms.saturating_sub(*at) < older_ms);
    }

    /// Records the result of a look whose block is still live.
    fn believe(&mut self, ended: Ended) {
        let Ended {
            look,
            touched_ms,
            access,
            ended_ms,
        } = ended;
        self.looks.ended(&look, touched_ms, ended_ms);
        if let Some(at_ms) = touched_ms {
            self.hits.insert(look.block.address, at_ms);
            let seen = SeenAccess {
                at_ms,
                block: look.block,
                offset: look.offset,
                access,
            };
            self.accesses.insert(look.block.site, seen);
        }
    }

    /// Returns the stale blocks by site, according to the last census. Sorted by bytes multiplied
    /// by the known idle time, largest first.
    pub fn answers(&self, now_ms: u32) -> Vec<SiteAnswer> {
        let older_ms = self.controller.settings().older_ms;
        let evidence = Evidence {
            has_watchpoints: self.has_watchpoints(),
            is_too_early: self.watched_ms(now_ms) < older_ms,
        };
        // Watches that are still active count with their time so far, because the long ones are
        // mostly on words that are not accessed.
        let mut looks = self.looks.clone();
        for active in self.words.iter().flat_map(WordWatch::active) {
            looks.ended(active, None, now_ms);
        }
        let sites = self.sites.iter();
        let mut answers: Vec<SiteAnswer> = sites
            .map(|(site, blocks)| {
                let mut answer = answer(*site, blocks, &looks, older_ms, evidence);
                let seen = self.accesses.get(site).map(|seen| seen.at_ms);
                answer.last_access_ms = answer.last_access_ms.max(seen);
                answer
            })
            .collect();
        answers.sort_by(|a, b| {
            let by_time = b.stale_byte_seconds.total_cmp(&a.stale_byte_seconds);
            let by_size = b.live_bytes.cmp(&a.live_bytes);
            by_time.then(by_size).then(a.site.cmp(&b.site))
        });
        answers
    }

    /// Returns the live bytes by idle time, over the course of the watch; empty if writes cannot be
    /// seen.
    pub fn history(&self) -> &[AgePoint] {
        if self.has_pages() {
            self.history.points()
        } else {
            &[]
        }
    }

    /// Returns the last observed access at a site.
    pub fn last_access(&self, site: Site) -> Option<&SeenAccess> {
        self.accesses.get(&site)
    }
}

type LiveKey = (u64, Option<u32>);

fn key(block: &LiveBlock) -> LiveKey {
    (block.address, block.allocated_ms)
}

/// Returns the default duration of a watch, which is long enough to see memory become stale.
pub fn usual_duration(older: Duration) -> Duration {
    older * 2 + Duration::from_secs(5)
}
