//! OpenTelemetry's profiles: the request that a collector accepts. One dictionary contains all
//! tables, and a profile for each kind of value refers to it.

use super::locations::locations;
use super::otlp_messages as message;
use super::pprof::VALUES;
use crate::labels::{NO_STACK, name};
use crate::{Profile, ProfileFrame, StackFrame};
use memhook_symbols::PYTHON;
use prost::Message;
use std::collections::HashMap;
use std::hash::Hash;

/// Version of the semantic conventions of the attributes.
const SCHEMA: &str = "https://opentelemetry.io/schemas/1.37.0";
/// Attribute for how a frame was executed (semantic conventions, `profile`).
const FRAME_TYPE: &str = "profile.frame.type";
/// Attribute for the build-id of a module (semantic conventions, `process`).
const BUILD_ID: &str = "process.executable.build_id.gnu";

/// The profiled process, and the values to send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtlpSource {
    /// Attributes by semantic conventions. Empty values are left out.
    pub attributes: Vec<(String, String)>,
    /// The values of each call stack, by their names in pprof.
    pub values: &'static [&'static str],
    /// Unique id of the profile, by which a receiver recognizes a duplicate. This module sets the
    /// last byte.
    pub id: [u8; 16],
}

/// A table of the dictionary, with the index of each entry.
struct Table<K, M> {
    numbers: HashMap<K, i32>,
    rows: Vec<M>,
}

impl<K: Eq + Hash, M: Default> Default for Table<K, M> {
    /// Creates a table with the entry that means "none".
    fn default() -> Table<K, M> {
        Table {
            numbers: HashMap::new(),
            rows: vec![M::default()],
        }
    }
}

impl<K: Eq + Hash, M> Table<K, M> {
    fn number(&mut self, key: K, row: impl FnOnce(&K) -> M) -> i32 {
        if let Some(&number) = self.numbers.get(&key) {
            return number;
        }
        let number = self.rows.len() as i32;
        self.rows.push(row(&key));
        self.numbers.insert(key, number);
        number
    }
}

/// Tables under construction.
#[derive(Default)]
struct Tables {
    strings: Table<String, String>,
    functions: Table<(i32, i32, i32), message::Function>,
    attributes: Table<(i32, String), message::KeyValueAndUnit>,
    mappings: Vec<i32>,
    mapping_rows: Table<u32, message::Mapping>,
    /// Indices by the frames at an address.
    locations: Table<Vec<u32>, message::Location>,
    stacks: Table<Vec<i32>, message::Stack>,
}

fn text(value: &str) -> message::AnyValue {
    message::AnyValue {
        string_value: Some(value.to_owned()),
    }
}

impl Tables {
    fn string(&mut self, text: &str) -> i32 {
        if text.is_empty() {
            return 0;
        }
        self.strings.number(text.to_owned(), String::clone)
    }

    fn value_type(&mut self, name: &str, unit: &str) -> message::ValueType {
        message::ValueType {
            type_strindex: self.string(name),
            unit_strindex: self.string(unit),
        }
    }

    fn attribute(&mut self, key: &str, value: &str) -> i32 {
        let key = self.string(key);
        let row = |(key, value): &(i32, String)| message::KeyValueAndUnit {
            key_strindex: *key,
            value: Some(text(value)),
        };
        self.attributes.number((key, value.to_owned()), row)
    }

    fn line(&mut self, frame: &StackFrame) -> message::Line {
        let shown = name(frame);
        let key = (
            self.string(&shown),
            self.string(frame.function.as_deref().unwrap_or(&shown)),
            self.string(frame.file.as_deref().unwrap_or_default()),
        );
        let row = |&(name, system_name, file): &(i32, i32, i32)| message::Function {
            name_strindex: name,
            system_name_strindex: system_name,
            filename_strindex: file,
        };
        message::Line {
            function_index: self.functions.number(key, row),
            line: frame.line.unwrap_or(0).into(),
        }
    }

    /// Returns the mapping of a module. The first reference to the module creates it.
    fn mapping(&mut self, profile: &Profile, module: u32) -> i32 {
        let known = self.mappings.get(module as usize).copied().unwrap_or(0);
        let Some(of) = profile.modules.get(module as usize).filter(|_| known == 0) else {
            return known;
        };
        let build_id = (!of.build_id.is_empty()).then(|| self.attribute(BUILD_ID, &of.build_id));
        let (start, end) = if profile.unnamed_modules.contains(&module) {
            of.range_in_file()
        } else {
            (of.start, of.end)
        };
        let row = message::Mapping {
            memory_start: start,
            memory_limit: end,
            filename_strindex: self.string(&of.path),
            attribute_indices: build_id.into_iter().collect(),
        };
        let number = self.mapping_rows.number(module, |_| row);
        self.mappings.resize(profile.modules.len(), 0);
        self.mappings[module as usize] = number;
        number
    }

    /// Returns the location of an address with these frames, innermost first.
    fn location(&mut self, profile: &Profile, frames: &[u32]) -> i32 {
        if let Some(&number) = self.locations.numbers.get(frames) {
            return number;
        }
        let of = |&index: &u32| profile.frames.get(index as usize);
        let known: Vec<&ProfileFrame> = frames.iter().filter_map(of).collect();
        let outermost = known.last();
        let module = outermost.and_then(|frame| frame.module);
        let is_python = outermost.is_some_and(|f| f.frame.module.as_deref() == Some(PYTHON));
        let frame_type = match (is_python, module) {
            (true, _) => Some("cpython"),
            (false, Some(_)) => Some("native"),
            (false, None) => None,
        };
        let unnamed = outermost.and_then(|f| Some((f, profile.unnamed_module(f)?)));
        let (address, lines) = match unnamed {
            Some((frame, module)) => (module.call_in_file(frame.address), Vec::new()),
            None => (
                outermost.map_or(0, |frame| frame.address),
                known.iter().map(|frame| self.line(&frame.frame)).collect(),
            ),
        };
        let row = message::Location {
            mapping_index: module.map_or(0, |module| self.mapping(profile, module)),
            address,
            lines,
            attribute_indices: frame_type
                .map(|frame_type| self.attribute(FRAME_TYPE, frame_type))
                .into_iter()
                .collect(),
        };
        self.locations.number(frames.to_vec(), |_| row)
    }

    fn stack(&mut self, profile: &Profile, stack: u32) -> i32 {
        let frames = profile.stacks.get(stack as usize);
        let frames = frames.map_or(&[][..], Vec::as_slice);
        let mut here: Vec<i32> = locations(profile, frames)
            .map(|frames| self.location(profile, frames))
            .collect();
        if here.is_empty() {
            let mut missing = ProfileFrame::cut_root();
            missing.frame.function = Some(NO_STACK.to_owned());
            let row = message::Location {
                lines: vec![self.line(&missing.frame)],
                ..message::Location::default()
            };
            here.push(self.locations.number(Vec::new(), |_| row));
        }
        let row = |locations: &Vec<i32>| message::Stack {
            location_indices: locations.clone(),
        };
        self.stacks.number(here, row)
    }

    fn dictionary(self) -> message::ProfilesDictionary {
        message::ProfilesDictionary {
            mapping_table: self.mapping_rows.rows,
            location_table: self.locations.rows,
            function_table: self.functions.rows,
            link_table: vec![message::Link::default()],
            string_table: self.strings.rows,
            attribute_table: self.attributes.rows,
            stack_table: self.stacks.rows,
        }
    }
}

/// Returns a profile as a request to a collector, not compressed.
pub fn otlp_request(profile: &Profile, source: &OtlpSource) -> Vec<u8> {
    let mut tables = Tables::default();
    let period_type = tables.value_type("space", "bytes");
    let mut profiles = Vec::new();
    for (number, &(value_name, unit_name, measure, unit)) in VALUES
        .iter()
        .filter(|value| source.values.contains(&value.0))
        .enumerate()
    {
        let mut samples = Vec::new();
        for site in &profile.sites {
            let value = i64::try_from(unit.of(measure.of(&site.measures))).unwrap_or(i64::MAX);
            if value != 0 {
                samples.push(message::Sample {
                    stack_index: tables.stack(profile, site.stack),
                    values: vec![value],
                });
            }
        }
        let mut id = source.id;
        id[15] = number as u8 + 1;
        let began = profile.began_unix_ms.saturating_mul(1_000_000);
        profiles.push(message::Profile {
            sample_type: Some(tables.value_type(value_name, unit_name)),
            samples,
            time_unix_nano: began.saturating_add(profile.from_ns),
            duration_nano: profile.to_ns.saturating_sub(profile.from_ns),
            period_type: Some(period_type),
            period: profile.sampling.map_or(1, |s| s.mean_bytes as i64),
            profile_id: id.to_vec(),
        });
    }
    let attributes = source.attributes.iter();
    let attributes = attributes.filter(|(_, value)| !value.is_empty());
    let request = message::ExportProfilesServiceRequest {
        resource_profiles: vec![message::ResourceProfiles {
            resource: Some(message::Resource {
                attributes: attributes
                    .map(|(key, value)| message::KeyValue {
                        key: key.clone(),
                        value: Some(text(value)),
                    })
                    .collect(),
            }),
            scope_profiles: vec![message::ScopeProfiles {
                scope: Some(message::InstrumentationScope {
                    name: "memhook-rs".to_owned(),
                    version: env!("CARGO_PKG_VERSION").to_owned(),
                }),
                profiles,
            }],
            schema_url: SCHEMA.to_owned(),
        }],
        dictionary: Some(tables.dictionary()),
    };
    request.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Amount, Measures, ProfileModule, ProfileSite};

    fn frame(address: u64, module: u32, function: Option<&str>) -> ProfileFrame {
        ProfileFrame {
            address,
            module: Some(module),
            frame: StackFrame {
                address: format!("{address:#x}"),
                module: Some("m".into()),
                offset: Some("0x1".into()),
                function: function.map(str::to_owned),
                file: None,
                line: None,
                inlined: false,
            },
        }
    }

    /// If the receiver looks up names, it gets the call's address in the file instead of a
    /// function.
    #[test]
    fn addresses_without_names() {
        let module = |path: &str, bias| ProfileModule {
            path: path.to_owned(),
            build_id: "0123".to_owned(),
            start: 0x7000_1000,
            end: 0x7000_9000,
            bias,
        };
        let profile = Profile {
            modules: vec![module("/bin/a", 0x7000_0000), module("python", 0)],
            unnamed_modules: [0].into(),
            frames: vec![
                frame(0x7000_2346, 0, None),
                frame(0x7000_2000, 1, Some("f")),
            ],
            stacks: vec![vec![0, 1]],
            sites: vec![ProfileSite {
                measures: Measures {
                    live: Amount {
                        blocks: 1,
                        bytes: 10,
                        ..Amount::default()
                    },
                    ..Measures::default()
                },
                ..ProfileSite::default()
            }],
            ..Profile::default()
        };
        let source = OtlpSource {
            values: &["inuse_space"],
            ..OtlpSource::default()
        };
        let request = otlp_request(&profile, &source);
        let request = message::ExportProfilesServiceRequest::decode(&request[..]).expect("ours");
        let dictionary = request.dictionary.expect("a dictionary");
        let [_, unnamed, named] = &dictionary.location_table[..] else {
            panic!("{:?}", dictionary.location_table);
        };
        assert_eq!((unnamed.address, unnamed.lines.len()), (0x2345, 0));
        assert_eq!((named.address, named.lines.len()), (0x7000_2000, 1));
        assert_eq!(dictionary.function_table.len(), 2);
        let range = |location: &message::Location| {
            let mapping = &dictionary.mapping_table[location.mapping_index as usize];
            (mapping.memory_start, mapping.memory_limit)
        };
        assert_eq!(range(unnamed), (0x1000, 0x9000));
        assert_eq!(range(named), (0x7000_1000, 0x7000_9000));
    }
}
