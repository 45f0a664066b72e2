//! Names of functions, variables, scopes, operators and lambdas, and special names.

use super::{NameState, Parser};
use crate::itanium::operators::operator;
use crate::itanium::{Id, Node, Qualifiers};

impl<'a> Parser<'a> {
    pub(super) fn encoding(&mut self) -> Option<Id> {
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

    pub(super) fn name(&mut self, mut state: Option<&mut NameState>) -> Option<Id> {
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

    /// Returns the name with the following template arguments.
    pub(super) fn with_arguments(&mut self, name: Id, state: Option<&mut NameState>) -> Option<Id> {
        let arguments = self.template_arguments(state.is_some())?;
        if let Some(state) = state {
            state.ends_with_arguments = true;
        }
        self.add(Node::WithArguments(name, arguments))
    }

    pub(super) fn qualifiers(&mut self) -> Qualifiers {
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

    /// Reads a name. `of`: the scope that it is part of.
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

    pub(super) fn source_name(&mut self) -> Option<&'a str> {
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

    pub(super) fn parameter_declaration(&mut self) -> Option<()> {
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

    pub(super) fn base_name(&mut self) -> Option<Id> {
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

    pub(super) fn unresolved_name(&mut self) -> Option<Id> {
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
