use crate::*;
use serde::Deserialize;

/// The part of speedscope's published schema that is used. No other field is allowed.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    #[serde(rename = "$schema")]
    schema: String,
    #[allow(dead_code)]
    name: String,
    #[allow(dead_code)]
    exporter: String,
    active_profile_index: usize,
    shared: Shared,
    profiles: Vec<Sampled>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shared {
    frames: Vec<Frame>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Frame {
    name: String,
    file: Option<String>,
    line: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Sampled {
    r#type: String,
    name: String,
    unit: String,
    start_value: u64,
    end_value: u64,
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

const UNITS: [&str; 6] = [
    "none",
    "nanoseconds",
    "microseconds",
    "milliseconds",
    "seconds",
    "bytes",
];

#[test]
fn every_stack_has_its_value() {
    for profile in profiles() {
        for options in choices() {
            let bytes = exported(&profile, "speedscope", &options);
            let file: File = serde_json::from_slice(&bytes).expect("speedscope's schema");
            assert_eq!(
                file.schema,
                "https://www.speedscope.app/file-format-schema.json"
            );
            let active = &file.profiles[file.active_profile_index];
            let name = format!("{}, {}", options.measure.name(), options.unit.name());
            assert_eq!(active.name, name);
            assert_eq!(active.r#type, "sampled");
            assert!(UNITS.contains(&active.unit.as_str()));
            assert_eq!(active.samples.len(), active.weights.len());
            let sum: u64 = active.weights.iter().sum();
            assert_eq!((active.start_value, active.end_value), (0, sum));
            assert_eq!(sum, total(&profile, &options));
            let mut found: BTreeMap<Vec<String>, u64> = BTreeMap::new();
            for (stack, weight) in active.samples.iter().zip(&active.weights) {
                let names = stack
                    .iter()
                    .map(|&frame| file.shared.frames[frame].name.clone());
                *found.entry(names.collect()).or_default() += weight;
            }
            // The flame graph has the same name for the frame.
            let name = |frame: &ProfileFrame| frame_name(&frame.frame);
            // A frame is a function and a line. speedscope adds up the weights of equal frames.
            let mut distinct = std::collections::HashSet::new();
            for frame in &file.shared.frames {
                let is_new = distinct.insert((&frame.name, &frame.file, frame.line));
                assert!(is_new, "{} is there twice", frame.name);
            }
            let mut expected = by_stack(&profile, &options, name);
            if let Some(value) = expected.remove(&Vec::new()) {
                expected.insert(vec!["(no call stack)".into()], value);
            }
            assert_eq!(found, expected, "{options:?}");
        }
    }
}
