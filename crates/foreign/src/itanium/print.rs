//! Printer of the tree.

use super::{Bounded, Id, Node, Qualifiers, Style};
use std::fmt::Write;

/// Maximum nesting of parts, including repeated ones.
const MOST_DEPTH: usize = 600;

pub(super) fn print(tree: &[Node<'_>], root: Id, style: Style, out: Bounded) -> Option<String> {
    let mut printer = Printer {
        tree,
        style,
        out,
        expanded: None,
        depth: 0,
        is_inside: false,
    };
    printer.whole(root)?;
    printer.out.finished()
}

struct Printer<'t, 'a> {
    tree: &'t [Node<'a>],
    style: Style,
    out: Bounded,
    /// Within a pack expansion: the index of the argument, and the number of arguments.
    expanded: Option<Option<(usize, usize)>>,
    depth: usize,
    /// True in a function with a local entity, or in a template argument, where return types are omitted.
    is_inside: bool,
}

impl<'t, 'a> Printer<'t, 'a> {
    fn put(&mut self, text: &str) -> Option<()> {
        self.out.write_str(text).ok()
    }

    fn ends_with(&self, end: char) -> bool {
        self.out.text.ends_with(end)
    }

    /// Returns the argument of a pack that is being expanded.
    fn of_pack(&mut self, pack: &'t [Id]) -> Option<Id> {
        let place = self.expanded.get_or_insert(None);
        let (at, _) = *place.get_or_insert((0, pack.len()));
        pack.get(at).copied()
    }

    /// Returns the part to which this one refers.
    fn resolved(&mut self, mut id: Id) -> Id {
        for _ in 0..MOST_DEPTH {
            id = match &self.tree[id] {
                Node::Forward(_, Some(of)) => *of,
                Node::OfPack(pack) => match self.of_pack(pack) {
                    Some(of) => of,
                    None => return id,
                },
                _ => return id,
            };
        }
        id
    }

    /// Returns two flags: whether the type is an array, and whether it is a function type. Qualifiers are ignored.
    fn is_compound(&mut self, id: Id) -> (bool, bool) {
        let mut id = self.resolved(id);
        for _ in 0..MOST_DEPTH {
            let Node::Qualified(of, _) = self.tree[id] else {
                break;
            };
            id = self.resolved(of);
        }
        let node = &self.tree[id];
        (
            matches!(node, Node::Array(..)),
            matches!(node, Node::Function { .. }),
        )
    }

    /// Returns true if a part of the type is written after the name.
    fn has_right(&mut self, id: Id) -> bool {
        let mut id = self.resolved(id);
        for _ in 0..MOST_DEPTH {
            id = match self.tree[id] {
                Node::Pointer(of) | Node::Reference(of, _) | Node::Qualified(of, _) => {
                    self.resolved(of)
                }
                Node::MemberPointer(_, of) => self.resolved(of),
                Node::Array(..) | Node::Function { .. } => return true,
                _ => return false,
            };
        }
        false
    }

    /// Collapses `T& &&` to `T&`.
    fn collapsed(&mut self, mut id: Id, mut is_rvalue: bool) -> (Id, bool) {
        for _ in 0..MOST_DEPTH {
            let resolved = self.resolved(id);
            let Node::Reference(of, is_inner) = self.tree[resolved] else {
                break;
            };
            (id, is_rvalue) = (of, is_rvalue && is_inner);
        }
        (id, is_rvalue)
    }

    fn whole(&mut self, id: Id) -> Option<()> {
        self.left(id)?;
        self.right(id)
    }

    fn deeper(&mut self, print: impl FnOnce(&mut Self) -> Option<()>) -> Option<()> {
        if self.depth >= MOST_DEPTH || !self.out.visit() {
            return None;
        }
        self.depth += 1;
        let result = print(self);
        self.depth -= 1;
        result
    }

    fn commas(&mut self, ids: &[Id]) -> Option<()> {
        let mut is_first = true;
        for &id in ids {
            let before = self.out.text.len();
            if !is_first {
                self.put(", ")?;
            }
            let begin = self.out.text.len();
            self.whole(id)?;
            if self.out.text.len() == begin {
                self.out.text.truncate(before);
            } else {
                is_first = false;
            }
        }
        Some(())
    }

    fn qualifiers(&mut self, qualifiers: Qualifiers) -> Option<()> {
        for (is, text) in [
            (qualifiers.is_const, " const"),
            (qualifiers.is_volatile, " volatile"),
            (qualifiers.is_restrict, " __restrict"),
        ] {
            if is {
                self.put(text)?;
            }
        }
        self.put(qualifiers.reference)
    }

    fn expansion(&mut self, of: Id) -> Option<()> {
        let outer = self.expanded.take();
        let begin = self.out.text.len();
        self.expanded = Some(None);
        self.whole(of)?;
        match self.expanded.flatten() {
            None => self.put("...")?,
            Some((_, 0)) => self.out.text.truncate(begin),
            Some((_, count)) => {
                for at in 1..count {
                    self.put(", ")?;
                    self.expanded = Some(Some((at, count)));
                    self.whole(of)?;
                }
            }
        }
        self.expanded = outer;
        Some(())
    }

    /// Writes the last part of a class's name, without template arguments.
    fn base_name(&mut self, id: Id) -> Option<()> {
        let mut id = self.resolved(id);
        for _ in 0..MOST_DEPTH {
            id = match &self.tree[id] {
                Node::WithArguments(name, _) => *name,
                Node::Nested(_, name) | Node::Local(_, name) => *name,
                Node::Tagged(name, _) => *name,
                Node::Standard(_, _, base) => return self.put(base),
                Node::InFull(of) => *of,
                _ => break,
            };
            id = self.resolved(id);
        }
        self.whole(id)
    }

    fn without_results(&mut self, id: Id) -> Option<()> {
        let outer = std::mem::replace(&mut self.is_inside, true);
        let result = self.whole(id);
        self.is_inside = outer;
        result
    }

    /// Writes an operand, in parentheses unless it is a name.
    fn operand(&mut self, id: Id) -> Option<()> {
        let resolved = self.resolved(id);
        let is_simple = match &self.tree[resolved] {
            Node::Text(text) => text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'),
            Node::Owned(text) => text.starts_with("{parm"),
            Node::Nested(..) => true,
            Node::List(front, ..) => front == "{",
            _ => false,
        };
        if is_simple {
            return self.whole(id);
        }
        self.put("(")?;
        self.whole(id)?;
        self.put(")")
    }

    fn number(&mut self, digits: &str) -> Option<()> {
        match digits.strip_prefix('n') {
            Some(digits) => {
                self.put("-")?;
                self.put(digits)
            }
            None => self.put(digits),
        }
    }

    fn left(&mut self, id: Id) -> Option<()> {
        self.deeper(|p| p.left_of(id))
    }

    fn left_of(&mut self, id: Id) -> Option<()> {
        match &self.tree[id] {
            Node::Text(text) => self.put(text),
            Node::Owned(text) => self.put(text),
            Node::Standard(name, ..) => self.put(name),
            &Node::InFull(of) => match self.tree[of] {
                Node::Standard(_, full, _) => self.put(full),
                _ => self.whole(of),
            },
            &Node::Nested(of, name) => {
                self.whole(of)?;
                self.put("::")?;
                self.whole(name)
            }
            &Node::Local(function, name) => {
                self.without_results(function)?;
                self.put("::")?;
                self.whole(name)
            }
            &Node::Tagged(name, tag) => {
                self.whole(name)?;
                self.put("[abi:")?;
                self.put(tag)?;
                self.put("]")
            }
            &Node::WithArguments(name, arguments) => {
                self.whole(name)?;
                self.whole(arguments)
            }
            Node::Arguments(arguments) => {
                if self.ends_with('<') {
                    self.put(" ")?;
                }
                self.put("<")?;
                let outer = std::mem::replace(&mut self.is_inside, false);
                self.commas(arguments)?;
                self.is_inside = outer;
                self.put(if self.ends_with('>') { " >" } else { ">" })
            }
            Node::Pack(arguments) => self.commas(arguments),
            Node::OfPack(_) | Node::Forward(..) => {
                let of = self.resolved(id);
                if of == id {
                    return Some(());
                }
                self.left(of)
            }
            &Node::Expansion(of) => self.expansion(of),
            &Node::Constructor(of) => self.base_name(of),
            &Node::Destructor(of) => {
                self.put("~")?;
                self.base_name(of)
            }
            &Node::Conversion(to) => {
                self.put("operator ")?;
                self.whole(to)
            }
            Node::Lambda(parameters, number) => {
                self.put("{lambda(")?;
                self.commas(parameters)?;
                write!(self.out, ")#{number}}}").ok()
            }
            Node::Encoding {
                result,
                name,
                parameters,
                qualifiers,
            } => {
                let result = result.filter(|_| self.style.in_full && !self.is_inside);
                if let Some(result) = result {
                    self.left(result)?;
                    if !self.has_right(result) {
                        self.put(" ")?;
                    }
                }
                self.whole(*name)?;
                self.put("(")?;
                self.commas(parameters)?;
                self.put(")")?;
                if let Some(result) = result {
                    self.right(result)?;
                }
                self.qualifiers(*qualifiers)
            }
            &Node::Special(text, of) => {
                self.put(text)?;
                self.whole(of)
            }
            &Node::Pointer(of) => {
                self.left(of)?;
                self.open(of)?;
                self.put("*")
            }
            &Node::Reference(of, is_rvalue) => {
                let (of, is_rvalue) = self.collapsed(of, is_rvalue);
                self.left(of)?;
                self.open(of)?;
                self.put(if is_rvalue { "&&" } else { "&" })
            }
            &Node::Qualified(of, qualifiers) => {
                self.left(of)?;
                self.qualifiers(qualifiers)
            }
            &Node::Suffixed(of, suffix) => {
                self.whole(of)?;
                self.put(" ")?;
                self.whole(suffix)
            }
            &Node::MemberPointer(class, member) => {
                self.left(member)?;
                if self.is_compound(member) == (false, false) {
                    self.put(" ")?;
                } else {
                    self.open(member)?;
                }
                self.whole(class)?;
                self.put("::*")
            }
            &Node::Array(of, _) => self.left(of),
            &Node::Vector(of, dimension) => {
                self.whole(of)?;
                self.put(" __vector(")?;
                self.whole(dimension)?;
                self.put(")")
            }
            &Node::Function { result, .. } => {
                self.left(result)?;
                self.put(" ")
            }
            &Node::Integer(suffix, digits) => {
                self.number(digits)?;
                self.put(if self.style.in_full { suffix } else { "" })
            }
            &Node::Literal(of, digits) => {
                if self.style.in_full {
                    self.put("(")?;
                    self.whole(of)?;
                    self.put(")")?;
                }
                self.number(digits)
            }
            &Node::Float(of, digits) => {
                self.put("(")?;
                self.whole(of)?;
                self.put(")[")?;
                self.put(digits)?;
                self.put("]")
            }
            Node::List(front, parts, back) => {
                self.put(front)?;
                self.commas(parts)?;
                self.put(back)
            }
            Node::Prefix(text, of) => {
                self.put(text)?;
                match (text.as_str(), &self.tree[*of]) {
                    ("&", Node::Encoding { name, .. }) if !self.style.in_full => self.whole(*name),
                    ("&", Node::Encoding { .. }) => self.operand(*of),
                    ("&" | "::" | "~", _) => self.whole(*of),
                    _ => self.operand(*of),
                }
            }
            &Node::Postfix(of, text) => {
                self.operand(of)?;
                self.put(text)
            }
            &Node::Binary(left, text, right) => {
                let is_wrapped = text == ">";
                self.put(if is_wrapped { "(" } else { "" })?;
                self.operand(left)?;
                self.put(text)?;
                self.operand(right)?;
                self.put(if is_wrapped { ")" } else { "" })
            }
            &Node::Member(left, text, right) => {
                self.operand(left)?;
                self.put(text)?;
                self.whole(right)
            }
            &Node::Conditional(condition, yes, no) => {
                self.operand(condition)?;
                self.put("?")?;
                self.operand(yes)?;
                self.put(" : ")?;
                self.operand(no)
            }
            &Node::Subscript(left, right) => {
                self.operand(left)?;
                self.put("[")?;
                self.whole(right)?;
                self.put("]")
            }
            Node::Call(function, values) => {
                self.whole(*function)?;
                self.put("(")?;
                self.commas(values)?;
                self.put(")")
            }
            &Node::Cast(text, to, of) => {
                self.put(text)?;
                self.put("<")?;
                self.whole(to)?;
                self.put(">(")?;
                self.whole(of)?;
                self.put(")")
            }
            Node::Parts(parts) => parts.iter().try_for_each(|&part| self.whole(part)),
        }
    }

    /// Writes the part between a type and the `*` or `&` of a pointer or reference to it.
    fn open(&mut self, of: Id) -> Option<()> {
        match self.is_compound(of) {
            (true, _) => self.put(" ("),
            (_, true) => self.put("("),
            _ => Some(()),
        }
    }

    fn close(&mut self, of: Id) -> Option<()> {
        if self.is_compound(of) != (false, false) {
            self.put(")")?;
        }
        self.right(of)
    }

    fn right(&mut self, id: Id) -> Option<()> {
        self.deeper(|p| p.right_of(id))
    }

    fn right_of(&mut self, id: Id) -> Option<()> {
        match &self.tree[id] {
            Node::OfPack(_) | Node::Forward(..) => {
                let of = self.resolved(id);
                if of == id { Some(()) } else { self.right(of) }
            }
            &Node::Pointer(of) | &Node::MemberPointer(_, of) => self.close(of),
            &Node::Reference(of, is_rvalue) => {
                let (of, _) = self.collapsed(of, is_rvalue);
                self.close(of)
            }
            &Node::Qualified(of, _) => self.right(of),
            &Node::Array(of, dimension) => {
                self.put(if self.ends_with(']') { "[" } else { " [" })?;
                if let Some(dimension) = dimension {
                    self.whole(dimension)?;
                }
                self.put("]")?;
                self.right(of)
            }
            Node::Function {
                result,
                parameters,
                qualifiers,
                throws,
            } => {
                self.put("(")?;
                self.commas(parameters)?;
                self.put(")")?;
                self.right(*result)?;
                self.qualifiers(*qualifiers)?;
                if let Some(throws) = *throws {
                    self.put(" ")?;
                    self.whole(throws)?;
                }
                Some(())
            }
            _ => Some(()),
        }
    }
}
