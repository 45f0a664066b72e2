//! Writes into pages that the target itself may neither write nor make writable.

use std::time::Duration;

use memhook_process::{RemoteAddress, read_memory};

use crate::{Error, hold_all, write_bytes};

/// A word to be exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WordExchange {
    /// Where it is, 8-byte aligned.
    pub address: RemoteAddress,
    /// Value that it must hold.
    pub from: u64,
    /// Value that it is to hold.
    pub to: u64,
    /// True if the address means the same, whatever the process does.
    pub is_permanent: bool,
}

/// Exchanges words of `pid`'s memory through /proc/PID/mem, to which page protection does not matter
/// (proc_pid_mem(5)). All threads are held, so that nobody reads or writes the words meanwhile.
/// Returns which words were exchanged, and for how long the threads were held. A word that does not hold
/// what it must, or that is not there any more, stays as it is. Words that are not permanent are only
/// exchanged if `are_current` says, with all threads held, that the addresses still mean what they did.
pub fn force_words(
    pid: i32,
    words: &[WordExchange],
    are_current: &dyn Fn() -> bool,
) -> Result<(Vec<bool>, Duration), Error> {
    let held = hold_all(pid)?;
    let done = force_words_of_held(pid, words, are_current)?;
    Ok((done, held.release()))
}

/// Like [`force_words`], for a process all of whose threads the caller holds.
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
