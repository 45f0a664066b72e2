//! Patterns of suppressions.

use memhook_foreign::star_glob;

/// Matches a LeakSanitizer pattern: a substring in which `*` represents any text. `^` at the
/// beginning and `$` at the end anchor it (compiler-rt, sanitizer_common.cpp, TemplateMatch).
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
    star_glob(&whole, text)
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
    }

    proptest! {
        #[test]
        fn a_text_matches_itself(text in "[a-z:<>(), ]{0,20}", before in ".{0,5}", after in ".{0,5}") {
            let inside = format!("{before}{text}{after}");
            prop_assert!(template_matches(&text, &inside));
            let anchored = format!("^{text}$");
            prop_assert!(template_matches(&anchored, &text));
        }
    }
}
