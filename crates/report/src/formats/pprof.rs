//! `profile.proto`, which `go tool pprof`, pprof's web page, Grafana Pyroscope and other programs
//! read.

use super::locations::locations;
use super::pprof_messages as message;
use super::{Format, FormatOptions, Nature};
use crate::gaps;
use crate::labels::{NO_STACK, name};
use crate::{Measure, Profile, ProfileFrame, ProfileSite, StackFrame, Unit};
use flate2::{Compression, write::GzEncoder};
use prost::Message;
use std::collections::HashMap;
use std::io::{Result, Write};

/// Values of each sample, in Go's names and order.
pub(super) const VALUES: [(&str, &str, Measure, Unit); 10] = [
    ("alloc_objects", "count", Measure::Allocated, Unit::Blocks),
    ("alloc_space", "bytes", Measure::Allocated, Unit::Bytes),
    ("inuse_objects", "count", Measure::Live, Unit::Blocks),
    ("inuse_space", "bytes", Measure::Live, Unit::Bytes),
    ("released_objects", "count", Measure::Released, Unit::Blocks),
    ("released_space", "bytes", Measure::Released, Unit::Bytes),
    ("peak_objects", "count", Measure::Peak, Unit::Blocks),
    ("peak_space", "bytes", Measure::Peak, Unit::Bytes),
    (
        "temporary_objects",
        "count",
        Measure::Temporary,
        Unit::Blocks,
    ),
    ("temporary_space", "bytes", Measure::Temporary, Unit::Bytes),
];

/// `profile.proto`, gzipped.
pub struct Pprof;

impl Format<Profile> for Pprof {
    fn name(&self) -> &'static str {
        "pprof"
    }

    fn nature(&self) -> Nature {
        Nature::Binary
    }

    fn write(&self, profile: &Profile, options: &FormatOptions, out: &mut dyn Write) -> Result<()> {
        let mut packed = GzEncoder::new(out, Compression::default());
        let message = message(profile, &PprofShape::default(), options);
        packed.write_all(&message.encode_to_vec())?;
        packed.finish().map(drop)
    }
}

/// Contents of a profile in `profile.proto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PprofShape {
    /// The values of each sample by their names, in the order of the full list.
    pub values: &'static [&'static str],
    /// True if each sample names the function that allocated.
    pub has_kinds: bool,
    /// True if each sample names the thread that allocated.
    pub has_threads: bool,
    /// True if comments name the process.
    pub has_comments: bool,
}

impl PprofShape {
    fn values(&self) -> impl Iterator<Item = &'static (&'static str, &'static str, Measure, Unit)> {
        let names = self.values;
        VALUES.iter().filter(move |value| names.contains(&value.0))
    }
}

impl Default for PprofShape {
    /// Includes all contents.
    fn default() -> PprofShape {
        const ALL: [&str; VALUES.len()] = {
            let mut names = [""; VALUES.len()];
            let mut i = 0;
            while i < names.len() {
                names[i] = VALUES[i].0;
                i += 1;
            }
            names
        };
        PprofShape {
            values: &ALL,
            has_kinds: true,
            has_threads: true,
            has_comments: true,
        }
    }
}

/// Returns a profile as `profile.proto`, not compressed.
pub fn pprof(profile: &Profile, shape: &PprofShape) -> Vec<u8> {
    message(profile, shape, &FormatOptions::default()).encode_to_vec()
}

/// Tables under construction.
#[derive(Default)]
pub(super) struct Tables {
    strings: HashMap<String, i64>,
    functions: HashMap<(i64, i64), u64>,
    last_function: u64,
    /// Indices of locations, by the frames at an address.
    locations: HashMap<Vec<u32>, u64>,
    pub profile: message::Profile,
}

impl Tables {
    /// Takes the tables of an existing profile, to add functions to them.
    pub fn of(profile: message::Profile) -> Tables {
        let mut tables = Tables::default();
        for (index, text) in profile.string_table.iter().enumerate() {
            tables.strings.entry(text.clone()).or_insert(index as i64);
        }
        for of in &profile.function {
            let key = (of.system_name, of.filename);
            tables.functions.entry(key).or_insert(of.id);
            tables.last_function = tables.last_function.max(of.id);
        }
        tables.profile = profile;
        tables
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(&index) = self.strings.get(text) {
            return index;
        }
        let index = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), index);
        index
    }

    fn value_type(&mut self, name: &str, unit: &str) -> message::ValueType {
        message::ValueType {
            r#type: self.string(name),
            unit: self.string(unit),
        }
    }

    fn function(&mut self, shown: &str, full: &str, file: &str) -> u64 {
        let (shown, full) = (self.string(shown), self.string(full));
        let filename = self.string(file);
        let next = self.last_function + 1;
        let id = *self.functions.entry((full, filename)).or_insert(next);
        if id == next {
            self.last_function = next;
            self.profile.function.push(message::Function {
                id,
                name: shown,
                system_name: full,
                filename,
                start_line: 0,
            });
        }
        id
    }

    /// Returns a function with its place in the source.
    pub fn line(&mut self, frame: &StackFrame) -> message::Line {
        let shown = name(frame);
        let full = frame.function.as_deref().unwrap_or(&shown);
        let file = frame.file.as_deref().unwrap_or_default();
        message::Line {
            function_id: self.function(&shown, full, file),
            line: frame.line.unwrap_or(0).into(),
            column: 0,
        }
    }

    /// Returns the location of an address with these frames, innermost first.
    fn location(&mut self, profile: &Profile, frames: &[u32]) -> u64 {
        if let Some(&id) = self.locations.get(frames) {
            return id;
        }
        let of = |&index: &u32| profile.frames.get(index as usize);
        let known: Vec<&ProfileFrame> = frames.iter().filter_map(of).collect();
        let outermost = known.last();
        let mapping_id = outermost
            .and_then(|f| f.module)
            .map_or(0, |m| u64::from(m) + 1);
        let unnamed = outermost.and_then(|f| Some((f, profile.unnamed_module(f)?)));
        if let Some((frame, module)) = unnamed {
            let address = module.call_in_file(frame.address);
            return self.push_location(mapping_id, address, Vec::new(), frames);
        }
        let lines = known.iter().map(|frame| self.line(&frame.frame)).collect();
        let address = outermost.map_or(0, |f| f.address);
        self.push_location(mapping_id, address, lines, frames)
    }

    fn push_location(
        &mut self,
        mapping_id: u64,
        address: u64,
        line: Vec<message::Line>,
        frames: &[u32],
    ) -> u64 {
        let id = self.profile.location.len() as u64 + 1;
        self.profile.location.push(message::Location {
            id,
            mapping_id,
            address,
            line,
            is_folded: false,
        });
        self.locations.insert(frames.to_vec(), id);
        id
    }

    fn no_location(&mut self) -> u64 {
        if let Some(&id) = self.locations.get(&Vec::new()) {
            return id;
        }
        let function_id = self.function(NO_STACK, NO_STACK, "");
        let line = message::Line {
            function_id,
            line: 0,
            column: 0,
        };
        self.push_location(0, 0, vec![line], &[])
    }

    fn sample(
        &mut self,
        profile: &Profile,
        site: &ProfileSite,
        shape: &PprofShape,
    ) -> message::Sample {
        let frames = profile.stacks.get(site.stack as usize);
        let frames = frames.map_or(&[][..], Vec::as_slice);
        let mut location_id: Vec<u64> = locations(profile, frames)
            .map(|here| self.location(profile, here))
            .collect();
        if location_id.is_empty() {
            location_id.push(self.no_location());
        }
        let value = |&(_, _, measure, unit): &(&str, &str, Measure, Unit)| {
            i64::try_from(unit.of(measure.of(&site.measures))).unwrap_or(i64::MAX)
        };
        let thread = if site.thread.is_empty() {
            site.tid.to_string()
        } else {
            format!("{} ({})", site.tid, site.thread)
        };
        let labels = [
            (shape.has_kinds, "kind", site.kind.as_str()),
            (shape.has_threads, "thread", &thread),
        ];
        let labels = labels.into_iter().filter(|(is_wanted, ..)| *is_wanted);
        message::Sample {
            location_id,
            value: shape.values().map(value).collect(),
            label: labels
                .map(|(_, key, value)| message::Label {
                    key: self.string(key),
                    str: self.string(value),
                    num: 0,
                    num_unit: 0,
                })
                .collect(),
        }
    }

    fn mappings(&mut self, profile: &Profile) {
        for (i, module) in profile.modules.iter().enumerate() {
            let frames = profile.frames.iter();
            let of: Vec<_> = frames.filter(|f| f.module == Some(i as u32)).collect();
            let is_unnamed = profile.unnamed_modules.contains(&(i as u32));
            let (start, end) = if is_unnamed {
                module.range_in_file()
            } else {
                (module.start, module.end)
            };
            let mapping = message::Mapping {
                id: i as u64 + 1,
                memory_start: start,
                memory_limit: end,
                // A module's first mapping begins with its ELF header.
                file_offset: 0,
                filename: self.string(&module.path),
                build_id: self.string(&module.build_id),
                // Prevents pprof from looking up missing names in a different file with this name.
                has_functions: !is_unnamed,
                has_filenames: of.iter().any(|f| f.frame.file.is_some()),
                has_line_numbers: of.iter().any(|f| f.frame.line.is_some()),
                has_inline_frames: of.iter().any(|f| f.frame.inlined),
            };
            self.profile.mapping.push(mapping);
        }
    }
}

fn message(profile: &Profile, shape: &PprofShape, options: &FormatOptions) -> message::Profile {
    let mut tables = Tables::default();
    tables.string("");
    for (name, unit, ..) in shape.values() {
        let value_type = tables.value_type(name, unit);
        tables.profile.sample_type.push(value_type);
    }
    tables.mappings(profile);
    for site in &profile.sites {
        let sample = tables.sample(profile, site, shape);
        // The stack has only a block that was allocated before the window, and released within it.
        if sample.value.iter().any(|&value| value != 0) {
            tables.profile.sample.push(sample);
        }
    }
    let chosen = shape
        .values()
        .find(|v| (v.2, v.3) == (options.measure, options.unit));
    tables.profile.default_sample_type = chosen.map_or(0, |v| tables.string(v.0));
    tables.profile.period_type = Some(tables.value_type("space", "bytes"));
    tables.profile.period = profile.sampling.map_or(1, |s| s.mean_bytes as i64);
    let process = format!(
        "memhook-rs: process {} ({})",
        profile.target.pid, profile.target.name
    );
    // Warnings about the numbers come first.
    let comments = gaps::warning(&profile.gaps, profile.live_bounds().as_ref());
    let comments = comments.into_iter().chain([process]);
    let comments = comments.chain(profile.occasion.clone());
    for comment in comments.filter(|_| shape.has_comments) {
        let comment = tables.string(&comment);
        tables.profile.comment.push(comment);
    }
    let ns = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
    tables.profile.time_nanos = ns(profile
        .began_unix_ms
        .saturating_mul(1_000_000)
        .saturating_add(profile.from_ns));
    tables.profile.duration_nanos = ns(profile.to_ns.saturating_sub(profile.from_ns));
    tables.profile
}
