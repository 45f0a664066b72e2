//! Marks: named moments of a trace, set by other processes while it runs.

use crate::Region;
use crate::memory::tally;
use memhook_abi::{MARK_BY_PROGRAM, MARK_BYTES, MARK_WORDS, MARKS, MARKS_OFFSET, MarkEntry};
use std::mem::offset_of;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// A moment with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedMoment {
    /// Nanoseconds since the attach.
    pub time_ns: u64,
    /// Its name.
    pub name: String,
}

fn entry(number: u64) -> usize {
    MARKS_OFFSET + (number % MARKS as u64) as usize * size_of::<MarkEntry>()
}

impl Region {
    /// Sets a mark for the attacher; returns its number. A name that is too long is cut.
    pub fn set_mark(&self, name: &str) -> u64 {
        let mut end = name.len().min(MARK_BYTES);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = name.as_bytes()[..end].to_vec();
        bytes.resize(MARK_BYTES, 0);
        let number = self.memory.u64(tally!(marks)).fetch_add(1, AcqRel);
        let at = entry(number);
        let word = |offset: usize| self.memory.u64(at + offset);
        word(offset_of!(MarkEntry, number)).store(0, Release);
        word(offset_of!(MarkEntry, time_ns)).store(0, Relaxed);
        let words = self
            .memory
            .words(at + offset_of!(MarkEntry, name), MARK_WORDS);
        for (word, eight) in words.iter().zip(bytes.chunks_exact(8)) {
            word.store(
                u64::from_le_bytes(eight.try_into().unwrap_or_default()),
                Relaxed,
            );
        }
        // Release: a reader that sees the number also sees the name.
        word(offset_of!(MarkEntry, number)).store(number.wrapping_add(1), Release);
        number
    }

    /// Returns the time at which the attacher saw a mark, in nanoseconds since the attach; `None` if it has not seen
    /// the mark yet.
    pub fn mark_seen_at(&self, number: u64) -> Option<u64> {
        let time = self
            .memory
            .u64(entry(number) + offset_of!(MarkEntry, time_ns))
            .load(Acquire);
        // If a later mark has reused the entry, the time belongs to that mark.
        (time != 0 && time & MARK_BY_PROGRAM == 0).then_some(time)
    }

    /// Returns the marks from number `next` on, assigning them the time `now_ns`, and the number of marks that later
    /// ones have overwritten.
    pub fn take_marks(&self, next: &mut u64, now_ns: u64) -> (Vec<NamedMoment>, u64) {
        let all = self.counted(tally!(marks));
        let mut taken = Vec::new();
        let mut missed = all.saturating_sub(*next).saturating_sub(MARKS as u64);
        *next += missed;
        while *next < all {
            let at = entry(*next);
            let number = self.memory.u64(at + offset_of!(MarkEntry, number));
            if number.load(Acquire) != next.wrapping_add(1) {
                // The mark is still being written, or its writer will never finish, because it left through a signal
                // handler or belongs to an earlier session.
                if all - *next <= MARKS as u64 / 2 {
                    break;
                }
                missed += 1;
                *next += 1;
                continue;
            }
            let words = self
                .memory
                .words(at + offset_of!(MarkEntry, name), MARK_WORDS);
            let bytes: Vec<u8> = words
                .iter()
                .flat_map(|word| word.load(Relaxed).to_le_bytes())
                .take_while(|&byte| byte != 0)
                .collect();
            let text = String::from_utf8_lossy(&bytes);
            let answer = self.memory.u64(at + offset_of!(MarkEntry, time_ns));
            let told = answer.load(Relaxed);
            let time_ns = if told & MARK_BY_PROGRAM == 0 {
                now_ns
            } else {
                // The mark may have been set after the caller read the time.
                (told & !MARK_BY_PROGRAM).min(self.clock_ns().max(now_ns))
            };
            taken.push(NamedMoment {
                time_ns,
                name: text.replace(|c: char| c.is_control(), " "),
            });
            // Release: a process that sees the time knows that all events up to `now` were taken before.
            answer.store(time_ns.max(1), Release);
            *next += 1;
        }
        (taken, missed)
    }
}
