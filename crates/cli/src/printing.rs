//! The only path for output to the terminal.
//!
//! These macros replace the standard library's in all modules that follow, so all output passes
//! through them. Names of processes, files and functions are untrusted, and may contain control
//! codes for a terminal. A reader that closes the pipe (`| head`) is not an error. The standard
//! macros would panic, because SIGPIPE is ignored in Rust programs.

use memhook_foreign::visible_lines;
use memhook_report::{in_ascii, terminal_has_utf8};
use std::{
    borrow::Cow,
    fmt::{Arguments, Write as _},
    io::{IsTerminal, Write},
};

/// Prints a line on standard output.
macro_rules! println {
    ($($text:tt)*) => { crate::printing::out(format_args!($($text)*)) };
}

/// Prints a line on standard error.
macro_rules! eprintln {
    ($($text:tt)*) => { crate::printing::error(format_args!($($text)*)) };
}

/// Prints on standard error, without a newline.
macro_rules! eprint {
    ($($text:tt)*) => { crate::printing::error_part(format_args!($($text)*)) };
}

pub(crate) fn out(text: Arguments<'_>) {
    let mut stream = std::io::stdout().lock();
    let text = line(text, stream.is_terminal());
    let _ = stream.write_all(text.as_bytes());
}

pub(crate) fn error(text: Arguments<'_>) {
    let mut stream = std::io::stderr().lock();
    let text = line(text, stream.is_terminal());
    let _ = stream.write_all(text.as_bytes());
}

pub(crate) fn error_part(text: Arguments<'_>) {
    let text = text.to_string();
    let _ = std::io::stderr()
        .lock()
        .write_all(visible_lines(&text).as_bytes());
}

/// Writes the text in one piece, so that lines from several threads are not interleaved.
fn line(text: Arguments<'_>, is_terminal: bool) -> String {
    let mut line = without_numbers(text.to_string());
    if let Cow::Owned(shown) = visible_lines(&line) {
        line = shown;
    }
    if is_terminal
        && !terminal_has_utf8()
        && let Cow::Owned(shown) = in_ascii(&line)
    {
        line = shown;
    }
    // Writing into a String cannot fail.
    let _ = line.write_char('\n');
    line
}

/// Removes the error number that the standard library appends to the text of a system error.
fn without_numbers(mut text: String) -> String {
    const BEFORE: &str = " (os error ";
    while let Some(start) = text.find(BEFORE) {
        let number = &text[start + BEFORE.len()..];
        let digits = number.bytes().take_while(u8::is_ascii_digit).count();
        if digits == 0 || !number[digits..].starts_with(')') {
            break;
        }
        text.replace_range(start..start + BEFORE.len() + digits + 1, "");
    }
    text
}
