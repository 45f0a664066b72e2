//! Facts from Kubernetes about the processes of this machine: names, workloads and annotations of
//! their pods, from the kubelet, and the share of each namespace.
//!
//! The pod of a process follows from the process's control group, which the kubelet created and no
//! container can change. Names in a container's own files could be forged.

mod kubelet;
mod namespaces;
mod pod_list;
mod pods;

pub use kubelet::{Kubelet, ask, is_same_server};
pub use namespaces::{Namespaces, limits_in_words, limits_of};
#[cfg(test)]
pub use pods::Pod;
pub use pods::{Consent, Place, Pods, pod_uid};

use crate::config::File;

/// Describes a configuration's choices for pods and namespaces, one line each.
pub fn notes(file: &File) -> Vec<String> {
    let Some(kubernetes) = &file.kubernetes else {
        return Vec::new();
    };
    let wants = format!("with the annotation {}", pods::ANNOTATION);
    let mut notes = vec![format!(
        "a pod {wants} = \"false\" is left alone, and so is one that the kubelet has not listed"
    )];
    for rule in file.rule.iter().map(toml::Spanned::get_ref) {
        if rule.opt_in {
            let name = rule.name.get_ref();
            notes.push(format!(
                "the rule \"{name}\" takes pods {wants} = \"true\" only"
            ));
        }
    }
    for limits in &kubernetes.get_ref().namespace {
        notes.push(format!(
            "each namespace like {}",
            limits_in_words(limits.get_ref())
        ));
    }
    notes
}
