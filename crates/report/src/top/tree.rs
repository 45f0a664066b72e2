//! The tree of calls, from the outermost functions down to the functions that allocate.

use super::rows::{Numbers, Row, Sort, Subject};
use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

/// Fraction (1/n) of the total from which a call is open by default.
const OPEN_PART: u64 = 10;

/// A function called from a certain place in the tree.
#[derive(Default)]
struct Node {
    key: u64,
    name: String,
    numbers: Numbers,
    children: Vec<usize>,
}

/// Sites merged into a tree of calls.
pub(super) struct Tree {
    /// Calls. The first is the root, which is not shown.
    nodes: Vec<Node>,
    below: HashMap<u64, usize>,
}

impl Tree {
    /// Creates a tree without calls.
    pub fn new() -> Tree {
        Tree {
            nodes: vec![Node::default()],
            below: HashMap::new(),
        }
    }

    /// Adds a site, whose functions are ordered from the outermost to the innermost.
    pub fn add(&mut self, functions: impl Iterator<Item = String>, numbers: &Numbers) {
        self.nodes[0].numbers.add(numbers);
        let mut at = 0;
        for name in functions {
            at = self.child(at, name);
            self.nodes[at].numbers.add(numbers);
        }
    }

    fn child(&mut self, parent: usize, name: String) -> usize {
        let mut hasher = DefaultHasher::new();
        (self.nodes[parent].key, &name).hash(&mut hasher);
        let key = hasher.finish();
        if let Some(&known) = self.below.get(&key) {
            return known;
        }
        let new = self.nodes.len();
        self.nodes.push(Node {
            key,
            name,
            ..Node::default()
        });
        self.nodes[parent].children.push(new);
        self.below.insert(key, new);
        new
    }

    /// Returns the visible rows. `chosen` holds the calls that the user has opened or closed.
    pub fn rows(mut self, sort: Sort, chosen: &HashMap<u64, bool>) -> Vec<Row> {
        let all = self.nodes[0].numbers.bytes;
        let mut rows = Vec::new();
        // Calls that have yet to be visited. The last element is visited next.
        let mut next = vec![(0, 0)];
        while let Some((at, depth)) = next.pop() {
            let mut children = std::mem::take(&mut self.nodes[at].children);
            let node = &self.nodes[at];
            let is_large = node.numbers.bytes.saturating_mul(OPEN_PART) >= all;
            let is_open = chosen.get(&node.key).copied().unwrap_or(is_large);
            if at != 0 {
                rows.push(Row {
                    key: node.key,
                    subject: Subject::Call {
                        name: node.name.clone(),
                        depth: depth - 1,
                        is_open: (!children.is_empty()).then_some(is_open),
                    },
                    numbers: node.numbers,
                });
            }
            if at == 0 || is_open {
                children.sort_by_key(|&child| (self.nodes[child].numbers.order(sort), child));
                next.extend(children.iter().rev().map(|&child| (child, depth + 1)));
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(bytes: u64) -> Numbers {
        Numbers {
            bytes,
            blocks: 1,
            ..Numbers::default()
        }
    }

    fn tree() -> Tree {
        let mut tree = Tree::new();
        for (functions, bytes) in [
            ("main serve load", 900),
            ("main serve", 50),
            ("main idle x", 20),
        ] {
            tree.add(functions.split(' ').map(str::to_owned), &numbers(bytes));
        }
        tree
    }

    /// Returns name, bytes and depth of each row.
    fn shown(rows: &[Row]) -> Vec<(String, u64, usize)> {
        let one = |row: &Row| match &row.subject {
            Subject::Call { name, depth, .. } => (name.clone(), row.numbers.bytes, *depth),
            Subject::Site(_) => panic!("a site in a tree"),
        };
        rows.iter().map(one).collect()
    }

    #[test]
    fn sums_an_order_and_what_is_open() {
        let rows = tree().rows(Sort::Bytes, &HashMap::new());
        let expected = [
            ("main", 970, 0),
            ("serve", 950, 1),
            ("load", 900, 2),
            ("idle", 20, 1),
        ];
        let expected = expected.map(|(name, bytes, depth)| (name.to_owned(), bytes, depth));
        assert_eq!(shown(&rows), expected, "little is not open");
        let chosen = HashMap::from([(rows[1].key, false), (rows[3].key, true)]);
        let names = shown(&tree().rows(Sort::Bytes, &chosen));
        let names: Vec<&str> = names.iter().map(|row| row.0.as_str()).collect();
        assert_eq!(names, ["main", "serve", "idle", "x"]);
    }
}
