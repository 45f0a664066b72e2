//! The only way to the terminal.
//!
//! These macros take the place of the standard library's in all modules that follow, so nothing is printed past them:
//! names of processes, files and functions are foreign, and may hold what a terminal obeys. A reader that went away
//! (`| head`) is not our error; the standard macros would panic, as SIGPIPE is ignored in Rust programs.

use memhook_foreign::visible_lines;
use std::{
    fmt::{Arguments, Write as _},
    io::Write,
};

/// Prints a line on standard output.
macro_rules! println {
    ($($text:tt)*) => { crate::printing::out(format_args!($($text)*)) };
}

/// Prints a line on standard error.
macro_rules! eprintln {
    ($($text:tt)*) => { crate::printing::error(format_args!($($text)*)) };
}

/// Prints on standard error, without an end of line.
macro_rules! eprint {
    ($($text:tt)*) => { crate::printing::error_part(format_args!($($text)*)) };
}

pub(crate) fn out(text: Arguments<'_>) {
    let _ = std::io::stdout().lock().write_all(line(text).as_bytes());
}

pub(crate) fn error(text: Arguments<'_>) {
    let _ = std::io::stderr().lock().write_all(line(text).as_bytes());
}

pub(crate) fn error_part(text: Arguments<'_>) {
    let text = text.to_string();
    let _ = std::io::stderr()
        .lock()
        .write_all(visible_lines(&text).as_bytes());
}

/// Writes in one piece, so that lines of several threads do not mix.
fn line(text: Arguments<'_>) -> String {
    let mut line = without_numbers(text.to_string());
    if let std::borrow::Cow::Owned(shown) = visible_lines(&line) {
        line = shown;
    }
    // Writing into a String cannot fail.
    let _ = line.write_char('\n');
    line
}

/// Without the number that the standard library puts behind the words for an error of the system.
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
