//! Numbers, literals and expressions.

use super::Parser;
use crate::itanium::operators::{Form, operator};
use crate::itanium::{Id, Node};

impl<'a> Parser<'a> {
    fn number(&mut self) -> &'a str {
        let length = usize::from(self.look(0) == b'n');
        let digits = self.rest[length..].bytes().take_while(u8::is_ascii_digit);
        let length = length + digits.count();
        self.split(length).unwrap_or("")
    }

    pub(super) fn literal(&mut self) -> Option<Id> {
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

    pub(super) fn expression(&mut self) -> Option<Id> {
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
}
