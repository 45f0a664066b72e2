//! Usage and useful lifetime of programs that report no accesses, estimated from randomly selected
//! blocks that were watched.
//!
//! A *look* watches one block, starting before the program receives the block. Up to four words of
//! the block have watchpoints. A watchpoint fires once and is set again after some time, which
//! grows with the age of the block. So for each word, the first access is known, and the last
//! access is known to be within a certain time. Uncertainty remains if the look was abandoned
//! before the release, or if the word was not watched for some time. The uncertainty is expressed
//! as a range that certainly contains the score of the block. The estimate for a site is the middle
//! of the mean range. Its interval includes the range and the random error.
//!
//! Each trap prolongs the block's life. If a block would otherwise live for only a few
//! microseconds, most of its lifetime is spent in traps, and its active life remains unknown.
//!
//! A block of up to four words is watched completely. In a larger block, four words represent the
//! others, one in each quarter. A word counts as used if it is touched or is between two touched
//! words. So the estimate of usage is the usage of the words themselves, which is less than the
//! access interval if there are holes at its ends. Accesses to other words can only make the useful
//! lifetime longer than estimated.
//!
//! Words do not show how many of their bytes are used. At each end of the access interval, up to
//! seven unused bytes count as used. So half of the looks watch one random byte of each word or
//! quarter. If the bytes of the outermost words are used consecutively, the mean over such looks is
//! the access interval, exact to the byte. If these words have holes, it is less. So the truth is
//! between the mean over looks at bytes and the mean over looks at words, and the interval of usage
//! reaches from one mean to the other.

use std::fmt::Write;

/// Name of the note with looks.
pub const LOOKS_NOTE: &str = "looks";

/// Bytes of a word.
const WORD_BYTES: u64 = 8;
/// An access within this time before the release is attributed to the allocator, which writes into
/// the released block. The program's last access to a watched word is followed by its trap, which
/// takes longer than this.
const RELEASE_NS: u64 = 1000;
/// Duration of the longest trap of a watchpoint, even in a virtual machine, where traps take
/// longest.
const TRAP_NS: u64 = 50_000;
/// Maximum time by which an allocation's event may seem later than its look, because the two use
/// different clocks.
const CLOCKS_NS: u64 = 50_000;
/// The 97.5 % quantile of the normal distribution.
const QUANTILE: f64 = 1.96;
/// Maximum width of the 95 % interval of a score that counts as known.
pub const WIDEST: f64 = 0.2;

/// A watched block. Times are nanoseconds since the attach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Address of the block.
    pub address: u64,
    /// Time just before the program got the block.
    pub at_ns: u64,
    /// End of the watch.
    pub until_ns: u64,
    /// True if more than one thread accessed the block.
    pub by_several: bool,
    /// True if bytes were watched instead of words. These looks count only for usage.
    pub of_bytes: bool,
    /// The watched words or bytes of the block.
    pub words: Vec<LookWord>,
}

/// Bits of the second last number in a look's text.
const BY_SEVERAL: u64 = 1;
const OF_BYTES: u64 = 2;

/// A watched word.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LookWord {
    /// Offset of the word in the block.
    pub offset: u64,
    /// Times of the observed accesses, each with the time from which the word was watched again.
    pub touches: Vec<(u64, u64)>,
}

/// Formats looks as text, one on each line.
pub fn looks_text(looks: &[Look]) -> String {
    let mut text = String::new();
    for look in looks {
        let lasted = look.until_ns.saturating_sub(look.at_ns);
        let several = if look.by_several { BY_SEVERAL } else { 0 };
        let marks = several | if look.of_bytes { OF_BYTES } else { 0 };
        let _ = write!(text, "{:x} {} {lasted} {marks}", look.address, look.at_ns);
        for word in &look.words {
            let _ = write!(text, " {}:", word.offset);
            for &(at, again) in &word.touches {
                let (at, blind) = (at.saturating_sub(look.at_ns), again.saturating_sub(at));
                let _ = write!(text, "{at}+{blind},");
            }
        }
        text.push('\n');
    }
    text
}

/// Reads looks from text, skipping any other lines.
pub(super) fn looks_of(text: &str) -> Vec<Look> {
    text.lines().filter_map(look_of).collect()
}

fn look_of(line: &str) -> Option<Look> {
    let mut parts = line.split(' ');
    let mut number = || parts.next()?.parse::<u64>().ok();
    let address = line.split(' ').next()?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let _ = number();
    let (at_ns, lasted, marks) = (number()?, number()?, number()?);
    let words = parts.map(|word| {
        let (offset, touches) = word.split_once(':')?;
        let touches = touches.split_terminator(',').map(|touch| {
            let (at, blind) = touch.split_once('+')?;
            let at = at_ns.saturating_add(at.parse().ok()?);
            Some((at, at.saturating_add(blind.parse().ok()?)))
        });
        Some(LookWord {
            offset: offset.parse().ok()?,
            touches: touches.collect::<Option<_>>()?,
        })
    });
    Some(Look {
        address,
        at_ns,
        until_ns: at_ns.saturating_add(lasted),
        by_several: marks & BY_SEVERAL != 0,
        of_bytes: marks & OF_BYTES != 0,
        words: words.collect::<Option<_>>()?,
    })
}

/// Bounds on the scores of a block from a look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) size: f64,
    /// Bounds on the used bytes.
    pub(super) used: (f64, f64),
    /// Bounds on active life divided by lifetime.
    pub(super) active: (f64, f64),
    pub(super) is_untouched: bool,
    /// True if bytes were watched.
    pub(super) of_bytes: bool,
}

/// Returns the number of bytes of a block that each of `parts` watched words or bytes represents.
fn part_of(size: u64, part: usize, parts: usize) -> u64 {
    let words = size.div_ceil(WORD_BYTES);
    let begin = |part: usize| (part as u64 * words / parts as u64).saturating_mul(WORD_BYTES);
    size.min(begin(part + 1)) - size.min(begin(part))
}

/// Returns the outcome for a block of `size` bytes that lived from `start_ns` to `end_ns`.
pub(super) fn outcome(look: &Look, size: u64, (start_ns, end_ns): (u64, u64)) -> Option<Outcome> {
    let lifetime = end_ns.saturating_sub(start_ns).max(1);
    let watched_ns = look.until_ns.min(end_ns);
    let is_given_up = look.until_ns < end_ns;
    if look.words.is_empty() || size == 0 {
        return None;
    }
    let (mut first, mut last) = (u64::MAX, (0, 0));
    let mut touched = Vec::with_capacity(look.words.len());
    for word in &look.words {
        let own = |&&(at, _): &&(u64, u64)| at.saturating_add(RELEASE_NS) < end_ns;
        let own: Vec<_> = word.touches.iter().filter(own).collect();
        touched.push(!own.is_empty());
        if let (Some((at, _)), Some((latest, again))) = (own.first(), own.last()) {
            first = first.min(*at);
            let possible = if is_given_up {
                end_ns
            } else {
                (*again).clamp(*latest, end_ns)
            };
            last = (last.0.max(*latest), last.1.max(possible));
        } else if is_given_up {
            last.1 = end_ns;
        }
    }
    let is_touched = first != u64::MAX;
    let share = |from: u64, to: u64| to.saturating_sub(from) as f64 / lifetime as f64;
    let traps: usize = look.words.iter().map(|word| word.touches.len()).sum();
    let trapped_ns = TRAP_NS.saturating_mul(traps as u64);
    let active = match (is_touched, is_given_up) {
        (true, _) if trapped_ns >= lifetime => (0.0, 1.0),
        (true, _) => {
            let first = first.max(start_ns);
            (share(first, last.0), share(first, last.1).min(1.0))
        }
        (false, true) => (0.0, share(watched_ns.max(start_ns), end_ns)),
        (false, false) => (0.0, 0.0),
    };
    let inside =
        |at: usize| touched[at] || (touched[..at].contains(&true) && touched[at..].contains(&true));
    let bytes_of = |at: usize| part_of(size, at, look.words.len()) as f64;
    let used = (0..touched.len()).filter(|&at| inside(at)).map(bytes_of);
    // The sum of no numbers is -0.
    let used = used.fold(0.0, |sum, bytes| sum + bytes);
    let most = if is_given_up { size as f64 } else { used };
    Some(Outcome {
        size: size as f64,
        used: (used, most),
        active,
        is_untouched: !is_touched && !is_given_up && !look.of_bytes,
        of_bytes: look.of_bytes,
    })
}

/// An estimate with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampledScore {
    /// Middle of the possible range.
    pub value: f64,
    /// Half the width of the interval, divided by 1.96. If there is no other uncertainty, this is
    /// the standard error.
    pub error: f64,
    /// Low end of the interval.
    pub low: f64,
    /// High end of the interval.
    pub high: f64,
}

impl SampledScore {
    /// Returns the value, if it is known with sufficient certainty.
    pub fn known(&self) -> Option<f64> {
        (self.high - self.low <= WIDEST).then_some(self.value)
    }
}

/// Results for a site from looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampledAccesses {
    /// Number of watched blocks.
    pub looks: u64,
    /// Number of blocks that were watched to the end and not touched.
    pub untouched: u64,
    /// Usage score.
    pub usage: SampledScore,
    /// Useful lifetime score.
    pub useful_lifetime: SampledScore,
}

/// Combines the looks at a site to scores.
pub(super) fn sampled(outcomes: &[Outcome]) -> Option<SampledAccesses> {
    if outcomes.is_empty() {
        return None;
    }
    let of_kind = |of_bytes| outcomes.iter().filter(move |one| one.of_bytes == of_bytes);
    let usage = |of_bytes| ratio(of_kind(of_bytes).map(|one| (one.size, one.used.0, one.used.1)));
    let useful = of_kind(false).map(|one| (1.0, one.active.0, one.active.1));
    Some(SampledAccesses {
        looks: outcomes.len() as u64,
        untouched: outcomes.iter().filter(|one| one.is_untouched).count() as u64,
        usage: between(
            usage(true).unwrap_or(NOTHING_KNOWN),
            usage(false).unwrap_or(NOTHING_KNOWN),
        ),
        useful_lifetime: ratio(useful).unwrap_or(NOTHING_KNOWN).score(),
    })
}

/// Returns the range given by two kinds of looks. If they are wrong, the first kind shows too
/// little and the second too much.
fn between(little: Bounds, much: Bounds) -> SampledScore {
    let least = little.least.min(much.most);
    let most = much.most.max(little.least);
    // The upper error of `little` and the lower error of `much` do not affect the result.
    Bounds {
        least,
        most,
        low: little.low.min(least),
        high: much.high.max(most),
    }
    .score()
}

/// Bounds on a mean, and a confidence interval that includes them.
#[derive(Clone, Copy)]
struct Bounds {
    least: f64,
    most: f64,
    low: f64,
    high: f64,
}

const NOTHING_KNOWN: Bounds = Bounds {
    least: 0.0,
    most: 1.0,
    low: 0.0,
    high: 1.0,
};

impl Bounds {
    fn score(self) -> SampledScore {
        SampledScore {
            value: (self.least + self.most) / 2.0,
            error: (self.high - self.low) / 2.0 / QUANTILE,
            low: self.low,
            high: self.high,
        }
    }
}

/// Returns the sum of numbers with ranges, divided by the sum of their weights.
///
/// The standard error is that of a ratio (Cochran, "Sampling Techniques", 2.11). A few equal looks
/// do not prove that all others are equal, so one look of each extreme is added (Agresti and Coull,
/// 1998, for shares).
fn ratio(numbers: impl Iterator<Item = (f64, f64, f64)>) -> Option<Bounds> {
    let mut all: Vec<(f64, f64, f64)> = numbers.collect();
    let sum =
        |all: &[(f64, f64, f64)], of: fn(&(f64, f64, f64)) -> f64| all.iter().map(of).sum::<f64>();
    let weights = sum(&all, |one| one.0);
    if all.is_empty() || weights <= 0.0 {
        return None;
    }
    let least = sum(&all, |one| one.1) / weights;
    let most = sum(&all, |one| one.2) / weights;
    let mean = weights / all.len() as f64;
    all.extend([(mean, 0.0, 0.0), (mean, mean, mean)]);
    let error = |of: fn(&(f64, f64, f64)) -> f64| {
        let share = sum(&all, of) / sum(&all, |one| one.0);
        let squares = all.iter().map(|one| (of(one) - share * one.0).powi(2));
        let count = all.len() as f64;
        (squares.sum::<f64>() * count / (count - 1.0)).sqrt() / sum(&all, |one| one.0)
    };
    let low = (least - QUANTILE * error(|one| one.1)).max(0.0);
    let high = (most + QUANTILE * error(|one| one.2)).min(1.0);
    Some(Bounds {
        least,
        most,
        low,
        high,
    })
}

/// The looks of a run, by the address of their block.
#[derive(Clone, Debug, Default)]
pub(crate) struct Looks {
    by_address: rustc_hash::FxHashMap<u64, Vec<Look>>,
}

impl Looks {
    /// Parses a note.
    pub fn of(text: &str) -> Looks {
        let mut by_address: rustc_hash::FxHashMap<u64, Vec<Look>> = Default::default();
        for look in looks_of(text) {
            by_address.entry(look.address).or_default().push(look);
        }
        Looks { by_address }
    }

    /// Returns the look at a block that lived at this address for this time.
    #[inline]
    pub fn of_block(&self, address: u64, (start_ns, end_ns): (u64, u64)) -> Option<&Look> {
        if self.by_address.is_empty() {
            return None;
        }
        let looks = self.by_address.get(&address)?;
        looks
            .iter()
            .find(|look| look.at_ns.saturating_add(CLOCKS_NS) >= start_ns && look.at_ns < end_ns)
    }
}
