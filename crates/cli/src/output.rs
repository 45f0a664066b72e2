//! Where reports go, and in which form.

use crate::options::Color;
use memhook_report::Style;
use std::{io::IsTerminal, path::Path};

/// Prints a line on standard output, made safe as by [`crate::printing`].
macro_rules! say {
    ($($text:tt)*) => { crate::printing::out(format_args!($($text)*)) };
}
pub(crate) use say;

/// How text looks there.
pub fn style(path: Option<&Path>, color: Color, verbose: bool) -> Style {
    Style {
        color: is_colored(color, path.is_none() && std::io::stdout().is_terminal()),
        verbose,
    }
}

/// Whether to use colours (<https://no-color.org>). A dumb terminal would show their codes.
pub fn is_colored(color: Color, terminal: bool) -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
    color == Color::Always || (color == Color::Auto && terminal && wanted)
}
