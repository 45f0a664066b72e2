//! The choice of a rule for a process.

use crate::config::{File, Rule};
use crate::facts::{Facts, ItsFiles};
use crate::kubernetes::{Consent, Place};
use memhook_process::ControlGroup;
use std::sync::Arc;

/// Programs that a machine cannot run without. No rule ever matches them, because stopping one of
/// them would stop the whole machine. `never` in the configuration adds to this list.
pub const NEVER: [&str; 11] = [
    "memhook-rs",
    "systemd",
    "systemd-journald",
    "systemd-udevd",
    "dbus-daemon",
    "sshd",
    "init",
    "containerd",
    "containerd-shim-runc-v2",
    "dockerd",
    "kubelet",
];

/// The compiled rules of a configuration.
pub struct Rules {
    rules: Vec<(Arc<Rule>, Option<ControlGroup>)>,
    never: Vec<crate::config::Pattern>,
}

impl Rules {
    /// Compiles the rules of this configuration.
    pub fn new(file: &File) -> Rules {
        let rules = file.rule.iter().map(|rule| {
            let rule = Arc::new(rule.get_ref().clone());
            let group = rule.cgroup.as_deref().map(ControlGroup::named);
            (rule, group)
        });
        Rules {
            rules: rules.collect(),
            never: file.agent.never.clone(),
        }
    }

    /// Returns the first rule that chooses this process. `parents` is the rule by which the
    /// process's parent is traced.
    pub fn of(&self, facts: &Facts, parents: Option<&Rule>) -> Option<Arc<Rule>> {
        if self.is_never(facts) || refusal(facts).is_some() {
            return None;
        }
        let chosen = self.rules.iter().find(|(rule, group)| {
            chooses(rule, group.as_ref(), facts) && (!rule.opt_in || opts_in(facts))
        });
        let inherits = parents.filter(|rule| rule.follow_forks);
        let inherited = || {
            self.rules
                .iter()
                .find(|(rule, _)| inherits.is_some_and(|p| p.is_same(rule)))
        };
        let (rule, _) = chosen.or_else(inherited)?;
        // A process that traces others is skipped whatever its name, because it maps the regions of
        // its targets and an attach to it would be refused.
        (!facts.attaches_to_others()).then(|| Arc::clone(rule))
    }

    /// Returns the reason why no rule chooses this process.
    pub fn why_not(&self, facts: &Facts) -> &'static str {
        if self.is_never(facts) {
            "never attached to"
        } else if facts.attaches_to_others() {
            "memhook-rs itself"
        } else if facts.files == ItsFiles::Silent {
            "its files do not answer"
        } else if let Some(refusal) = refusal(facts) {
            refusal
        } else if self
            .rules
            .iter()
            .any(|(rule, group)| rule.opt_in && chooses(rule, group.as_ref(), facts))
        {
            "its pod does not opt in"
        } else {
            "no rule fits"
        }
    }

    /// Returns true for a program that is never attached to.
    pub fn is_never(&self, facts: &Facts) -> bool {
        let names = [
            facts.name.as_str(),
            facts.program(),
            facts.executable.as_str(),
        ];
        facts.pid == 1
            || names.iter().any(|name| NEVER.contains(name))
            || self
                .never
                .iter()
                .any(|never| names.iter().any(|name| never.matches(name)))
    }

    #[cfg(test)]
    fn all(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.rules.iter().map(|(rule, _)| rule)
    }
}

/// Returns the reason why a process's pod keeps it from being traced, regardless of the rules. A
/// process is left alone while the kubelet has not listed its pod.
fn refusal(facts: &Facts) -> Option<&'static str> {
    match &facts.place {
        Place::NoPod => None,
        Place::Unknown => Some("the kubelet has not listed its pod"),
        Place::Pod(pod) => match pod.consent {
            Consent::Out => Some("its pod opts out"),
            Consent::Unclear => Some("its pod's annotation is neither \"true\" nor \"false\""),
            Consent::Unsaid | Consent::In => None,
        },
    }
}

fn opts_in(facts: &Facts) -> bool {
    let pod = facts.place.pod();
    pod.is_some_and(|pod| pod.consent == Consent::In)
}

/// Returns true if a rule matches a process, regardless of its pod's decision.
fn chooses(rule: &Rule, group: Option<&ControlGroup>, facts: &Facts) -> bool {
    let is = |pattern: &Option<crate::config::Pattern>, text: Option<&str>| {
        pattern
            .as_ref()
            .is_none_or(|pattern| text.is_some_and(|text| pattern.matches(text)))
    };
    let is_of = |pattern: &toml::Spanned<crate::config::Pattern>| {
        let pod = facts.place.pod().filter(|pod| !pod.workload.is_empty());
        pod.is_some_and(|pod| {
            let both = format!("{}/{}", pod.workload_type, pod.workload);
            pattern.get_ref().matches(&pod.workload) || pattern.get_ref().matches(&both)
        })
    };
    let names_program = |pattern: &crate::config::Pattern| {
        pattern.matches(&facts.name) || pattern.matches(facts.program())
    };
    is(&rule.executable, Some(&facts.executable))
        && rule.process.as_ref().is_none_or(names_program)
        && group.is_none_or(|group| group.has(&facts.groups))
        && is(&rule.container, facts.container.as_deref())
        && is(&rule.pod, facts.pod.as_deref())
        && is(&rule.namespace, facts.namespace.as_deref())
        && rule.workload.as_ref().is_none_or(is_of)
        && rule.memory_above.is_none_or(|size| facts.resident > size.0)
        && rule.uid.is_none_or(|uid| uid == facts.uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::read;

    fn rules(text: &str) -> Rules {
        let path =
            std::env::temp_dir().join(format!("memhook-rules-{}-{:p}", std::process::id(), text));
        std::fs::write(&path, text).expect("written");
        let file = read(&path, crate::config::Experiments::default());
        std::fs::remove_file(&path).expect("removed");
        Rules::new(&file.expect("right"))
    }

    fn nginx() -> Facts {
        Facts {
            pid: 7,
            name: "nginx".into(),
            executable: "/usr/sbin/nginx".into(),
            groups: "0::/web/a\n".into(),
            uid: 33,
            resident: 5 << 20,
            pod: Some("front-1".into()),
            ..Facts::default()
        }
    }

    #[test]
    fn all_that_a_rule_says_must_be_true() {
        for (says, holds) in [
            ("process = \"nginx\"", true),
            ("process = \"ngin*\"", true),
            ("process = \"redis\"", false),
            ("executable = \"/usr/*/nginx\"", true),
            ("executable = \"nginx\"", false),
            ("cgroup = \"/web\"", true),
            ("cgroup = \"/we\"", false),
            ("memory_above = \"4M\"", true),
            ("memory_above = \"5M\"", false),
            ("uid = 33", true),
            ("uid = 0", false),
            ("pod = \"front-*\"", true),
            ("container = \"*\"", false),
            ("process = \"nginx\"\nuid = 0", false),
        ] {
            let rules = rules(&format!("[[rule]]\nname = \"x\"\n{says}\n"));
            assert_eq!(rules.of(&nginx(), None).is_some(), holds, "{says}");
        }
    }

    /// Returns facts of a process in a pod of the deployment `web` in the namespace `shop`.
    fn in_pod(consent: Consent) -> Facts {
        let pod = crate::kubernetes::Pod {
            workload_type: "deployment".into(),
            workload: "web".into(),
            consent,
            ..crate::kubernetes::Pod::default()
        };
        Facts {
            namespace: Some("shop".into()),
            place: Place::Pod(Arc::new(pod)),
            ..nginx()
        }
    }

    #[test]
    fn a_pod_has_the_last_word() {
        let unknown = Facts {
            place: Place::Unknown,
            ..nginx()
        };
        let [unsaid, opts_in, out, unclear] =
            [Consent::Unsaid, Consent::In, Consent::Out, Consent::Unclear].map(in_pod);
        let kubelet = "[kubernetes]\nkubelet = \"https://x\"\n";
        let plain = rules(&format!("{kubelet}[[rule]]\nname = \"x\"\nuid = 33\n"));
        let asked = rules(&format!(
            "{kubelet}[[rule]]\nname = \"x\"\nuid = 33\nopt_in = true\n"
        ));
        for (facts, by_plain, by_asked, why) in [
            (nginx(), true, false, "its pod does not opt in"),
            (unknown, false, false, "the kubelet has not listed its pod"),
            (unsaid, true, false, "its pod does not opt in"),
            (opts_in, true, true, ""),
            (out, false, false, "its pod opts out"),
            (
                unclear,
                false,
                false,
                "its pod's annotation is neither \"true\" nor \"false\"",
            ),
        ] {
            assert_eq!(plain.of(&facts, None).is_some(), by_plain, "{facts:?}");
            assert_eq!(asked.of(&facts, None).is_some(), by_asked, "{facts:?}");
            if !by_asked {
                assert_eq!(asked.why_not(&facts), why);
            }
            // A child in the pod is not traced either, although its parent is.
            let parents = Arc::clone(plain.all().next().expect("one"));
            let child = Facts { uid: 0, ..facts };
            assert_eq!(plain.of(&child, Some(&parents)).is_some(), by_plain);
        }
    }

    #[test]
    fn rules_go_by_namespace_and_workload() {
        for (says, holds) in [
            ("namespace = \"sh*\"", true),
            ("namespace = \"bank\"", false),
            ("workload = \"web\"", true),
            ("workload = \"deployment/*\"", true),
            ("workload = \"statefulset/*\"", false),
            ("opt_in = true", false),
        ] {
            let rules = rules(&format!(
                "[kubernetes]\nkubelet = \"https://x\"\n[[rule]]\nname = \"x\"\n{says}\n"
            ));
            let found = rules.of(&in_pod(Consent::Unsaid), None);
            assert_eq!(found.is_some(), holds, "{says}");
            assert!(rules.of(&nginx(), None).is_none());
        }
    }

    #[test]
    fn some_programs_are_never_chosen() {
        let all = "[agent]\nnever = [\"bank*\"]\n[[rule]]\nname = \"x\"\nexecutable = \"*\"\n";
        let rules = rules(all);
        let named = |name: &str, pid| Facts {
            pid,
            name: name.into(),
            executable: format!("/usr/bin/{name}"),
            ..Facts::default()
        };
        assert!(rules.of(&named("nginx", 7), None).is_some());
        for (name, pid) in [
            ("sshd", 7),
            ("nginx", 1),
            ("bank-core", 7),
            ("systemd", 900),
        ] {
            assert!(rules.of(&named(name, pid), None).is_none(), "{name}");
        }
    }

    #[test]
    fn the_first_rule_counts_and_children_follow() {
        let two = "[[rule]]\nname = \"a\"\nprocess = \"nginx\"\n[[rule]]\nname = \"b\"\nuid = 33\nfollow_forks = false\n";
        let rules = rules(two);
        let name = |rule: Option<Arc<Rule>>| rule.map(|rule| rule.name.get_ref().clone());
        assert_eq!(name(rules.of(&nginx(), None)).as_deref(), Some("a"));
        let helper = Facts {
            pid: 8,
            name: "sh".into(),
            executable: "/bin/sh".into(),
            ..Facts::default()
        };
        assert_eq!(rules.of(&helper, None), None);
        let [a, b] = [0, 1].map(|i| Arc::clone(rules.all().nth(i).expect("two")));
        assert_eq!(name(rules.of(&helper, Some(&a))).as_deref(), Some("a"));
        assert_eq!(rules.of(&helper, Some(&b)), None);
    }
}
