//! Suggestions for a mistyped name.

use std::collections::BTreeSet;

/// Number of names that a message suggests.
const MOST: usize = 3;

/// Returns the known names similar to this name, in alphabetical order: names that begin with it, and names that differ
/// in a letter or two.
pub(crate) fn similar<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    // Two differences are allowed for names of at least five letters. Swapped neighbours count as two.
    let allowed = ((name.chars().count() + 1) / 3).min(2);
    let is_similar = |other: &&str| {
        (name.len() >= 3 && other.starts_with(name)) || distance(name, other) <= allowed
    };
    let found: BTreeSet<&str> = known
        .filter(|other| !other.is_empty())
        .filter(is_similar)
        .collect();
    found.into_iter().take(MOST).collect()
}

/// Returns the number of letters to insert, remove or replace to turn one word into the other (Levenshtein distance).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, &b) in other.iter().enumerate() {
            let exchanged = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = exchanged.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_names_are_recognized() {
        let known = [
            "redis-server",
            "svc",
            "nginx",
            "bash",
            "",
            "redis-cli",
            "sh",
        ];
        for (name, meant) in [
            ("svcc", vec!["svc"]),
            ("ngnix", vec!["nginx"]),
            ("redis", vec!["redis-cli", "redis-server"]),
            ("postgres", vec![]),
            ("x", vec![]),
        ] {
            assert_eq!(similar(name, known.into_iter()), meant, "{name}");
        }
    }

    #[test]
    fn a_distance_counts_letters() {
        for (one, other, count) in [
            ("", "", 0),
            ("abc", "", 3),
            ("abc", "abc", 0),
            ("abc", "adc", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(one, other), count, "{one} {other}");
            assert_eq!(distance(other, one), count, "{other} {one}");
        }
    }
}
