//! Call stacks as text: a column of functions, one of modules, then places.

use crate::labels::one_line;
use crate::named_run::is_cut;
use crate::names::{around_parameters, is_plumbing, readable, without_parameters};
use crate::places::{fitted_place, place_of};
use crate::wrap::{beginning, columns, ending, padded};
use crate::wrappers::is_wrapper;
use crate::{StackFrame, Style};
use memhook_symbols::PYTHON;
use std::fmt::{Result, Write};

/// Width of the column of names. A longer name shifts the other columns of its own line only.
const NAME_COLUMN: usize = 48;
const MODULE_COLUMN: usize = 24;
/// Maximum length of a name that is not cut in the middle, unless the user wants everything.
pub const LONGEST_NAME: usize = 110;
/// Minimum length of a name that is cut to fit the terminal.
pub(crate) const SHORTEST_NAME: usize = 24;
/// Columns in front of a frame.
pub(crate) const INDENT: usize = 6;

/// One line: a frame, or several unimportant frames.
pub(crate) struct StackLine {
    pub name: String,
    pub place: String,
    pub module: String,
    /// Marks an inlined function.
    pub note: String,
    pub is_faint: bool,
}

impl StackLine {
    /// Drops the least important parts until the line fits: the module if there is a place, parts
    /// of the name, directories, the note, and then the rest of the name. The line number is always
    /// kept.
    fn fit(&mut self, room: usize) {
        let length = |text: &String| match columns(text) {
            0 => 0,
            n => n + 2,
        };
        let over = |line: &StackLine| {
            let rest = length(&line.module) + length(&line.place) + columns(&line.note);
            (columns(&line.name) + rest).saturating_sub(room)
        };
        if over(self) > 0 && !self.place.is_empty() {
            self.module.clear();
        }
        for shortest in [SHORTEST_NAME, 0] {
            if over(self) > 0 {
                let most = columns(&self.name).saturating_sub(over(self));
                self.name = shortened(std::mem::take(&mut self.name), most.max(shortest));
            }
            if over(self) > 0 {
                let most = columns(&self.place).saturating_sub(over(self));
                self.place = fitted_place(&self.place, most);
            }
            if over(self) > 0 {
                self.note.clear();
            }
        }
    }
}

/// Reason why a stack ends.
pub(crate) enum StackEnd {
    /// The stack ends at the thread's start, as far as can be known.
    Start,
    /// The stack reached the requested number of frames.
    Depth(u32),
    /// The unwinder could not follow the stack.
    Truncated,
}

impl StackEnd {
    /// Determines why a stack ends, from its number of frames. Inlined frames are not counted.
    pub fn of(frames: &[StackFrame], truncated: bool, depth: u32) -> StackEnd {
        let real = frames.iter().filter(|frame| !frame.inlined).count();
        match is_cut(real, truncated, depth, frames) {
            true if truncated => StackEnd::Truncated,
            true => StackEnd::Depth(depth),
            false => StackEnd::Start,
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
    let lines = fitted_lines(frames, style);
    let width = |text: fn(&StackLine) -> &str, most: usize| {
        let fitting = lines.iter().map(|line| columns(text(line)));
        fitting.filter(|&n| n <= most).max().unwrap_or(0)
    };
    let name_width = width(|line| &line.name, NAME_COLUMN);
    let module_width = width(|line| &line.module, MODULE_COLUMN);
    // Columns are used only if all of them fit.
    let longest = lines
        .iter()
        .map(|line| columns(&line.place) + columns(&line.note));
    let all = INDENT + name_width + 2 + module_width + 2 + longest.max().unwrap_or(0);
    let has_columns = style.width.is_none_or(|room| all <= room);
    let (name_width, module_width) = if has_columns {
        (name_width, module_width)
    } else {
        (0, 0)
    };
    for line in &lines {
        let name = padded(&line.name, name_width);
        let name = if line.is_faint {
            style.faint(&name)
        } else {
            style.name(&name)
        };
        let module = match line.module.as_str() {
            "" if module_width == 0 => String::new(),
            module => padded(module, module_width) + "  ",
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
            style
                .warning("... (the stack continues: no unwind information, or no memory for more)")
        ),
    }
}

/// Returns the lines of a stack, none of them wider than the terminal.
pub(crate) fn fitted_lines(frames: &[StackFrame], style: Style) -> Vec<StackLine> {
    let mut lines = lines(frames, style);
    if let Some(room) = style.width.filter(|_| !style.verbose) {
        let fit = |line: &mut StackLine| line.fit(room.saturating_sub(INDENT));
        lines.iter_mut().for_each(fit);
    }
    lines
}

fn lines(frames: &[StackFrame], style: Style) -> Vec<StackLine> {
    let mut lines: Vec<StackLine> = Vec::new();
    let mut at = 0;
    let has_python = !style.verbose && frames.iter().any(is_python);
    while at < frames.len() {
        // Below a Python function, the interpreter's frames for it are unimportant.
        let run = frames[at..]
            .iter()
            .take_while(|f| is_interpreter(f))
            .count();
        if has_python && run > 1 {
            lines.push(StackLine {
                name: format!("... {run} functions of the interpreter"),
                place: String::new(),
                module: String::new(),
                note: String::new(),
                is_faint: true,
            });
            at += run;
            continue;
        }
        // Inlined functions of the library between two functions of the program take one line,
        // which shows the outermost of them: the function that the program called.
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

fn line(frame: &StackFrame, style: Style) -> StackLine {
    let name = name_of(frame, style);
    StackLine {
        place: place_of(frame, style),
        // Without a function, the name already shows the module.
        module: match &frame.function {
            Some(_) => one_line(frame.module.clone().unwrap_or_default()),
            None => String::new(),
        },
        note: if frame.inlined { " [inlined]" } else { "" }.to_owned(),
        is_faint: frame.function.as_deref().is_none_or(is_plumbing),
        name,
    }
}

/// Returns the function, or module and offset, or the bare address.
pub(crate) fn name_of(frame: &StackFrame, style: Style) -> String {
    match (&frame.function, &frame.module, &frame.offset) {
        (Some(function), _, _) if style.verbose => one_line(function.clone()),
        (Some(function), _, _) => shortened(one_line(readable(function)), LONGEST_NAME),
        (None, Some(module), Some(offset)) => one_line(format!("{module}+{offset}")),
        _ => one_line(frame.address.clone()),
    }
}

/// Modules that run in every program on behalf of other code.
const RUNTIME: [&str; 7] = [
    "libc.so",
    "libc.musl",
    "ld-musl",
    "libstdc++.so",
    "libc++.so",
    "libpthread.so",
    "libgcc_s.so",
];

/// Directories of the sources of Rust's standard library.
const RUST_LIBRARY: [&str; 3] = [
    "/library/alloc/src/",
    "/library/core/src/",
    "/library/std/src/",
];

/// Role of a frame's code for a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// Code of the program, or of a library that it chose.
    Own = 0,
    /// Code of the C or C++ library, or a function that passes an allocation on.
    Library = 1,
    /// Code of the interpreter, which matters little below a function of its language.
    Interpreter = 2,
    /// A function of Python.
    Python = 3,
}

impl Role {
    /// Returns the role of a frame.
    pub fn of(frame: &StackFrame) -> Role {
        let module = frame.module.as_deref().unwrap_or_default();
        // Names of inlined functions often lack their namespace.
        let file = frame.file.as_deref().unwrap_or_default();
        let is_library = |function: &str| is_plumbing(function) || is_wrapper(function);
        let is_of_rust = |part: &&str| file.contains(*part);
        if is_python(frame) {
            Role::Python
        } else if RUNTIME.iter().any(|runtime| module.starts_with(runtime))
            || file.contains("/include/c++/")
            || (file.starts_with("/usr/include/") && file.contains("/bits/"))
            || RUST_LIBRARY.iter().any(is_of_rust)
            || frame.function.as_deref().is_some_and(is_library)
        {
            Role::Library
        } else if is_interpreter(frame) {
            Role::Interpreter
        } else {
            Role::Own
        }
    }
}

/// Returns true if a frame is code of the program, or of a library that it chose, rather than of a
/// language runtime.
pub fn is_own_code(frame: &StackFrame) -> bool {
    Role::of(frame) != Role::Library && frame.function.as_deref() != Some("_start")
}

/// Finds the frame that a reader wants to see: the innermost frame outside the C or C++ runtime and
/// library that is neither an allocator's wrapper nor an interpreter frame below a Python function.
/// If there is no such frame, it is the innermost frame.
pub(crate) fn responsible(frames: &[StackFrame]) -> Option<&StackFrame> {
    from_responsible(frames).first()
}

/// Returns the frames from the responsible one outwards.
pub fn from_responsible(frames: &[StackFrame]) -> &[StackFrame] {
    let has_python = frames.iter().any(is_python);
    let is_elsewhere = |frame: &StackFrame| match Role::of(frame) {
        Role::Own | Role::Python => false,
        Role::Library => true,
        Role::Interpreter => has_python,
    };
    let own = frames.iter().position(|frame| !is_elsewhere(frame));
    &frames[own.unwrap_or(0)..]
}

/// Returns the name of a function without its parameters, for a line that it shares with other
/// text.
pub(crate) fn short_name_of(frame: &StackFrame, style: Style) -> String {
    let name = name_of(frame, style);
    match style.verbose {
        true => name,
        false => without_parameters(&name).to_owned(),
    }
}

/// Removes the template arguments from a name. Returns the name unchanged if its brackets are not
/// balanced.
pub(crate) fn without_template_arguments(name: &str) -> String {
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

/// Shortens a name that is too long, step by step. The parameters are removed first, then template
/// arguments, then the marks of these omissions, scopes from the left, and the part after the
/// parameters. Only a name that is still longer loses its middle, or its end if only the beginning
/// is useful. `fittingName` in `view/names.js` does the same.
pub fn shortened(name: String, most: usize) -> String {
    const GAP: &str = "...";
    /// Width below which a beginning and an end do not both fit.
    const BOTH_ENDS: usize = 9;
    if columns(&name) <= most {
        return name;
    }
    let mut suffix = String::new();
    let name = match around_parameters(&name) {
        Some((front, behind)) if !behind.is_empty() || name.len() > front.len() + 2 => {
            suffix = behind.to_owned();
            format!("{front}({GAP}){behind}")
        }
        _ => name,
    };
    if columns(&name) <= most {
        return name;
    }
    let name = without_template_arguments(&name);
    let plain = name.replace("(...)", "");
    let bare = plain.replace("<...>", "");
    let pairs = [('<', '>'), ('{', '}')];
    let is_even = |end: &&str| {
        let count = |c| end.matches(c).count();
        pairs
            .iter()
            .all(|&(opens, closes)| count(opens) == count(closes))
    };
    let ends = bare.match_indices("::").map(|(at, _)| &bare[at..]);
    let ends: Vec<&str> = ends.filter(is_even).collect();
    let own = ends.last().map_or(bare.as_str(), |end| &end[2..]);
    let alone = own.strip_suffix(&suffix).unwrap_or(own);
    let fits = |form: &&str| columns(form) <= most;
    if let Some(form) = [&name, &plain, &bare]
        .map(String::as_str)
        .into_iter()
        .find(fits)
    {
        return form.to_owned();
    }
    let scoped = ends.iter().map(|end| format!("{GAP}{end}"));
    if let Some(form) = scoped.into_iter().find(|form| fits(&form.as_str())) {
        return form;
    }
    if let Some(form) = [own, alone].into_iter().find(fits) {
        return form.to_owned();
    }
    if most < BOTH_ENDS {
        return format!("{}\u{2026}", beginning(alone, most.saturating_sub(1)));
    }
    let room = most - GAP.len();
    let (start, end) = (beginning(alone, room / 2), ending(alone, room - room / 2));
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
        let of_header = StackFrame {
            file: Some("/usr/include/x86_64-linux-gnu/bits/stdio.h".into()),
            ..frame("getline", "shop")
        };
        assert_eq!(
            found(&[of_header, inlined, own.clone()]).as_deref(),
            Some("shop::place")
        );
        let of_rust = StackFrame {
            file: Some("/rustc/59807616/library/alloc/src/slice.rs".into()),
            ..frame("to_vec<u8>", "shop")
        };
        assert_eq!(found(&[of_rust, own]).as_deref(), Some("shop::place"));
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
    fn a_line_of_a_stack_keeps_its_number() {
        let frame = StackFrame {
            function: Some("shop::Cache<Order, Customer>::place_order(Order const&)".into()),
            module: Some("libshop.so.1".into()),
            file: Some("/w/svc/src/deep/down/orders/cache.cc".into()),
            line: Some(1234),
            inlined: true,
            ..StackFrame::default()
        };
        let shown = |columns| {
            let style = Style {
                width: Some(columns),
                root: "/w/svc",
                ..Style::default()
            };
            let mut out = String::new();
            let _ = stack(
                &mut out,
                std::slice::from_ref(&frame),
                StackEnd::Start,
                style,
            );
            out
        };
        for columns in 40..160 {
            let line = shown(columns);
            assert!(
                line.trim_end().chars().count() <= columns,
                "{columns}: {line}"
            );
            assert!(line.contains("cache.cc:1234"), "{columns}: {line}");
        }
        assert_eq!(
            shown(80).trim(),
            "shop::Cache::place_order  src/deep/down/orders/cache.cc:1234 [inlined]"
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
        assert_eq!(shortest, "std::map::operator[] (shop)");
        assert_eq!(shortened(name.to_owned(), 23), "...::operator[] (shop)");
        for (most, shown) in [(12, "place const"), (9, "place"), (4, "pla\u{2026}")] {
            let name = "shop::Cache<A, B>::place(int) const";
            assert_eq!(shortened(name.to_owned(), most), shown);
        }
        let call = "operator()<std::vector<int>>(int) const";
        assert_eq!(shortened(call.to_owned(), 20), "operator() const");
        assert_eq!(shortened("a_name_of_c".into(), 9), "a_n...f_c");
        assert_eq!(shortened("buffer(unsigned long)".into(), 5), "buff\u{2026}");
        for same in ["a.operator<(b)", "f<g", "operator->", "x > y"] {
            assert_eq!(without_template_arguments(same), same);
        }
        let nested = "f<(lambda at a->b)>::g";
        assert_eq!(without_template_arguments(nested), "f<...>::g");
    }
}
