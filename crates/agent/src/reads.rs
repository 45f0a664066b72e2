//! Reads of the file systems of targets, which may never answer: the server may be gone, or a FUSE file system may be
//! served by the target itself. No deadline can end a read, or the open before it. So both are done by threads that are
//! never joined, and answers may arrive at any time. A thread whose read takes too long is abandoned and replaced.
//! Until its read returns, no file of the same owner is read. The owner is the pod or the container of the process, or
//! the process itself if it is in none. So each owner costs at most one thread.
//!
//! A thread ends when its work is done. A longer-lived thread would keep its last released blocks of each size (glibc's
//! caches of threads), and with them the pages around these blocks, which may be anywhere in the heap.

use crate::facts::{Facts, Inside, Owner};
use crate::said::chain;
use crossbeam_channel::{Receiver, Sender, unbounded};
use memhook_attach::{TraceConfig, already_traced, unready};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time after which a read is abandoned, because it may never end.
const PATIENCE: Duration = Duration::from_secs(2);
/// Number of threads that normally read at the same time.
const THREADS: usize = 4;
/// Maximum number of hanging threads. When this many threads hang, nothing is read until one of their reads returns.
const MOST_HUNG: usize = 64;

/// Maximum number of hanging threads for one pod, container or control group.
const MOST_HUNG_IN_REALM: usize = 8;
/// Number of questions about the processes of one owner that a thread answers before it serves other owners.
const MOST_LEFT: usize = 64;

/// A question about a process.
pub enum Question {
    /// Asks for the contents of the process's files.
    Inside {
        /// True if the process is in a pod, so that its files contain the pod's name.
        is_pod: bool,
    },
    /// Asks for obstacles to an attach with these settings.
    Obstacle(Box<TraceConfig>),
    /// Asks for obstacles to an attach with these settings, including a tracer, which the attach itself would also
    /// find.
    ObstacleNow(Box<TraceConfig>),
}

/// Answer to a question.
pub enum Answer {
    Inside(Inside),
    /// Obstacle to an attach, if there is one.
    Obstacle(Option<String>),
    /// No answer yet. It may come later, or never.
    None,
}

/// An answer and its process.
pub struct Heard {
    pub pid: i32,
    pub started: u64,
    pub answer: Answer,
}

struct Asked {
    pid: i32,
    started: u64,
    owner: Owner,
    question: Question,
}

/// The work of a thread: questions about the processes of one owner.
struct Desk {
    owner: Owner,
    /// True if there are no more questions, and the thread ends.
    is_done: bool,
    left: VecDeque<Asked>,
    /// The current read, with its start.
    reads: Option<(Instant, (i32, u64))>,
    is_given_up: bool,
}

/// The reading threads and their questions.
pub struct Reads {
    desks: Vec<Arc<Mutex<Desk>>>,
    /// Questions that have no thread yet.
    waiting: VecDeque<Asked>,
    answers: (Sender<Heard>, Receiver<Heard>),
    /// Descriptor that is readable when an answer is available.
    bell: Option<Arc<OwnedFd>>,
}

impl Default for Reads {
    fn default() -> Reads {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Reads {
            desks: Vec::new(),
            waiting: VecDeque::new(),
            answers: unbounded(),
            bell: bell.ok().map(Arc::new),
        }
    }
}

impl Reads {
    /// Asks about a process. Returns false if the process's owner did not answer before, or if no more threads are
    /// available.
    pub fn ask(&mut self, facts: &Facts, question: Question) -> bool {
        let asked = Asked {
            pid: facts.pid,
            started: facts.started,
            owner: facts.owner(),
            question,
        };
        match self.hand_over(asked) {
            Handed::Over => true,
            Handed::Silent(_) => false,
            Handed::Back(_) if self.hung() >= MOST_HUNG => false,
            Handed::Back(asked) => {
                self.waiting.push_back(asked);
                true
            }
        }
    }

    /// Passes a question to the thread that works for its owner, or to a new thread.
    fn hand_over(&mut self, asked: Asked) -> Handed {
        let (mut at_work, mut hung_in_realm) = (0, 0);
        self.desks.retain(|desk| !lock(desk).is_done);
        for desk in &self.desks {
            let mut desk = lock(desk);
            if desk.is_done {
                continue;
            }
            if desk.owner == asked.owner {
                if desk.is_given_up {
                    return Handed::Silent(asked);
                }
                if desk.left.len() >= MOST_LEFT {
                    return Handed::Back(asked);
                }
                desk.left.push_back(asked);
                return Handed::Over;
            }
            let is_in_realm = desk.owner.realm == asked.owner.realm;
            hung_in_realm += usize::from(desk.is_given_up && is_in_realm);
            at_work += usize::from(!desk.is_given_up);
        }
        if hung_in_realm >= MOST_HUNG_IN_REALM {
            return Handed::Silent(asked);
        }
        if at_work >= THREADS || self.desks.len() >= THREADS + MOST_HUNG {
            return Handed::Back(asked);
        }
        let desk = Arc::new(Mutex::new(Desk {
            owner: asked.owner.clone(),
            is_done: false,
            left: VecDeque::from([asked]),
            reads: None,
            is_given_up: false,
        }));
        if self.start(Arc::clone(&desk)).is_err()
            && let Some(asked) = lock(&desk).left.pop_front()
        {
            return Handed::Back(asked);
        }
        self.desks.push(desk);
        Handed::Over
    }

    /// Starts a thread.
    fn start(&self, desk: Arc<Mutex<Desk>>) -> std::io::Result<()> {
        let (answers, bell) = (self.answers.0.clone(), self.bell.clone());
        let thread = std::thread::Builder::new().name("reader".into());
        let started = thread.spawn(move || {
            // The desk is not locked during a read.
            let take = || next(&mut lock(&desk));
            while let Some(asked) = take() {
                let answer = read(asked.pid, asked.question);
                let _ = answers.send(Heard {
                    pid: asked.pid,
                    started: asked.started,
                    answer,
                });
                if let Some(bell) = &bell {
                    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
                }
            }
        });
        started.map(drop)
    }

    /// Returns the answers since the last call, and abandoned questions.
    pub fn heard(&mut self) -> Vec<Heard> {
        if let Some(bell) = &self.bell {
            let _ = rustix::io::read(bell, &mut [0; 8]);
        }
        let mut silent = Vec::new();
        for desk in &self.desks {
            let mut desk = lock(desk);
            let Some((since, of)) = desk.reads else {
                continue;
            };
            if !desk.is_given_up && since.elapsed() > PATIENCE {
                desk.is_given_up = true;
                silent.push(of);
                silent.extend(desk.left.drain(..).map(|asked| (asked.pid, asked.started)));
            }
        }
        self.desks.retain(|desk| !lock(desk).is_done);
        for asked in std::mem::take(&mut self.waiting) {
            match self.hand_over(asked) {
                Handed::Over => {}
                Handed::Silent(asked) => silent.push((asked.pid, asked.started)),
                Handed::Back(asked) => self.waiting.push_back(asked),
            }
        }
        let silent = silent.into_iter().map(|(pid, started)| Heard {
            pid,
            started,
            answer: Answer::None,
        });
        // An answer is newer than the report that there was none.
        silent.chain(self.answers.1.try_iter()).collect()
    }

    /// Returns the number of hanging threads.
    pub fn hung(&self) -> usize {
        let desks = self.desks.iter().map(|desk| lock(desk));
        desks
            .filter(|desk| desk.is_given_up && !desk.is_done)
            .count()
    }

    /// Returns a descriptor that is readable when an answer is available.
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.bell.as_ref().map(|bell| bell.as_fd())
    }
}

/// Fate of a question.
enum Handed {
    Over,
    /// The owner does not answer.
    Silent(Asked),
    /// All threads are busy.
    Back(Asked),
}

/// Returns the next question of a desk, or ends its work.
fn next(desk: &mut Desk) -> Option<Asked> {
    let asked = desk.left.pop_front().filter(|_| !desk.is_given_up);
    desk.reads = asked
        .as_ref()
        .map(|asked| (Instant::now(), (asked.pid, asked.started)));
    desk.is_done = asked.is_none();
    asked
}

fn read(pid: i32, question: Question) -> Answer {
    match question {
        Question::Inside { is_pod } => Answer::Inside(Inside::of(pid, is_pod)),
        Question::Obstacle(config) => {
            Answer::Obstacle(unready(pid, &config).map(|error| chain(&error)))
        }
        Question::ObstacleNow(config) => {
            let traced = || already_traced(pid).unwrap_or_else(Some);
            let error = unready(pid, &config).or_else(traced);
            Answer::Obstacle(error.map(|error| chain(&error)))
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After weeks of questions about short-lived processes, an agent must not have more threads
    /// than on its first day.
    #[test]
    fn threads_end_with_their_work() {
        let pid = std::process::id() as i32;
        let mut reads = Reads::default();
        let mut answered = 0;
        let until = Instant::now() + Duration::from_secs(60);
        for number in 0..100 {
            let facts = Facts {
                pid,
                groups: format!("0::/{number}"),
                ..Facts::default()
            };
            assert!(reads.ask(&facts, Question::Inside { is_pod: false }));
            // A thread that has just ended is still in the list.
            let at_work = reads.desks.iter().filter(|desk| !lock(desk).is_done);
            assert!(at_work.count() <= THREADS);
        }
        while answered < 100 || !reads.desks.is_empty() {
            assert!(Instant::now() < until, "{answered}");
            std::thread::sleep(Duration::from_millis(1));
            answered += reads.heard().len();
        }
        assert!(reads.waiting.is_empty());
        assert_eq!((answered, reads.hung()), (100, 0));
    }
}
