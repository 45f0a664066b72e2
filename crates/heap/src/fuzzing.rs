//! Functions that the fuzzer calls (`fuzz/README.md`): parsers of texts that only ever come from /proc, and of
//! verdicts.

use crate::{Error, Verdict};

/// A text as if it were each of the files in turn.
pub fn proc_text(text: &str) {
    crate::capture::fork::not_inherited(text);
    crate::capture::kernel_words::epoll_data(text).count();
    crate::capture::kernel_words::timer_values(text).count();
    crate::capture::sockets::socket_inode(std::path::Path::new(text));
}

/// Reads a verdict, and what is compared because of it: blocks with their sizes. A process that it is not of refuses it.
pub fn verdict(bytes: &[u8]) -> Result<Vec<(u64, u64)>, Error> {
    let verdict = Verdict::read("the fuzzer's", bytes)?;
    // The process with this id has nothing to do with what made the input.
    let refused = verdict.foreign_to(std::process::id() as i32);
    assert!(refused.is_some_and(|why| !why.is_empty()));
    let compared = verdict.fingerprints();
    let blocks = compared
        .iter()
        .map(|(address, found)| (address, found.bytes));
    Ok(blocks.collect())
}
