//! Text fitted to a terminal.

use std::iter::once;
use unicode_width::UnicodeWidthChar;

/// First byte of a colour sequence (ECMA-48, SGR), which takes up no columns.
const ESCAPE: char = '\x1b';
/// Additional indentation of continuation lines.
const HANGING: usize = 4;
/// Minimum width to which lines are wrapped.
const LEAST: usize = 20;

/// Wraps the text at spaces into lines of this width. Continuation lines are indented a little
/// deeper than the first one.
pub fn wrapped(text: &str, width: usize) -> String {
    let width = width.max(LEAST);
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let bare = line.trim_end_matches('\n');
        if columns(bare) <= width {
            out += line;
        } else {
            wrap_line(bare, width, &mut out);
            out += &line[bare.len()..];
        }
    }
    out
}

/// Returns the display width of a text in columns. A Chinese character takes two columns, and a
/// combining mark none.
pub(crate) fn columns(text: &str) -> usize {
    let mut is_code = false;
    let seen = text.chars().filter(|&c| {
        let was_code = is_code;
        is_code = c == ESCAPE || (is_code && c != 'm');
        !was_code && !is_code
    });
    seen.map(width).sum()
}

fn width(c: char) -> usize {
    c.width().unwrap_or(0)
}

/// Returns the longest prefix of a text (without colour sequences) that takes at most `most`
/// columns.
pub(crate) fn beginning(text: &str, most: usize) -> &str {
    let mut taken = 0;
    let beyond = |&(_, c): &(usize, char)| {
        taken += width(c);
        taken > most
    };
    let end = text.char_indices().find(beyond);
    end.map_or(text, |(at, _)| &text[..at])
}

/// Returns the longest suffix of a text (without colour sequences) that takes at most `most`
/// columns.
pub(crate) fn ending(text: &str, most: usize) -> &str {
    let mut taken = 0;
    let within = |&(_, c): &(usize, char)| {
        taken += width(c);
        taken <= most
    };
    let rest = text.char_indices().rev().take_while(within);
    // A combining mark belongs to the letter before it.
    let start = rest.filter(|&(_, c)| width(c) > 0).last();
    start.map_or("", |(at, _)| &text[at..])
}

/// Pads a text (without colour sequences) with spaces to `to` columns.
pub(crate) fn padded(text: &str, to: usize) -> String {
    let missing = to.saturating_sub(columns(text));
    format!("{text}{:missing$}", "")
}

fn wrap_line(line: &str, width: usize, out: &mut String) {
    let start = line.len() - line.trim_start().len();
    let indent = (start + HANGING).min(width / 2);
    let mut at = 0;
    // Pieces end before a space. A piece is a word with the spaces before it.
    let spaces = line.match_indices(' ').map(|(space, _)| space);
    let ends = spaces
        .filter(|&space| space > start)
        .chain(once(line.len()));
    let mut from = 0;
    for end in ends {
        let word = &line[from..end];
        from = end;
        let taken = columns(word);
        if at > 0 && at + taken > width {
            let word = word.trim_start();
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            *out += word;
            at = indent + columns(word);
        } else {
            *out += word;
            at += taken;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_spaces_and_hang() {
        let text = "  one two three four five six\nshort\n";
        assert_eq!(
            wrapped(text, 20),
            "  one two three four\n      five six\nshort\n"
        );
        assert_eq!(wrapped(text, 100), text);
        assert_eq!(
            wrapped("averylongwordthatcannotbreak", 20),
            "averylongwordthatcannotbreak"
        );
    }

    #[test]
    fn wide_characters_and_marks_are_counted_as_they_are_shown() {
        assert_eq!((columns("\u{5206}\u{914d}"), columns("e\u{301}x")), (4, 2));
        assert_eq!(beginning("\u{5206}\u{914d}x", 3), "\u{5206}");
        assert_eq!(beginning("e\u{301}x", 1), "e\u{301}");
        assert_eq!(ending("x\u{5206}\u{914d}", 3), "\u{914d}");
        assert_eq!(ending("xe\u{301}", 1), "e\u{301}");
        assert_eq!((beginning("ab", 9), ending("ab", 9)), ("ab", "ab"));
        assert_eq!(padded("\u{5206}", 4), "\u{5206}  ");
    }

    #[test]
    fn colours_take_no_room() {
        let text = "\x1b[1;31mone\x1b[0m two three four 5";
        assert_eq!(columns(text), 20);
        assert_eq!(wrapped(text, 20), text);
        assert_eq!(wrapped(text, 1), text, "no narrower than it makes sense");
    }
}
