//! Patterns of suppressions.

/// LeakSanitizer's: a substring in which `*` stands for anything; `^` at the begin and `$` at the end
/// anchor it (compiler-rt, sanitizer_common.cpp, TemplateMatch).
pub fn template_matches(pattern: &str, text: &str) -> bool {
    let (anchored, pattern) = match pattern.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, pattern),
    };
    let (ends, pattern) = match pattern.strip_suffix('$') {
        Some(rest) => (true, rest),
        None => (false, pattern),
    };
    let mut whole = String::new();
    if !anchored {
        whole.push('*');
    }
    whole.push_str(pattern);
    if !ends {
        whole.push('*');
    }
    glob(whole.as_bytes(), text.as_bytes(), false)
}

/// Valgrind's: the whole text, `*` for anything, `?` for one character.
pub fn glob_matches(pattern: &str, text: &str) -> bool {
    glob(pattern.as_bytes(), text.as_bytes(), true)
}

/// Greedy with one place to come back to: linear in most cases, never exponential.
fn glob(pattern: &[u8], text: &[u8], question_mark: bool) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                back = Some((p + 1, t));
                p += 1;
            }
            Some(b'?') if question_mark => (p, t) = (p + 1, t + 1),
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
    fn templates() {
        for (pattern, text, matches) in [
            ("leak", "my_leaky", true),
            ("^leak", "my_leaky", false),
            ("^my", "my_leaky", true),
            ("leaky$", "my_leaky", true),
            ("leak$", "my_leaky", false),
            ("m*y", "my_leaky", true),
            ("^m*k$", "my_leaky", false),
            ("^foo(int)$", "foo(int)", true),
            ("", "", true),
            ("?", "x", false),
        ] {
            assert_eq!(template_matches(pattern, text), matches, "{pattern} {text}");
        }
        assert!(glob_matches("a?c*", "abcd"));
        assert!(!glob_matches("a?c", "abcd"));
    }

    /// The definition, exponential.
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
            prop_assert_eq!(glob_matches(&pattern, &text), slow(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn a_text_matches_itself(text in "[a-z:<>(), ]{0,20}", before in ".{0,5}", after in ".{0,5}") {
            let inside = format!("{before}{text}{after}");
            prop_assert!(template_matches(&text, &inside));
            let anchored = format!("^{text}$");
            prop_assert!(template_matches(&anchored, &text));
        }
    }
}
