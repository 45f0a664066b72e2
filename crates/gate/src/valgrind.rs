//! Leak suppressions of Valgrind's memcheck (Valgrind user manual, 2.5 "Suppressing errors").

use crate::evidence::{AllocationSite, SourceFrame};

/// A suppression for leaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suppression {
    /// Name of the suppression.
    pub name: String,
    frames: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    /// `fun:`; a mangled name without wildcards is demangled.
    Function(String),
    /// `obj:`
    Object(String),
    /// `src:`
    Source(String),
    /// `...`
    Any,
}

type Problem = (Option<usize>, String);

/// Parses the text after the `{`. Returns `None` if the suppression is not about leaks that a gate
/// reports.
pub fn read<'a>(
    lines: &mut impl Iterator<Item = (usize, &'a str)>,
) -> Result<Option<Suppression>, Problem> {
    let mut lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let mut next = || match lines.next() {
        Some(line) => Ok(line),
        None => Err((None, "the suppression has no closing brace".to_owned())),
    };
    let (_, name) = next()?;
    let (number, kind) = next()?;
    if name == "}" || kind == "}" {
        return Err((Some(number), "a suppression has a name and a kind".into()));
    }
    let tools_and_kind = kind.split_once(':');
    let of_memcheck = tools_and_kind.is_some_and(|(tools, kind)| {
        let tools: Vec<&str> = tools.split(',').map(str::trim).collect();
        tools.iter().any(|t| t.eq_ignore_ascii_case("memcheck")) && kind.trim() == "Leak"
    });
    let mut frames = Vec::new();
    let mut about_lost = true;
    loop {
        let (number, line) = next()?;
        if line == "}" {
            break;
        }
        let line_of = |frame| Ok::<Line, Problem>(frame);
        frames.push(match line.split_once(':') {
            _ if !of_memcheck => continue,
            _ if line == "..." => line_of(Line::Any)?,
            Some(("match-leak-kinds", kinds)) => {
                let lost = ["all", "definite", "indirect", "possible"];
                about_lost = kinds.split(',').any(|kind| lost.contains(&kind.trim()));
                continue;
            }
            Some(("fun", name)) => Line::Function(demangled(name.trim())),
            Some(("obj", path)) => Line::Object(path.trim().to_owned()),
            Some(("src", path)) => Line::Source(path.trim().to_owned()),
            _ => {
                let problem = format!("{line:?}: expected fun:, obj:, src:, ... or }}");
                return Err((Some(number), problem));
            }
        });
    }
    if !of_memcheck || !about_lost {
        return Ok(None);
    }
    Ok(Some(Suppression {
        name: name.to_owned(),
        frames,
    }))
}

fn demangled(name: &str) -> String {
    if name.starts_with("_Z") && !name.contains(['*', '?']) {
        memhook_foreign::demangle_in_full(name)
    } else {
        name.to_owned()
    }
}

impl Suppression {
    /// Returns true if the stack begins with these frames. The allocating function counts as the
    /// first.
    pub fn matches(&self, site: &AllocationSite) -> bool {
        let allocator = SourceFrame {
            function: site.symbol.as_deref().map(demangled),
            module: Some("vgpreload_memcheck-amd64-linux.so".into()),
            ..SourceFrame::default()
        };
        let stack: Vec<&SourceFrame> = std::iter::once(&allocator).chain(&site.stack).collect();
        is_prefix(&self.frames, &stack)
    }
}

fn is_prefix(lines: &[Line], stack: &[&SourceFrame]) -> bool {
    // Works backwards. Each element says whether the remaining lines match the stack from that
    // position on.
    let mut rest = vec![true; stack.len() + 1];
    for line in lines.iter().rev() {
        let mut now = vec![false; stack.len() + 1];
        for at in (0..=stack.len()).rev() {
            now[at] = match line {
                Line::Any => rest[at] || (at < stack.len() && now[at + 1]),
                _ => at < stack.len() && matches(line, stack[at]) && rest[at + 1],
            };
        }
        rest = now;
    }
    rest[0]
}

fn matches(line: &Line, frame: &SourceFrame) -> bool {
    let glob = |pattern: &str, text: &Option<String>| {
        text.as_ref()
            .is_some_and(|text| memhook_foreign::glob(pattern, text))
    };
    match line {
        Line::Function(pattern) => glob(pattern, &frame.function),
        Line::Object(pattern) => glob(pattern, &frame.module),
        Line::Source(pattern) => {
            let line = frame.line.map_or(String::new(), |n| format!(":{n}"));
            let with_line = frame.file.as_ref().map(|file| format!("{file}{line}"));
            glob(pattern, &frame.file) || glob(pattern, &with_line)
        }
        Line::Any => true,
    }
}
