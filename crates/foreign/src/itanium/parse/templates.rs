//! Substitutions, and the parameters and arguments of templates.

use super::Parser;
use crate::itanium::operators::STANDARD;
use crate::itanium::{Id, Node};

impl<'a> Parser<'a> {
    pub(super) fn substitution(&mut self) -> Option<Id> {
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

    pub(super) fn template_parameter(&mut self) -> Option<Id> {
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

    /// Reads template arguments. `is_of_name`: true if the parameters that follow refer to these
    /// arguments.
    pub(super) fn template_arguments(&mut self, is_of_name: bool) -> Option<Id> {
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

    pub(super) fn template_argument(&mut self) -> Option<Id> {
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
}
