//! A user's score: a name, and a formula over the known numbers of a site.
//!
//! A formula consists of numbers, variables, `+ - * /`, parentheses, and the functions of
//! [`FUNCTIONS`]. It is compiled to steps for a stack machine, so that evaluation does not recurse.
//! An operand that is unknown or has no value (a division by zero) makes the whole formula unknown,
//! so no infinity arises that a later step could hide.

mod parsing;
#[cfg(test)]
mod tests;

use super::variables::{Numbers, Variable};

/// Maximum length of a formula, in characters.
const LONGEST: usize = 1000;
/// Maximum length of a score's name, in characters.
const LONGEST_NAME: usize = 32;
/// Words that select an order of rows. Scores cannot have these names.
pub const RESERVED_NAMES: [&str; 6] = ["bytes", "count", "age", "growth", "time", "score"];

/// Functions of formulas, with their numbers of arguments.
const FUNCTIONS: [(&str, Function, usize); 5] = [
    ("min", Function::Min, 2),
    ("max", Function::Max, 2),
    ("abs", Function::Abs, 1),
    ("sqrt", Function::Sqrt, 1),
    ("log", Function::Log, 1),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Function {
    Min,
    Max,
    Abs,
    Sqrt,
    /// The natural logarithm.
    Log,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Number(f64),
    Variable(Variable),
    Negate,
    Add,
    Subtract,
    Multiply,
    Divide,
    Call(Function),
}

/// Mistake in a formula.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {what}")]
pub struct FormulaError {
    /// Position of the mistake, in characters from 1 on.
    pub column: usize,
    /// Description of the mistake, with a correction.
    pub what: String,
}

/// A name and a formula.
#[derive(Clone, Debug, PartialEq)]
pub struct Formula {
    name: String,
    text: String,
    steps: Vec<Step>,
    /// Variables, each with the position of its first use.
    variables: Vec<(Variable, usize)>,
}

impl std::str::FromStr for Formula {
    type Err = String;

    fn from_str(text: &str) -> Result<Formula, String> {
        Formula::parse(text).map_err(|error| error.to_string())
    }
}

impl Formula {
    /// Parses a formula such as `waste = size * (1 - usage)`.
    ///
    /// # Errors
    /// The error describes the mistake and its column.
    pub fn parse(text: &str) -> Result<Formula, FormulaError> {
        parsing::parse(text)
    }

    /// Returns the name of the score.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the text after the `=`.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the formula's variables, each with the column of its first use.
    pub(super) fn variables(&self) -> &[(Variable, usize)] {
        &self.variables
    }

    /// Evaluates the formula. Returns `None` if a number that the formula needs is unknown, or if
    /// the formula has no value.
    pub(super) fn value(&self, numbers: &Numbers) -> Option<f64> {
        self.evaluate(|variable| numbers.get(variable))
    }

    fn evaluate(&self, value_of: impl Fn(Variable) -> Option<f64>) -> Option<f64> {
        let mut stack: Vec<f64> = Vec::new();
        for step in &self.steps {
            let last = match step {
                Step::Number(number) => *number,
                Step::Variable(variable) => value_of(*variable)?,
                of_one if of_one.operands() == 1 => of_one.apply(stack.pop()?, 0.0)?,
                of_two => {
                    let right = stack.pop()?;
                    of_two.apply(stack.pop()?, right)?
                }
            };
            stack.push(last);
        }
        stack.pop().filter(|value| value.is_finite())
    }
}

impl Step {
    fn operands(self) -> usize {
        match self {
            Step::Number(_) | Step::Variable(_) => 0,
            Step::Negate => 1,
            Step::Add | Step::Subtract | Step::Multiply | Step::Divide => 2,
            Step::Call(function) => FUNCTIONS
                .iter()
                .find(|(_, known, _)| *known == function)
                .map_or(1, |(_, _, operands)| *operands),
        }
    }

    /// Applies a step to its operands. A step with one operand uses the left one. Returns `None` if
    /// the result has no value.
    fn apply(self, left: f64, right: f64) -> Option<f64> {
        let value = match self {
            Step::Negate => -left,
            Step::Add => left + right,
            Step::Subtract => left - right,
            Step::Multiply => left * right,
            Step::Divide if right == 0.0 => return None,
            Step::Divide => left / right,
            Step::Call(Function::Min) => left.min(right),
            Step::Call(Function::Max) => left.max(right),
            Step::Call(Function::Abs) => left.abs(),
            Step::Call(Function::Sqrt) => left.sqrt(),
            Step::Call(Function::Log) => left.ln(),
            Step::Number(_) | Step::Variable(_) => return None,
        };
        value.is_finite().then_some(value)
    }
}
