//! Pushes to Grafana Pyroscope: `push.v1.PusherService/Push`, a unary call of the Connect protocol
//! (connectrpc.com/docs/protocol). The messages are defined in `push/v1/push.proto` and
//! `types/v1/types.proto`.

use super::Common;
use crate::board::Identity;
use flate2::{Compression, write::GzEncoder};
use memhook_report::{PprofShape, Profile, pprof};
use prost::Message;
use std::io::Write;

/// Path below the address of the store.
pub const PATH: &str = "/push.v1.PusherService/Push";
/// Maximum size of a profile that Pyroscope accepts by default
/// (`validation.max-profile-size-bytes`).
pub(super) const MOST_BYTES: usize = 4 << 20;
/// Maximum number of samples (`validation.max-profile-stacktrace-samples`).
pub(super) const MOST_SAMPLES: usize = 16_000;
/// Maximum length of a label's value (`validation.max-label-value-length`).
const MOST_OF_A_LABEL: usize = 2048;

/// Returns a shape without labels on samples, because each value of such a label would become a
/// separate series.
const fn shape(values: &'static [&'static str]) -> PprofShape {
    PprofShape {
        values,
        has_kinds: false,
        has_threads: false,
        has_comments: false,
    }
}

/// Shapes of the two profiles: live blocks at the end of the interval, and allocations within it.
const SHAPES: [PprofShape; 2] = [
    shape(&["inuse_objects", "inuse_space"]),
    shape(&["alloc_objects", "alloc_space"]),
];

#[derive(Clone, PartialEq, Message)]
struct PushRequest {
    #[prost(message, repeated, tag = "1")]
    series: Vec<RawProfileSeries>,
}

#[derive(Clone, PartialEq, Message)]
struct RawProfileSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelPair>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<RawSample>,
}

#[derive(Clone, PartialEq, Message)]
struct LabelPair {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct RawSample {
    #[prost(bytes = "vec", tag = "1")]
    raw_profile: Vec<u8>,
    #[prost(string, tag = "2")]
    id: String,
}

/// Returns the headers of a push, in addition to the configured ones.
pub fn headers() -> Vec<(&'static str, String)> {
    vec![
        ("Content-Type", "application/proto".into()),
        ("Content-Encoding", "gzip".into()),
        ("Connect-Protocol-Version", "1".into()),
    ]
}

/// Returns a push, ready to send.
pub fn push(profile: &Profile, identity: &Identity, common: &Common) -> Vec<u8> {
    let samples = profiles(profile)
        .into_iter()
        .map(|raw_profile| RawProfileSeries {
            labels: labels(identity, common),
            samples: vec![RawSample {
                raw_profile: gzip(&raw_profile),
                id: String::new(),
            }],
        });
    let request = PushRequest {
        series: samples.collect(),
    };
    gzip(&request.encode_to_vec())
}

/// Returns a profile within the limits of a store. The excess is combined into one site instead of
/// being left out.
pub(super) fn bounded<const N: usize>(
    profile: &Profile,
    most_samples: usize,
    most_bytes: usize,
    encode: impl Fn(&Profile) -> [Vec<u8>; N],
) -> [Vec<u8>; N] {
    let mut most = most_samples;
    let mut profile = profile.clone().with_fewer_sites(most);
    loop {
        let made = encode(&profile);
        if made.iter().all(|bytes| bytes.len() < most_bytes) || most < 2 {
            return made;
        }
        most = (most / 2).min(profile.sites.len() / 2).max(1);
        profile = profile.with_fewer_sites(most);
    }
}

fn profiles(profile: &Profile) -> [Vec<u8>; 2] {
    bounded(profile, MOST_SAMPLES, MOST_BYTES, |profile| {
        SHAPES.map(|shape| pprof(profile, &shape))
    })
}

/// Returns the identity of the process, without the process id, because each id would become a
/// separate series.
fn labels(identity: &Identity, common: &Common) -> Vec<LabelPair> {
    let own = [
        ("__name__", "memory"),
        // The store must not compute differences: live memory is not a sum over time, and
        // allocations are already limited to the interval.
        ("__delta__", "false"),
        ("service_name", &identity.service),
        ("namespace", &identity.namespace),
        ("pod", &identity.pod),
        ("container", &identity.container_name),
        ("workload", &identity.workload),
        ("workload_type", &identity.workload_type),
        ("host", &common.host),
        ("version", &identity.version),
    ];
    let configured = common
        .labels
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let mut labels: Vec<LabelPair> = own
        .into_iter()
        .chain(configured)
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| LabelPair {
            name: name.to_owned(),
            value: shortened(value),
        })
        .collect();
    labels.sort_by(|a, b| a.name.cmp(&b.name));
    labels
}

/// Returns the value of a label or an attribute, within the bounds of a store.
pub(super) fn shortened(value: &str) -> String {
    let mut end = value.len().min(MOST_OF_A_LABEL);
    while !value.is_char_boundary(end) {
        end -= 1;
    }
    value[..end].to_owned()
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing into memory cannot fail.
    let _ = packed.write_all(bytes);
    packed.finish().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memhook_report::{Amount, Measures, ProfileFrame, ProfileSite};

    fn large(sites: u64, name_bytes: usize) -> Profile {
        let mut profile = Profile::default();
        for number in 0..sites {
            let mut frame = ProfileFrame::cut_root();
            frame.address = number;
            frame.frame.function = Some(format!("{number:0name_bytes$}"));
            profile.frames.push(frame);
            profile.stacks.push(vec![number as u32]);
            let amount = Amount {
                blocks: 1,
                bytes: 2 * sites - number,
                ..Amount::default()
            };
            profile.sites.push(ProfileSite {
                stack: number as u32,
                measures: Measures {
                    live: amount,
                    allocated: amount,
                    ..Measures::default()
                },
                ..ProfileSite::default()
            });
        }
        profile
    }

    /// Returns the number of samples and the sums of the two values.
    fn sums(bytes: &[u8]) -> (usize, [i64; 2]) {
        #[derive(Clone, PartialEq, Message)]
        struct Sums {
            #[prost(message, repeated, tag = "2")]
            sample: Vec<Sample>,
        }
        #[derive(Clone, PartialEq, Message)]
        struct Sample {
            #[prost(int64, repeated, tag = "2")]
            value: Vec<i64>,
            #[prost(bytes = "vec", repeated, tag = "3")]
            label: Vec<Vec<u8>>,
        }
        let found = Sums::decode(bytes).expect("a profile");
        assert!(found.sample.iter().all(|sample| sample.label.is_empty()));
        let sum = |at: usize| found.sample.iter().map(|sample| sample.value[at]).sum();
        (found.sample.len(), [sum(0), sum(1)])
    }

    #[test]
    fn what_is_too_much_is_summed_up() {
        for (sites, name_bytes) in [(100, 10), (20_000, 10), (9_000, 1_000)] {
            let bytes: u64 = (0..sites).map(|number| 2 * sites - number).sum();
            for made in profiles(&large(sites, name_bytes)) {
                assert!(made.len() < MOST_BYTES);
                let (samples, found) = sums(&made);
                assert!(samples <= MOST_SAMPLES && samples > 0);
                assert_eq!(found, [sites as i64, bytes as i64], "{sites} {name_bytes}");
            }
        }
    }

    #[test]
    fn labels_say_who_but_not_which_process() {
        let identity = Identity {
            pid: 4711,
            service: "shop".into(),
            pod: "p".repeat(5000),
            ..Identity::default()
        };
        let common = Common {
            host: "one".into(),
            labels: vec![("region".into(), "eu".into())],
        };
        let found = labels(&identity, &common);
        let names: Vec<&str> = found.iter().map(|label| label.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "__delta__",
                "__name__",
                "host",
                "pod",
                "region",
                "service_name"
            ]
        );
        assert_eq!(found[3].value.len(), MOST_OF_A_LABEL);
        assert!(found.iter().all(|label| !label.value.contains("4711")));
    }
}
