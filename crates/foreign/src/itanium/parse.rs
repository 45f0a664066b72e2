//! The parser.

use super::operators::{Form, STANDARD, builtin, long_builtin, operator};
use super::{Id, Node, Qualifiers};

/// Parts of parts: deeper names are no program's.
const MOST_DEPTH: usize = 300;
/// Nodes of one tree.
const MOST_NODES: usize = 1 << 16;

/// The tree of a symbol, and its root.
pub(super) fn parse(symbol: &str) -> Option<(Vec<Node<'_>>, Id)> {
    // What the two kinds of compilers write for `sr` is told apart only by what follows.
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
    /// Template arguments of the innermost name, which its parameters stand for.
    arguments: Vec<Id>,
    /// Parameters whose arguments come later.
    forward: Vec<Id>,
    takes_forward: bool,
    takes_arguments: bool,
    /// How many lambdas' parameters are being read.
    lambdas: usize,
    /// After `sr` stands one type, not a list of scopes.
    scopes_are_types: bool,
    depth: usize,
}

/// What an encoding needs to know of its name.
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

    /// An optional number and `_`: 0 without a number, else one more than it.
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

    fn encoding(&mut self) -> Option<Id> {
        self.deeper(|p| {
            let (arguments, forward) = (
                std::mem::take(&mut p.arguments),
                std::mem::take(&mut p.forward),
            );
            let lambdas = std::mem::take(&mut p.lambdas);
            let takes = (p.takes_forward, p.takes_arguments);
            (p.takes_forward, p.takes_arguments) = (false, true);
            let result = match p.look(0) {
                b'G' | b'T' => p.special_name(),
                _ => p.function_or_variable(),
            };
            (p.arguments, p.forward, p.lambdas) = (arguments, forward, lambdas);
            (p.takes_forward, p.takes_arguments) = takes;
            result
        })
    }

    fn function_or_variable(&mut self) -> Option<Id> {
        let mut state = NameState::default();
        let name = self.name(Some(&mut state))?;
        for id in std::mem::take(&mut self.forward) {
            let Node::Forward(number, argument) = &mut self.nodes[id] else {
                continue;
            };
            *argument = Some(*self.arguments.get(*number)?);
        }
        let is_end = |p: &Self| matches!(p.look(0), 0 | b'E' | b'.' | b'_');
        if is_end(self) {
            return Some(name);
        }
        if self.take("Ua9enable_ifI") {
            self.until_end(Self::template_argument)?;
        }
        let result = if state.ends_with_arguments && !state.has_no_result {
            Some(self.type_()?)
        } else {
            None
        };
        let mut parameters = Vec::new();
        if !self.take("v") {
            loop {
                parameters.push(self.type_()?);
                if is_end(self) {
                    break;
                }
            }
        }
        let qualifiers = state.qualifiers;
        self.add(Node::Encoding {
            result,
            name,
            parameters,
            qualifiers,
        })
    }

    fn call_offset(&mut self) -> Option<()> {
        let is_virtual = self.take("v");
        if !is_virtual {
            self.must("h")?;
        }
        for _ in 0..1 + usize::from(is_virtual) {
            self.take("n");
            self.digits();
            self.must("_")?;
        }
        Some(())
    }

    fn special_name(&mut self) -> Option<Id> {
        let of_types = [
            ("TV", "vtable for "),
            ("TT", "VTT for "),
            ("TI", "typeinfo for "),
            ("TS", "typeinfo name for "),
        ];
        for (code, text) in of_types {
            if self.take(code) {
                let of = self.type_()?;
                return self.add(Node::Special(text, of));
            }
        }
        let of_names = [
            ("TW", "TLS wrapper function for "),
            ("TH", "TLS init function for "),
            ("GV", "guard variable for "),
        ];
        for (code, text) in of_names {
            if self.take(code) {
                let of = self.name(None)?;
                return self.add(Node::Special(text, of));
            }
        }
        if self.take("TA") {
            let of = self.template_argument()?;
            return self.add(Node::Special("template parameter object for ", of));
        }
        if self.take("GTt") || self.take("GTn") {
            let of = self.encoding()?;
            return self.add(Node::Special("transaction clone for ", of));
        }
        if self.take("GR") {
            let of = self.name(None)?;
            let number = self.while_is(|b| b.is_ascii_digit() || b.is_ascii_uppercase());
            let is_counted = self.take("_");
            let number = match usize::from_str_radix(number, 36) {
                Ok(number) if is_counted => number.checked_add(1)?,
                _ => 0,
            };
            let front = self.owned(format!("reference temporary #{number} for "))?;
            return self.add(Node::Parts(vec![front, of]));
        }
        if self.take("TC") {
            let whole = self.type_()?;
            self.digits();
            self.must("_")?;
            let base = self.type_()?;
            let (front, middle) = (self.text("construction vtable for ")?, self.text("-in-")?);
            return self.add(Node::Parts(vec![front, base, middle, whole]));
        }
        if self.take("Tc") {
            self.call_offset()?;
            self.call_offset()?;
            let of = self.encoding()?;
            return self.add(Node::Special("covariant return thunk to ", of));
        }
        self.must("T")?;
        let is_virtual = self.look(0) == b'v';
        self.call_offset()?;
        let of = self.encoding()?;
        let text = if is_virtual {
            "virtual thunk to "
        } else {
            "non-virtual thunk to "
        };
        self.add(Node::Special(text, of))
    }

    fn name(&mut self, mut state: Option<&mut NameState>) -> Option<Id> {
        self.deeper(|p| match p.look(0) {
            b'N' => p.nested_name(state),
            b'Z' => p.local_name(state),
            _ => {
                let is_substitution = p.look(0) == b'S' && p.look(1) != b't';
                let name = if is_substitution {
                    p.substitution()?
                } else if p.take("St") {
                    let std = p.text("std")?;
                    let name = p.unqualified_name(state.as_deref_mut(), None)?;
                    p.add(Node::Nested(std, name))?
                } else {
                    p.unqualified_name(state.as_deref_mut(), None)?
                };
                if p.look(0) != b'I' {
                    return (!is_substitution).then_some(name);
                }
                if !is_substitution {
                    p.substitutions.push(name);
                }
                p.with_arguments(name, state)
            }
        })
    }

    /// The name with the template arguments that follow.
    fn with_arguments(&mut self, name: Id, state: Option<&mut NameState>) -> Option<Id> {
        let arguments = self.template_arguments(state.is_some())?;
        if let Some(state) = state {
            state.ends_with_arguments = true;
        }
        self.add(Node::WithArguments(name, arguments))
    }

    fn qualifiers(&mut self) -> Qualifiers {
        Qualifiers {
            is_restrict: self.take("r"),
            is_volatile: self.take("V"),
            is_const: self.take("K"),
            reference: "",
        }
    }

    fn nested_name(&mut self, mut state: Option<&mut NameState>) -> Option<Id> {
        self.must("N")?;
        self.take("H"); // its object is a parameter
        let mut qualifiers = self.qualifiers();
        if self.take("O") {
            qualifiers.reference = " &&";
        } else if self.take("R") {
            qualifiers.reference = " &";
        }
        if let Some(state) = state.as_deref_mut() {
            state.qualifiers = qualifiers;
        }
        let mut so_far = None;
        if self.take("St") {
            so_far = Some(self.text("std")?);
        }
        while !self.take("E") {
            if self.take("M") {
                so_far?;
                continue;
            }
            if self.look(0) == b'I' {
                let named = self.with_arguments(so_far?, state.as_deref_mut())?;
                self.substitutions.push(named);
                so_far = Some(named);
                continue;
            }
            if let Some(state) = state.as_deref_mut() {
                state.ends_with_arguments = false;
                state.has_no_result = false;
            }
            let (first, second) = (self.look(0), self.look(1));
            let is_substitution = first == b'S' && second != b't';
            let part = match (first, second) {
                (b'T', _) => self.template_parameter()?,
                (b'D', b't' | b'T') => self.decltype()?,
                (b'S', _) if is_substitution => self.substitution()?,
                _ => self.unqualified_name(state.as_deref_mut(), so_far)?,
            };
            let joined = match so_far {
                None => part,
                Some(before) => {
                    let is_own =
                        matches!(self.nodes[part], Node::Constructor(_) | Node::Destructor(_));
                    let before = match self.nodes[before] {
                        Node::Standard(..) if is_own => self.add(Node::InFull(before))?,
                        _ => before,
                    };
                    self.add(Node::Nested(before, part))?
                }
            };
            if !(is_substitution && so_far.is_none()) {
                self.substitutions.push(joined);
            }
            so_far = Some(joined);
        }
        self.substitutions.pop()?;
        so_far
    }

    fn local_name(&mut self, state: Option<&mut NameState>) -> Option<Id> {
        self.must("Z")?;
        let mut function = self.encoding()?;
        self.must("E")?;
        let name = if self.take("s") {
            self.text("string literal")?
        } else if self.take("d") {
            let number = self.counted()? + 1;
            let default = self.owned(format!("{{default arg#{number}}}"))?;
            function = self.add(Node::Local(function, default))?;
            self.name(state)?
        } else {
            self.name(state)?
        };
        if self.take("__") {
            self.digits();
            self.must("_")?;
        } else if self.look(0) == b'_' && self.look(1).is_ascii_digit() {
            self.split(2)?;
        }
        self.add(Node::Local(function, name))
    }

    /// `of`: what it is a part of.
    fn unqualified_name(&mut self, state: Option<&mut NameState>, of: Option<Id>) -> Option<Id> {
        self.take("L"); // internal linkage
        self.take("F"); // a friend
        let (first, second) = (self.look(0), self.look(1));
        let mut name = match (first, second) {
            (b'0'..=b'9', _) => {
                let text = self.source_name()?;
                let is_anonymous = text.starts_with("_GLOBAL__N");
                self.text(if is_anonymous {
                    "(anonymous namespace)"
                } else {
                    text
                })?
            }
            (b'U', b't') => {
                self.split(2)?;
                let number = self.counted()? + 1;
                self.owned(format!("{{unnamed type#{number}}}"))?
            }
            (b'U', b'l') => self.lambda()?,
            (b'D', b'C') => {
                self.split(2)?;
                let names = self.until_end(|p| p.source_name().and_then(|name| p.text(name)))?;
                self.add(Node::List("[".to_owned(), names, "]"))?
            }
            (b'C', b'1'..=b'5' | b'I') | (b'D', b'0'..=b'5') => {
                if let Some(state) = state {
                    state.has_no_result = true;
                }
                let is_inherited = self.take("CI");
                self.split(if is_inherited { 1 } else { 2 })?;
                if is_inherited {
                    self.name(None)?;
                }
                self.add(match first {
                    b'C' => Node::Constructor(of?),
                    _ => Node::Destructor(of?),
                })?
            }
            _ => self.operator_name(state)?,
        };
        while self.take("B") {
            let tag = self.source_name()?;
            name = self.add(Node::Tagged(name, tag))?;
        }
        Some(name)
    }

    fn source_name(&mut self) -> Option<&'a str> {
        let length = self.digits().parse().ok()?;
        self.split(length)
    }

    fn lambda(&mut self) -> Option<Id> {
        self.must("Ul")?;
        while self.look(0) == b'T' && matches!(self.look(1), b'y' | b'n' | b'p' | b't') {
            self.parameter_declaration()?;
        }
        self.lambdas += 1;
        let parameters = if self.take("vE") {
            Some(Vec::new())
        } else {
            self.until_end(Self::type_)
        };
        self.lambdas -= 1;
        let number = self.counted()? + 1;
        self.add(Node::Lambda(parameters?, number))
    }

    fn parameter_declaration(&mut self) -> Option<()> {
        self.deeper(|p| {
            if p.take("Tn") {
                p.type_()?;
            } else if p.take("Tt") {
                while !p.take("E") {
                    p.parameter_declaration()?;
                }
            } else if p.take("Tp") {
                p.parameter_declaration()?;
            } else {
                p.must("Ty")?;
            }
            Some(())
        })
    }

    fn operator_name(&mut self, state: Option<&mut NameState>) -> Option<Id> {
        if self.take("cv") {
            let takes = (self.takes_forward, self.takes_arguments);
            self.takes_forward |= state.is_some();
            self.takes_arguments = false;
            let type_ = self.type_();
            (self.takes_forward, self.takes_arguments) = takes;
            if let Some(state) = state {
                state.has_no_result = true;
            }
            return self.add(Node::Conversion(type_?));
        }
        if self.take("li") {
            let name = self.source_name()?;
            return self.owned(format!("operator\"\" {name}"));
        }
        if self.look(0) == b'v' && self.look(1).is_ascii_digit() {
            self.split(2)?;
            let name = self.source_name()?;
            return self.owned(format!("operator {name}"));
        }
        let (text, _) = operator(self.rest.get(..2)?)?;
        self.split(2)?;
        let text = text.trim_end();
        let space = if text.starts_with(|c: char| c.is_ascii_alphabetic()) {
            " "
        } else {
            ""
        };
        self.owned(format!("operator{space}{text}"))
    }

    fn substitution(&mut self) -> Option<Id> {
        self.must("S")?;
        let letter = self.look(0);
        if letter.is_ascii_lowercase() {
            let known = STANDARD.iter().find(|known| known.0 == letter)?;
            self.split(1)?;
            let mut name = self.add(Node::Standard(known.1, known.2, known.3))?;
            let is_tagged = self.look(0) == b'B';
            while self.take("B") {
                let tag = self.source_name()?;
                name = self.add(Node::Tagged(name, tag))?;
            }
            if is_tagged {
                self.substitutions.push(name);
            }
            return Some(name);
        }
        let number = self.while_is(|b| b.is_ascii_digit() || b.is_ascii_uppercase());
        self.must("_")?;
        let number = match number {
            "" => 0,
            number => usize::from_str_radix(number, 36).ok()?.checked_add(1)?,
        };
        self.substitutions.get(number).copied()
    }

    fn template_parameter(&mut self) -> Option<Id> {
        self.must("T")?;
        if self.take("L") {
            self.counted()?;
        }
        let number = self.counted()?;
        if self.lambdas > 0 {
            return self.owned(format!("auto:{}", number.checked_add(1)?));
        }
        if let Some(&argument) = self.arguments.get(number) {
            return Some(argument);
        }
        if !self.takes_forward {
            return None;
        }
        let forward = self.add(Node::Forward(number, None))?;
        self.forward.push(forward);
        Some(forward)
    }

    /// `is_of_name`: parameters that follow stand for these arguments.
    fn template_arguments(&mut self, is_of_name: bool) -> Option<Id> {
        self.must("I")?;
        let takes_arguments = std::mem::replace(&mut self.takes_arguments, true);
        if is_of_name {
            self.arguments.clear();
        }
        let mut arguments = Vec::new();
        while !self.take("E") {
            if self.take("Q") {
                self.expression()?; // a constraint
                continue;
            }
            let known = is_of_name.then(|| std::mem::take(&mut self.arguments));
            let argument = self.template_argument()?;
            arguments.push(argument);
            let Some(known) = known else { continue };
            self.arguments = known;
            let stands_for = match &self.nodes[argument] {
                Node::Pack(pack) => {
                    let pack = pack.clone();
                    self.add(Node::OfPack(pack))?
                }
                _ => argument,
            };
            self.arguments.push(stands_for);
        }
        self.takes_arguments = takes_arguments;
        self.add(Node::Arguments(arguments))
    }

    fn template_argument(&mut self) -> Option<Id> {
        self.deeper(|p| match p.look(0) {
            b'X' => {
                p.split(1)?;
                let expression = p.expression()?;
                p.must("E")?;
                Some(expression)
            }
            // Old compilers write `I`.
            b'J' | b'I' => {
                p.split(1)?;
                let arguments = p.until_end(Self::template_argument)?;
                p.add(Node::Pack(arguments))
            }
            b'L' => p.literal(),
            b'T' if matches!(p.look(1), b'y' | b'n' | b'p' | b't') => {
                p.parameter_declaration()?;
                p.template_argument()
            }
            _ => p.type_(),
        })
    }

    fn decltype(&mut self) -> Option<Id> {
        self.split(2)?;
        let expression = self.expression()?;
        self.must("E")?;
        self.add(Node::List("decltype (".to_owned(), vec![expression], ")"))
    }

    fn type_(&mut self) -> Option<Id> {
        self.deeper(Self::any_type)
    }

    fn any_type(&mut self) -> Option<Id> {
        let (first, second) = (self.look(0), self.look(1));
        let found = match (first, second) {
            (b'r' | b'V' | b'K', _) => {
                let after = self.rest.trim_start_matches(['r', 'V', 'K']);
                let is_function = ["F", "Do", "DO", "Dw", "Dx"];
                if is_function.iter().any(|code| after.starts_with(code)) {
                    self.function_type()?
                } else {
                    let qualifiers = self.qualifiers();
                    let of = self.type_()?;
                    self.add(Node::Qualified(of, qualifiers))?
                }
            }
            (b'U', second) if second != b'l' && second != b't' => {
                self.split(1)?;
                let qualifier = self.source_name()?;
                let mut qualifier = self.text(qualifier)?;
                if self.look(0) == b'I' {
                    qualifier = self.with_arguments(qualifier, None)?;
                }
                let of = self.type_()?;
                self.add(Node::Suffixed(of, qualifier))?
            }
            (b'u', _) => {
                self.split(1)?;
                let name = self.source_name()?;
                let name = self.text(name)?;
                if self.look(0) == b'I' {
                    self.with_arguments(name, None)?
                } else {
                    name
                }
            }
            (b'D', b't' | b'T') => self.decltype()?,
            (b'D', b'v') => {
                self.split(2)?;
                let dimension = if self.take("_") {
                    self.expression()?
                } else {
                    let digits = self.digits();
                    self.text(digits)?
                };
                self.must("_")?;
                let of = self.type_()?;
                self.add(Node::Vector(of, dimension))?
            }
            (b'D', b'p') => {
                self.split(2)?;
                let of = self.type_()?;
                self.add(Node::Expansion(of))?
            }
            (b'D', b'o' | b'O' | b'w' | b'x') | (b'F', _) => self.function_type()?,
            (b'D', b'F') => {
                self.split(2)?;
                let bits = self.digits();
                let name = if self.take("b") {
                    "std::bfloat"
                } else {
                    "_Float"
                };
                let suffix = if self.take("x") { "x" } else { "" };
                if suffix.is_empty() && !name.starts_with("std") {
                    self.must("_")?;
                }
                return self.owned(format!(
                    "{name}{bits}{suffix}{}",
                    if name.starts_with("std") { "_t" } else { "" }
                ));
            }
            (b'D', b'B' | b'U') => {
                self.split(2)?;
                let front = if second == b'U' {
                    "unsigned _BitInt("
                } else {
                    "_BitInt("
                };
                let bits = if self.look(0).is_ascii_digit() {
                    let digits = self.digits();
                    self.text(digits)?
                } else {
                    self.expression()?
                };
                self.must("_")?;
                return self.add(Node::List(front.to_owned(), vec![bits], ")"));
            }
            (b'D', _) => {
                let name = long_builtin(second)?;
                self.split(2)?;
                return self.text(name);
            }
            (b'A', _) => {
                self.split(1)?;
                let dimension = if self.look(0).is_ascii_digit() {
                    let digits = self.digits();
                    Some(self.text(digits)?)
                } else if self.look(0) == b'_' {
                    None
                } else {
                    Some(self.expression()?)
                };
                self.must("_")?;
                let of = self.type_()?;
                self.add(Node::Array(of, dimension))?
            }
            (b'M', _) => {
                self.split(1)?;
                let class = self.type_()?;
                let member = self.type_()?;
                self.add(Node::MemberPointer(class, member))?
            }
            (b'T', b's' | b'u' | b'e') => {
                self.split(2)?;
                self.name(None)?
            }
            (b'T', _) => {
                let parameter = self.template_parameter()?;
                if self.takes_arguments && self.look(0) == b'I' {
                    self.substitutions.push(parameter);
                    self.with_arguments(parameter, None)?
                } else {
                    parameter
                }
            }
            (b'P', _) => {
                self.split(1)?;
                let of = self.type_()?;
                self.add(Node::Pointer(of))?
            }
            (b'R' | b'O', _) => {
                self.split(1)?;
                let of = self.type_()?;
                self.add(Node::Reference(of, first == b'O'))?
            }
            (b'C' | b'G', _) => {
                self.split(1)?;
                let of = self.type_()?;
                let text = if first == b'C' {
                    "_Complex"
                } else {
                    "_Imaginary"
                };
                let suffix = self.text(text)?;
                self.add(Node::Suffixed(of, suffix))?
            }
            (b'S', second) if second != b't' => {
                let name = self.substitution()?;
                if !(self.takes_arguments && self.look(0) == b'I') {
                    return Some(name);
                }
                self.with_arguments(name, None)?
            }
            _ => {
                if let Some(name) = builtin(first) {
                    self.split(1)?;
                    return self.text(name);
                }
                self.name(None)?
            }
        };
        self.substitutions.push(found);
        Some(found)
    }

    fn function_type(&mut self) -> Option<Id> {
        let mut qualifiers = self.qualifiers();
        let throws = if self.take("Do") {
            Some(self.text("noexcept")?)
        } else if self.take("DO") {
            let expression = self.expression()?;
            self.must("E")?;
            Some(self.add(Node::List("noexcept(".to_owned(), vec![expression], ")"))?)
        } else if self.take("Dw") {
            let types = self.until_end(Self::type_)?;
            Some(self.add(Node::List("throw(".to_owned(), types, ")"))?)
        } else {
            None
        };
        self.take("Dx");
        self.must("F")?;
        self.take("Y");
        let result = self.type_()?;
        let mut parameters = Vec::new();
        while !self.take("E") {
            if self.take("v") {
                continue;
            }
            if self.take("RE") {
                qualifiers.reference = " &";
                break;
            }
            if self.take("OE") {
                qualifiers.reference = " &&";
                break;
            }
            parameters.push(self.type_()?);
        }
        self.add(Node::Function {
            result,
            parameters,
            qualifiers,
            throws,
        })
    }

    fn number(&mut self) -> &'a str {
        let length = usize::from(self.look(0) == b'n');
        let digits = self.rest[length..].bytes().take_while(u8::is_ascii_digit);
        let length = length + digits.count();
        self.split(length).unwrap_or("")
    }

    fn literal(&mut self) -> Option<Id> {
        self.must("L")?;
        if self.take("_Z") || self.look(0) == b'Z' {
            self.take("Z");
            let name = self.encoding()?;
            self.must("E")?;
            return Some(name);
        }
        let suffix = match self.look(0) {
            b'b' if matches!(self.look(1), b'0' | b'1') && self.look(2) == b'E' => {
                let text = if self.look(1) == b'1' {
                    "true"
                } else {
                    "false"
                };
                self.split(3)?;
                return self.text(text);
            }
            b'i' => "",
            b'j' => "u",
            b'l' => "l",
            b'm' => "ul",
            b'x' => "ll",
            b'y' => "ull",
            b'f' | b'd' | b'e' | b'g' => {
                let type_ = self.type_()?;
                let digits = self.while_is(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'));
                self.must("E")?;
                return self.add(Node::Float(type_, digits));
            }
            _ => {
                let is_null = self.rest.starts_with("Dn");
                let type_ = self.type_()?;
                let digits = self.number();
                self.must("E")?;
                if is_null && matches!(digits, "" | "0") {
                    return self.text("nullptr");
                }
                if digits.is_empty() {
                    return match self.nodes[type_] {
                        Node::Array(..) => {
                            self.add(Node::List("\"<".to_owned(), vec![type_], ">\""))
                        }
                        _ => Some(type_),
                    };
                }
                return self.add(Node::Literal(type_, digits));
            }
        };
        self.split(1)?;
        let digits = self.number();
        self.must("E")?;
        (!digits.is_empty()).then_some(())?;
        self.add(Node::Integer(suffix, digits))
    }

    fn expression(&mut self) -> Option<Id> {
        self.deeper(Self::any_expression)
    }

    fn any_expression(&mut self) -> Option<Id> {
        let code = self.rest.get(..2)?;
        match (self.look(0), self.look(1)) {
            (b'L', _) => return self.literal(),
            (b'T', _) => return self.template_parameter(),
            (b'0'..=b'9', _) => return self.base_name(),
            (b'f', b'p' | b'L') => return self.function_parameter(),
            _ => {}
        }
        if self.take("gs") {
            let of = self.expression()?;
            return self.add(Node::Prefix("::".to_owned(), of));
        }
        match code {
            "fl" | "fr" | "fL" | "fR" => return self.fold(),
            "cv" | "tl" | "il" | "sr" | "on" | "sp" | "sZ" | "sP" | "tw" | "tr" | "nx" | "dn" => {}
            "st" | "at" | "ti" => {
                self.split(2)?;
                let of = self.type_()?;
                let (text, _) = operator(code)?;
                return self.add(Node::List(format!("{text}("), vec![of], ")"));
            }
            "sz" | "az" | "te" => {
                self.split(2)?;
                let of = self.expression()?;
                let (text, _) = operator(code)?;
                return self.add(Node::List(format!("{text}("), vec![of], ")"));
            }
            "sc" | "dc" | "rc" | "cc" => {
                self.split(2)?;
                let (to, of) = (self.type_()?, self.expression()?);
                return self.add(Node::Cast(operator(code)?.0, to, of));
            }
            "nw" | "na" => {
                self.split(2)?;
                let mut parts = vec![self.owned(format!("{} ", operator(code)?.0))?];
                let mut placement = Vec::new();
                while !self.take("_") {
                    placement.push(self.expression()?);
                }
                if !placement.is_empty() {
                    parts.push(self.add(Node::List("(".to_owned(), placement, ") "))?);
                }
                parts.push(self.type_()?);
                if self.take("pi") {
                    let values = self.until_end(Self::expression)?;
                    parts.push(self.add(Node::List("(".to_owned(), values, ")"))?);
                } else if self.look(0) == b'i' {
                    parts.push(self.expression()?);
                } else {
                    self.must("E")?;
                }
                return self.add(Node::Parts(parts));
            }
            "pp" | "mm" => {
                self.split(2)?;
                let text = operator(code)?.0;
                if self.take("_") {
                    let of = self.expression()?;
                    return self.add(Node::Prefix(text.to_owned(), of));
                }
                let of = self.expression()?;
                return self.add(Node::Postfix(of, text));
            }
            _ => {
                let Some((text, form)) = operator(code) else {
                    return match self.look(0) {
                        b'u' => {
                            self.split(1)?;
                            let name = self.source_name()?;
                            let values = self.until_end(Self::template_argument)?;
                            self.add(Node::List(format!("{name}("), values, ")"))
                        }
                        _ => None,
                    };
                };
                self.split(2)?;
                return self.operation(text, form);
            }
        }
        if matches!(code, "sr" | "on" | "dn") {
            return self.unresolved_name();
        }
        self.split(2)?;
        match code {
            "cv" => {
                let takes = std::mem::replace(&mut self.takes_arguments, false);
                let to = self.type_();
                self.takes_arguments = takes;
                let to = to?;
                let values = if self.take("_") {
                    self.until_end(Self::expression)?
                } else {
                    vec![self.expression()?]
                };
                let front = self.add(Node::List("(".to_owned(), vec![to], ")"))?;
                self.add(Node::Call(front, values))
            }
            "tl" => {
                let of = self.type_()?;
                let values = self.until_end(Self::expression)?;
                let list = self.add(Node::List("{".to_owned(), values, "}"))?;
                self.add(Node::Parts(vec![of, list]))
            }
            "il" => {
                let values = self.until_end(Self::expression)?;
                self.add(Node::List("{".to_owned(), values, "}"))
            }
            "sp" => {
                let of = self.expression()?;
                self.add(Node::Expansion(of))
            }
            "sZ" => {
                let of = match self.look(0) {
                    b'T' => self.template_parameter()?,
                    _ => self.function_parameter()?,
                };
                let of = self.add(Node::Expansion(of))?;
                self.add(Node::List("sizeof...(".to_owned(), vec![of], ")"))
            }
            "sP" => {
                let of = self.until_end(Self::template_argument)?;
                self.add(Node::List("sizeof...(".to_owned(), of, ")"))
            }
            "tw" => {
                let of = self.expression()?;
                self.add(Node::Prefix("throw ".to_owned(), of))
            }
            "nx" => {
                let of = self.expression()?;
                self.add(Node::List("noexcept (".to_owned(), vec![of], ")"))
            }
            _ => self.text("throw"),
        }
    }

    fn operation(&mut self, text: &'static str, form: Form) -> Option<Id> {
        match form {
            Form::Prefix => {
                let of = self.expression()?;
                self.add(Node::Prefix(text.to_owned(), of))
            }
            Form::Binary => {
                let (left, right) = (self.expression()?, self.expression()?);
                self.add(Node::Binary(left, text, right))
            }
            Form::Member => {
                let left = self.expression()?;
                let right = self.expression()?;
                self.add(Node::Member(left, text, right))
            }
            Form::Index => {
                let (left, right) = (self.expression()?, self.expression()?);
                self.add(Node::Subscript(left, right))
            }
            Form::Call => {
                let function = self.expression()?;
                let values = self.until_end(Self::expression)?;
                self.add(Node::Call(function, values))
            }
            Form::Conditional => {
                let (condition, yes) = (self.expression()?, self.expression()?);
                let no = self.expression()?;
                self.add(Node::Conditional(condition, yes, no))
            }
            Form::Postfix | Form::Other => None,
        }
    }

    fn function_parameter(&mut self) -> Option<Id> {
        if self.take("fpT") {
            return self.text("this");
        }
        if self.take("fL") {
            self.digits();
            self.must("p")?;
        } else {
            self.must("fp")?;
        }
        self.qualifiers();
        let number = self.counted()?.checked_add(1)?;
        self.owned(format!("{{parm#{number}}}"))
    }

    fn fold(&mut self) -> Option<Id> {
        if self.rest.starts_with("fL") && self.look(2).is_ascii_digit() {
            return self.function_parameter();
        }
        let kind = self.look(1);
        self.split(2)?;
        let (text, _) = operator(self.rest.get(..2)?)?;
        self.split(2)?;
        let first = self.expression()?;
        let second = match kind {
            b'L' | b'R' => Some(self.expression()?),
            _ => None,
        };
        let (open, close) = (self.text("(")?, self.text(")")?);
        let (dots, sign) = (self.text("...")?, self.text(text)?);
        let parts = match (kind, second) {
            (b'l', _) => vec![open, dots, sign, first, close],
            (b'r', _) => vec![open, first, sign, dots, close],
            (_, second) => vec![open, first, sign, dots, sign, second?, close],
        };
        self.add(Node::Parts(parts))
    }

    fn base_name(&mut self) -> Option<Id> {
        let name = if self.take("on") {
            self.operator_name(None)?
        } else if self.take("dn") {
            let of = match self.look(0) {
                b'0'..=b'9' => self.base_name()?,
                _ => self.type_()?,
            };
            self.add(Node::Prefix("~".to_owned(), of))?
        } else {
            let name = self.source_name()?;
            self.text(name)?
        };
        if self.look(0) == b'I' {
            return self.with_arguments(name, None);
        }
        Some(name)
    }

    fn unresolved_name(&mut self) -> Option<Id> {
        if !self.take("sr") {
            return self.base_name();
        }
        let is_list = !self.scopes_are_types && self.look(0).is_ascii_digit();
        let mut so_far = if is_list {
            self.base_name()?
        } else {
            self.type_()?
        };
        while is_list && !self.take("E") {
            let part = self.base_name()?;
            so_far = self.add(Node::Nested(so_far, part))?;
        }
        let name = self.base_name()?;
        self.add(Node::Nested(so_far, name))
    }
}
