//! Times in which no event was seen, stored as a note in [`Meta`](crate::Meta). Readers that do not
//! know the note can still read everything else.

use crate::Error;
use memhook_stream::Gap;

/// Name of the note.
pub const GAPS_NOTE: &str = "gaps";

/// Returns the value of the note: `FROM-TO` in nanoseconds since the attach, separated by spaces.
pub fn gaps_text(gaps: &[Gap]) -> String {
    let texts = gaps
        .iter()
        .map(|gap| format!("{}-{}", gap.from_ns, gap.to_ns));
    texts.collect::<Vec<_>>().join(" ")
}

/// Parses the value of a note into gaps. They are sorted, and no gap is empty.
pub(crate) fn gaps_of(text: &str) -> Result<Vec<Gap>, Error> {
    let mut gaps: Vec<Gap> = Vec::new();
    for one in text.split_ascii_whitespace() {
        let gap = one.split_once('-').and_then(|(from, to)| {
            let (from_ns, to_ns) = (from.parse().ok()?, to.parse().ok()?);
            Some(Gap { from_ns, to_ns })
        });
        let earliest = gaps.last().map_or(0, |last| last.to_ns);
        match gap.filter(|gap| earliest <= gap.from_ns && gap.from_ns < gap.to_ns) {
            Some(gap) => gaps.push(gap),
            None => return Err(Error::damaged("the times in which nothing was seen")),
        }
    }
    Ok(gaps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_as_text() {
        let gap = |from_ns, to_ns| Gap { from_ns, to_ns };
        let gaps = [gap(5, 10), gap(10, 12), gap(20, u64::MAX)];
        assert_eq!(gaps_of(&gaps_text(&gaps)).expect("gaps"), gaps);
        assert_eq!(gaps_of("").expect("none"), []);
        for bad in [
            "5",
            "5-",
            "-5",
            "5-5",
            "6-5",
            "5-10 9-12",
            "5-99999999999999999999",
        ] {
            assert!(gaps_of(bad).is_err(), "{bad}");
        }
    }
}
