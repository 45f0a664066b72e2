//! Profiles in pprof's format, converted for comparisons in tests.

use flate2::read::GzDecoder;
use prost::Message;
use std::collections::{BTreeMap, HashMap};
use std::io::Read;

/// The fields of a profile that tests examine (profile.proto).
#[derive(Clone, PartialEq, Message)]
struct RawPprof {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<Mapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    name: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(bytes = "vec", repeated, tag = "3")]
    label: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    memory_start: u64,
    #[prost(uint64, tag = "3")]
    memory_limit: u64,
    #[prost(int64, tag = "5")]
    filename: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
    #[prost(bool, tag = "7")]
    has_functions: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// A location of a sample: functions with full names, files and lines. Inlined functions come
/// first.
pub type Place = Vec<(String, String, String, i64)>;

/// A received profile.
#[derive(Clone, Debug, Default)]
pub struct Pprof {
    /// Labels of the series; empty for a file.
    pub labels: BTreeMap<String, String>,
    /// Total of each value type by innermost function. The name of a function without a name is "".
    pub values: BTreeMap<String, BTreeMap<String, i64>>,
    /// Comments of the profile.
    pub comments: Vec<String>,
    /// Number of samples with labels.
    pub labelled_samples: usize,
    /// Values of each call stack.
    pub stacks: BTreeMap<Vec<Place>, Vec<i64>>,
    /// Locations without a name: path and build-id of the module, and the offset in it.
    pub nameless: Vec<(String, String, u64)>,
    /// Number of functions.
    pub functions: usize,
}

impl Pprof {
    /// Reads a gzipped profile.
    pub fn read(packed: &[u8]) -> Pprof {
        let raw = RawPprof::decode(&unpacked(packed)[..]).expect("a profile");
        let text = |index: i64| raw.string_table[index as usize].clone();
        let functions: HashMap<u64, &Function> = raw.function.iter().map(|f| (f.id, f)).collect();
        assert_eq!(functions.len(), raw.function.len(), "numbers come twice");
        let place = |location: &Location| -> Place {
            let lines = location.line.iter().map(|line| {
                let function = functions[&line.function_id];
                let (name, full) = (text(function.name), text(function.system_name));
                (name, full, text(function.filename), line.line)
            });
            lines.collect()
        };
        let places = raw.location.iter();
        let places: HashMap<u64, Place> = places.map(|of| (of.id, place(of))).collect();
        let mut found = Pprof::default();
        for sample in &raw.sample {
            let stack: Vec<Place> = sample
                .location_id
                .iter()
                .map(|id| places[id].clone())
                .collect();
            let innermost = stack[0].first().map_or("", |(name, ..)| name).to_owned();
            for (value_type, &value) in raw.sample_type.iter().zip(&sample.value) {
                let values = found.values.entry(text(value_type.name)).or_default();
                *values.entry(innermost.clone()).or_default() += value;
            }
            let sums = found.stacks.entry(stack).or_default();
            sums.resize(sample.value.len(), 0);
            for (sum, value) in sums.iter_mut().zip(&sample.value) {
                *sum += value;
            }
        }
        for value_type in &raw.sample_type {
            found.values.entry(text(value_type.name)).or_default();
        }
        for location in raw.location.iter().filter(|of| of.line.is_empty()) {
            let mapping = raw.mapping.iter().find(|of| of.id == location.mapping_id);
            let mapping = mapping.expect("a module, for whoever looks for its name");
            assert!(!mapping.has_functions, "others are told to look for it");
            let range = mapping.memory_start..mapping.memory_limit;
            assert!(
                range.contains(&location.address),
                "{location:?} in {mapping:?}"
            );
            found.nameless.push((
                text(mapping.filename),
                text(mapping.build_id),
                location.address - mapping.memory_start,
            ));
        }
        found.comments = raw.comment.iter().map(|&index| text(index)).collect();
        found.labelled_samples = raw.sample.iter().filter(|s| !s.label.is_empty()).count();
        found.functions = raw.function.len();
        found
    }

    /// Returns the sum of a value over all functions.
    pub fn sum(&self, value: &str) -> i64 {
        self.values
            .get(value)
            .map_or(0, |values| values.values().sum())
    }

    /// Returns the value of a function.
    pub fn of(&self, value: &str, function: &str) -> i64 {
        let found = self
            .values
            .get(value)
            .and_then(|values| values.get(function));
        found.copied().unwrap_or(0)
    }
}

pub(crate) fn unpacked(bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut plain).expect("gzip");
    plain
}
