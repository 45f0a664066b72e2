//! Unreachable blocks at the end of a run, by allocation site, as stored in reports and recordings.

use crate::{Amount, Leaks};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// Maximum number of sites that a recording stores. The sites with the most bytes are kept, and
/// each takes about 40 bytes.
const MAX_SITES: usize = 100_000;

/// Unreachable blocks of one stack and one thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UnreachableSite {
    /// Stack id of the allocations.
    pub stack: u32,
    /// Thread that allocated the blocks; 0 if unknown.
    pub tid: u32,
    /// Blocks and bytes, estimated if allocations were sampled.
    pub amount: Amount,
}

/// Result of a search at the end of a run, as stored in a recording.
#[derive(Clone, Debug, Default)]
pub struct UnreachableAtEnd {
    /// Result of the search, for people.
    pub leaks: Leaks,
    /// All unreachable blocks with a known allocation, including blocks that other unreachable
    /// blocks point to.
    pub sites: Vec<UnreachableSite>,
}

/// Stack, thread, blocks, bytes, variance of the bytes.
type Numbers = (u32, u32, u64, u64, f64);

#[derive(Serialize, Deserialize)]
struct Note<L> {
    leaks: L,
    sites: Vec<Numbers>,
}

/// Returns a recording's note about a search, as JSON; `None` if it cannot be written.
pub fn unreachable_note(leaks: &Leaks, sites: &[UnreachableSite]) -> Option<String> {
    let mut sites: Vec<&UnreachableSite> = sites.iter().collect();
    sites.sort_by_key(|site| (Reverse(site.amount.bytes), site.stack, site.tid));
    sites.truncate(MAX_SITES);
    let numbers = sites.into_iter().map(|site| {
        let Amount {
            blocks,
            bytes,
            variance,
            ..
        } = site.amount;
        (site.stack, site.tid, blocks, bytes, variance)
    });
    let note = Note {
        leaks,
        sites: numbers.collect(),
    };
    serde_json::to_string(&note).ok()
}

impl UnreachableAtEnd {
    /// Parses the text of a note; `None` if the text is not a note about a search.
    pub fn of_note(text: &str) -> Option<UnreachableAtEnd> {
        let note: Note<Leaks> = serde_json::from_str(text).ok()?;
        let sites = note.sites.into_iter();
        let sites = sites.map(|(stack, tid, blocks, bytes, variance)| UnreachableSite {
            stack,
            tid,
            amount: Amount {
                blocks,
                bytes,
                variance: variance.max(0.0),
                ..Amount::default()
            },
        });
        Some(UnreachableAtEnd {
            leaks: note.leaks,
            sites: sites.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written() {
        let site = |stack, tid, bytes| UnreachableSite {
            stack,
            tid,
            amount: Amount {
                blocks: 2,
                bytes,
                variance: 0.5,
                ..Amount::default()
            },
        };
        let sites = [site(7, 100, 64), site(9, 101, 4096)];
        let mut leaks = Leaks::default();
        leaks.totals.leaked_bytes = 4160;
        let note = unreachable_note(&leaks, &sites).expect("JSON");
        let read = UnreachableAtEnd::of_note(&note).expect("a note");
        assert_eq!(read.sites, [sites[1], sites[0]]);
        assert_eq!(read.leaks.totals.leaked_bytes, 4160);
    }

    #[test]
    fn other_text_is_no_note() {
        for text in ["", "{}", "[1]", "{\"leaks\":{},\"sites\":[[1]]}"] {
            assert!(UnreachableAtEnd::of_note(text).is_none(), "{text}");
        }
    }
}
