//! Call stacks as text: a column of functions, one of modules, then places.

use crate::labels::one_line;
use crate::names::{around_parameters, is_plumbing, readable};
use crate::recorded::PYTHON;
use crate::{StackFrame, Style};
use std::fmt::{Result, Write};

/// Names up to this many characters share a column; what is longer pushes its own line only.
const NAME_COLUMN: usize = 48;
const MODULE_COLUMN: usize = 24;
/// Longer names are cut in the middle, unless all is wanted.
const LONGEST_NAME: usize = 110;
/// Names are not cut shorter than this to fit the terminal.
pub(crate) const SHORTEST_NAME: usize = 24;
/// In front of a frame.
const INDENT: usize = 6;

/// One line: a frame, or a run of frames that say little.
struct Line {
    name: String,
    place: String,
    module: String,
    /// Says that the function is inlined.
    note: String,
    is_faint: bool,
}

impl Line {
    /// Leaves out what matters least until the line takes no more columns: the module where there is a place, then
    /// the middle of the name.
    fn fit(&mut self, room: usize) {
        let length = |text: &String| match text.chars().count() {
            0 => 0,
            n => n + 2,
        };
        let taken = |line: &Line| {
            let rest = length(&line.module) + length(&line.place) + line.note.chars().count();
            line.name.chars().count() + rest
        };
        if taken(self) > room && !self.place.is_empty() {
            self.module.clear();
        }
        let over = taken(self).saturating_sub(room);
        if over > 0 {
            let most = self.name.chars().count().saturating_sub(over);
            self.name = shortened(std::mem::take(&mut self.name), most.max(SHORTEST_NAME));
        }
    }
}

/// How a stack ends.
pub(crate) enum StackEnd {
    /// Where the thread began, as far as is known.
    Start,
    /// At this many frames, as asked for.
    Depth(u32),
    /// It could not be followed.
    Truncated,
}

impl StackEnd {
    /// From the number of frames, inlined ones not counted.
    pub fn of(frames: &[StackFrame], truncated: bool, depth: u32) -> StackEnd {
        let real = frames.iter().filter(|frame| !frame.inlined).count();
        if truncated {
            StackEnd::Truncated
        } else if real >= depth as usize {
            StackEnd::Depth(depth)
        } else {
            StackEnd::Start
        }
    }
}

/// Writes a stack, innermost frame first.
pub(crate) fn stack(
    out: &mut String,
    frames: &[StackFrame],
    end: StackEnd,
    style: Style,
) -> Result {
    if frames.is_empty() {
        return writeln!(out, "      {}", style.faint("(no call stack)"));
    }
    let mut lines = lines(frames, style);
    if let Some(room) = style.width.filter(|_| !style.verbose) {
        lines
            .iter_mut()
            .for_each(|line| line.fit(room.saturating_sub(INDENT)));
    }
    let width = |text: fn(&Line) -> &str, most: usize| {
        let fitting = lines.iter().map(|line| text(line).chars().count());
        fitting.filter(|&n| n <= most).max().unwrap_or(0)
    };
    let name_width = width(|line| &line.name, NAME_COLUMN);
    let module_width = width(|line| &line.module, MODULE_COLUMN);
    // Columns only where all of them fit.
    let longest = lines
        .iter()
        .map(|line| line.place.chars().count() + line.note.chars().count());
    let all = INDENT + name_width + 2 + module_width + 2 + longest.max().unwrap_or(0);
    let has_columns = style.width.is_none_or(|room| all <= room);
    let (name_width, module_width) = if has_columns {
        (name_width, module_width)
    } else {
        (0, 0)
    };
    for line in &lines {
        let name = format!("{:<name_width$}", line.name);
        let name = if line.is_faint {
            style.faint(&name)
        } else {
            style.name(&name)
        };
        let module = match line.module.as_str() {
            "" if module_width == 0 => String::new(),
            module => format!("{module:<module_width$}  "),
        };
        let rest = match (line.place.is_empty(), line.module.is_empty()) {
            (true, true) => String::new(),
            (true, false) => style.faint(&line.module),
            (false, _) => format!("{}{}", style.faint(&module), line.place),
        };
        let note = style.faint(line.note.trim_end());
        if rest.is_empty() {
            writeln!(out, "      {}", name.trim_end())?
        } else {
            writeln!(out, "      {name}  {rest}{note}")?
        }
    }
    match end {
        StackEnd::Start => Ok(()),
        StackEnd::Depth(depth) => writeln!(
            out,
            "      {}",
            style.faint(&format!("... (--depth {depth})"))
        ),
        StackEnd::Truncated => writeln!(
            out,
            "      {}",
            style.warning("... (the stack cannot be followed further)")
        ),
    }
}

fn lines(frames: &[StackFrame], style: Style) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut at = 0;
    let has_python = !style.verbose && frames.iter().any(is_python);
    while at < frames.len() {
        // What the interpreter does for a Python function says little beside the function.
        let run = frames[at..]
            .iter()
            .take_while(|f| is_interpreter(f))
            .count();
        if has_python && run > 1 {
            lines.push(Line {
                name: format!("... {run} functions of the interpreter"),
                place: String::new(),
                module: String::new(),
                note: String::new(),
                is_faint: true,
            });
            at += run;
            continue;
        }
        // The library's inlined plumbing between two functions that somebody wrote: one line, the
        // outermost of it, which is what was called.
        let plumbing = |frame: &&StackFrame| {
            frame.inlined && frame.function.as_deref().is_some_and(is_plumbing)
        };
        let run = if style.verbose {
            0
        } else {
            frames[at..].iter().take_while(plumbing).count()
        };
        if run > 1 {
            let mut line = line(&frames[at + run - 1], style);
            line.note = format!(" [inlined, {} more]", run - 1);
            lines.push(line);
            at += run;
        } else {
            lines.push(line(&frames[at], style));
            at += 1;
        }
    }
    lines
}

fn is_python(frame: &StackFrame) -> bool {
    frame.module.as_deref() == Some(PYTHON)
}

fn is_interpreter(frame: &StackFrame) -> bool {
    let module = frame.module.as_deref().unwrap_or_default();
    module.starts_with("python3.") || module.starts_with("libpython3.")
}

fn line(frame: &StackFrame, style: Style) -> Line {
    let name = name_of(frame, style);
    Line {
        place: place_of(frame, style),
        // Without a function, the name shows the module already.
        module: match &frame.function {
            Some(_) => one_line(frame.module.clone().unwrap_or_default()),
            None => String::new(),
        },
        note: if frame.inlined { " [inlined]" } else { "" }.to_owned(),
        is_faint: frame.function.as_deref().is_none_or(is_plumbing),
        name,
    }
}

/// Function, or module and offset, or the bare address.
pub(crate) fn name_of(frame: &StackFrame, style: Style) -> String {
    match (&frame.function, &frame.module, &frame.offset) {
        (Some(function), _, _) if style.verbose => one_line(function.clone()),
        (Some(function), _, _) => shortened(one_line(readable(function)), LONGEST_NAME),
        (None, Some(module), Some(offset)) => one_line(format!("{module}+{offset}")),
        _ => one_line(frame.address.clone()),
    }
}

/// Modules that run in every program: what they do is somebody else's doing.
const RUNTIME: [&str; 7] = [
    "libc.so",
    "libc.musl",
    "ld-musl",
    "libstdc++.so",
    "libc++.so",
    "libpthread.so",
    "libgcc_s.so",
];

/// The frame that a reader looks for: the innermost one that is neither the C++ library's plumbing, nor in the C or C++
/// runtime, nor the interpreter's below a Python function. Where there is none, the innermost one.
pub(crate) fn responsible(frames: &[StackFrame]) -> Option<&StackFrame> {
    let has_python = frames.iter().any(is_python);
    let is_runtime = |frame: &StackFrame| {
        let module = frame.module.as_deref().unwrap_or_default();
        RUNTIME.iter().any(|runtime| module.starts_with(runtime))
    };
    // Inlined functions often have names without their namespace.
    let is_of_library = |frame: &StackFrame| {
        let file = frame.file.as_deref().unwrap_or_default();
        file.contains("/include/c++/") || frame.function.as_deref().is_some_and(is_plumbing)
    };
    let is_elsewhere = |frame: &StackFrame| {
        is_of_library(frame) || is_runtime(frame) || (has_python && is_interpreter(frame))
    };
    let own = frames.iter().find(|frame| !is_elsewhere(frame));
    own.or(frames.first())
}

/// The name of a function without its parameters, for where it stands among other things.
pub(crate) fn short_name_of(frame: &StackFrame, style: Style) -> String {
    let name = name_of(frame, style);
    match around_parameters(&name) {
        Some((front, _)) if !style.verbose => front.to_owned(),
        _ => name,
    }
}

/// `directory/file.cc:12`; with `-v` the whole path.
pub(crate) fn place_of(frame: &StackFrame, style: Style) -> String {
    let Some(file) = &frame.file else {
        return String::new();
    };
    let line = frame.line.map_or(String::new(), |n| format!(":{n}"));
    let file = file.strip_prefix("./").unwrap_or(file);
    let short = if style.verbose {
        file
    } else {
        let mut slashes = file.rmatch_indices('/').map(|(at, _)| at + 1);
        slashes.nth(1).map_or(file, |at| &file[at..])
    };
    one_line(format!("{short}{line}"))
}

/// A name without the arguments of its templates; as it is if they are not balanced.
fn without_template_arguments(name: &str) -> String {
    let (mut short, mut depth) = (String::new(), 0_usize);
    for (at, c) in name.char_indices() {
        let before = &name[..at];
        match c {
            '<' if depth > 0 => depth += 1,
            '<' if before.ends_with("operator()")
                || before.ends_with(|c: char| c.is_alphanumeric() || c == '_')
                    && !before.ends_with("operator") =>
            {
                depth = 1;
                short.push_str("<...");
            }
            '>' if depth > 0 && !before.ends_with('-') => {
                depth -= 1;
                if depth == 0 {
                    short.push(c);
                }
            }
            _ if depth == 0 => short.push(c),
            _ => {}
        }
    }
    if depth == 0 { short } else { name.to_owned() }
}

/// If it is longer, without its parameters; if it still is, without template arguments; then without scopes from the
/// left, and without the signs of what was left out. Only a longer name yet loses its own beginning, or its middle if
/// it is not a C++ name.
pub(crate) fn shortened(name: String, most: usize) -> String {
    const GAP: &str = "...";
    if name.chars().count() <= most {
        return name;
    }
    let name = match around_parameters(&name) {
        Some((front, behind)) if !behind.is_empty() || name.len() > front.len() + 2 => {
            format!("{front}({GAP}){behind}")
        }
        _ => name,
    };
    if name.chars().count() <= most {
        return name;
    }
    let name = without_template_arguments(&name);
    let length = name.chars().count();
    if length <= most {
        return name;
    }
    let plain = name.replace("(...)", "");
    let bare = plain.replace("<...>", "");
    for name in [&name, &plain, &bare] {
        let ends = name.match_indices("::").map(|(at, _)| &name[at..]);
        let whole = (name.chars().count() <= most).then(|| name.clone());
        let is_even = |end: &&str| end.matches('<').count() == end.matches('>').count();
        let fits = |end: &&str| GAP.len() + end.chars().count() <= most;
        let mut ends = ends.filter(|end| is_even(end) && fits(end));
        if let Some(shown) = whole.or_else(|| ends.next().map(|end| format!("{GAP}{end}"))) {
            return shown;
        }
    }
    let room = most.saturating_sub(GAP.len());
    // What a function is called comes after what it belongs to.
    let front = if name.contains("::") { 0 } else { room / 2 };
    let start: String = name.chars().take(front).collect();
    let end: String = name.chars().skip(length - (room - front)).collect();
    format!("{start}{GAP}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn somebody_is_responsible() {
        let frame = |function: &str, module: &str| StackFrame {
            function: Some(function.to_owned()),
            module: Some(module.to_owned()),
            ..StackFrame::default()
        };
        let found = |frames: &[StackFrame]| responsible(frames)?.function.clone();
        let own = frame("shop::place", "shop");
        let plumbing = frame("std::vector<int>::push_back(int&&)", "shop");
        let of_libc = frame("strdup", "libc.so.6");
        let (python, inner) = (frame("handle", PYTHON), frame("PyDict_New", "python3.11"));
        let all = [
            of_libc.clone(),
            plumbing,
            own.clone(),
            frame("main", "shop"),
        ];
        assert_eq!(found(&all).as_deref(), Some("shop::place"));
        let inlined = StackFrame {
            file: Some("/usr/include/c++/12/bits/unique_ptr.h".into()),
            ..frame("make_unique<Order>", "shop")
        };
        assert_eq!(found(&[inlined, own]).as_deref(), Some("shop::place"));
        let below_python = [of_libc.clone(), inner.clone(), python];
        assert_eq!(found(&below_python).as_deref(), Some("handle"));
        assert_eq!(
            found(&[of_libc.clone(), inner]).as_deref(),
            Some("PyDict_New")
        );
        assert_eq!(found(&[of_libc]).as_deref(), Some("strdup"));
        assert_eq!(found(&[]), None);
        let with_parameters = frame("shop::place(int) const", "shop");
        assert_eq!(
            short_name_of(&with_parameters, Style::default()),
            "shop::place"
        );
    }

    #[test]
    fn long_names_lose_what_says_least() {
        let name = "std::map<int, Pair<A, B>>::operator[](int const&) (shop)";
        for (most, expected) in [
            (60, name),
            (50, "std::map<int, Pair<A, B>>::operator[](...) (shop)"),
            (45, "std::map<...>::operator[](...) (shop)"),
        ] {
            let shown = shortened(name.to_owned(), most);
            assert_eq!(shown, expected);
        }
        let shortest = shortened(name.to_owned(), 27);
        assert_eq!(shortest, "...::operator[](...) (shop)");
        assert_eq!(shortened(name.to_owned(), 23), "...::operator[] (shop)");
        let call = "operator()<std::vector<int>>(int) const";
        assert_eq!(shortened(call.to_owned(), 20), "operator() const");
        assert_eq!(shortened("a_name_of_c".into(), 9), "a_n...f_c");
        for same in ["a.operator<(b)", "f<g", "operator->", "x > y"] {
            assert_eq!(without_template_arguments(same), same);
        }
        let nested = "f<(lambda at a->b)>::g";
        assert_eq!(without_template_arguments(nested), "f<...>::g");
    }
}
