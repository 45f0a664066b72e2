//! The parser: its position in the symbol, and its results so far. The parts of the grammar are in submodules.

mod expressions;
mod names;
mod templates;
mod types;

use super::{Id, Node, Qualifiers};

/// Maximum nesting of parts; no program has deeper names.
const MOST_DEPTH: usize = 300;
/// Maximum number of nodes in a tree.
const MOST_NODES: usize = 1 << 16;

/// Returns the tree of a symbol, and its root.
pub(super) fn parse(symbol: &str) -> Option<(Vec<Node<'_>>, Id)> {
    // Compilers mangle `sr` in one of two ways, and only the parts after it show which way was used.
    parse_as(symbol, false).or_else(|| parse_as(symbol, true))
}

fn parse_as(symbol: &str, scopes_are_types: bool) -> Option<(Vec<Node<'_>>, Id)> {
    let mut parser = Parser {
        rest: symbol.strip_prefix("_Z")?,
        nodes: Vec::new(),
        substitutions: Vec::new(),
        arguments: Vec::new(),
        forward: Vec::new(),
        takes_forward: false,
        takes_arguments: true,
        lambdas: 0,
        scopes_are_types,
        depth: 0,
    };
    let mut root = parser.encoding()?;
    while parser.rest.starts_with('.') {
        let clone = parser.clone_suffix()?;
        let text = parser.owned(format!(" [clone {clone}]"))?;
        root = parser.add(Node::Parts(vec![root, text]))?;
    }
    parser.rest.is_empty().then_some((parser.nodes, root))
}

struct Parser<'a> {
    rest: &'a str,
    nodes: Vec<Node<'a>>,
    substitutions: Vec<Id>,
    /// Template arguments of the innermost name, for its template parameters to refer to.
    arguments: Vec<Id>,
    /// Parameters whose arguments come later.
    forward: Vec<Id>,
    takes_forward: bool,
    takes_arguments: bool,
    /// Number of lambdas whose parameters are being read.
    lambdas: usize,
    /// True if one type follows `sr`, not a list of scopes.
    scopes_are_types: bool,
    depth: usize,
}

/// Facts about a name that an encoding needs.
#[derive(Default)]
struct NameState {
    has_no_result: bool,
    ends_with_arguments: bool,
    qualifiers: Qualifiers,
}

impl<'a> Parser<'a> {
    fn add(&mut self, node: Node<'a>) -> Option<Id> {
        self.nodes.push(node);
        (self.nodes.len() < MOST_NODES).then_some(self.nodes.len() - 1)
    }

    fn text(&mut self, text: &'a str) -> Option<Id> {
        self.add(Node::Text(text))
    }

    fn owned(&mut self, text: String) -> Option<Id> {
        self.add(Node::Owned(text))
    }

    fn look(&self, at: usize) -> u8 {
        self.rest.as_bytes().get(at).copied().unwrap_or(0)
    }

    fn take(&mut self, prefix: &str) -> bool {
        let rest = self.rest.strip_prefix(prefix);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn must(&mut self, prefix: &str) -> Option<()> {
        self.take(prefix).then_some(())
    }

    fn split(&mut self, length: usize) -> Option<&'a str> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn while_is(&mut self, is: impl Fn(u8) -> bool) -> &'a str {
        let length = self.rest.bytes().take_while(|&b| is(b)).count();
        self.split(length).unwrap_or("")
    }

    fn digits(&mut self) -> &'a str {
        self.while_is(|b| b.is_ascii_digit())
    }

    /// Reads an optional number and `_`: 0 without a number, otherwise the number plus one.
    fn counted(&mut self) -> Option<usize> {
        let digits = self.digits();
        self.must("_")?;
        if digits.is_empty() {
            return Some(0);
        }
        digits.parse::<usize>().ok()?.checked_add(1)
    }

    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        self.depth += 1;
        let result = (self.depth < MOST_DEPTH).then(|| parse(self)).flatten();
        self.depth -= 1;
        result
    }

    fn until_end(&mut self, part: impl Fn(&mut Self) -> Option<Id>) -> Option<Vec<Id>> {
        let mut parts = Vec::new();
        while !self.take("E") {
            parts.push(part(self)?);
        }
        Some(parts)
    }

    fn clone_suffix(&mut self) -> Option<&'a str> {
        let bytes = self.rest.as_bytes();
        let is_word = |b: u8| b.is_ascii_lowercase() || b == b'_';
        let mut end = 1;
        if bytes.get(1).copied().is_some_and(is_word) {
            end += bytes[1..].iter().take_while(|&&b| is_word(b)).count();
        } else if !bytes.get(1).is_some_and(u8::is_ascii_alphanumeric) {
            return None;
        } else if !bytes[1].is_ascii_digit() {
            return self.split(bytes.len());
        } else {
            end = 0;
        }
        while bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
            end += 1 + bytes[end + 1..]
                .iter()
                .take_while(|b| b.is_ascii_digit())
                .count();
        }
        self.split(end)
    }
}
