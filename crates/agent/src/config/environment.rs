//! Replaces `${VARIABLE}` in the strings of a configuration with the value of an environment
//! variable.

use super::Fault;
use std::borrow::Cow;
use std::env::VarError;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Start of a variable. `$${` stands for this text itself.
const BEGIN: &str = "${";

/// Function that looks up a variable.
type Lookup<'a> = &'a dyn Fn(&str) -> Result<String, VarError>;

/// Replaces variables in all strings of a table. Keys stay unchanged. `text` is the whole file.
pub fn put_in(text: &str, table: &mut DeTable<'_>, lookup: Lookup<'_>) -> Result<(), Fault> {
    for (_, value) in table.iter_mut() {
        put_into(text, value, lookup)?;
    }
    Ok(())
}

fn put_into(
    text: &str,
    spanned: &mut Spanned<DeValue<'_>>,
    lookup: Lookup<'_>,
) -> Result<(), Fault> {
    let span = spanned.span();
    match spanned.get_mut() {
        DeValue::String(string) if string.contains(BEGIN) => {
            let put = expanded(string, lookup)
                .map_err(|(number, why)| (place(text, span, number), why))?;
            *string = Cow::Owned(put);
        }
        DeValue::Array(values) => {
            for value in values.iter_mut() {
                put_into(text, value, lookup)?;
            }
        }
        DeValue::Table(table) => put_in(text, table, lookup)?,
        _ => {}
    }
    Ok(())
}

/// Returns a string with its variables replaced. The error contains the index of the faulty `${` in
/// the string, counted from 0, and the reason.
fn expanded(string: &str, lookup: Lookup<'_>) -> Result<String, (usize, String)> {
    let (mut put, mut rest, mut number) = (String::new(), string, 0);
    while let Some(at) = rest.find(BEGIN) {
        let (before, from) = rest.split_at(at);
        put += before;
        rest = &from[BEGIN.len()..];
        if before.ends_with('$') {
            // The second $ of the two is dropped.
            put += "{";
        } else {
            let wrong = |why: String| (number, why);
            let variable = rest.split_once('}').filter(|(name, _)| is_name(name));
            let Some((name, after)) = variable else {
                let why =
                    "after ${ the name of a variable and } are expected; ${ itself is written $${";
                return Err(wrong(why.into()));
            };
            put += &lookup(name).map_err(|error| match error {
                VarError::NotPresent => wrong(format!(
                    "the environment variable {name} is not set: set it for the agent, or write the value here"
                )),
                VarError::NotUnicode(_) => {
                    wrong(format!("the environment variable {name} is not UTF-8 text"))
                }
            })?;
            rest = after;
        }
        number += 1;
    }
    Ok(put + rest)
}

fn is_name(name: &str) -> bool {
    let mut characters = name.chars();
    let begins = characters.next();
    begins.is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Returns the position in the file of the `${` with this number. If it is written with escapes,
/// this is the position of the string.
fn place(text: &str, span: Range<usize>, number: usize) -> Range<usize> {
    let written = text.get(span.clone()).unwrap_or_default();
    let found = written.match_indices(BEGIN).nth(number);
    found.map_or(span.clone(), |(at, _)| span.start + at..span.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(name: &str) -> Result<String, VarError> {
        match name {
            "HOST" => Ok("store.example".into()),
            "_EMPTY" => Ok(String::new()),
            // Variables in an inserted value are not replaced.
            "NESTED" => Ok("${HOST}".into()),
            _ => Err(VarError::NotPresent),
        }
    }

    #[test]
    fn variables_are_put_in() {
        for (string, is) in [
            ("http://${HOST}:4040", "http://store.example:4040"),
            ("${HOST}${_EMPTY}${HOST}", "store.examplestore.example"),
            ("${NESTED}", "${HOST}"),
            (
                "$${HOST} $HOST $$ ${HOST}",
                "${HOST} $HOST $$ store.example",
            ),
        ] {
            assert_eq!(expanded(string, &lookup), Ok(is.to_owned()), "{string}");
        }
        for (string, number) in [
            ("${HOST}${GONE}", 1),
            ("$${HOST}${GONE}", 1),
            ("${}", 0),
            ("${HOST", 0),
            ("${1}", 0),
            ("${HOST:-x}", 0),
        ] {
            let (found, _) = expanded(string, &lookup).expect_err(string);
            assert_eq!(found, number, "{string}");
        }
    }

    #[test]
    fn what_is_missing_is_placed_and_keys_and_comments_stay() {
        let text = "# ${GONE}\n\"${GONE}\" = 1\n[[a]]\nb = [\"x\", \"y${HOST}\"]\n[[a]]\nb = \"z ${GONE}\"\n";
        let mut table = DeTable::parse(text).expect("TOML");
        let (span, why) = put_in(text, table.get_mut(), &lookup).expect_err("it is not set");
        assert_eq!(span.start, text.rfind("${").expect("there"));
        assert!(why.contains("GONE is not set"), "{why}");
        let text = text.replace("z ${GONE}", "z");
        let mut table = DeTable::parse(&text).expect("TOML");
        put_in(&text, table.get_mut(), &lookup).expect("all are set");
        let table: toml::Table =
            serde::Deserialize::deserialize(toml::Deserializer::from(table)).expect("TOML");
        assert_eq!(table["a"][0]["b"][1].as_str(), Some("ystore.example"));
    }
}
