//! Evaluates the watchdog's looks at a holder, and distinguishes a starved holder from a stuck one.

use super::look::Look;

/// Time between two looks.
pub(super) const PERIOD_NS: u64 = 50_000_000;
/// Lost time of a hold after which the holder must release its target. Time is lost if the holder gets no processor or
/// makes no progress.
const PATIENCE_NS: u64 = 400_000_000;
/// Number of consecutive looks after which a holder is killed. Either the holder made no progress and cannot be made to
/// release its target, or it was told to release its target and did not, although it could. Looks are counted instead
/// of time, because after a pause of the whole machine no holder is late.
const LOOKS: u32 = 10;
/// Like `LOOKS`, after the target has been released: the target can no longer be harmed, and only our own caller waits.
const FREE_LOOKS: u32 = 600;
/// Running time without a step of its work after which a holder must release its target.
const PATIENCE_WITH_RUNNING_NS: u64 = 2_000_000_000;
/// Running time without a step after which a holder is killed.
const RUNNING_LIMIT_NS: u64 = 10_000_000_000;
/// If more threads are runnable than there are processors, the thread that the holder waits for is scheduled more
/// rarely. A look then counts for proportionally less, but for at least this fraction (1/n).
const LEAST_SHARE: u32 = 12;
/// Weight of a look on a machine that is not busy.
const WHOLE_LOOK: u32 = 1 << 16;

/// Action of the watchdog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    GoOn,
    /// The holder must release its target.
    LetGo,
    /// The holder is killed because it makes no progress.
    EndStill,
    /// The holder is killed because it runs without making progress.
    EndRunning,
}

/// Ways to release the target while the holder lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// No way at the moment: the holder's work requires that all threads are stopped, or no signal is available.
    None,
    /// The holder releases it as soon as it gets a signal.
    Signal,
    /// The holder has released its target.
    Done,
}

/// One hold, from its first look on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Course {
    before: Option<Look>,
    /// Weights of the looks at which the holder made no progress, and of the looks at which it did not react although
    /// it could.
    still: u32,
    unanswered: u32,
    is_asked: bool,
    lost_ns: u64,
    /// Number of steps at the last look, and the holder's running time at the last step.
    steps: u32,
    ran_ns: u64,
}

/// One look.
pub(super) struct Seen {
    pub holder: Look,
    /// Number of steps of its work.
    pub steps: u32,
    /// Time since the previous look.
    pub elapsed_ns: u64,
    pub way: Way,
}

impl Course {
    /// Evaluates a look. `share`: weight of a look at which the holder makes no progress; `starves`: true if a thread
    /// that the holder may wait for gets no processor.
    pub(super) fn judge(
        &mut self,
        seen: &Seen,
        share: impl FnOnce() -> u32,
        starves: impl FnOnce() -> bool,
    ) -> Verdict {
        let now = seen.holder;
        let before = self.before.replace(now);
        let has_no_turn = match (before, now.turns) {
            (None, _) => false,
            (Some(before), Some(turns)) => before.turns == Some(turns),
            (Some(_), None) => matches!(now.state, b'T' | b't'),
        };
        // In state R, the holder runs or waits for a processor, which it would also need in order to be killed.
        let is_still = has_no_turn && now.state != b'R';
        let waited = |look: Look| look.turns.map_or(0, |turns| turns[1]);
        let waited = waited(now).saturating_sub(before.map_or(waited(now), waited));
        let is_starved = has_no_turn || waited >= seen.elapsed_ns / 2;
        if is_starved && before.is_some() {
            self.lost_ns = self.lost_ns.saturating_add(seen.elapsed_ns);
        }
        if !is_still {
            self.still = 0;
        }
        // Each signal wakes a frozen holder for a moment, and that moment counts as a turn.
        let is_silent = self.is_asked && seen.way == Way::Signal && now.state != b'R';
        let is_silent = is_silent && (is_still || !is_starved);
        if (is_still || is_silent) && !starves() {
            let share = share();
            let counted = |count: u32, is_so| {
                if is_so {
                    count.saturating_add(share)
                } else {
                    count
                }
            };
            self.still = counted(self.still, is_still);
            self.unanswered = counted(self.unanswered, is_silent);
        }

        let ran = now.turns.map_or(0, |turns| turns[0]);
        if before.is_none() || self.steps != seen.steps {
            (self.steps, self.ran_ns) = (seen.steps, ran);
        }
        // If all threads are held, the holder may read much memory between two steps.
        let ran = match seen.way {
            Way::None => 0,
            Way::Signal | Way::Done => ran.saturating_sub(self.ran_ns),
        };
        if ran >= RUNNING_LIMIT_NS {
            return Verdict::EndRunning;
        }
        let (count, limit) = match seen.way {
            Way::None => (self.still, LOOKS),
            Way::Signal => (self.unanswered, LOOKS),
            Way::Done => (self.still, FREE_LOOKS),
        };
        if count >= limit.saturating_mul(WHOLE_LOOK) {
            return Verdict::EndStill;
        }
        let is_late = self.lost_ns >= PATIENCE_NS || ran >= PATIENCE_WITH_RUNNING_NS;
        if seen.way == Way::None || !is_late {
            return Verdict::GoOn;
        }
        self.is_asked = true;
        Verdict::LetGo
    }
}

/// Returns the weight of a look without progress, given the number of running and runnable threads.
pub(super) fn share(running: u32, processors: u32) -> u32 {
    let least = WHOLE_LOOK / LEAST_SHARE;
    let (Some(share), true) = (
        WHOLE_LOOK.wrapping_mul(processors).checked_div(running),
        processors < WHOLE_LOOK / 16,
    ) else {
        return WHOLE_LOOK;
    };
    if share < least {
        least
    } else if share > WHOLE_LOOK {
        WHOLE_LOOK
    } else {
        share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    /// Simulated holder, described by the kernel's figures.
    struct Holder {
        course: Course,
        way: Way,
        turns: [u64; 3],
        steps: u32,
    }

    impl Holder {
        fn new(way: Way) -> Holder {
            Holder {
                course: Course::default(),
                way,
                turns: [0; 3],
                steps: 0,
            }
        }

        /// Repeats looks until there is a verdict. Returns the number of looks, at most a thousand.
        fn verdict(
            &mut self,
            state: u8,
            starves: bool,
            mut goes_on: impl FnMut(&mut Holder),
        ) -> Option<(u32, Verdict)> {
            (1..=1000).find_map(|looks| {
                goes_on(self);
                let seen = Seen {
                    holder: Look {
                        state,
                        turns: Some(self.turns),
                    },
                    steps: self.steps,
                    elapsed_ns: PERIOD_NS,
                    way: self.way,
                };
                let verdict = self.course.judge(&seen, || WHOLE_LOOK, || starves);
                (verdict != Verdict::GoOn).then_some((looks, verdict))
            })
        }
    }

    #[test]
    fn a_holder_that_works_is_left_alone() {
        for way in [Way::None, Way::Signal, Way::Done] {
            // A holder that polls: little time, many turns.
            let verdict = Holder::new(way).verdict(b'S', false, |holder| {
                holder.turns[0] += MILLISECOND;
                holder.turns[2] += 45;
                holder.steps += 45;
            });
            assert_eq!(verdict, None);
        }
        // If all threads are held, the holder may copy for a long time.
        let verdict = Holder::new(Way::None).verdict(b'R', false, |holder| {
            holder.turns[0] += PERIOD_NS;
        });
        assert_eq!(verdict, None);
    }

    #[test]
    fn a_holder_that_gets_no_processor_lets_go_and_is_never_ended() {
        // First no turn at all, then turns of a millisecond at intervals.
        for every in [u64::MAX, 2] {
            let mut looks = 0;
            let mut starved = |holder: &mut Holder| {
                looks += 1;
                if looks % every == 0 {
                    holder.turns[0] += MILLISECOND;
                    holder.turns[1] += 2 * PERIOD_NS - MILLISECOND;
                    holder.turns[2] += 1;
                }
            };
            let (looks, verdict) = Holder::new(Way::Signal)
                .verdict(b'R', false, &mut starved)
                .expect("a verdict");
            assert_eq!(verdict, Verdict::LetGo);
            assert!((8..=10).contains(&looks), "{looks}");
            assert_eq!(Holder::new(Way::None).verdict(b'R', false, starved), None);
        }
    }

    #[test]
    fn who_waits_for_a_starved_thread_is_not_stuck() {
        assert_eq!(Holder::new(Way::None).verdict(b'S', true, |_| ()), None);
        let verdict = Holder::new(Way::Signal).verdict(b'S', true, |_| ());
        assert_eq!(verdict, Some((9, Verdict::LetGo)));
    }

    #[test]
    fn a_holder_that_stands_still_lets_go_or_is_ended() {
        let ways = [
            (Way::None, LOOKS, Verdict::EndStill),
            (Way::Signal, 8, Verdict::LetGo),
        ];
        for (way, looks, verdict) in ways {
            let found = Holder::new(way).verdict(b'D', false, |_| ());
            assert_eq!(found, Some((looks + 1, verdict)));
        }
        // The holder has been told to release, and does not react.
        let mut holder = Holder::new(Way::Signal);
        let last = std::iter::from_fn(|| holder.verdict(b'D', false, |_| ()))
            .find(|&(_, verdict)| verdict != Verdict::LetGo);
        assert_eq!(last, Some((1, Verdict::EndStill)));
        // Each signal wakes it up for a moment.
        let mut frozen = |holder: &mut Holder| {
            holder.turns[2] += u64::from(holder.course.is_asked);
        };
        let mut holder = Holder::new(Way::Signal);
        let last = std::iter::from_fn(|| holder.verdict(b'S', false, &mut frozen))
            .find(|&(_, verdict)| verdict != Verdict::LetGo);
        assert_eq!(last, Some((1, Verdict::EndStill)));
        // While the holder is starved, looks do not count.
        let mut holder = Holder::new(Way::Signal);
        let mut silent = std::iter::from_fn(|| holder.verdict(b'S', true, |_| ())).take(500);
        assert!(silent.all(|(_, verdict)| verdict == Verdict::LetGo));
    }

    #[test]
    fn a_holder_that_runs_and_does_nothing_lets_go_and_is_ended() {
        let mut holder = Holder::new(Way::Signal);
        let runs = |holder: &mut Holder| holder.turns[0] += PERIOD_NS;
        let first = holder.verdict(b'R', false, runs).expect("a verdict");
        assert_eq!(first, (41, Verdict::LetGo));
        holder.way = Way::Done;
        let last = std::iter::from_fn(|| holder.verdict(b'R', false, runs))
            .find(|&(_, verdict)| verdict != Verdict::LetGo);
        assert_eq!(last, Some((1, Verdict::EndRunning)));
    }

    #[test]
    fn a_look_counts_for_less_on_a_busy_machine() {
        // First no other thread, then the same number of threads as processors, then an unknown number.
        for (threads, processors) in [(1, 2), (2, 2), (0, 2), (1, 1 << 14)] {
            assert_eq!(share(threads, processors), WHOLE_LOOK);
        }
        assert_eq!(share(8, 2), WHOLE_LOOK / 4);
        assert_eq!(share(5000, 2), WHOLE_LOOK / LEAST_SHARE);
    }
}
