//! Table of situations: the problem of a program, its language, its allocator, and the time of the attach.

use crate::chance::Chance;

/// Memory problem, or the healthy program that resembles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disease {
    Leak,
    LeakBehindCache,
    Unbounded,
    Buffer,
    Retained,
    Pinned,
    Mappings,
    UnjoinedThreads,
    BoundedCache,
    WarmingCache,
    Bursts,
    Steady,
}

/// Possible verdicts, in the order of the confusion matrix.
pub const CLASSES: [&str; 9] = [
    "leak",
    "unbounded",
    "fragmentation",
    "allocator",
    "mappings",
    "stacks",
    "nothing",
    "unsure",
    "failed",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    C,
    Cpp,
    Rust,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocator {
    Glibc,
    Jemalloc,
    Tcmalloc,
    Mimalloc,
    Musl,
}

/// A program to attach to, and its true verdict.
#[derive(Clone, Debug)]
pub struct Situation {
    pub number: usize,
    pub disease: Disease,
    pub language: Language,
    pub allocator: Allocator,
    /// Word that the program prints at the moment of the attach.
    pub moment: &'static str,
    pub size: u32,
    pub rate: u32,
    pub limit: u32,
    pub seed: u32,
    /// Function that allocates the excess.
    pub function: &'static str,
    /// True if it is held back while rules are tuned.
    pub is_held: bool,
}

const DISEASES: [Disease; 12] = [
    Disease::Leak,
    Disease::LeakBehindCache,
    Disease::Unbounded,
    Disease::Buffer,
    Disease::Retained,
    Disease::Pinned,
    Disease::Mappings,
    Disease::UnjoinedThreads,
    Disease::BoundedCache,
    Disease::WarmingCache,
    Disease::Bursts,
    Disease::Steady,
];
const ALLOCATORS: [Allocator; 5] = [
    Allocator::Glibc,
    Allocator::Jemalloc,
    Allocator::Tcmalloc,
    Allocator::Mimalloc,
    Allocator::Musl,
];
const LANGUAGES: [Language; 3] = [Language::C, Language::Cpp, Language::Rust];
const MOMENTS: [&str; 3] = ["early", "middle", "late"];
const FUNCTIONS: [&str; 8] = [
    "make_order",
    "open_ticket",
    "parse_query",
    "load_tile",
    "new_route",
    "copy_row",
    "add_user",
    "read_page",
];

impl Disease {
    /// Returns the true class of the program.
    pub fn class(self) -> &'static str {
        match self {
            Disease::Leak | Disease::LeakBehindCache => "leak",
            Disease::Unbounded | Disease::Buffer => "unbounded",
            Disease::Retained => "allocator",
            Disease::Pinned => "fragmentation",
            Disease::Mappings => "mappings",
            Disease::UnjoinedThreads => "stacks",
            _ => "nothing",
        }
    }

    /// Returns true if such a program exists. What does not depend on the language is written only in C and C++, and
    /// what no allocator but glibc's and its replacements do does not occur on musl.
    fn occurs(self, language: Language, allocator: Allocator) -> bool {
        let is_of_mappings = matches!(self, Disease::Mappings | Disease::UnjoinedThreads);
        let is_of_peak = matches!(self, Disease::Retained | Disease::Pinned);
        match (language, allocator) {
            (Language::C, Allocator::Musl) => !is_of_peak,
            (_, Allocator::Musl) => false,
            (Language::Rust, _) => !is_of_mappings && !is_of_peak,
            _ => true,
        }
    }

    /// Returns true if the first finding must name a function: not if everything was allocated before the attach.
    pub fn has_site(self) -> bool {
        matches!(self.class(), "leak" | "unbounded" | "mappings")
    }
}

/// Returns every combination once. The seed determines the numbers and the name of each combination, and the order, so
/// that the first combinations are a sample of all.
pub fn all(seed: u32) -> Vec<Situation> {
    let mut chance = Chance(seed.wrapping_mul(2_654_435_761));
    let mut found = Vec::new();
    for disease in DISEASES {
        for language in LANGUAGES {
            for allocator in ALLOCATORS {
                if !disease.occurs(language, allocator) {
                    continue;
                }
                for moment in MOMENTS {
                    found.push(Situation {
                        number: 0,
                        disease,
                        language,
                        allocator,
                        moment,
                        size: 4000 + 1000 * chance.below(12),
                        rate: 1 + chance.below(3),
                        limit: 3000 + 1000 * chance.below(6),
                        seed: chance.next(),
                        function: FUNCTIONS[chance.below(8) as usize],
                        is_held: chance.below(3) == 0,
                    });
                }
            }
        }
    }
    for at in (1..found.len()).rev() {
        found.swap(at, chance.below(at as u32 + 1) as usize);
    }
    // All diseases occur equally often in every prefix of the list.
    let mut round = [0usize; DISEASES.len()];
    let mut keyed: Vec<((usize, u32), Situation)> = Vec::new();
    for situation in found {
        let at = DISEASES
            .iter()
            .position(|d| *d == situation.disease)
            .unwrap_or(0);
        keyed.push(((round[at], chance.next()), situation));
        round[at] += 1;
    }
    keyed.sort_by_key(|(key, _)| *key);
    let numbered = keyed.into_iter().enumerate();
    numbered
        .map(|(number, (_, situation))| Situation {
            number,
            ..situation
        })
        .collect()
}
