//! Where reports go, and in which form.

use crate::options::Color;
use anyhow::bail;
use memhook_report::Style;
use std::{
    io::IsTerminal,
    path::{Path, PathBuf},
};

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

/// Whether to use colours (<https://no-color.org>).
pub fn is_colored(color: Color, terminal: bool) -> bool {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    color == Color::Always || (color == Color::Auto && terminal && wanted)
}

/// `%p` is the process id, `%h` this host, `%%` a percent sign.
pub fn expand(path: &Path, pid: i32) -> anyhow::Result<PathBuf> {
    let Some(text) = path.to_str().filter(|text| text.contains('%')) else {
        return Ok(path.to_owned());
    };
    let mut expanded = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            expanded.push(c);
            continue;
        }
        match rest.next() {
            Some('p') => expanded += &pid.to_string(),
            Some('h') => {
                let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
                expanded += host.unwrap_or_default().trim_end();
            }
            Some('%') => expanded.push('%'),
            other => bail!(
                "--output {text}: %{} means nothing: use %p (process id), %h (host) or %%",
                other.map_or(String::new(), String::from)
            ),
        }
    }
    Ok(expanded.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_outputs() {
        let expand = |text: &str| expand(Path::new(text), 42).map(|p| p.display().to_string());
        assert_eq!(expand("a.json").unwrap(), "a.json");
        assert_eq!(
            expand("/x/heap-%p-100%%.json").unwrap(),
            "/x/heap-42-100%.json"
        );
        assert!(!expand("%h").unwrap().contains('%'));
        assert!(
            expand("%q")
                .unwrap_err()
                .to_string()
                .contains("%q means nothing")
        );
    }
}
