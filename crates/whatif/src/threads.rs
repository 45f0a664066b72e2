//! Decides which thread of a replay makes the calls of a recorded thread, and when the replay's
//! thread ends.
//!
//! A thread that ends gives back the memory that its allocator kept for it: its cache, and its
//! arena, which the next thread takes. A replay whose threads never ended would keep a cache for
//! each of them.

use std::collections::BTreeSet;

/// Maximum number of threads in a replay. If more threads of a run live at one time, they share the
/// replay's threads.
pub(crate) const MOST_THREADS: u16 = 64;

/// Numbers of a thread's first and last call.
type Span = (u64, u64);

/// Lifetimes of a recording's threads, by their numbers in the ledger.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lives {
    /// The process's first thread; 0 if it made no call.
    main: u16,
    /// Number of the last call of each thread that ends; `None` if the thread lives to the end.
    last_calls: Vec<Option<u64>>,
}

impl Lives {
    /// Determines the lifetimes of the threads that made these calls. Threads for which `has_ended`
    /// returns true end with their last call. For the latest threads, the recording does not show
    /// yet whether they have ended, because the recorder checks only occasionally whether the
    /// owners of rings have ended. In a program with short-lived threads, a thread without any
    /// calls since the last thread started has ended.
    pub fn new(main: u16, calls: &Calls, has_ended: impl Fn(u16) -> bool) -> Lives {
        let made = |(index, span): (usize, &Span)| {
            let index = u16::try_from(index).ok()?;
            (index != main && span.1 > 0).then_some((index, *span))
        };
        let spans: Vec<_> = calls.spans.iter().enumerate().map(made).collect();
        let come_and_go = spans.iter().flatten().any(|(index, _)| has_ended(*index));
        let last_came = spans.iter().flatten().map(|(_, span)| span.0).max();
        let ends = |(index, span): (u16, Span)| {
            let is_silent = come_and_go && Some(span.1) < last_came;
            (is_silent || has_ended(index)).then_some(span.1)
        };
        Lives {
            main,
            last_calls: spans.into_iter().map(|one| one.and_then(ends)).collect(),
        }
    }

    fn ends_with(&self, index: u16, call: u64) -> bool {
        self.last_calls.get(usize::from(index)) == Some(&Some(call))
    }
}

/// Counts the calls of each thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls {
    made: u64,
    spans: Vec<Span>,
}

impl Calls {
    /// Counts another call of a thread. Returns its number; the first is 1.
    fn count(&mut self, index: u16) -> u64 {
        self.made += 1;
        let index = usize::from(index);
        if self.spans.len() <= index {
            self.spans.resize(index + 1, (0, 0));
        }
        let span = &mut self.spans[index];
        span.0 = if span.0 == 0 { self.made } else { span.0 };
        span.1 = self.made;
        self.made
    }
}

/// Threads of a replay, and the recorded threads that use them.
#[derive(Debug)]
pub(crate) struct Threads {
    lives: Lives,
    pub calls: Calls,
    /// Thread of the replay for each recorded thread, by its number in the ledger. It is known once
    /// the recorded thread has made its first call.
    seats: Vec<Option<u16>>,
    /// Number of recorded threads that currently use each thread of the replay.
    users: Vec<u32>,
    free: BTreeSet<u16>,
}

impl Threads {
    pub fn new(lives: Lives) -> Threads {
        Threads {
            lives,
            calls: Calls::default(),
            seats: Vec::new(),
            // The first thread is the process's own, because some allocators treat it differently.
            users: vec![1],
            free: BTreeSet::new(),
        }
    }

    /// Returns the largest number of threads used in the replay.
    pub fn most(&self) -> u16 {
        self.users.len() as u16
    }

    /// Counts a call of this thread of the ledger. Returns the thread of the replay that makes the
    /// call, and true if that thread ends after the call.
    pub fn call(&mut self, index: u16) -> (u16, bool) {
        let seat = self.seat(index);
        let number = self.calls.count(index);
        if seat == 0 || !self.lives.ends_with(index, number) {
            return (seat, false);
        }
        self.seats[usize::from(index)] = None;
        let users = &mut self.users[usize::from(seat)];
        *users -= 1;
        let ends = *users == 0;
        if ends {
            self.free.insert(seat);
        }
        (seat, ends)
    }

    fn seat(&mut self, index: u16) -> u16 {
        // Threads that the ledger could not number have 0.
        if index == self.lives.main || index == 0 {
            return 0;
        }
        let at = usize::from(index);
        if self.seats.len() <= at {
            self.seats.resize(at + 1, None);
        }
        if let Some(seat) = self.seats[at] {
            return seat;
        }
        let seat = match self.free.pop_first() {
            Some(seat) => seat,
            None if self.most() < MOST_THREADS => {
                self.users.push(0);
                self.most() - 1
            }
            None => 1 + (index - 1) % (MOST_THREADS - 1),
        };
        self.users[usize::from(seat)] += 1;
        self.seats[at] = Some(seat);
        seat
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seats(threads: &mut Threads, calls: &[u16]) -> Vec<(u16, bool)> {
        calls.iter().map(|index| threads.call(*index)).collect()
    }

    fn of_main(main: u16) -> Threads {
        Threads::new(Lives::new(main, &Calls::default(), |_| false))
    }

    #[test]
    fn the_first_thread_of_the_process_is_the_first() {
        let mut threads = of_main(2);
        let found = seats(&mut threads, &[1, 2, 3, 1]);
        assert_eq!(found, [(1, false), (0, false), (2, false), (1, false)]);
        assert_eq!(threads.most(), 3);
        // The main thread made no call.
        assert_eq!(seats(&mut of_main(0), &[1, 2]), [(1, false), (2, false)]);
    }

    #[test]
    fn those_beyond_the_most_share() {
        let mut threads = of_main(1);
        let all: Vec<u16> = (1..=200).collect();
        let found = seats(&mut threads, &all);
        assert_eq!(threads.most(), MOST_THREADS);
        assert!(found.iter().all(|(seat, _)| *seat < MOST_THREADS));
        assert!(found[1..].iter().all(|(seat, _)| *seat > 0));
        assert_eq!(seats(&mut threads, &all), found);
    }

    #[test]
    fn a_thread_that_has_ended_makes_room_for_the_next() {
        let calls = [1, 2, 2, 3, 1, 4, 4, 3, 1];
        let mut first = of_main(1);
        seats(&mut first, &calls);
        assert_eq!(first.most(), 4);
        let lives = Lives::new(1, &first.calls, |index| index != 3);
        let mut second = Threads::new(lives);
        let found = seats(&mut second, &calls);
        let expected = [
            (0, false),
            (1, false),
            (1, true),
            (1, false),
            (0, false),
            (2, false),
            (2, true),
            (1, false),
            (0, false),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_thread_that_is_silent_when_the_last_one_comes_has_gone() {
        // The third thread continues, and the last one has only just started.
        let calls = [1, 2, 3, 4, 5, 3, 1];
        let ends = |has_ended: fn(u16) -> bool| {
            let mut first = Threads::new(Lives::default());
            seats(&mut first, &calls);
            let mut second = Threads::new(Lives::new(1, &first.calls, has_ended));
            let found = seats(&mut second, &calls).into_iter();
            found.map(|(_, ends)| ends).collect::<Vec<_>>()
        };
        let expected = [false, true, false, true, false, false, false];
        assert_eq!(ends(|index| index == 2), expected);
        let calls = [1, 2, 3];
        let mut first = of_main(0);
        seats(&mut first, &calls);
        let mut second = Threads::new(Lives::new(0, &first.calls, |_| true));
        let found = seats(&mut second, &calls);
        assert_eq!(
            found,
            [(1, true); 3],
            "the process's first one made no call"
        );
        assert_eq!(ends(|_| false), [false; 7], "no thread is known to go");
    }

    #[test]
    fn a_thread_that_is_shared_ends_with_the_last_of_its_users() {
        let all: Vec<u16> = (1..=65).chain((2..=65).rev()).collect();
        let mut first = Threads::new(Lives::default());
        seats(&mut first, &all);
        let mut second = Threads::new(Lives::new(1, &first.calls, |_| true));
        let found = seats(&mut second, &all);
        let ends = found.iter().filter(|(_, ends)| *ends);
        assert_eq!(ends.count(), usize::from(MOST_THREADS) - 1);
    }
}
