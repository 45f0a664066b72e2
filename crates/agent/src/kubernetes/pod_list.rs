//! The kubelet's list of pods: a `PodList` of Kubernetes' core/v1. Only a few of its fields are
//! read. Names of containers and their owners are untrusted, so their length is limited, and they
//! must be valid Kubernetes names.

use super::pods::{Consent, Pod};
use serde::Deserialize;

/// Maximum number of pods in a list. A kubelet has 110 by default, and a few hundred at most.
const MOST_PODS: usize = 4096;
/// Maximum number of containers of a pod.
const MOST_CONTAINERS: usize = 256;
/// Maximum length of a name (RFC 1123, as applied by Kubernetes).
const MOST_OF_A_NAME: usize = 253;

#[derive(Deserialize)]
struct PodList {
    #[serde(default)]
    items: Option<Vec<Item>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Item {
    metadata: Metadata,
    status: Status,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    uid: String,
    annotations: Option<Annotations>,
    labels: Option<Labels>,
    owner_references: Option<Vec<Owner>>,
}

#[derive(Deserialize)]
struct Annotations {
    #[serde(rename = "memhook-rs/trace")]
    trace: Option<String>,
}

#[derive(Deserialize)]
struct Labels {
    #[serde(rename = "pod-template-hash")]
    pod_template_hash: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Owner {
    kind: String,
    name: String,
    controller: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    container_statuses: Option<Vec<Container>>,
    init_container_statuses: Option<Vec<Container>>,
    ephemeral_container_statuses: Option<Vec<Container>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Container {
    name: String,
    #[serde(rename = "containerID")]
    id: String,
}

/// Parses the pods of a list. A pod with invalid names is omitted, so its processes are never
/// traced.
pub fn read(json: &[u8]) -> Result<Vec<Pod>, String> {
    let list: PodList = serde_json::from_slice(json)
        .map_err(|error| format!("it is not a list of pods: {error}"))?;
    let Some(items) = list.items else {
        return Err("it is not a list of pods: there are no items".into());
    };
    Ok(items.into_iter().take(MOST_PODS).filter_map(pod).collect())
}

fn pod(item: Item) -> Option<Pod> {
    let Metadata {
        name,
        namespace,
        uid,
        annotations,
        labels,
        owner_references,
    } = item.metadata;
    if ![&name, &namespace, &uid]
        .into_iter()
        .all(|text| is_name(text))
    {
        return None;
    }
    let owners = owner_references.unwrap_or_default();
    let owner = owners.into_iter().find(|owner| owner.controller);
    let hash = labels.and_then(|labels| labels.pod_template_hash);
    let (workload_type, workload) = workload(owner.as_ref(), hash.as_deref());
    let trace = annotations.and_then(|annotations| annotations.trace);
    let Status {
        container_statuses,
        init_container_statuses,
        ephemeral_container_statuses,
    } = item.status;
    let containers = [
        container_statuses,
        init_container_statuses,
        ephemeral_container_statuses,
    ];
    let containers = containers.into_iter().flatten().flatten();
    let containers = containers.filter_map(|container| {
        // The id has the form `containerd://ID`, and is empty before the container runs.
        let (_, id) = container.id.split_once("://")?;
        (is_name(&container.name) && is_name(id)).then(|| (id.to_owned(), container.name))
    });
    Some(Pod {
        containers: containers.take(MOST_CONTAINERS).collect(),
        uid,
        name,
        namespace,
        workload_type,
        workload,
        consent: match trace.as_deref() {
            None => Consent::Unsaid,
            Some("true") => Consent::In,
            Some("false") => Consent::Out,
            Some(_) => Consent::Unclear,
        },
    })
}

/// Returns the kind and name of the object that a pod belongs to. Between a Deployment and its pods
/// there is a ReplicaSet, which is named after the Deployment and the hash that is a label of the
/// pods. Between a CronJob and its pods there is a Job, which is named after the CronJob and the
/// minute for which it was scheduled (`getJobName` in the kube-controller-manager's cronjob).
fn workload(owner: Option<&Owner>, hash: Option<&str>) -> (String, String) {
    let Some(owner) = owner.filter(|owner| is_name(&owner.name) && is_kind(&owner.kind)) else {
        return (String::new(), String::new());
    };
    let of = |kind: &str, name: &str| (kind.to_ascii_lowercase(), name.to_owned());
    let before = owner.name.rsplit_once('-');
    let before = before.filter(|(name, _)| !name.is_empty());
    match (owner.kind.as_str(), before) {
        ("ReplicaSet", Some((name, end))) if Some(end) == hash => of("deployment", name),
        ("Job", Some((name, end))) if is_minute(end) => of("cronjob", name),
        _ => of(&owner.kind, &owner.name),
    }
}

/// Returns true for minutes since 1970, which have eight digits from 1989 to 2160.
fn is_minute(text: &str) -> bool {
    text.len() == 8 && text.bytes().all(|b| b.is_ascii_digit())
}

fn is_kind(kind: &str) -> bool {
    (1..=63).contains(&kind.len()) && kind.bytes().all(|b| b.is_ascii_alphanumeric())
}

fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    (1..=MOST_OF_A_NAME).contains(&name.len()) && name.chars().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(metadata: &str, status: &str) -> Vec<Pod> {
        let text = format!(
            r#"{{"kind":"PodList","items":[{{"metadata":{{"name":"web-1","namespace":"shop","uid":"0b5ae3f3"{metadata}}},
               "spec":{{"containers":[]}},"status":{{{status}}}}}]}}"#
        );
        read(text.as_bytes()).expect("a list")
    }

    #[test]
    fn the_workload_is_what_people_have_made() {
        let of = |kind: &str, name: &str, hash: &str| {
            let found = one(
                &format!(
                    r#","labels":{{"pod-template-hash":"{hash}"}},"ownerReferences":[{{"kind":"Node","name":"n"}},
                       {{"apiVersion":"apps/v1","kind":"{kind}","name":"{name}","controller":true}}]"#
                ),
                "",
            );
            format!("{}/{}", found[0].workload_type, found[0].workload)
        };
        for (kind, name, hash, is) in [
            ("ReplicaSet", "web-5d4f8c7b9", "5d4f8c7b9", "deployment/web"),
            (
                "ReplicaSet",
                "web-5d4f8c7b9",
                "",
                "replicaset/web-5d4f8c7b9",
            ),
            ("ReplicaSet", "-x", "x", "replicaset/-x"),
            ("Job", "backup-29012345", "", "cronjob/backup"),
            ("Job", "backup-once", "", "job/backup-once"),
            ("StatefulSet", "db", "", "statefulset/db"),
            ("Rollout", "web", "", "rollout/web"),
            ("Bad kind", "web", "", "/"),
            ("Rollout", "a b", "", "/"),
        ] {
            assert_eq!(of(kind, name, hash), is, "{kind} {name} {hash}");
        }
        assert_eq!(one("", "")[0].workload, "");
    }

    #[test]
    fn containers_and_consent_are_read() {
        for (annotation, consent) in [
            (
                r#","annotations":{"memhook-rs/trace":"false","a":"b"}"#,
                Consent::Out,
            ),
            (r#","annotations":{"memhook-rs/trace":"true"}"#, Consent::In),
            (
                r#","annotations":{"memhook-rs/trace":"no"}"#,
                Consent::Unclear,
            ),
            (r#","annotations":{"a":"false"}"#, Consent::Unsaid),
            (r#","annotations":null"#, Consent::Unsaid),
            ("", Consent::Unsaid),
        ] {
            assert_eq!(one(annotation, "")[0].consent, consent, "{annotation}");
        }
        let status = r#""containerStatuses":[{"name":"app","containerID":"containerd://aa"},{"name":"starts","containerID":""}],
            "initContainerStatuses":[{"name":"init","containerID":"cri-o://bb"}],
            "ephemeralContainerStatuses":[{"name":"e\n","containerID":"containerd://cc"}]"#;
        let pod = &one("", status)[0];
        assert_eq!(pod.container("aa"), Some("app"));
        assert_eq!(pod.container("bb"), Some("init"));
        assert_eq!(pod.containers.len(), 2);
    }

    #[test]
    fn what_is_no_list_is_refused_and_what_is_no_name_left_out() {
        for text in [
            "",
            "Unauthorized",
            "{}",
            "[]",
            "{\"items\":7}",
            "{\"items\":[{\"metadata\":[]}",
        ] {
            let why = read(text.as_bytes()).expect_err(text);
            assert!(why.contains("not a list of pods"), "{why}");
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(read(format!("{{\"items\":{deep}}}").as_bytes()).is_err());
        assert!(read(b"{\"items\":[]}").expect("a list").is_empty());
        let long = "x".repeat(MOST_OF_A_NAME + 1);
        for name in ["", "a\\u001b[0m", "a b", "../a", &long] {
            let text = format!(
                r#"{{"items":[{{"metadata":{{"name":"{name}","namespace":"shop","uid":"1"}}}}]}}"#
            );
            let found = read(text.as_bytes()).expect("a list");
            assert_eq!(found.len(), 0, "{name}");
        }
        let many = vec![r#"{"metadata":{"name":"a","namespace":"b","uid":"c"}}"#; MOST_PODS + 5];
        let text = format!("{{\"items\":[{}]}}", many.join(","));
        assert_eq!(read(text.as_bytes()).expect("a list").len(), MOST_PODS);
    }
}
