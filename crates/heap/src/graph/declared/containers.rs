//! Memory layout of the containers of the C++ libraries, as a table.
//!
//! Pointers to container nodes have the types of base classes that do not name the contents
//! (`_Rb_tree_node_base*`). So the contents of a node follow from the container that it belongs to:
//! from the container's shape, and from its element type, which is a template argument. Offsets are
//! those of the two libraries' stable ABIs for 64-bit processors. A class whose size differs from
//! the table is not treated as a container.

/// One container.
pub(super) struct Shape {
    /// Name of the class that holds the pointers, without template arguments.
    pub family: &'static str,
    /// Index of the template argument that is the type of the elements.
    pub element: usize,
    /// Bytes of the class; 0 if they depend on the element.
    pub bytes: u64,
    /// Places of the container's blocks.
    pub walk: Walk,
}

/// Offsets of a container's blocks, in bytes from the start of the container or of the block.
#[derive(Clone, Copy, Debug)]
pub(super) enum Walk {
    /// Elements in one block, between two pointers.
    Row { begin: u64, end: u64 },
    /// Bits in one block.
    Bits { begin: u64 },
    /// Characters in one block. With a flag, the block exists only while that bit of the first byte
    /// is set.
    Text { begin: u64, flag: u8 },
    /// Nodes that point to two other nodes. The element follows a header.
    Tree {
        root: u64,
        left: u64,
        right: u64,
        header: u64,
    },
    /// Nodes that form a chain.
    List { first: u64, next: u64, header: u64 },
    /// Nodes that form a chain, and a block of pointers to some of them.
    Hash {
        buckets: u64,
        first: u64,
        next: u64,
        header: u64,
    },
    /// Chunks of elements, and a block of pointers to them. The pointers are valid from `first` to
    /// `last`, both included.
    Chunks { map: u64, first: u64, last: u64 },
    /// Like the previous layout, but the pointers are valid up to `end`, exclusive.
    ChunksBefore { map: u64, first: u64, end: u64 },
    /// The element itself, after a header.
    InPlace { header: u64 },
}

const fn shape(family: &'static str, element: usize, bytes: u64, walk: Walk) -> Shape {
    Shape {
        family,
        element,
        bytes,
        walk,
    }
}

/// All known containers, first the containers of libstdc++, then those of libc++.
pub(super) const SHAPES: &[Shape] = &[
    shape("std::_Vector_base", 0, 24, Walk::Row { begin: 0, end: 8 }),
    shape("std::_Bvector_base", 0, 40, Walk::Bits { begin: 0 }),
    shape(
        "std::__cxx11::basic_string",
        0,
        32,
        Walk::Text { begin: 0, flag: 0 },
    ),
    shape(
        "std::_Rb_tree",
        1,
        48,
        Walk::Tree {
            root: 16,
            left: 16,
            right: 24,
            header: 32,
        },
    ),
    shape(
        "std::__cxx11::_List_base",
        0,
        24,
        Walk::List {
            first: 0,
            next: 0,
            header: 16,
        },
    ),
    shape(
        "std::_Fwd_list_base",
        0,
        8,
        Walk::List {
            first: 0,
            next: 0,
            header: 8,
        },
    ),
    shape(
        "std::_Hashtable",
        1,
        56,
        Walk::Hash {
            buckets: 0,
            first: 16,
            next: 0,
            header: 8,
        },
    ),
    shape(
        "std::_Deque_base",
        0,
        80,
        Walk::Chunks {
            map: 0,
            first: 40,
            last: 72,
        },
    ),
    shape(
        "std::_Sp_counted_ptr_inplace",
        0,
        0,
        Walk::InPlace { header: 16 },
    ),
    shape("std::__1::vector", 0, 24, Walk::Row { begin: 0, end: 8 }),
    shape(
        "std::__1::basic_string",
        0,
        24,
        Walk::Text { begin: 16, flag: 1 },
    ),
    shape(
        "std::__1::__tree",
        0,
        24,
        Walk::Tree {
            root: 8,
            left: 0,
            right: 8,
            // The flag of the last member takes one byte, and the element may follow immediately.
            header: 25,
        },
    ),
    shape("std::__1::__list_imp", 0, 24, LIST_OF_LIBCXX),
    // Newer versions have no base class.
    shape("std::__1::list", 0, 24, LIST_OF_LIBCXX),
    shape("std::__1::__forward_list_base", 0, 8, CHAIN_OF_LIBCXX),
    shape("std::__1::forward_list", 0, 8, CHAIN_OF_LIBCXX),
    shape(
        "std::__1::__hash_table",
        0,
        40,
        Walk::Hash {
            buckets: 0,
            first: 16,
            next: 0,
            header: 16,
        },
    ),
    shape(
        "std::__1::deque",
        0,
        48,
        Walk::ChunksBefore {
            map: 0,
            first: 8,
            end: 16,
        },
    ),
    shape(
        "std::__1::__shared_ptr_emplace",
        0,
        0,
        Walk::InPlace { header: 24 },
    ),
];

const LIST_OF_LIBCXX: Walk = Walk::List {
    first: 8,
    next: 8,
    header: 16,
};
const CHAIN_OF_LIBCXX: Walk = Walk::List {
    first: 0,
    next: 0,
    header: 8,
};

/// Classes that programs use as containers. The classes above are parts of them.
const CONTAINERS: &[&str] = &[
    "vector",
    "basic_string",
    "map",
    "multimap",
    "set",
    "multiset",
    "unordered_map",
    "unordered_multimap",
    "unordered_set",
    "unordered_multiset",
    "list",
    "forward_list",
    "deque",
    "queue",
    "stack",
    "priority_queue",
];

/// Classes of nodes. A pointer to one of them says less about a block than the container does.
const NODES: &[&str] = &[
    "_Rb_tree_node_base",
    "_Rb_tree_node",
    "_List_node_base",
    "_List_node_header",
    "_List_node",
    "_Fwd_list_node_base",
    "_Fwd_list_node",
    "_Hash_node_base",
    "_Hash_node",
    "__tree_end_node",
    "__tree_node_base",
    "__tree_node",
    "__list_node_base",
    "__list_node",
    "__forward_begin_node",
    "__forward_list_node",
    "__hash_node_base",
    "__hash_node",
];

/// Returns a name without template arguments.
pub(super) fn family(name: &str) -> &str {
    name.split_once('<').map_or(name, |(family, _)| family)
}

/// Returns the last part of a name in `std`.
fn of_library(name: &str) -> Option<&str> {
    let family = family(name);
    let inside = family.strip_prefix("std::")?;
    Some(inside.rsplit("::").next().unwrap_or(inside))
}

/// Returns true if programs use this class as a container.
pub(super) fn is_container(name: &str) -> bool {
    of_library(name).is_some_and(|last| CONTAINERS.contains(&last))
}

/// Returns true if this class is a node of a container.
pub(super) fn is_node(name: &str) -> bool {
    of_library(name).is_some_and(|last| NODES.contains(&last))
}

/// Returns the shape of a class.
pub(super) fn shape_of(name: &str, bytes: u64) -> Option<&'static Shape> {
    let family = family(name);
    let fits =
        |shape: &&Shape| shape.family == family && (shape.bytes == 0 || shape.bytes == bytes);
    SHAPES.iter().find(fits)
}
