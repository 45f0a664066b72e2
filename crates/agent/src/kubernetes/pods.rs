//! Pods of this machine, indexed by their ids, and the pod of a process.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Annotation with which a pod opts out, or opts in if a rule requires pods to do so.
pub const ANNOTATION: &str = "memhook-rs/trace";
/// Time for which a pod is remembered after the kubelet last listed it. A newly started kubelet
/// lists no pods, and that must not make the agent leave the pods' processes.
const KEPT: Duration = Duration::from_secs(300);
/// Maximum length of a pod's id. Ids of static pods are hashes of 32 digits, and all others are
/// UUIDs.
const MOST_OF_A_UID: usize = 64;

/// Consent of a pod to being traced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consent {
    /// The pod has no annotation about tracing.
    #[default]
    Unsaid,
    /// The pod opts in.
    In,
    /// The pod opts out.
    Out,
    /// The annotation has another value.
    Unclear,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Id of the pod.
    pub uid: String,
    /// Name of the pod.
    pub name: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Kind of the object that the pod belongs to, in lower case, such as `deployment`; empty if
    /// there is none.
    pub workload_type: String,
    /// The name of that object.
    pub workload: String,
    /// Consent of the pod.
    pub consent: Consent,
    /// Names of the pod's containers by their ids.
    pub containers: Vec<(String, String)>,
}

/// Place of a process, if the agent asks the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// The process is in no pod, or the agent does not ask the kubelet.
    #[default]
    NoPod,
    /// The process is in a pod that the kubelet has not listed yet, so it is unknown whether the
    /// pod consents.
    Unknown,
    /// The process is in this pod.
    Pod(Arc<Pod>),
}

impl Place {
    /// Returns the pod, if it is known.
    pub fn pod(&self) -> Option<&Pod> {
        match self {
            Place::Pod(pod) => Some(pod),
            Place::NoPod | Place::Unknown => None,
        }
    }
}

/// Pods that were listed, recently or now.
#[derive(Clone, Debug, Default)]
pub struct Pods {
    by_uid: HashMap<String, (Arc<Pod>, Instant)>,
}

impl Pods {
    /// Returns the listed pods, and earlier pods that are not forgotten yet.
    pub fn with(&self, listed: Vec<Pod>, now: Instant) -> Pods {
        let is_kept = |(_, (_, seen)): &(&String, &(Arc<Pod>, Instant))| {
            now.saturating_duration_since(*seen) < KEPT
        };
        let before = self.by_uid.iter().filter(is_kept);
        let mut by_uid: HashMap<_, _> = before
            .map(|(uid, known)| (uid.clone(), known.clone()))
            .collect();
        for pod in listed {
            by_uid.insert(pod.uid.clone(), (Arc::new(pod), now));
        }
        Pods { by_uid }
    }

    /// Returns the number of pods.
    pub fn count(&self) -> usize {
        self.by_uid.len()
    }

    /// Returns true if a pod is known.
    pub fn has(&self, uid: &str) -> bool {
        self.by_uid.contains_key(uid)
    }

    /// Returns the place of a process, given the pod that its control group names.
    pub fn place(&self, uid: Option<&str>) -> Place {
        match uid {
            None => Place::NoPod,
            Some(uid) => self
                .by_uid
                .get(uid)
                .map_or(Place::Unknown, |(pod, _)| Place::Pod(Arc::clone(pod))),
        }
    }
}

impl Pod {
    /// Returns the name of a container.
    pub fn container(&self, id: &str) -> Option<&str> {
        let found = self.containers.iter().find(|(of, _)| of == id);
        found.map(|(_, name)| name.as_str())
    }
}

/// Returns the id of the pod that a control group belongs to, from the text of /proc/PID/cgroup.
/// The kubelet names groups `kubepods/burstable/podUID`, or with systemd
/// `kubepods-burstable-podUID.slice`, in which `_` stands for `-` (pkg/kubelet/cm in its source).
pub fn pod_uid(groups: &str) -> Option<String> {
    let of_line = |line: &str| {
        let (_, below) = line.split_once("kubepods")?;
        below
            .split('/')
            .find_map(|part| match part.strip_suffix(".slice") {
                Some(slice) => uid(&slice.rsplit_once("-pod")?.1.replace('_', "-")),
                None => uid(part.strip_prefix("pod")?),
            })
    };
    groups.lines().find_map(of_line)
}

/// Returns the text, if it is a possible id.
fn uid(text: &str) -> Option<String> {
    let is_of_uid = |c: char| c.is_ascii_hexdigit() || c == '-';
    let is_uid = (8..=MOST_OF_A_UID).contains(&text.len()) && text.chars().all(is_of_uid);
    is_uid.then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0b5ae3f3-6e6d-4d4f-a9ac-1f2d3c4b5a69";

    #[test]
    fn a_group_names_its_pod_whoever_made_it() {
        let id = "0123456789abcdef".repeat(4);
        let slice = UID.replace('-', "_");
        for groups in [
            format!("0::/kubepods/burstable/pod{UID}/{id}\n"),
            format!("0::/kubepods/pod{UID}\n"),
            format!(
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/cri-containerd-{id}.scope\n"
            ),
            format!("0::/kubepods.slice/kubepods-pod{slice}.slice/crio-{id}.scope\n"),
            // In kind, nodes are containers themselves.
            format!(
                "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{slice}.slice/cri-containerd-{id}.scope\n"
            ),
            format!("12:cpu:/\n4:memory:/kubepods/besteffort/pod{UID}/{id}\n0::/\n"),
        ] {
            assert_eq!(pod_uid(&groups).as_deref(), Some(UID), "{groups}");
        }
        let hash = "0123456789abcdef".repeat(2);
        let groups = format!("0::/kubepods/burstable/pod{hash}/x\n");
        assert_eq!(pod_uid(&groups), Some(hash));
        for groups in [
            "0::/\n".to_owned(),
            "0::/kubepods.slice\n".into(),
            format!("0::/docker/pod{UID}\n"),
            "0::/kubepods/podcast/x\n".into(),
            format!("0::/kubepods/pod{UID}{UID}\n"),
            "0::/kubepods/pod../x\n".into(),
        ] {
            assert_eq!(pod_uid(&groups), None, "{groups}");
        }
    }

    /// A restarted kubelet lists no pods for a while.
    #[test]
    fn a_pod_is_known_for_a_while_after_it_was_listed_last() {
        let begin = Instant::now();
        let pod = |name: &str| Pod {
            uid: UID.into(),
            name: name.into(),
            ..Pod::default()
        };
        let name = |pods: &Pods| {
            let place = pods.place(Some(UID));
            place.pod().map(|pod| pod.name.clone())
        };
        let pods = Pods::default().with(vec![pod("a")], begin);
        let pods = pods.with(vec![pod("b")], begin + Duration::from_secs(1));
        assert_eq!(name(&pods).as_deref(), Some("b"));
        let pods = pods.with(Vec::new(), begin + KEPT);
        assert_eq!(name(&pods).as_deref(), Some("b"));
        let pods = pods.with(Vec::new(), begin + KEPT + Duration::from_secs(1));
        assert_eq!((name(&pods), pods.count()), (None, 0));
        assert_eq!(pods.place(Some(UID)), Place::Unknown);
        assert_eq!(pods.place(None), Place::NoPod);
    }
}
