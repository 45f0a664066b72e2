//! Functions that the fuzzer calls (`fuzz/README.md`): parsers of verdicts, and of texts that
//! normally come from /proc.

use crate::{Error, Verdict};

/// Parses a text as each of the /proc files in turn.
pub fn proc_text(text: &str) {
    crate::capture::fork::not_inherited(text);
    crate::capture::kernel_words::epoll_data(text).count();
    crate::capture::kernel_words::timer_values(text).count();
    crate::capture::sockets::socket_inode(std::path::Path::new(text));
}

/// Reads a verdict and returns the blocks, with sizes, that a comparison would use. The verdict
/// must not be accepted for an unrelated process.
pub fn verdict(bytes: &[u8]) -> Result<Vec<(u64, u64)>, Error> {
    let verdict = Verdict::read("the fuzzer's", bytes)?;
    // The process with this id is unrelated to the input.
    let refused = verdict.foreign_to(std::process::id() as i32);
    assert!(refused.is_some_and(|why| !why.is_empty()));
    let compared = verdict.fingerprints();
    let blocks = compared
        .iter()
        .map(|(address, found)| (address, found.bytes));
    Ok(blocks.collect())
}
