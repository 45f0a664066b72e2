//! JSON for <https://www.speedscope.app>: two profiles for each measure, one in bytes and one in
//! blocks.

use super::{Format, FormatOptions, Nature};
use crate::gaps;
use crate::labels::{NO_STACK, name};
use crate::{Measure, Profile, Unit};
use serde::Serialize;
use std::collections::HashMap;
use std::io::{Result, Write};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(rename = "$schema")]
    schema: &'static str,
    name: String,
    exporter: String,
    active_profile_index: usize,
    shared: Shared,
    profiles: Vec<Sampled>,
}

#[derive(Serialize)]
struct Shared {
    frames: Vec<Frame>,
}

#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
struct Frame {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Sampled {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    /// Stacks, outermost frame first.
    samples: Vec<Vec<u32>>,
    weights: Vec<u64>,
}

/// speedscope's JSON.
pub struct Speedscope;

impl Format<Profile> for Speedscope {
    fn name(&self) -> &'static str {
        "speedscope"
    }

    fn nature(&self) -> Nature {
        Nature::Json
    }

    fn write(&self, profile: &Profile, options: &FormatOptions, out: &mut dyn Write) -> Result<()> {
        let Frames {
            list: frames,
            of_frame,
        } = Frames::new(profile);
        let choices = [Unit::Bytes, Unit::Blocks]
            .into_iter()
            .flat_map(|unit| Measure::ALL.map(|measure| (measure, unit)));
        let mut profiles = Vec::new();
        let mut active = 0;
        for (measure, unit) in choices {
            if (measure, unit) == (options.measure, options.unit) {
                active = profiles.len();
            }
            profiles.push(sampled(profile, measure, unit, &of_frame));
        }
        let file = File {
            schema: "https://www.speedscope.app/file-format-schema.json",
            name: format!(
                "{} ({}){}",
                profile.target.name,
                profile.target.pid,
                gaps::in_words(&profile.gaps).map_or(String::new(), |gaps| format!(". {gaps}"))
            ),
            exporter: concat!("memhook-rs ", env!("CARGO_PKG_VERSION")).into(),
            active_profile_index: active,
            shared: Shared { frames },
            profiles,
        };
        serde_json::to_writer(&mut *out, &file)?;
        writeln!(out)
    }
}

/// Functions and lines without duplicates: speedscope sums up equal frames.
struct Frames {
    /// Frames. The first frame represents stacks without frames.
    list: Vec<Frame>,
    /// Index in `list` of each frame of the profile.
    of_frame: Vec<u32>,
}

impl Frames {
    fn new(profile: &Profile) -> Frames {
        let mut list = vec![Frame {
            name: NO_STACK.into(),
            file: None,
            line: None,
        }];
        let mut known: HashMap<Frame, u32> = HashMap::new();
        let frames = profile.frames.iter().map(|frame| {
            let frame = Frame {
                name: name(&frame.frame),
                file: frame.frame.file.clone(),
                line: frame.frame.line,
            };
            *known.entry(frame).or_insert_with_key(|frame| {
                list.push(frame.clone());
                list.len() as u32 - 1
            })
        });
        let of_frame = frames.collect();
        Frames { list, of_frame }
    }
}

fn sampled(profile: &Profile, measure: Measure, unit: Unit, of_frame: &[u32]) -> Sampled {
    let (mut samples, mut weights) = (Vec::new(), Vec::new());
    for site in &profile.sites {
        let value = unit.of(measure.of(&site.measures));
        if value == 0 {
            continue;
        }
        let frames = profile.stacks.get(site.stack as usize);
        let frames = frames.into_iter().flatten().rev();
        let mut stack: Vec<u32> = frames.map(|&frame| of_frame[frame as usize]).collect();
        if stack.is_empty() {
            stack.push(0);
        }
        samples.push(stack);
        weights.push(value);
    }
    Sampled {
        r#type: "sampled",
        name: format!("{}, {}", measure.name(), unit.name()),
        unit: match unit {
            Unit::Bytes => "bytes",
            Unit::Blocks | Unit::Calls => "none",
        },
        start_value: 0,
        end_value: weights.iter().sum(),
        samples,
        weights,
    }
}
