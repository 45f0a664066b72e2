//! Checks documents against the schemas in `docs/schemas`, and against schemas of other projects in
//! `tests/schemas`.
//!
//! The check knows only the keywords of JSON Schema 2020-12 (and draft 7) that these schemas use.
//! It rejects other keywords, so that none is silently ignored. It is stricter than the standard: a
//! field that the schema does not name is an error, because readers may ignore new fields, but
//! writers must describe them.

use serde_json::{Map, Value};
use std::{cell::RefCell, collections::BTreeSet, path::Path};

/// A schema, and the fields that have occurred in checked documents.
pub struct JsonSchema {
    file: String,
    root: Value,
    seen: RefCell<BTreeSet<String>>,
}

impl JsonSchema {
    /// Reads `docs/schemas/NAME.json`.
    pub fn load(name: &str) -> JsonSchema {
        JsonSchema::read(format!("docs/schemas/{name}.json"))
    }

    /// Reads the schema of another project's format, `tests/schemas/NAME.json`.
    pub fn of_others(name: &str) -> JsonSchema {
        JsonSchema::read(format!("tests/schemas/{name}.json"))
    }

    /// Reads the schema of the agent's configuration, for use in editors.
    pub fn of_configuration() -> JsonSchema {
        JsonSchema::read("fleet/agent-1.schema.json".to_owned())
    }

    /// Returns the value at a JSON pointer (RFC 6901).
    pub fn at(&self, pointer: &str) -> &Value {
        self.root.pointer(pointer).unwrap_or(&Value::Null)
    }

    fn read(file: String) -> JsonSchema {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(&file);
        let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{file}: {e}"));
        let root = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{file}: {e}"));
        JsonSchema::new(file, root)
    }

    fn new(file: String, root: Value) -> JsonSchema {
        let seen = RefCell::default();
        JsonSchema { file, root, seen }
    }

    /// Checks a document against the schema.
    pub fn check(&self, document: &Value) {
        let faults = self.faults(&self.root, "", document, "");
        let file = &self.file;
        assert!(faults.is_empty(), "{file}: {faults:#?} in {document}");
    }

    /// Returns the fields that have not occurred in any document.
    pub fn unseen(&self) -> Vec<String> {
        let mut fields = BTreeSet::new();
        named_fields(&self.root, "", &mut fields);
        fields.difference(&self.seen.borrow()).cloned().collect()
    }

    /// Returns the errors in `value`, which is at `at`; `place` is the location of `schema`.
    fn faults(&self, schema: &Value, place: &str, value: &Value, at: &str) -> Vec<String> {
        let keywords = schema.as_object().expect("a schema is an object");
        let of = |keyword: (&String, &Value)| self.faults_of(keywords, keyword, place, value, at);
        keywords.iter().flat_map(of).collect()
    }

    fn faults_of(
        &self,
        keywords: &Map<String, Value>,
        (keyword, rule): (&String, &Value),
        place: &str,
        value: &Value,
        at: &str,
    ) -> Vec<String> {
        let unless = |holds: bool| {
            let fault = || format!("{at}: {keyword} {rule}, found {value}");
            Vec::from_iter((!holds).then(fault))
        };
        match keyword.as_str() {
            "$schema" | "$id" | "title" | "description" | "default" | "$defs" | "definitions" => {
                Vec::new()
            }
            // This keyword is checked together with "properties", below.
            "additionalProperties" => Vec::new(),
            "format" if rule == "uri-reference" || rule == "uri" => unless(is_uri(value)),
            "uniqueItems" => {
                let items = list(value);
                let is_new = |(i, item): (usize, &Value)| !items[..i].contains(item);
                unless(*rule == Value::Bool(false) || items.iter().enumerate().all(is_new))
            }
            "maximum" => unless(value.is_null() || value.as_f64() <= rule.as_f64()),
            "type" => unless(types(rule).any(|name| is_of_type(value, name))),
            "const" => unless(value == rule),
            "enum" => unless(list(rule).contains(value)),
            "minimum" => unless(value.is_null() || value.as_f64() >= rule.as_f64()),
            "minItems" => unless(list(value).len() as u64 >= rule.as_u64().expect("a number")),
            "$ref" => {
                let (_, path) = rule
                    .as_str()
                    .and_then(|r| r.split_once("#/"))
                    .expect("a reference");
                let (group, name) = path.split_once('/').expect("a definition");
                assert!(matches!(group, "$defs" | "definitions"), "{rule}");
                let definition = &self.root[group][name];
                self.faults(definition, &format!("{name}:"), value, at)
            }
            "anyOf" | "oneOf" => {
                let tried = list(rule).iter().map(|s| self.faults(s, place, value, at));
                let tried: Vec<_> = tried.collect();
                let fitting = tried.iter().filter(|faults| faults.is_empty()).count();
                if fitting == 1 || (fitting > 1 && keyword == "anyOf") {
                    Vec::new()
                } else {
                    let mut faults = unless(false);
                    faults.extend(tried.into_iter().flatten());
                    faults
                }
            }
            "properties" => {
                let others = keywords.get("additionalProperties");
                self.faults_of_fields(rule, others, place, value, at)
            }
            "required" => {
                let names = list(rule).iter().filter_map(Value::as_str);
                let missing = names.filter(|name| value.get(name).is_none());
                missing.map(|name| format!("{at}: no {name}")).collect()
            }
            "prefixItems" => {
                let pairs = list(rule).iter().zip(list(value)).enumerate();
                let faults = pairs.flat_map(|(i, (schema, item))| {
                    let place = format!("{place}[{i}]");
                    self.faults(schema, &place, item, &format!("{at}[{i}]"))
                });
                faults.collect()
            }
            "items" => {
                let before = keywords
                    .get("prefixItems")
                    .map_or(0, |first| list(first).len());
                let rest = list(value).iter().enumerate().skip(before);
                if *rule == Value::Bool(false) {
                    return unless(rest.count() == 0);
                }
                let place = format!("{place}[]");
                let faults = rest
                    .flat_map(|(i, item)| self.faults(rule, &place, item, &format!("{at}[{i}]")));
                faults.collect()
            }
            _ => panic!("{}: this check does not know {keyword}", self.file),
        }
    }

    fn faults_of_fields(
        &self,
        known: &Value,
        others: Option<&Value>,
        place: &str,
        value: &Value,
        at: &str,
    ) -> Vec<String> {
        let Some(fields) = value.as_object() else {
            return Vec::new();
        };
        let of_field = |(name, field): (&String, &Value)| {
            let at = format!("{at}/{name}");
            let schema = match (known.get(name), others) {
                (Some(schema), _) => schema,
                (None, Some(Value::Bool(true))) => return Vec::new(),
                (None, Some(schema)) if schema.is_object() => schema,
                _ => return vec![format!("{at}: not in the schema")],
            };
            let place = format!("{place}/{name}");
            self.seen.borrow_mut().insert(place.clone());
            self.faults(schema, &place, field, &at)
        };
        fields.iter().flat_map(of_field).collect()
    }
}

/// Returns the list, or an empty list if the value is not a list, which the keyword `type` reports.
fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns true if a string contains no character that a URI must encode (RFC 3986, section 2).
fn is_uri(value: &Value) -> bool {
    const OTHERS: &[u8] = b"-._~:/?#[]@!$&'()*+,;=";
    let mut bytes = value.as_str().unwrap_or_default().bytes();
    while let Some(byte) = bytes.next() {
        let is_encoded = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_hexdigit());
        let fits = match byte {
            b'%' => is_encoded(bytes.next()) && is_encoded(bytes.next()),
            byte => byte.is_ascii_alphanumeric() || OTHERS.contains(&byte),
        };
        if !fits {
            return false;
        }
    }
    true
}

fn types(rule: &Value) -> impl Iterator<Item = &str> {
    let one = rule.as_str().into_iter();
    one.chain(list(rule).iter().filter_map(Value::as_str))
}

fn is_of_type(value: &Value, name: &str) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        _ => panic!("no type of JSON: {name}"),
    }
}

/// Collects the locations of all fields in a schema, in the format of `seen`.
fn named_fields(schema: &Value, place: &str, into: &mut BTreeSet<String>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let place = format!("{place}/{name}");
        named_fields(field, &place, into);
        into.insert(place);
    }
    for (name, definition) in schema["$defs"].as_object().into_iter().flatten() {
        named_fields(definition, &format!("{name}:"), into);
    }
    for keyword in ["anyOf", "oneOf"] {
        for choice in list(&schema[keyword]) {
            named_fields(choice, place, into);
        }
    }
    for (i, item) in list(&schema["prefixItems"]).iter().enumerate() {
        named_fields(item, &format!("{place}[{i}]"), into);
    }
    if schema["items"].is_object() {
        named_fields(&schema["items"], &format!("{place}[]"), into);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> JsonSchema {
        let root = json!({
            "type": "object",
            "required": ["kind", "sizes"],
            "properties": {
                "kind": { "enum": ["a", "b"] },
                "sizes": { "type": "array", "items": { "$ref": "#/$defs/size" } },
                "pair": { "type": "array", "prefixItems": [{ "type": "string" }], "minItems": 1, "items": false },
                "end": { "anyOf": [{ "type": "null" }, { "type": "object", "properties": { "code": { "type": "integer" } } }] },
            },
            "$defs": { "size": { "type": "integer", "minimum": 0 } },
        });
        JsonSchema::new("a schema".to_owned(), root)
    }

    fn fits(document: &Value) -> bool {
        let schema = schema();
        schema.faults(&schema.root, "", document, "").is_empty()
    }

    #[test]
    fn what_fits_and_what_does_not() {
        assert!(fits(&json!({ "kind": "a", "sizes": [] })));
        let whole = json!({ "kind": "b", "sizes": [0, 7], "pair": ["x"], "end": { "code": -1 } });
        assert!(fits(&whole));
        for bad in [
            json!([]),
            json!({ "kind": "a" }),
            json!({ "kind": "c", "sizes": [] }),
            json!({ "kind": "a", "sizes": 1 }),
            json!({ "kind": "a", "sizes": [-1] }),
            json!({ "kind": "a", "sizes": [1.5] }),
            json!({ "kind": "a", "sizes": [], "more": 1 }),
            json!({ "kind": "a", "sizes": [], "pair": [] }),
            json!({ "kind": "a", "sizes": [], "pair": ["x", "y"] }),
            json!({ "kind": "a", "sizes": [], "end": { "code": "x" } }),
        ] {
            assert!(!fits(&bad), "{bad}");
        }
    }

    #[test]
    fn fields_that_no_document_has_had() {
        let schema = schema();
        schema.check(&json!({ "kind": "a", "sizes": [1] }));
        assert_eq!(schema.unseen(), ["/end", "/end/code", "/pair"]);
        schema.check(&json!({ "kind": "a", "sizes": [], "pair": ["x"], "end": { "code": 0 } }));
        assert!(schema.unseen().is_empty());
    }

    #[test]
    #[should_panic(expected = "does not know pattern")]
    fn an_unknown_keyword_is_refused() {
        let root = json!({ "pattern": "x" });
        JsonSchema::new("a schema".to_owned(), root).check(&json!("x"));
    }
}
