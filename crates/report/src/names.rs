//! Demangled C++ names as people would write them. JSON output has the full form.

/// Default template arguments of nearly every standard container.
const DEFAULTS: [&str; 6] = [
    "std::allocator<",
    "std::char_traits<",
    "std::less<",
    "std::equal_to<",
    "std::hash<",
    "std::default_delete<",
];

/// Single-argument templates whose `char` instance has a name of its own.
const OF_CHAR: [&str; 11] = [
    "string",
    "string_view",
    "istream",
    "ostream",
    "iostream",
    "stringstream",
    "istringstream",
    "ostringstream",
    "ifstream",
    "ofstream",
    "fstream",
];

/// Random number engines: the template, the arguments after the first that identify the engine, and its name.
const ENGINES: [(&str, &str, &str); 4] = [
    ("std::mersenne_twister_engine<", " 32, 624,", "std::mt19937"),
    (
        "std::mersenne_twister_engine<",
        " 64, 312,",
        "std::mt19937_64",
    ),
    (
        "std::linear_congruential_engine<",
        " 16807,",
        "std::minstd_rand0",
    ),
    (
        "std::linear_congruential_engine<",
        " 48271,",
        "std::minstd_rand",
    ),
];

/// Shortens a function's name for text.
pub fn readable(function: &str) -> String {
    let plain = function
        .replace("std::__cxx11::", "std::")
        .replace("std::__1::", "std::")
        .replace("(anonymous namespace)::", "");
    let mut short = without_defaults(&plain).replace(" >", ">");
    if short.contains("std::basic_") {
        for name in OF_CHAR {
            let (narrow, wide) = (format!("std::{name}"), format!("std::w{name}"));
            let template = format!("std::basic_{name}");
            short = short.replace(&format!("{template}<char>"), &narrow);
            short = short.replace(&format!("{template}<wchar_t>"), &wide);
        }
    }
    of_lambda(without_abi_tags(&with_short_engines(short)))
}

/// Turns `load(Path const&)::{lambda(int)#1}::operator()(int) const` into `load::{lambda(int)#1}`. The enclosing
/// function identifies the lambda, and its `operator()` is its only function.
fn of_lambda(name: String) -> String {
    let is_lambda = |part: &str| part.starts_with("{lambda") || part.starts_with("$_");
    if !name.contains("{lambda") && !name.contains("$_") {
        return name;
    }
    let Some(parts) = scopes(&name) else {
        return name;
    };
    let Some(first) = parts.iter().position(|part| is_lambda(part)) else {
        return name;
    };
    let mut short: Vec<&str> = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let is_call = at > first && part.starts_with("operator()");
        if !(is_call && is_lambda(parts[at - 1])) {
            short.push(if is_lambda(part) {
                part
            } else {
                without_parameters(part)
            });
        }
    }
    let mut short = short.join("::");
    let last = parts[parts.len() - 1];
    if last.starts_with("operator()") {
        // Keeps the module, if rows name it.
        short += behind_call(last);
    }
    short.strip_prefix("auto ").unwrap_or(&short).to_owned()
}

/// Returns ` (shop)` for `operator()(int) const (shop)`.
fn behind_call(call: &str) -> &str {
    let mut depth = 0_u32;
    for (at, c) in call.char_indices() {
        match c {
            ' ' if depth == 0 && call[at..].starts_with(" (") => return &call[at..],
            '<' | '(' | '[' | '{' => depth += 1,
            '>' | ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    ""
}

/// Splits a name at each `::` outside brackets; `None` if the brackets are not balanced.
fn scopes(name: &str) -> Option<Vec<&str>> {
    let (mut parts, mut depth, mut from) = (Vec::new(), 0_usize, 0);
    for (at, c) in name.char_indices() {
        match c {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' | ')' | ']' | '}' => depth = depth.checked_sub(1)?,
            ':' if depth == 0 && at >= from && name[at..].starts_with("::") => {
                parts.push(&name[from..at]);
                from = at + 2;
            }
            _ => {}
        }
    }
    parts.push(&name[from..]);
    (depth == 0).then_some(parts)
}

/// Writes `std::mt19937` in place of its dozen of numbers.
fn with_short_engines(mut name: String) -> String {
    for (template, arguments, short) in ENGINES {
        let mut from = 0;
        while let Some(at) = name[from..].find(template).map(|at| from + at) {
            from = at + template.len();
            let Some(length) = balanced(&name[from - 1..]) else {
                break;
            };
            let rest = name[from..].split_once(',').map(|(_, rest)| rest);
            if rest.is_some_and(|rest| rest.starts_with(arguments)) {
                name.replace_range(at..from - 1 + length, short);
                from = at + short.len();
            }
        }
    }
    name
}

/// Leaves out default arguments such as `, std::allocator<...>`.
fn without_defaults(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find(", std::") {
        let argument = &rest[at + 2..];
        let open = DEFAULTS.iter().find(|d| argument.starts_with(*d));
        let length =
            open.and_then(|open| balanced(&argument[open.len() - 1..]).map(|n| open.len() - 1 + n));
        out.push_str(&rest[..at]);
        match length {
            // If `operator()` follows, the text is part of another argument.
            Some(length) if argument[length..].trim_start().starts_with([',', '>']) => {
                rest = &argument[length..];
            }
            _ => {
                out.push_str(", std::");
                rest = &argument["std::".len()..];
            }
        }
    }
    out + rest
}

/// Returns the length of `<...>` at the start, including both brackets.
fn balanced(text: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if depth == 1 => return Some(at + 1),
            '>' => depth -= 1,
            _ => {}
        }
    }
    None
}

fn without_abi_tags(name: &str) -> String {
    name.replace("[abi:cxx11]", "")
}

/// Returns the parts before and after a function's parameters: `f` and ` const` for `f(int) const`.
pub(crate) fn around_parameters(name: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    let mut begin = None;
    for (at, c) in name.char_indices() {
        let is_name = name[..at].ends_with("operator") || name[at..].starts_with("(anonymous");
        match c {
            '<' | '(' | '[' | '{' => {
                if depth == 0 && c == '(' && !is_name && begin.is_none() {
                    begin = Some(at);
                }
                depth += 1;
            }
            '>' | ')' | ']' | '}' => {
                depth -= 1;
                if let (0, ')', Some(begin)) = (depth, c, begin) {
                    return Some((&name[..begin], &name[at + 1..]));
                }
            }
            _ => {}
        }
    }
    None
}

/// Returns `shop::place` for `shop::place(int) const`.
pub fn without_parameters(name: &str) -> &str {
    around_parameters(name).map_or(name, |(front, _)| front)
}

/// Modules of Rust's standard library through which programs allocate, including its hash tables. Matching all of
/// `core::` and `alloc::` would be too broad, because C++ programs have namespaces with these names.
const RUST_PLUMBING: [&str; 15] = [
    "alloc::alloc::",
    "alloc::borrow::",
    "alloc::boxed::",
    "alloc::collections::",
    "alloc::fmt::",
    "alloc::raw_vec::",
    "alloc::rc::",
    "alloc::slice::",
    "alloc::str::",
    "alloc::string::",
    "alloc::sync::",
    "alloc::vec::",
    "core::iter::",
    "core::ops::function::",
    "hashbrown::",
];

/// Returns true if a function belongs to the plumbing of the standard library of C++ or Rust: containers, strings,
/// smart pointers.
pub fn is_plumbing(function: &str) -> bool {
    // In Rust, `<Vec<u8> as Extend>::extend` is a function of the type.
    let of_type = function
        .strip_prefix('<')
        .and_then(|inner| inner.split(" as ").next());
    let name = qualified_name(of_type.unwrap_or(function));
    name.starts_with("std::")
        || name.starts_with("__gnu_cxx::")
        || RUST_PLUMBING.iter().any(|module| name.starts_with(module))
}

/// Returns a demangled function without its return type, template arguments and parameters.
pub(crate) fn qualified_name(function: &str) -> String {
    let mut name = String::new();
    let mut depth = 0u32;
    let mut rest = function;
    while let Some(c) = rest.chars().next() {
        let starts_word = name.is_empty() || name.ends_with([' ', ':']);
        if depth == 0 && starts_word && rest.starts_with("operator") {
            // The rest of the name may contain any of the characters searched for below.
            name.push_str(rest);
            break;
        }
        let anonymous = "(anonymous namespace)";
        if depth == 0 && rest.starts_with(anonymous) {
            name.push_str("anonymous");
            rest = &rest[anonymous.len()..];
            continue;
        }
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            '(' if depth == 0 => break,
            _ if depth == 0 => name.push(c),
            _ => {}
        }
        rest = &rest[c.len_utf8()..];
    }
    // An operator's name may contain spaces, and a space ends a return type.
    let operator = name.find("operator").unwrap_or(name.len());
    let begin = name[..operator].rfind(' ').map_or(0, |space| space + 1);
    name[begin..].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_as_people_write_them() {
        for (long, short) in [
            (
                "f(std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >&)",
                "f(std::string&)",
            ),
            (
                "std::vector<std::pair<int const, long>, std::allocator<std::pair<int const, long> > >::reserve(unsigned long)",
                "std::vector<std::pair<int const, long>>::reserve(unsigned long)",
            ),
            (
                "std::map<int, X, std::less<int>, std::allocator<std::pair<int const, X> > >::at",
                "std::map<int, X>::at",
            ),
            (
                "std::basic_ostream<char, std::char_traits<char> >& f(std::basic_string_view<wchar_t, std::char_traits<wchar_t> >)",
                "std::ostream& f(std::wstring_view)",
            ),
            (
                "roll(std::mersenne_twister_engine<unsigned long, 32, 624, 397, 31, 2567483615>&, std::vector<std::mersenne_twister_engine<unsigned long, 64, 312, 156> >)",
                "roll(std::mt19937&, std::vector<std::mt19937_64>)",
            ),
            (
                "f(std::mersenne_twister_engine<unsigned int, 8, 9>, std::mersenne_twister_engine<unsigned",
                "f(std::mersenne_twister_engine<unsigned int, 8, 9>, std::mersenne_twister_engine<unsigned",
            ),
            ("g(int, std::vector<int>)", "g(int, std::vector<int>)"),
            ("h(int, std::allocator<int>)", "h(int, std::allocator<int>)"),
            ("broken<int, std::allocator<", "broken<int, std::allocator<"),
            (
                "(anonymous namespace)::worker(unsigned int)",
                "worker(unsigned int)",
            ),
            ("main", "main"),
            // A lambda is identified by the function that contains it.
            (
                "Session::load(std::pair<int, A> const&)::{lambda(std::string)#1}::operator()(std::string) const",
                "Session::load::{lambda(std::string)#1}",
            ),
            ("main::{lambda#2}::operator()", "main::{lambda#2}"),
            (
                "main::{lambda#2}::operator() (svc)",
                "main::{lambda#2} (svc)",
            ),
            (
                "f()::{lambda()#1}::operator()(void (*)(int)) const (svc)",
                "f::{lambda()#1} (svc)",
            ),
            (
                "auto main::{lambda(auto:1)#1}::operator()<int>(int) const",
                "main::{lambda(auto:1)#1}",
            ),
            (
                "f(int)::{lambda()#1}::operator()() const::{lambda()#2}::operator()() const",
                "f::{lambda()#1}::{lambda()#2}",
            ),
            ("shop::serve()::$_0::operator()() const", "shop::serve::$_0"),
            ("Less::operator()(int) const", "Less::operator()(int) const"),
        ] {
            assert_eq!(readable(long), short);
        }
        assert!(is_plumbing(
            "std::string::_M_create(unsigned long&, unsigned long)"
        ));
        assert!(is_plumbing(
            "void std::vector<Value, std::allocator<Value> >::_M_realloc_insert<>()"
        ));
        for plumbing in [
            "alloc::raw_vec::RawVecInner<A>::with_capacity_in",
            "<alloc::vec::Vec<T,A> as core::iter::traits::collect::Extend<T>>::extend",
            "<alloc::string::String as core::clone::Clone>::clone",
            "hashbrown::raw::RawTable<T,A>::reserve_rehash",
        ] {
            assert!(is_plumbing(plumbing), "{plumbing}");
        }
        for own in [
            "<shop::Cart as core::iter::traits::collect::Extend<T>>::extend",
            "core::Engine::run()",
            "study()",
            "std::string toText(Value)",
            "std::vector<int> parse<int>(int)",
        ] {
            assert!(!is_plumbing(own), "{own}");
        }
    }

    #[test]
    fn parameters_are_found() {
        for (name, expected) in [
            ("f(int) const", Some(("f", " const"))),
            (
                "a<void (*)(int)>::f(b<c>) (shop)",
                Some(("a<void (*)(int)>::f", " (shop)")),
            ),
            ("A::operator()(int)", Some(("A::operator()", ""))),
            (
                "(anonymous namespace)::f()",
                Some(("(anonymous namespace)::f", "")),
            ),
            ("main", None),
            ("shop+0x12", None),
            ("a)(", None),
        ] {
            assert_eq!(around_parameters(name), expected, "{name}");
        }
    }
}
