//! Writes into pages that the target itself may not write, nor make writable.

use std::time::Duration;

use crate::{Error, hold_all, read_bytes, write_bytes};

/// One word to be exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordExchange {
    /// Where (avma), 8-byte aligned.
    pub address: u64,
    /// What must stand there.
    pub from: u64,
    /// What shall.
    pub to: u64,
}

/// Exchanges words of `pid`'s memory with all its threads held, so that nobody reads or writes them
/// meanwhile, through /proc/PID/mem, to which page protection does not matter (proc_pid_mem(5)).
/// Returns which were exchanged, and for how long the threads were held; a word that does not hold what
/// it must stays as it is.
pub fn force_words(pid: i32, words: &[WordExchange]) -> Result<(Vec<bool>, Duration), Error> {
    let held = hold_all(pid)?;
    let mut done = Vec::with_capacity(words.len());
    for word in words {
        let mut now = [0; 8];
        read_bytes(pid, word.address, &mut now)?;
        let fits = u64::from_le_bytes(now) == word.from;
        if fits {
            write_bytes(pid, word.address, &word.to.to_le_bytes())?;
        }
        done.push(fits);
    }
    Ok((done, held.release()))
}
