//! Profiles in OpenTelemetry's format, decoded with the published message definitions
//! (opentelemetry-proto, `profiles/v1development`).

use crate::agents::Pprof;
use crate::pprof::unpacked;
use prost::Message;
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<Resources>,
    #[prost(message, optional, tag = "2")]
    dictionary: Option<Dictionary>,
}

#[derive(Clone, PartialEq, Message)]
struct Resources {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<Scope>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(string, tag = "1")]
    text: String,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(message, repeated, tag = "2")]
    profiles: Vec<Profile>,
}

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, optional, tag = "1")]
    sample_type: Option<ValueType>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(bytes = "vec", tag = "7")]
    profile_id: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int32, tag = "1")]
    name: i32,
    #[prost(int32, tag = "2")]
    unit: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(int32, tag = "1")]
    stack: i32,
    #[prost(int64, repeated, tag = "4")]
    values: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Dictionary {
    #[prost(message, repeated, tag = "1")]
    mappings: Vec<Mapping>,
    #[prost(message, repeated, tag = "2")]
    locations: Vec<Location>,
    #[prost(message, repeated, tag = "3")]
    functions: Vec<Function>,
    #[prost(bytes = "vec", repeated, tag = "4")]
    links: Vec<Vec<u8>>,
    #[prost(string, repeated, tag = "5")]
    strings: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    attributes: Vec<Attribute>,
    #[prost(message, repeated, tag = "7")]
    stacks: Vec<Stack>,
}

#[derive(Clone, PartialEq, Message)]
struct Mapping {
    #[prost(int32, tag = "4")]
    file: i32,
    #[prost(int32, repeated, tag = "5")]
    attributes: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(int32, tag = "1")]
    mapping: i32,
    #[prost(message, repeated, tag = "3")]
    lines: Vec<Line>,
    #[prost(int32, repeated, tag = "4")]
    attributes: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(int32, tag = "1")]
    function: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(int32, tag = "1")]
    name: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(int32, tag = "1")]
    key: i32,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct Stack {
    #[prost(int32, repeated, tag = "1")]
    locations: Vec<i32>,
}

/// Returns the profile from a gzipped HTTP request.
pub fn read_gzipped(packed: &[u8]) -> Pprof {
    read(&unpacked(packed))
}

/// Returns the profile from a request, with all values, and with the resource attributes as labels.
/// Checks the protocol's requirements on dictionaries.
pub fn read(bytes: &[u8]) -> Pprof {
    assert!(bytes.len() < 4 << 20);
    let request = Request::decode(bytes).expect("a request");
    let dictionary = request.dictionary.expect("a dictionary");
    check(&dictionary);
    let [resources] = &request.resources[..] else {
        panic!("one resource");
    };
    let [scope] = &resources.scopes[..] else {
        panic!("one scope");
    };
    let text = |index: i32| dictionary.strings[index as usize].clone();
    let resource = resources.resource.as_ref().expect("a resource");
    let attributes = resource.attributes.iter().map(|attribute| {
        let value = attribute.value.clone().expect("a value");
        (attribute.key.clone(), value.text)
    });
    let mut found = Pprof {
        labels: attributes.collect(),
        ..Pprof::default()
    };
    let mut ids = std::collections::BTreeSet::new();
    for profile in &scope.profiles {
        assert!(profile.profile_id.len() == 16 && ids.insert(profile.profile_id.clone()));
        assert!(profile.time_unix_nano > 1 << 60);
        let value_type = profile.sample_type.as_ref().expect("a type");
        let name = text(value_type.name);
        let unit = if name.ends_with("_space") {
            "bytes"
        } else {
            "count"
        };
        assert_eq!(text(value_type.unit), unit);
        let values = found.values.entry(name).or_default();
        for sample in &profile.samples {
            let stack = &dictionary.stacks[sample.stack as usize];
            let location = &dictionary.locations[stack.locations[0] as usize];
            let function = &dictionary.functions[location.lines[0].function as usize];
            let [value] = sample.values[..] else {
                panic!("one value");
            };
            *values.entry(text(function.name)).or_default() += value;
        }
    }
    found
}

/// Checks that the first entry of each table is empty, that every index is within its table, and
/// that no entry occurs twice.
fn check(dictionary: &Dictionary) {
    assert_eq!(dictionary.mappings[0], Mapping::default());
    assert_eq!(dictionary.locations[0], Location::default());
    assert_eq!(dictionary.functions[0], Function::default());
    assert_eq!(dictionary.links, [Vec::<u8>::new()]);
    assert_eq!(dictionary.strings[0], "");
    assert_eq!(dictionary.attributes[0], Attribute::default());
    assert_eq!(dictionary.stacks[0], Stack::default());
    let distinct: std::collections::BTreeSet<&String> = dictionary.strings.iter().collect();
    assert_eq!(
        distinct.len(),
        dictionary.strings.len(),
        "a string is there twice"
    );
    let within =
        |index: i32, length: usize| assert!((1..length as i32).contains(&index), "{index}");
    for location in &dictionary.locations[1..] {
        assert!((0..dictionary.mappings.len() as i32).contains(&location.mapping));
        for line in &location.lines {
            within(line.function, dictionary.functions.len());
        }
    }
    for stack in &dictionary.stacks[1..] {
        for &location in &stack.locations {
            within(location, dictionary.locations.len());
        }
    }
    let mut keys = BTreeMap::new();
    for attribute in &dictionary.attributes[1..] {
        within(attribute.key, dictionary.strings.len());
        let key = &dictionary.strings[attribute.key as usize];
        *keys.entry(key.as_str()).or_insert(0) += 1;
    }
    // A profile of an interval without live blocks and without allocations is empty.
    if dictionary.stacks.len() == 1 {
        return;
    }
    assert_eq!(keys.get("profile.frame.type"), Some(&1), "{keys:?}");
    assert!(
        keys.contains_key("process.executable.build_id.gnu"),
        "{keys:?}"
    );
    let mapped = dictionary.mappings[1..].iter();
    assert!(mapped.clone().count() > 1);
    for mapping in mapped {
        within(mapping.file, dictionary.strings.len());
        for &attribute in &mapping.attributes {
            within(attribute, dictionary.attributes.len());
        }
    }
}
