//! Demangling of C++ names by the Itanium ABI, in the spelling of c++filt.
//!
//! A parser makes a tree ([`Node`]), in which repeated parts are stored once, and a printer writes it out. Each
//! back-reference can double the length of a name, so the printer's output is bounded.

mod operators;
mod parse;
mod print;

use crate::bounded_name::Bounded;

/// Style of the output.
#[derive(Clone, Copy)]
pub(crate) struct Style {
    /// True for return types, and the types of literals.
    pub in_full: bool,
}

/// Demangles a whole symbol that begins with `_Z`.
pub(crate) fn demangle(symbol: &str, style: Style, out: Bounded) -> Option<String> {
    let (tree, root) = parse::parse(symbol)?;
    print::print(&tree, root, style, out)
}

/// Place of a node in the tree.
type Id = usize;

/// Part of a name.
#[derive(Debug)]
enum Node<'a> {
    Text(&'a str),
    Owned(String),
    /// Standard library abbreviation: its short spelling, its full name, and its last part.
    Standard(&'static str, &'static str, &'static str),
    /// Full name of a `Standard`, which its constructors show.
    InFull(Id),
    Nested(Id, Id),
    Tagged(Id, &'a str),
    WithArguments(Id, Id),
    Arguments(Vec<Id>),
    /// Several arguments for one parameter.
    Pack(Vec<Id>),
    /// Parameter bound to a pack, and the pack element being expanded.
    OfPack(Vec<Id>),
    Expansion(Id),
    /// Parameter whose argument comes later in the name.
    Forward(usize, Option<Id>),
    Constructor(Id),
    Destructor(Id),
    Conversion(Id),
    Lambda(Vec<Id>, usize),
    Encoding {
        result: Option<Id>,
        name: Id,
        parameters: Vec<Id>,
        qualifiers: Qualifiers,
    },
    /// An entity inside a function.
    Local(Id, Id),
    /// `vtable for` and similar names.
    Special(&'static str, Id),
    Pointer(Id),
    Reference(Id, bool),
    Qualified(Id, Qualifiers),
    /// A type with a suffix.
    Suffixed(Id, Id),
    MemberPointer(Id, Id),
    Array(Id, Option<Id>),
    Vector(Id, Id),
    Function {
        result: Id,
        parameters: Vec<Id>,
        qualifiers: Qualifiers,
        throws: Option<Id>,
    },
    /// Type and digits of a literal.
    Literal(Id, &'a str),
    Integer(&'static str, &'a str),
    Float(Id, &'a str),
    /// Leading text, comma-separated expressions, trailing text.
    List(String, Vec<Id>, &'static str),
    Prefix(String, Id),
    Postfix(Id, &'static str),
    Binary(Id, &'static str, Id),
    Member(Id, &'static str, Id),
    Conditional(Id, Id, Id),
    Subscript(Id, Id),
    /// Type or function, and its arguments.
    Call(Id, Vec<Id>),
    Cast(&'static str, Id, Id),
    Parts(Vec<Id>),
}

/// `const`, `volatile`, `restrict`, and the ref-qualifier (`&` or `&&`) of a function.
#[derive(Clone, Copy, Debug, Default)]
struct Qualifiers {
    is_const: bool,
    is_volatile: bool,
    is_restrict: bool,
    reference: &'static str,
}
