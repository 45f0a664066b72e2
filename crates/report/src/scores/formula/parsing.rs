//! Compiles the text of a formula to its steps.

use super::super::variables::{VARIABLES, Variable};
use super::{FUNCTIONS, Formula, FormulaError, LONGEST, LONGEST_NAME, RESERVED_NAMES, Step};
use memhook_foreign::visible;

/// Maximum nesting depth of parentheses, calls and signs. The parser recurses for each of them.
const DEEPEST: usize = 50;

type Result<T> = std::result::Result<T, FormulaError>;

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(f64),
    Name(String),
    Sign(char),
    End,
}

impl Token {
    fn words(&self) -> String {
        match self {
            Token::Number(number) => format!("{number}"),
            Token::Name(name) => format!("'{name}'"),
            Token::Sign(sign) => format!("'{sign}'"),
            Token::End => "the end".into(),
        }
    }
}

pub(super) fn parse(text: &str) -> Result<Formula> {
    let length = text.chars().count();
    if length > LONGEST {
        let what = format!("the formula is longer than {LONGEST} characters: make it shorter");
        return Err(error(LONGEST + 1, what));
    }
    let Some((name, formula)) = text.split_once('=') else {
        let what = "expected NAME = FORMULA, like 'waste = size * (1 - usage)'";
        return Err(error(length + 1, what));
    };
    let first_column = name.chars().count() + 2;
    let name_column = 1 + name.chars().take_while(|c| c.is_whitespace()).count();
    let name = name.trim();
    check_name(name, name_column)?;
    let mut parser = Parser {
        tokens: tokens(formula, first_column)?,
        at: 0,
        depth: 0,
        steps: Vec::new(),
        variables: Vec::new(),
    };
    parser.sum()?;
    let (next, column) = parser.next();
    if next != Token::End {
        let what = format!("expected + - * / or the end, found {}", next.words());
        return Err(error(column, what));
    }
    if parser.variables.is_empty() {
        let what = format!(
            "no variable is used, so all sites would score the same; the variables are {}",
            names()
        );
        return Err(error(parser.tokens[0].1, what));
    }
    Ok(Formula {
        name: name.to_owned(),
        text: formula.trim().to_owned(),
        steps: parser.steps,
        variables: parser.variables,
    })
}

fn error(column: usize, what: impl Into<String>) -> FormulaError {
    FormulaError {
        column,
        what: what.into(),
    }
}

/// Lists all variables, for a message.
fn names() -> String {
    VARIABLES.map(|(name, ..)| name).join(", ")
}

fn functions() -> String {
    FUNCTIONS.map(|(name, ..)| name).join(", ")
}

fn check_name(name: &str, column: usize) -> Result<()> {
    let begins = |c: char| c.is_ascii_alphabetic() || c == '_';
    let goes_on = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_usable = name.starts_with(begins) && name.chars().all(goes_on);
    if !is_usable || name.len() > LONGEST_NAME {
        let what = format!(
            "the score needs a name of at most {LONGEST_NAME} letters, digits and _, without a digit at the beginning, like 'waste = ...'"
        );
        return Err(error(column, what));
    }
    let is_taken = Variable::named(name).is_some()
        || FUNCTIONS.iter().any(|(known, ..)| *known == name)
        || RESERVED_NAMES.contains(&name);
    if is_taken {
        let what = format!("'{name}' already has a meaning: choose another name");
        return Err(error(column, what));
    }
    Ok(())
}

/// Splits the text into tokens with their columns. The last token is the end.
fn tokens(text: &str, first_column: usize) -> Result<Vec<(Token, usize)>> {
    let characters: Vec<char> = text.chars().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(&first) = characters.get(at) {
        let column = first_column + at;
        let rest = &characters[at..];
        let (token, length) = match first {
            _ if first.is_whitespace() => {
                at += 1;
                continue;
            }
            '+' | '-' | '*' | '/' | '(' | ')' | ',' => (Token::Sign(first), 1),
            '0'..='9' | '.' => number(rest, column)?,
            _ if first.is_ascii_alphabetic() || first == '_' => {
                let is_of_name = |c: &&char| c.is_ascii_alphanumeric() || **c == '_';
                let name: String = rest.iter().take_while(is_of_name).collect();
                let length = name.len();
                (Token::Name(name), length)
            }
            _ => {
                let shown = visible(first.encode_utf8(&mut [0; 4])).into_owned();
                let what = format!(
                    "'{shown}' is not allowed here: a formula has numbers, names, + - * /, parentheses and commas"
                );
                return Err(error(column, what));
            }
        };
        found.push((token, column));
        at += length;
    }
    found.push((Token::End, first_column + characters.len()));
    Ok(found)
}

/// Reads a number at the start of the characters: `12`, `.5`, `1e6`.
fn number(characters: &[char], column: usize) -> Result<(Token, usize)> {
    let digits = |from: usize| {
        let rest = characters.get(from..).unwrap_or_default();
        rest.iter().take_while(|c| c.is_ascii_digit()).count()
    };
    let mut length = digits(0);
    if characters.get(length) == Some(&'.') {
        length += 1 + digits(length + 1);
    }
    if matches!(characters.get(length), Some('e' | 'E')) {
        let has_sign = matches!(characters.get(length + 1), Some('+' | '-'));
        let power = length + 1 + usize::from(has_sign);
        if digits(power) > 0 {
            length = power + digits(power);
        }
    }
    let goes_on = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
    let has_more = characters.get(length).is_some_and(goes_on);
    let text: String = characters.iter().take(length).collect();
    let known = text.parse::<f64>().ok().filter(|_| !has_more);
    match known {
        Some(number) if number.is_finite() => Ok((Token::Number(number), length)),
        Some(_) => Err(error(column, format!("{text} is too large a number"))),
        None => {
            let what = "expected a number like 12, 0.5 or 1e6; it has no unit";
            Err(error(column, what))
        }
    }
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    depth: usize,
    steps: Vec<Step>,
    variables: Vec<(Variable, usize)>,
}

/// Value of a part of a formula, if the part is constant.
type Constant = Option<f64>;

impl Parser {
    fn peek(&self) -> &Token {
        &self.tokens[self.at].0
    }

    /// Returns the next token and its column. Does not advance past the end token.
    fn next(&mut self) -> (Token, usize) {
        let found = self.tokens[self.at].clone();
        self.at = (self.at + 1).min(self.tokens.len() - 1);
        found
    }

    fn sum(&mut self) -> Result<Constant> {
        let mut left = self.product()?;
        loop {
            let step = match self.peek() {
                Token::Sign('+') => Step::Add,
                Token::Sign('-') => Step::Subtract,
                _ => return Ok(left),
            };
            let (_, column) = self.next();
            let right = self.product()?;
            left = self.step(step, left, right, column)?;
        }
    }

    fn product(&mut self) -> Result<Constant> {
        let mut left = self.operand()?;
        loop {
            let step = match self.peek() {
                Token::Sign('*') => Step::Multiply,
                Token::Sign('/') => Step::Divide,
                _ => return Ok(left),
            };
            let (_, column) = self.next();
            let right = self.operand()?;
            if step == Step::Divide && right == Some(0.0) {
                return Err(error(column, "this divides by zero for every site"));
            }
            left = self.step(step, left, right, column)?;
        }
    }

    /// Adds a step. Its operands are on the stack.
    fn step(
        &mut self,
        step: Step,
        left: Constant,
        right: Constant,
        column: usize,
    ) -> Result<Constant> {
        self.steps.push(step);
        let (Some(left), Some(right)) = (left, right) else {
            return Ok(None);
        };
        match step.apply(left, right) {
            Some(value) => Ok(Some(value)),
            None => Err(error(column, "this has no value for any site")),
        }
    }

    /// Reads an operand.
    fn operand(&mut self) -> Result<Constant> {
        let (token, column) = self.next();
        if self.depth >= DEEPEST {
            let what = format!("more than {DEEPEST} parentheses, calls and signs are nested");
            return Err(error(column, what));
        }
        self.depth += 1;
        let found = match token {
            Token::Number(number) => {
                self.steps.push(Step::Number(number));
                Ok(Some(number))
            }
            Token::Sign('-') => {
                let value = self.operand()?;
                self.step(Step::Negate, value, Some(0.0), column)
            }
            Token::Sign('(') => {
                let value = self.sum()?;
                self.expect(')', column)?;
                Ok(value)
            }
            Token::Name(name) if *self.peek() == Token::Sign('(') => self.call(&name, column),
            Token::Name(name) => self.variable(&name, column),
            other => {
                let what = format!(
                    "expected a number, a variable or a parenthesis, found {}",
                    other.words()
                );
                Err(error(column, what))
            }
        };
        self.depth -= 1;
        found
    }

    fn expect(&mut self, sign: char, opened: usize) -> Result<()> {
        match self.next() {
            (Token::Sign(found), _) if found == sign => Ok(()),
            (other, column) => {
                let what = format!(
                    "expected '{sign}' for the parenthesis at column {opened}, found {}",
                    other.words()
                );
                Err(error(column, what))
            }
        }
    }

    fn variable(&mut self, name: &str, column: usize) -> Result<Constant> {
        let Some(variable) = Variable::named(name) else {
            let is_function = FUNCTIONS.iter().any(|(known, ..)| *known == name);
            let what = if is_function {
                format!("'{name}' is a function: write {name}(...)")
            } else {
                format!(
                    "there is no variable '{name}'; the variables are {}",
                    names()
                )
            };
            return Err(error(column, what));
        };
        self.steps.push(Step::Variable(variable));
        if !self.variables.iter().any(|(known, _)| *known == variable) {
            self.variables.push((variable, column));
        }
        Ok(None)
    }

    fn call(&mut self, name: &str, column: usize) -> Result<Constant> {
        let function = FUNCTIONS.iter().find(|(known, ..)| *known == name);
        let Some(&(_, function, operands)) = function else {
            let what = format!(
                "there is no function '{name}'; the functions are {}",
                functions()
            );
            return Err(error(column, what));
        };
        let (_, opened) = self.next();
        let first = self.sum()?;
        let second = if operands == 2 {
            let (comma, at) = self.next();
            if comma != Token::Sign(',') {
                let what = format!(
                    "{name} takes two values: expected ',', found {}",
                    comma.words()
                );
                return Err(error(at, what));
            }
            self.sum()?
        } else {
            Some(0.0)
        };
        self.expect(')', opened)?;
        self.step(Step::Call(function), first, second, column)
    }
}
