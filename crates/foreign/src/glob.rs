//! Patterns for names: the definition of `*` and `?` in options, rules, suppressions and selectors.

/// Returns true if the pattern matches the whole text: `*` matches anything, `?` one byte.
pub fn glob(pattern: &str, text: &str) -> bool {
    matches(pattern.as_bytes(), text.as_bytes(), true)
}

/// Like [`glob`], where only `*` is special.
pub fn star_glob(pattern: &str, text: &str) -> bool {
    matches(pattern.as_bytes(), text.as_bytes(), false)
}

/// Matches greedily with a single backtracking position: linear in most cases, never exponential.
fn matches(pattern: &[u8], text: &[u8], has_question_mark: bool) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                back = Some((p + 1, t));
                p += 1;
            }
            Some(b'?') if has_question_mark => (p, t) = (p + 1, t + 1),
            Some(&c) if c == text[t] => (p, t) = (p + 1, t + 1),
            _ => match back {
                Some((after, from)) => {
                    back = Some((after, from + 1));
                    (p, t) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_star_stands_for_anything() {
        assert!(glob("a?c*", "abcd") && !glob("a?c", "abcd"));
        assert!(star_glob("*", "") && star_glob("/opt/*/bin/*", "/opt/a/b/bin/c"));
        assert!(star_glob("a?", "a?") && !star_glob("a?", "ab"));
        assert!(star_glob("*.so", "x.so.so") && !star_glob("*.so", "x.so.1"));
        // In C++ names these characters have no special meaning.
        assert!(glob("operator[]*", "operator[](int)") && !glob("a[bc]", "ab"));
        assert!(glob("f()::{lambda()#1}*", "f()::{lambda()#1}::operator()"));
    }

    /// Reference implementation, which is exponential.
    fn slow(pattern: &[u8], text: &[u8]) -> bool {
        match pattern.first() {
            None => text.is_empty(),
            Some(b'*') => (0..=text.len()).any(|n| slow(&pattern[1..], &text[n..])),
            Some(b'?') => !text.is_empty() && slow(&pattern[1..], &text[1..]),
            Some(c) => text.first() == Some(c) && slow(&pattern[1..], &text[1..]),
        }
    }

    proptest! {
        #[test]
        fn as_defined(pattern in "[ab*?]{0,7}", text in "[ab]{0,8}") {
            prop_assert_eq!(glob(&pattern, &text), slow(pattern.as_bytes(), text.as_bytes()));
        }
    }
}
