//! The blocks of containers.

use super::containers::Walk;
use super::layout::Contained;
use super::{Claims, Part, What};
use memhook_symbols::TypeId;

/// Maximum number of words in a map of chunks.
const MOST_CHUNKS: u64 = 1 << 24;

/// The nodes of a container.
struct Nodes {
    what: What,
    element: Option<TypeId>,
    /// Offset of the element in a node.
    offset: u64,
    /// Minimum size of a node in bytes.
    bytes: u64,
}

impl Claims<'_, '_> {
    /// Follows the container at an address.
    pub(super) fn container(&mut self, address: u64, contained: &Contained) {
        let word = |offset: u64| self.snapshot.word(address.wrapping_add(offset));
        let part = |part| What::Part(part, contained.of, contained.element);
        match contained.shape.walk {
            Walk::Row { begin, end } => {
                if let (Some(begin), Some(end)) = (word(begin), word(end)) {
                    self.elements(begin, end, part(Part::Elements), contained.element);
                }
            }
            Walk::Bits { begin } => {
                if let Some(begin) = word(begin) {
                    self.whole(begin, 8, part(Part::Bits));
                }
            }
            Walk::Text { begin, flag } => {
                let first = word(0).unwrap_or(0) as u8;
                if let Some(begin) = word(begin).filter(|_| flag == 0 || first & flag != 0) {
                    self.whole(begin, 1, part(Part::Text));
                }
            }
            Walk::InPlace { header } => {
                if let Some(element) = contained.element {
                    let at = address.wrapping_add(self.aligned(header, element));
                    self.wait(at, element, 1);
                }
            }
            Walk::Tree {
                root,
                left,
                right,
                header,
            } => {
                let nodes = self.nodes(part(Part::Node), contained.element, header);
                let mut waiting: Vec<u64> = word(root).into_iter().collect();
                while let Some(node) = waiting.pop() {
                    if self.node(node, &nodes) {
                        let next = [left, right].map(|at| self.snapshot.word(node + at));
                        waiting.extend(next.into_iter().flatten());
                    }
                }
            }
            Walk::List {
                first,
                next,
                header,
            } => {
                let first = word(first);
                let nodes = self.nodes(part(Part::Node), contained.element, header);
                // The list itself is a node of the ring.
                self.chain(first, next, &nodes, address);
            }
            Walk::Hash {
                buckets,
                first,
                next,
                header,
            } => {
                let (buckets, first) = (word(buckets), word(first));
                let nodes = self.nodes(part(Part::Node), contained.element, header);
                self.chain(first, next, &nodes, address);
                if let Some(buckets) = buckets {
                    self.whole(buckets, 8, What::Part(Part::Buckets, contained.of, None));
                }
            }
            Walk::Chunks { map, first, last } => {
                if let (Some(map), Some(first), Some(last)) = (word(map), word(first), word(last)) {
                    self.chunks(map, first, last.saturating_add(8), contained);
                }
            }
            Walk::ChunksBefore { map, first, end } => {
                if let (Some(map), Some(first), Some(end)) = (word(map), word(first), word(end)) {
                    self.chunks(map, first, end, contained);
                }
            }
        }
    }

    /// Claims a block that begins with an object, regardless of the memory after the object.
    fn whole(&mut self, begin: u64, least: u64, what: What) -> bool {
        let block = self.starting_at(begin);
        let block = block.filter(|(_, block)| block.bytes >= least);
        block.is_some_and(|(number, _)| self.claim(number, what))
    }

    /// Claims the elements in one block. Returns true if they fit.
    fn elements(&mut self, begin: u64, end: u64, what: What, element: Option<TypeId>) {
        let Some((_, block)) = self.starting_at(begin) else {
            return;
        };
        let taken = end.checked_sub(begin).filter(|&t| t <= block.bytes);
        let bytes = element.map_or(0, |element| self.declared.get(element).bytes);
        let Some(taken) = taken.filter(|taken| bytes > 0 && taken.is_multiple_of(bytes)) else {
            return;
        };
        if self.whole(begin, bytes, what)
            && let Some(element) = element
        {
            self.wait(begin, element, taken / bytes);
        }
    }

    fn chunks(&mut self, map: u64, first: u64, end: u64, contained: &Contained) {
        let part = |part| What::Part(part, contained.of, contained.element);
        let Some((_, block)) = self.starting_at(map) else {
            return;
        };
        let range = map..map.saturating_add(block.bytes);
        let is_inside = range.contains(&first) && end <= range.end && first <= end;
        if !is_inside || end - first > MOST_CHUNKS * 8 {
            return;
        }
        self.whole(map, 8, part(Part::Chunks));
        let Some(element) = contained.element else {
            return;
        };
        let bytes = self.declared.get(element).bytes;
        for at in (first..end).step_by(8) {
            let Some(chunk) = self.snapshot.word(at) else {
                return;
            };
            // The unused part of a chunk holds old contents, so only plausible objects are claimed.
            if bytes > 0 && self.whole(chunk, bytes, part(Part::Chunk)) {
                let block = self.starting_at(chunk).map_or(0, |(_, block)| block.bytes);
                let layout = self.layouts.of(&mut self.declared, element);
                for i in 0..block / bytes {
                    let object = chunk + i * bytes;
                    if self.looks_right(object, &layout) {
                        self.object(object, &layout);
                    }
                }
            }
        }
    }

    fn aligned(&mut self, offset: u64, element: TypeId) -> u64 {
        let layout = self.layouts.of(&mut self.declared, element);
        offset.next_multiple_of(layout.alignment.max(1))
    }

    fn nodes(&mut self, what: What, element: Option<TypeId>, header: u64) -> Nodes {
        let offset = element.map_or(header, |element| self.aligned(header, element));
        let bytes = element.map_or(1, |element| self.declared.get(element).bytes);
        Nodes {
            what,
            element,
            offset,
            bytes: offset.saturating_add(bytes),
        }
    }

    /// Records a node. Returns true if it is new.
    fn node(&mut self, address: u64, nodes: &Nodes) -> bool {
        let is_new = !self.has_no_time() && self.whole(address, nodes.bytes, nodes.what);
        if let (true, Some(element)) = (is_new, nodes.element) {
            self.wait(address + nodes.offset, element, 1);
        }
        is_new
    }

    fn chain(&mut self, first: Option<u64>, next: u64, nodes: &Nodes, end: u64) {
        let mut at = first;
        while let Some(node) = at.filter(|&at| at != end) {
            if !self.node(node, nodes) {
                return;
            }
            at = self.snapshot.word(node + next);
        }
    }
}
