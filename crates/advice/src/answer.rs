//! The answer that one can read aloud: its first lines.

use crate::{Advice, Finding, Kind, Tried, managed};
use memhook_report::{RssReport, bytes};

impl Tried {
    fn said(&self) -> String {
        let predicted = match self.predicted_bytes {
            Some(predicted) => format!("{} were predicted", bytes(predicted)),
            None => "how much could not be predicted".to_owned(),
        };
        format!(
            "Tried: {} gave back {} ({predicted}); it held one thread for {:.1} ms",
            self.call,
            bytes(self.given_back_bytes),
            self.held_ms
        )
    }
}

/// Answers whether the problem is a leak, fragmentation or retention.
pub fn answer(first: &Finding, account: Option<&RssReport>) -> String {
    let what = match first.kind {
        Kind::Leak => "A leak",
        Kind::Growth => "Growth, by blocks that are still in use",
        Kind::Untouched => "Blocks that nobody touches, although something points to them",
        Kind::Retention => "No leak: free memory that the allocator keeps",
        Kind::Fragmentation => "No leak: fragmentation",
        Kind::Arenas => "No leak: free memory in many arenas",
        Kind::ThreadCaches => "No leak: free blocks in the caches of threads",
        Kind::HugePages => "No leak: huge pages that are mostly unused",
        Kind::Stacks => "Not the heap: stacks of threads",
        Kind::Mappings => "Not the heap: mappings outside it",
        Kind::Managed => "Not the C heap: the heap of a language runtime",
    };
    let of = account.map_or(String::new(), |account| {
        format!(" of {} resident", bytes(account.rss_bytes))
    });
    let size = match (first.kind, account) {
        // Only the runtime's own tool knows how much of the heap could be returned.
        (Kind::Managed, Some(account)) => managed::size(account),
        _ => first.gain_bytes,
    };
    format!("{what} ({}{of})", bytes(size))
}

impl Advice {
    /// Returns the answer in one line, even if nothing was found.
    pub fn headline(&self) -> String {
        match (&self.answer, self.more_seconds, &self.not_examined) {
            (Some(answer), ..) => answer.clone(),
            (None, Some(seconds), _) => {
                format!("Growth, but not observed for long enough: observe it for {seconds} s")
            }
            (None, None, Some(why)) => format!("Nothing was found, but {why}"),
            (None, None, None) => {
                "Nothing to do: no remedy that can be computed would save much".to_owned()
            }
        }
    }

    /// Returns the answer in at most three lines: the kind, the place, and the remedy. A preceding
    /// line reports unexplained memory, and a following line reports a remedy that was tried.
    pub(crate) fn lines_of_answer(&self) -> Vec<String> {
        let unexplained = self.unexplained_bytes.map(|unexplained| {
            let of = self.rss_bytes.unwrap_or_default();
            format!(
                "{} of {} resident belong to no known part, so the rest of this answer is uncertain",
                bytes(unexplained),
                bytes(of)
            )
        });
        let mut lines: Vec<String> = unexplained.into_iter().collect();
        lines.push(self.headline());
        let first = self.findings.first();
        lines.extend(match (&self.unsure_site, self.more_seconds, first) {
            (Some(site), Some(seconds), _) => vec![
                format!("Where: {site}"),
                format!("Do: memhook-rs advise {} -d {seconds}s", self.pid),
            ],
            (_, _, Some(first)) => {
                let place = first.place.as_ref().unwrap_or(&first.found);
                vec![format!("Where: {place}"), format!("Do: {}", first.remedy)]
            }
            _ => Vec::new(),
        });
        lines.extend(self.tried.as_ref().map(Tried::said));
        lines
    }
}
