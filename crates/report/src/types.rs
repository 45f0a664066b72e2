//! Types of blocks, as far as their call stacks reveal them. The template arguments of the C++
//! library's containers and allocators take precedence over the constructor that is called on the
//! block.

use crate::StackFrame;

/// Name of the type of blocks whose type is unknown.
pub(crate) const UNKNOWN_TYPE: &str = "unknown";

/// Unifies the spelling of a type. Compilers write `> >`, and demanglers may not.
pub fn one_spelling(mut name: String) -> String {
    while name.contains("> >") {
        name = name.replace("> >", ">>");
    }
    name
}

/// Returns the type of the blocks allocated with this stack, if its functions name the type, in one
/// spelling.
pub fn type_of_stack(frames: &[StackFrame]) -> Option<String> {
    named_by_frames(frames).map(one_spelling)
}

/// Returns the type that the C++ library's functions on a stack name, innermost first. A function
/// of the program ends the search.
pub(crate) fn named_by_frames(frames: &[StackFrame]) -> Option<String> {
    let names = frames.iter().map(|frame| frame.function.as_deref());
    let mut found = None;
    for name in names {
        let Some(path) = name.map(qualified_name) else {
            break;
        };
        if !is_of_library(path) {
            break;
        }
        // An allocator names the type exactly, except in lists and trees, where it allocates nodes.
        // Of the other functions, only the outermost one was named in the program's own code.
        if let Some(element) = path_argument(path, "allocator", 0) {
            return Some(element);
        }
        found = container_element(path).or(found);
    }
    found
}

/// Returns the name of a function without its return type, which only templates have, and without
/// its parameters.
fn qualified_name(function: &str) -> &str {
    let (mut depth, mut begin) = (0u32, 0);
    for (at, letter) in function.char_indices() {
        match letter {
            '(' if depth == 0 && !function[at..].starts_with("(anonymous namespace)") => {
                return &function[begin..at];
            }
            '<' | '(' | '{' | '[' => depth += 1,
            '>' | ')' | '}' | ']' => depth = depth.saturating_sub(1),
            ' ' if depth == 0 && !function[..at].ends_with("operator") => begin = at + 1,
            _ => {}
        }
    }
    &function[begin..]
}

fn is_of_library(path: &str) -> bool {
    let is_operator = path.starts_with("operator new");
    is_operator || path.starts_with("std::") || path.starts_with("__gnu_cxx::")
}

/// Returns the element type of a library container, or the type that a library function makes.
fn container_element(path: &str) -> Option<String> {
    if let Some(letter) = path_argument(path, "basic_string", 0) {
        return Some(letter);
    }
    for (name, number) in [
        ("make_unique", 0),
        ("make_unique_for_overwrite", 0),
        ("make_shared", 0),
        ("allocate_shared", 0),
        ("vector", 0),
        ("_Vector_base", 0),
        ("deque", 0),
        ("_Deque_base", 0),
    ] {
        if let Some(element) = path_argument(path, name, number) {
            return Some(element);
        }
    }
    for (name, number, node) in [
        ("list", 0, "std::_List_node"),
        ("_List_base", 0, "std::_List_node"),
        ("forward_list", 0, "std::_Fwd_list_node"),
        ("_Rb_tree", 1, "std::_Rb_tree_node"),
    ] {
        if let Some(element) = path_argument(path, name, number) {
            return Some(format!("{node}<{element}>"));
        }
    }
    None
}

/// Returns an argument of the template with this name. The name may be preceded by namespaces, or
/// by letters that make it the name of another allocator (`new_allocator`).
fn path_argument(path: &str, name: &str, number: usize) -> Option<String> {
    let mut depth = 0u32;
    for (at, letter) in path.char_indices() {
        match letter {
            '<' if depth == 0 => {
                let before = &path[..at];
                let segment = before.rsplit("::").next().unwrap_or_default();
                let is_it = if name == "allocator" {
                    segment.ends_with(name)
                } else {
                    segment == name
                };
                if is_it {
                    return argument(&path[at + 1..], number);
                }
                // Matches std::allocator_traits<std::allocator<T> >.
                if name == "allocator" && segment.ends_with("allocator_traits") {
                    let of_traits = argument(&path[at + 1..], 0)?;
                    return path_argument(&of_traits, name, number);
                }
                depth += 1;
            }
            '<' | '(' => depth += 1,
            '>' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// Returns one of the arguments of a template, from the text after its bracket.
fn argument(text: &str, number: usize) -> Option<String> {
    let (mut depth, mut begin, mut seen) = (0u32, 0, 0);
    for (at, letter) in text.char_indices() {
        let is_end = depth == 0 && (letter == ',' || letter == '>');
        if is_end && seen == number {
            let found = text[begin..at].trim();
            return (!found.is_empty()).then(|| found.to_owned());
        }
        match letter {
            '>' if depth == 0 => return None,
            ',' if depth == 0 => (seen, begin) = (seen + 1, at + 1),
            '<' | '(' | '{' | '[' => depth += 1,
            '>' | ')' | '}' | ']' => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(functions: &[&str]) -> Option<String> {
        let frames = functions.iter().map(|name| StackFrame {
            function: Some((*name).to_owned()),
            ..StackFrame::default()
        });
        named_by_frames(&frames.collect::<Vec<_>>())
    }

    #[test]
    fn types_have_one_spelling() {
        let spelled = one_spelling("a<b<c<int> > >".to_owned());
        assert_eq!(spelled, "a<b<c<int>>>");
    }

    #[test]
    fn templates_name_what_they_allocate() {
        for (functions, expected) in [
            (
                &[
                    "std::__new_allocator<Foo>::allocate(unsigned long, void const*)",
                    "main",
                ][..],
                Some("Foo"),
            ),
            (
                &[
                    "std::allocator_traits<std::allocator<std::_List_node<ns::Foo> > >::allocate(std::allocator<int>&, unsigned long)",
                ],
                Some("std::_List_node<ns::Foo>"),
            ),
            (
                &[
                    "void std::vector<std::pair<int, Foo>, std::allocator<std::pair<int, Foo> > >::_M_realloc_insert<int>(int&&)",
                    "main",
                ],
                Some("std::pair<int, Foo>"),
            ),
            (
                &[
                    "std::_Rb_tree<int, std::pair<int const, Foo>, std::_Select1st<int>, std::less<int>, std::allocator<int> >::_M_x()",
                ],
                Some("std::_Rb_tree_node<std::pair<int const, Foo>>"),
            ),
            (
                &[
                    "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::_M_create(unsigned long&, unsigned long)",
                ],
                Some("char"),
            ),
            (
                &[
                    "operator new(unsigned long)",
                    "std::__1::allocator<Foo>::allocate(unsigned long)",
                ],
                Some("Foo"),
            ),
            // A function of the program is not part of the container.
            (
                &[
                    "make()",
                    "std::vector<Foo, std::allocator<Foo> >::push_back(Foo&&)",
                ],
                None,
            ),
            (&["std::vector<int> user::f<int>(int)"], None),
            (
                &["std::_MakeUniq<Foo>::__single_object std::make_unique<Foo, int>(int&&)"],
                Some("Foo"),
            ),
            (&[], None),
        ] {
            assert_eq!(named(functions).as_deref(), expected, "{functions:?}");
        }
    }
}
