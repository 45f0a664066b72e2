//! Text made to fit a terminal.

use std::iter::once;

/// What begins a colour (ECMA-48, SGR), which takes no column.
const ESCAPE: char = '\x1b';
/// How much deeper the rest of a line is indented.
const HANGING: usize = 4;
/// Lines are not made narrower than this.
const LEAST: usize = 20;

/// The text with no line wider than this, as far as there are spaces to break it at. The rest of a line is
/// indented a little deeper than its begin.
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

/// Columns that a text takes.
pub(crate) fn columns(text: &str) -> usize {
    let mut is_code = false;
    text.chars()
        .filter(|&c| {
            let was_code = is_code;
            is_code = c == ESCAPE || (is_code && c != 'm');
            !was_code && !is_code
        })
        .count()
}

fn wrap_line(line: &str, width: usize, out: &mut String) {
    let start = line.len() - line.trim_start().len();
    let indent = (start + HANGING).min(width / 2);
    let mut at = 0;
    // What ends at a space: a word with the spaces in front of it.
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
    fn colours_take_no_room() {
        let text = "\x1b[1;31mone\x1b[0m two three four 5";
        assert_eq!(columns(text), 20);
        assert_eq!(wrapped(text, 20), text);
        assert_eq!(wrapped(text, 1), text, "no narrower than it makes sense");
    }
}
