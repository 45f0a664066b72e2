//! Tests that formulas are read, refused and evaluated.

use super::*;
use proptest::prelude::*;

/// Evaluates a formula for a size of 100, 4 blocks, a usage of 0.25 and 0 reads. All other
/// variables are unknown.
fn value(formula: &str) -> Option<f64> {
    let formula = Formula::parse(&format!("x = {formula}")).expect(formula);
    formula.evaluate(known)
}

fn known(variable: Variable) -> Option<f64> {
    match variable {
        Variable::Size => Some(100.0),
        Variable::Blocks => Some(4.0),
        Variable::Usage => Some(0.25),
        Variable::Reads => Some(0.0),
        _ => None,
    }
}

fn refusal(text: &str) -> (usize, String) {
    let refused = Formula::parse(text).expect_err(text);
    (refused.column, refused.what)
}

#[test]
fn formulas_have_the_usual_rules() {
    for (formula, expected) in [
        ("size * (1 - usage)", 75.0),
        ("size - blocks - 2", 94.0),
        ("size / blocks / 5", 5.0),
        ("2 + 3 * blocks", 14.0),
        ("-size + 1", -99.0),
        ("--size", 100.0),
        ("3 - -size", 103.0),
        ("-usage * -blocks", 1.0),
        ("min(size, blocks) + max(usage, 1)", 5.0),
        ("abs(blocks - 6) * sqrt(blocks)", 4.0),
        ("log(size / size)", 0.0),
        ("1e3 * .5 + 2.5E-1 + size", 600.25),
        ("((size))", 100.0),
        ("size/blocks", 25.0),
    ] {
        assert_eq!(value(formula), Some(expected), "{formula}");
    }
}

#[test]
fn what_has_no_value_is_not_known() {
    for formula in [
        "size / reads",
        // An infinity would make the result 0.
        "1 / (1 / reads)",
        "0 * size / (usage - usage)",
        "writes + 1",
        "0 * writes",
        "sqrt(0 - size)",
        "log(reads)",
        "max(size, log(reads))",
        "size * 1e308",
    ] {
        assert_eq!(value(formula), None, "{formula}");
    }
}

#[test]
fn names_texts_and_variables_are_kept() {
    let formula: Formula = " waste =  size * (1 - usage) + size "
        .parse()
        .expect("fine");
    assert_eq!(formula.name(), "waste");
    assert_eq!(formula.text(), "size * (1 - usage) + size");
    let expected = [(Variable::Size, 11), (Variable::Usage, 23)];
    assert_eq!(formula.variables(), expected);
}

#[test]
fn a_refusal_names_the_column() {
    for (text, column, words) in [
        ("size * 2", 9, "expected NAME = FORMULA"),
        ("", 1, "expected NAME = FORMULA"),
        (" = size", 2, "needs a name"),
        ("2x = size", 1, "needs a name"),
        ("a b = size", 1, "needs a name"),
        ("\u{1b}[1m = size", 1, "needs a name"),
        (" usage = size", 2, "'usage' already has a meaning"),
        ("count = size", 1, "'count' already has a meaning"),
        ("time = size", 1, "'time' already has a meaning"),
        ("max = size", 1, "'max' already has a meaning"),
        (
            "waste = size * (1 - usge)",
            21,
            "there is no variable 'usge'; the variables are size, blocks,",
        ),
        (
            "x = mean(size)",
            5,
            "there is no function 'mean'; the functions are min, max, abs",
        ),
        ("x = size / 0", 10, "divides by zero"),
        ("x = size / (2 - 1 - 1)", 10, "divides by zero"),
        ("x = size / -0", 10, "divides by zero"),
        ("x = 1 / 0 + size", 7, "divides by zero"),
        ("x = size + sqrt(-1)", 12, "has no value"),
        ("x = size + log(0)", 12, "has no value"),
        ("x = size * (1e308 * 10)", 19, "has no value"),
        ("x = 1e999 * size", 5, "too large"),
        ("x = 12K * size", 5, "it has no unit"),
        ("x = 1.2.3 * size", 5, "expected a number"),
        ("x = . * size", 5, "expected a number"),
        ("x = 5", 5, "no variable is used"),
        ("x = ", 5, "found the end"),
        ("x = size +", 11, "found the end"),
        (
            "x = (size",
            10,
            "expected ')' for the parenthesis at column 5, found the end",
        ),
        ("x = size)", 9, "found ')'"),
        ("x = size blocks", 10, "found 'blocks'"),
        ("x = size == 3", 10, "'=' is not allowed here"),
        ("x = size ^ 2", 10, "'^' is not allowed here"),
        ("x = min(size)", 13, "min takes two values"),
        ("x = abs(size, 2)", 13, "expected ')'"),
        ("x = sqrt", 5, "write sqrt(...)"),
        ("x = +size", 5, "found '+'"),
        ("é = size", 1, "needs a name"),
        ("x = größe", 7, "'ö' is not allowed here"),
    ] {
        let (at, what) = refusal(text);
        assert_eq!(at, column, "{text}: {what}");
        assert!(what.contains(words), "{text}: {what}");
        assert_eq!(what.lines().count(), 1, "{what}");
    }
}

#[test]
fn formulas_are_bounded() {
    let nested = |n: usize| format!("x = {}size{}", "(".repeat(n), ")".repeat(n));
    assert!(Formula::parse(&nested(49)).is_ok());
    let (_, what) = refusal(&nested(60));
    assert!(what.contains("more than 50"), "{what}");
    let (_, what) = refusal(&format!("x = {}size", "-".repeat(900)));
    assert!(what.contains("more than 50"), "{what}");
    let sum = |n: usize| format!("x = size{}", "+1".repeat(n));
    let long = Formula::parse(&sum(400)).expect("of 808 characters");
    assert_eq!(long.evaluate(known), Some(500.0));
    let (column, what) = refusal(&sum(1000));
    assert_eq!(column, LONGEST + 1);
    assert!(what.contains("1000 characters"), "{what}");
}

/// Returns a valid formula, and its value computed in Rust; `None` if a part of the formula has no
/// value.
fn right_formula() -> impl Strategy<Value = (String, Option<f64>)> {
    let leaf = prop_oneof![
        Just(("size".to_owned(), Some(100.0))),
        Just(("blocks".to_owned(), Some(4.0))),
        Just(("reads".to_owned(), Some(0.0))),
        Just(("writes".to_owned(), None)),
        (1_u32..100).prop_map(|n| (n.to_string(), Some(f64::from(n)))),
    ];
    leaf.prop_recursive(5, 32, 2, |inner| {
        (inner.clone(), "[-+*/]", inner).prop_map(|((left, a), sign, (right, b))| {
            let text = format!("({left}) {sign} ({right})");
            let value = a.zip(b).map(|(a, b)| match sign.as_str() {
                "+" => a + b,
                "-" => a - b,
                "*" => a * b,
                _ => a / b,
            });
            (text, value.filter(|value| value.is_finite()))
        })
    })
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_in_one_line(text in "\\PC*") {
        if let Err(refused) = Formula::parse(&text) {
            prop_assert!(refused.column >= 1 && refused.column <= text.chars().count() + 1);
            prop_assert_eq!(refused.to_string().lines().count(), 1);
        }
    }

    #[test]
    fn any_words_of_formulas_are_read_or_refused(
        words in proptest::collection::vec(
            prop_oneof![
                Just("size"), Just("usage"), Just("reads"), Just("("), Just(")"), Just("+"), Just("-"),
                Just("*"), Just("/"), Just(","), Just("min"), Just("log"), Just("0"), Just("1e300"),
            ],
            0..40,
        )
    ) {
        if let Ok(formula) = Formula::parse(&format!("x = {}", words.join(" "))) {
            let value = formula.evaluate(known);
            prop_assert!(value.is_none_or(f64::is_finite));
        }
    }

    #[test]
    fn values_are_those_of_rust((text, expected) in right_formula()) {
        // Constants without a value are refused, and so is a formula of constants alone.
        if let Ok(formula) = Formula::parse(&format!("x = {text}")) {
            prop_assert_eq!(formula.evaluate(known), expected);
        } else {
            prop_assert!(
                expected.is_none() || !text.contains(char::is_alphabetic),
                "{}", text
            );
        }
    }
}
