//! Conditions on integer arguments: their syntax, and the instructions that check them.

/// Comparison of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// An argument compared with a number, both signed 64-bit integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Number of the argument, from 0.
    argument: usize,
    comparison: Comparison,
    value: i64,
}

/// Comparison operators, sorted by length so that `<=` is not mistaken for `<`.
const SIGNS: [(&str, Comparison); 6] = [
    ("==", Comparison::Equal),
    ("!=", Comparison::NotEqual),
    ("<=", Comparison::LessOrEqual),
    (">=", Comparison::GreaterOrEqual),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

/// `cmp REGISTER, rax` for the registers of the first six integer arguments (System V psABI for x86-64, "Parameter
/// Passing"): rdi, rsi, rdx, rcx, r8, r9.
const COMPARE: [&[u8; 3]; 6] = [
    b"\x48\x39\xc7",
    b"\x48\x39\xc6",
    b"\x48\x39\xc2",
    b"\x48\x39\xc1",
    b"\x49\x39\xc0",
    b"\x49\x39\xc1",
];

impl Condition {
    /// Parses `arg2 > 4096`, or several conditions joined by `&&`.
    pub fn list(text: &str) -> Result<Vec<Condition>, String> {
        text.split("&&")
            .map(|part| Condition::one(part.trim()))
            .collect()
    }

    fn one(text: &str) -> Result<Condition, String> {
        let mistake = || format!("'{text}' is not a condition: expected one like 'arg2 > 4096'");
        let found = SIGNS
            .iter()
            .filter_map(|(sign, comparison)| Some((text.find(sign)?, sign, comparison)))
            .min_by_key(|(at, sign, _)| (*at, std::cmp::Reverse(sign.len())));
        let (at, sign, comparison) = found.ok_or_else(mistake)?;
        let (argument, value) = (text[..at].trim(), text[at + sign.len()..].trim());
        let number = argument
            .strip_prefix("arg")
            .and_then(|n| n.parse::<usize>().ok());
        let number = number.ok_or_else(mistake)?;
        if !(1..=COMPARE.len()).contains(&number) {
            return Err(format!(
                "'{argument}' is not in a register: only arg1 to arg6 can be compared"
            ));
        }
        Ok(Condition {
            argument: number - 1,
            comparison: *comparison,
            value: value_of(value).ok_or_else(mistake)?,
        })
    }

    /// Returns the instructions that set the flags for the comparison. They change rax.
    pub(crate) fn compare(&self) -> Vec<u8> {
        // mov rax, imm64
        let mut code = vec![0x48, 0xb8];
        code.extend(self.value.to_le_bytes());
        code.extend(COMPARE[self.argument]);
        code
    }

    /// Returns `jcc rel32` without its displacement; the jump is taken if the condition is not met.
    pub(crate) fn jump_unless(&self) -> [u8; 2] {
        let code = match self.comparison {
            Comparison::Equal => 0x85,          // jne
            Comparison::NotEqual => 0x84,       // je
            Comparison::Less => 0x8d,           // jge
            Comparison::LessOrEqual => 0x8f,    // jg
            Comparison::Greater => 0x8e,        // jle
            Comparison::GreaterOrEqual => 0x8c, // jl
        };
        [0x0f, code]
    }
}

/// Parses a decimal or hexadecimal number. An unsigned 64-bit number is read as the signed number with the same bits.
fn value_of(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let number = match digits.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?,
        None => digits.parse::<u64>().ok()?,
    };
    if negative {
        0i64.checked_sub_unsigned(number)
    } else {
        Some(number as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_read() {
        let one = |text: &str| Condition::list(text).map(|list| list[0]);
        let expected = |argument, comparison, value| {
            Ok(Condition {
                argument,
                comparison,
                value,
            })
        };
        assert_eq!(one("arg2 > 4096"), expected(1, Comparison::Greater, 4096));
        assert_eq!(one("arg6<=-3"), expected(5, Comparison::LessOrEqual, -3));
        assert_eq!(one("arg1 != 0xff"), expected(0, Comparison::NotEqual, 255));
        assert_eq!(
            one("arg1 == 0xffffffffffffffff"),
            expected(0, Comparison::Equal, -1)
        );
        assert_eq!(
            Condition::list("arg1 > 1 && arg2 < 7").map(|list| list.len()),
            Ok(2)
        );
        for bad in [
            "",
            "arg1",
            "arg1 >",
            "arg1 > x",
            "size > 4",
            "arg1 => 4",
            "arg1 > 1 &&",
        ] {
            assert!(one(bad).is_err() || Condition::list(bad).is_err(), "{bad}");
        }
        assert!(one("arg7 > 1").is_err_and(|why| why.contains("arg1 to arg6")));
        assert!(one("arg0 > 1").is_err());
    }
}
