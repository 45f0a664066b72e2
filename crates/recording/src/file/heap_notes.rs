//! Notes in a recording about a heap whose allocator the user has described.

/// Name of the note with the name of the heap.
pub const HEAP_NOTE: &str = "heap";
/// Name of the note with the heap's functions. Each function has a line with the number that
/// represents it in call stacks, a space, and its name.
pub const FUNCTIONS_NOTE: &str = "functions";

/// Finds the name of a function in that note.
pub fn function_in(note: &str, number: u8) -> Option<&str> {
    let mut lines = note.lines().filter_map(|line| line.split_once(' '));
    lines.find_map(|(n, name)| (n.parse() == Ok(number)).then_some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_by_their_numbers() {
        let note = "59 pool_alloc\n61 ns::operator new\nx\n";
        assert_eq!(function_in(note, 61), Some("ns::operator new"));
        assert_eq!(function_in(note, 60), None);
    }
}
