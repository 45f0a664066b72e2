//! Requests to OpenTelemetry collectors: `ProfilesService/Export` over HTTP. The protocol is an
//! alpha, so the messages and the path may change with each of its releases.

use super::Common;
use super::pyroscope::{MOST_BYTES, MOST_SAMPLES, bounded, gzip, shortened};
use crate::board::Identity;
use memhook_report::{OtlpSource, Profile, otlp_request};
use prost::Message;
use std::hash::{BuildHasher, RandomState};

/// Path below the address of the collector.
pub const PATH: &str = "/v1development/profiles";
const VALUES: [&str; 4] = [
    "alloc_objects",
    "alloc_space",
    "inuse_objects",
    "inuse_space",
];

/// `ExportProfilesServiceResponse`
#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_profiles: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

/// Returns the headers of a request, in addition to the configured ones.
pub fn headers() -> Vec<(&'static str, String)> {
    vec![
        ("Content-Type", "application/x-protobuf".into()),
        ("Content-Encoding", "gzip".into()),
    ]
}

/// Returns a request, gzipped.
pub fn request(profile: &Profile, identity: &Identity, common: &Common) -> Vec<u8> {
    // The size of a request is limited as for Pyroscope, which accepts 4 MiB, because many
    // receivers behind collectors have the same limit.
    let source = OtlpSource {
        attributes: attributes(identity, common),
        values: &VALUES,
        id: unique(),
    };
    let [made] = bounded(profile, MOST_SAMPLES, MOST_BYTES, |profile| {
        [otlp_request(profile, &source)]
    });
    gzip(&made)
}

/// Returns sixteen unique bytes, seeded by the system.
fn unique() -> [u8; 16] {
    let halves = [(); 2].map(|()| {
        RandomState::new()
            .hash_one(std::process::id())
            .to_ne_bytes()
    });
    let mut id = [0; 16];
    id[..8].copy_from_slice(&halves[0]);
    id[8..].copy_from_slice(&halves[1]);
    id
}

/// Returns the identity of the process by semantic conventions. As with other stores, it does not
/// contain a process id.
fn attributes(identity: &Identity, common: &Common) -> Vec<(String, String)> {
    let own = [
        ("service.name", &identity.service),
        // This is the default namespace of a pod's service (semantic conventions, "service
        // attributes").
        ("service.namespace", &identity.namespace),
        ("service.version", &identity.version),
        ("k8s.namespace.name", &identity.namespace),
        ("k8s.pod.name", &identity.pod),
        ("k8s.pod.uid", &identity.pod_uid),
        ("k8s.container.name", &identity.container_name),
        ("container.id", &identity.container),
        ("host.name", &common.host),
        ("process.executable.name", &identity.process),
    ];
    let own = own.map(|(name, value)| (name.to_owned(), value.clone()));
    // The conventions have a name for each of Kubernetes' own kinds of workload. Names for others
    // follow their pattern.
    let kind = &identity.workload_type;
    let workload =
        (!kind.is_empty()).then(|| (format!("k8s.{kind}.name"), identity.workload.clone()));
    own.into_iter()
        .chain(workload)
        .chain(common.labels.iter().cloned())
        .map(|(name, value)| (name, shortened(&value)))
        .collect()
}

/// Returns the part of a successful request that a collector rejected.
pub fn refused(answer: &[u8]) -> Option<String> {
    let partial = Response::decode(answer).ok()?.partial_success?;
    (partial.rejected_profiles > 0).then(|| {
        let words = partial.error_message.split_whitespace();
        let said: String = words
            .collect::<Vec<_>>()
            .join(" ")
            .chars()
            .take(200)
            .collect();
        format!(
            "it rejects {} of its values: {said}",
            partial.rejected_profiles
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_success_is_a_refusal() {
        let answer = |rejected_profiles| {
            let partial_success = Some(PartialSuccess {
                rejected_profiles,
                error_message: "too\nmany".into(),
            });
            refused(&Response { partial_success }.encode_to_vec())
        };
        assert_eq!(
            answer(2).as_deref(),
            Some("it rejects 2 of its values: too many")
        );
        assert_eq!(answer(0), None);
        assert_eq!(refused(b""), None);
        assert_eq!(refused(b"{}"), None);
    }

    #[test]
    fn attributes_follow_the_conventions() {
        let identity = Identity {
            pid: 4711,
            service: "shop".into(),
            process: "served".into(),
            workload_type: "deployment".into(),
            workload: "web".into(),
            ..Identity::default()
        };
        let common = Common {
            host: "one".into(),
            labels: vec![
                ("region".into(), "eu".into()),
                ("long".into(), "€".repeat(1000)),
            ],
        };
        let found = attributes(&identity, &common);
        let has = |name: &str, value: &str| found.contains(&(name.into(), value.into()));
        assert!(has("service.name", "shop") && has("process.executable.name", "served"));
        assert!(has("k8s.deployment.name", "web"));
        assert!(has("host.name", "one") && has("region", "eu") && has("k8s.pod.name", ""));
        assert!(!found.iter().any(|(_, value)| value.contains("4711")));
        // The text is cut between two characters.
        assert!(has("long", &"€".repeat(2048 / 3)));
    }
}
