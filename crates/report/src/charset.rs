//! Replaces the symbols of reports on a terminal that shows only ASCII.

use ratatui::buffer::Buffer;
use std::borrow::Cow;

/// Variables that name a terminal's charset. The first variable that is set counts (locale(7)).
const VARIABLES: [&str; 3] = ["LC_ALL", "LC_CTYPE", "LANG"];

/// Returns false if the locale names a charset other than UTF-8. If the locale names none, as in
/// most containers, the terminal nearly always shows UTF-8.
pub fn terminal_has_utf8() -> bool {
    has_utf8(|name| std::env::var(name).ok())
}

/// Decides by the value of each variable.
fn has_utf8(value: impl Fn(&str) -> Option<String>) -> bool {
    let mut values = VARIABLES.into_iter().filter_map(value);
    let locale = values.find(|value| !value.is_empty());
    locale.is_none_or(|locale| {
        let charset = locale.to_ascii_lowercase().replace('-', "");
        charset.contains("utf8")
    })
}

/// Returns a text in which ASCII replaces the symbols of reports. The letters of names are kept.
pub fn in_ascii(text: &str) -> Cow<'_, str> {
    if text.chars().all(|c| sign(c).is_none()) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match sign(c) {
            Some(sign) => out.push_str(sign),
            None => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// Replaces the symbols on a screen, where each cell has space for one character.
pub(crate) fn put_in_ascii(screen: &mut Buffer) {
    for cell in &mut screen.content {
        let sign = cell.symbol().chars().next().and_then(sign);
        if let Some(first) = sign.and_then(|sign| sign.chars().next()) {
            cell.set_char(first);
        }
    }
}

fn sign(c: char) -> Option<&'static str> {
    Some(match c {
        '\u{2190}' => "<-",
        '\u{2192}' => "->",
        '\u{2026}' => "...",
        '\u{2013}' => "-",
        '\u{2264}' => "<=",
        '\u{b1}' => "~",
        '\u{b5}' => "u",
        '\u{25b8}' => ">",
        '\u{25be}' => "v",
        '\u{2581}'..='\u{2583}' => "_",
        '\u{2584}'..='\u{2586}' => "=",
        '\u{2587}' | '\u{2588}' => "#",
        '\u{2591}' => ".",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> bool {
        has_utf8(|name| {
            let set = variables.iter().find(|(set, _)| *set == name);
            set.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_first_variable_counts() {
        assert!(of(&[]));
        assert!(of(&[("LANG", "de_DE.UTF-8")]));
        assert!(of(&[("LANG", "C.utf8"), ("LC_ALL", "")]));
        assert!(!of(&[("LANG", "C")]));
        assert!(!of(&[("LANG", "en_US.ISO-8859-1")]));
        assert!(!of(&[("LANG", "C.UTF-8"), ("LC_ALL", "POSIX")]));
        assert!(of(&[("LANG", "C"), ("LC_CTYPE", "en_US.UTF-8")]));
    }

    #[test]
    fn signs_and_names() {
        assert_eq!(in_ascii("a \u{2190} b, \u{b1}0"), "a <- b, ~0");
        assert!(matches!(in_ascii("gr\u{f6}\u{df}e"), Cow::Borrowed(_)));
    }
}
