//! Types.

use super::Parser;
use crate::itanium::operators::{builtin, long_builtin};
use crate::itanium::{Id, Node};

impl<'a> Parser<'a> {
    pub(super) fn decltype(&mut self) -> Option<Id> {
        self.split(2)?;
        let expression = self.expression()?;
        self.must("E")?;
        self.add(Node::List("decltype (".to_owned(), vec![expression], ")"))
    }

    pub(super) fn type_(&mut self) -> Option<Id> {
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
}
