//! Writes into pages that the target itself can neither write nor make writable.

use std::time::Duration;

use memhook_process::{RemoteAddress, read_memory};

use crate::{Error, hold_all, write_bytes};

/// Word to exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordExchange {
    /// Address, 8-byte aligned.
    pub address: RemoteAddress,
    /// Value that the word must have.
    pub from: u64,
    /// New value.
    pub to: u64,
    /// True if the address keeps its meaning, regardless of what the process does.
    pub is_permanent: bool,
}

/// Exchanges words of `pid`'s memory through /proc/PID/mem, which ignores page protection (proc_pid_mem(5)). All
/// threads are held, so that none of them accesses the words during the exchange. Returns the words that were
/// exchanged, and the duration of the hold. A word with a different value, or in unmapped memory, is skipped. Words
/// that are not permanent are exchanged only if `are_current`, which is called with all threads held, confirms that the
/// addresses have kept their meaning.
pub fn force_words(
    pid: i32,
    words: &[WordExchange],
    are_current: &dyn Fn() -> bool,
) -> Result<(Vec<bool>, Duration), Error> {
    let held = hold_all(pid)?;
    let done = force_words_of_held(pid, words, are_current)?;
    Ok((done, held.release()))
}

/// Like [`force_words`], for a process whose threads are all held by the caller.
pub fn force_words_of_held(
    pid: i32,
    words: &[WordExchange],
    are_current: &dyn Fn() -> bool,
) -> Result<Vec<bool>, Error> {
    let mut done = Vec::with_capacity(words.len());
    let are_current = are_current();
    for word in words {
        if !are_current && !word.is_permanent {
            done.push(false);
            continue;
        }
        match exchange(pid, word) {
            Ok(exchanged) => done.push(exchanged),
            Err(error @ Error::TargetGone { .. }) => return Err(error),
            Err(_) => done.push(false),
        }
    }
    Ok(done)
}

fn exchange(pid: i32, word: &WordExchange) -> Result<bool, Error> {
    let mut now = [0; 8];
    read_memory(pid, word.address, &mut now).map_err(|error| Error::of_process(pid, error))?;
    let fits = u64::from_le_bytes(now) == word.from;
    if fits {
        write_bytes(pid, word.address, &word.to.to_le_bytes())?;
    }
    Ok(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::{Program, patiently, send};

    #[test]
    fn a_word_that_is_gone_does_not_prevent_the_others() {
        let mut program = Program::start("waits", &["nanosleep"]);
        let word = program.addresses()["interrupted"];
        let exchange = |address, from, to| WordExchange {
            address: RemoteAddress(address),
            from,
            to,
            is_permanent: address == 8,
        };
        let words = [
            exchange(8, 0, 1),
            exchange(word, 0, 1),
            exchange(word, 7, 2),
            exchange(word, 1, 0),
        ];
        let (done, _) = patiently(|| force_words(program.pid(), &words, &|| true));
        assert_eq!(done, [false, true, false, true]);
        let (done, _) = patiently(|| force_words(program.pid(), &words[1..2], &|| false));
        assert_eq!(done, [false]);
        send(program.pid(), libc::SIGTERM);
        program.ends_well();
    }
}
