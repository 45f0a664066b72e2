//! Makes foreign text safe to display.
//!
//! Names of processes, files and functions may hold any bytes. Some of them have effects on a terminal: control
//! characters move the cursor, change the title or paste text (ECMA-48), and bidirectional controls make a line look
//! like a different one (Unicode Technical Report 36, 2.10). Such characters are shown as `\x1b` or `\u{202e}`.

use std::borrow::Cow;
use std::fmt::Write;

/// Makes text safe on one line: line ends and tabs are escaped too.
pub fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, acts, plain)
}

/// Makes text safe, keeping its lines.
pub fn visible_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| acts(c) && !is_layout(c), plain)
}

/// Makes text safe, keeping lines and colours (ECMA-48, SGR: `ESC [ numbers m`). This is for our own text, in which
/// names are made visible before they are coloured.
pub fn visible_colored(text: &str) -> Cow<'_, str> {
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\x1b') {
        let (before, after) = rest.split_at(at);
        out += &visible_lines(before);
        let length = color_length(after).unwrap_or(0);
        out += &after[..length];
        if length == 0 {
            out += "\\x1b";
        }
        rest = &after[length.max(1)..];
    }
    out += &visible_lines(rest);
    Cow::Owned(out)
}

/// Makes JSON text safe to display without changing its meaning. JSON writers escape only ASCII control characters;
/// other characters that must be escaped can occur only in strings.
pub fn visible_json(text: &str) -> Cow<'_, str> {
    // All of these characters have at most four hex digits.
    escaped(text, |c| acts(c) && !is_layout(c), in_json)
}

fn is_layout(c: char) -> bool {
    matches!(c, '\n' | '\t')
}

/// Returns true if a character affects how text is displayed, or is invisible.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Marks, embeddings, overrides and isolates of bidirectional text; ends of lines and paragraphs.
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            // Interlinear annotations hide what they enclose.
            | '\u{fff9}'..='\u{fffb}')
}

fn in_json(out: &mut String, c: char) {
    // Writing into a String cannot fail.
    let _ = write!(out, "\\u{:04x}", u32::from(c));
}

fn plain(out: &mut String, c: char) {
    // Writing into a String cannot fail.
    let _ = match u32::from(c) {
        code @ 0..=0xff => write!(out, "\\x{code:02x}"),
        code => write!(out, "\\u{{{code:x}}}"),
    };
}

fn escaped<'a>(
    text: &'a str,
    is_meant: impl Fn(char) -> bool,
    write: impl Fn(&mut String, char),
) -> Cow<'a, str> {
    if !text.contains(&is_meant) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_meant(c) {
            write(&mut out, c)
        } else {
            out.push(c)
        }
    }
    Cow::Owned(out)
}

/// Returns the length of the colour at the start of a text.
fn color_length(text: &str) -> Option<usize> {
    let inner = text.strip_prefix("\x1b[")?;
    let end = inner.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    inner[end..].starts_with('m').then_some(2 + end + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_acts_is_shown() {
        for (text, shown) in [
            ("main", "main"),
            ("caf\u{e9} \u{2190} \u{3b1}", "caf\u{e9} \u{2190} \u{3b1}"),
            ("a\x1b]0;owned\x07b", "a\\x1b]0;owned\\x07b"),
            (
                "a\nmemhook-rs: all is well",
                "a\\x0amemhook-rs: all is well",
            ),
            ("\u{9b}2J\x7f", "\\x9b2J\\x7f"),
            ("x\u{202e}cod.exe\u{2066}", "x\\u{202e}cod.exe\\u{2066}"),
        ] {
            assert_eq!(visible(text), shown);
        }
        assert_eq!(visible_lines("a\tb\nc\rd"), "a\tb\nc\\x0dd");
        let colors = "\x1b[1;31mred\x1b[0m\n";
        assert_eq!(visible_colored(colors), colors);
        assert_eq!(
            visible_colored("\x1b[2J\x1b[1m\x1b"),
            "\\x1b[2J\x1b[1m\\x1b"
        );
        assert_eq!(
            visible_colored("\x1b]0;x\x07\x1b[1"),
            "\\x1b]0;x\\x07\\x1b[1"
        );
        assert_eq!(
            visible_json("{\"a\":\"\u{9b}\u{202e}\"}\n"),
            "{\"a\":\"\\u009b\\u202e\"}\n"
        );
    }

    proptest! {
        #[test]
        fn nothing_that_acts_is_left(text in any::<String>(), esc in "(\x1b|\x1b\\[|m|;|[0-9]|\n|\u{9b}){0,12}") {
            let text = format!("{text}{esc}");
            prop_assert!(!visible(&text).contains(acts));
            prop_assert!(!visible_lines(&text).contains(|c| acts(c) && !is_layout(c)));
            let colored = visible_colored(&text);
            let without = colored.split('\x1b').skip(1).all(|rest| {
                color_length(&format!("\x1b{rest}")).is_some()
            });
            prop_assert!(without, "{colored:?}");
        }
    }
}
