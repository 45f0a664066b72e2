//! Names of types as programs write them.

/// Default template arguments of the library's containers, which programs leave out.
const LEFT_OUT: &[&str] = &[
    "std::allocator<",
    "std::less<",
    "std::hash<",
    "std::equal_to<",
    "std::char_traits<",
    "std::default_delete<",
];
/// Inline namespaces that the standard libraries insert between `std` and a name.
const INLINE: &[&str] = &["std::__cxx11::", "std::__1::"];
/// Maximum depth of templates that are shortened.
const DEEPEST: usize = 24;

/// Returns a name as programs write it: without default template arguments of the library, and
/// without its inline namespaces.
pub(super) fn short(name: &str) -> String {
    shortened(name, 0)
}

fn shortened(name: &str, depth: usize) -> String {
    let mut name = name.trim().to_owned();
    for namespace in INLINE {
        if name.contains(namespace) {
            name = name.replace(namespace, "std::");
        }
    }
    let Some(open) = name.find('<').filter(|_| depth < DEEPEST) else {
        return name;
    };
    let Some((arguments, end)) = arguments(&name, open) else {
        return name;
    };
    let family = &name[..open];
    let rest = &name[end..];
    let of_library = family.starts_with("std::") || family.starts_with("const std::");
    let arguments: Vec<String> = arguments
        .into_iter()
        .map(|argument| shortened(argument, depth + 1))
        .filter(|a| !of_library || !LEFT_OUT.iter().any(|out| a.starts_with(out)))
        .collect();
    let rest = match rest.contains('<') {
        true => shortened(rest, depth + 1),
        false => rest.to_owned(),
    };
    match (family, arguments.first().map(String::as_str)) {
        ("std::basic_string", Some("char")) => format!("std::string{rest}"),
        ("std::basic_string", Some("wchar_t")) => format!("std::wstring{rest}"),
        _ => format!("{family}<{}>{rest}", arguments.join(", ")),
    }
}

/// Returns the template arguments that begin at a bracket, and the position at which they end.
fn arguments(name: &str, open: usize) -> Option<(Vec<&str>, usize)> {
    let (mut depth, mut begin) = (0u32, open + 1);
    let mut found = Vec::new();
    for (at, byte) in name.bytes().enumerate().skip(open) {
        match byte {
            b'<' | b'(' | b'[' | b'{' => depth += 1,
            b'>' | b')' | b']' | b'}' => {
                depth -= 1;
                if depth == 0 {
                    found.push(&name[begin..at]);
                    return Some((found, at + 1));
                }
            }
            b',' if depth == 1 => {
                found.push(&name[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_programs_write_them() {
        let names = [
            ("Session", "Session"),
            (
                "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >",
                "std::string",
            ),
            (
                "std::unordered_map<std::__cxx11::basic_string<char, std::char_traits<char>, \
                 std::allocator<char> >, a::B*, std::hash<std::__cxx11::basic_string<char, \
                 std::char_traits<char>, std::allocator<char> > >, std::equal_to<int>, \
                 std::allocator<std::pair<int const, a::B*> > >",
                "std::unordered_map<std::string, a::B*>",
            ),
            (
                "std::vector<std::vector<int, std::allocator<int> >, \
                 std::allocator<std::vector<int, std::allocator<int> > > >::Inner<int>",
                "std::vector<std::vector<int>>::Inner<int>",
            ),
            ("Table<std::hash<int> >", "Table<std::hash<int>>"),
            ("operator<", "operator<"),
            ("f<a, (b>", "f<a, (b>"),
            ("", ""),
        ];
        for (long, name) in names {
            assert_eq!(short(long), name);
        }
    }
}
