//! Which rule a process falls under.

use crate::config::{File, Rule};
use crate::facts::Facts;
use memhook_process::ControlGroup;
use std::sync::Arc;

/// Programs that a machine cannot do without, and that no rule matches: a process that holds up one of them holds
/// up everything. `never` in the configuration adds to them.
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
    /// Those of this configuration.
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

    /// The first rule that chooses this process; `parents` is the rule that its parent is traced by.
    pub fn of(&self, facts: &Facts, parents: Option<&Rule>) -> Option<Arc<Rule>> {
        if self.is_never(facts) {
            return None;
        }
        let chosen = self
            .rules
            .iter()
            .find(|(rule, group)| chooses(rule, group.as_ref(), facts));
        let inherits = parents.filter(|rule| rule.follow_forks);
        let inherited = || {
            self.rules
                .iter()
                .find(|(rule, _)| inherits.is_some_and(|p| p.is_same(rule)))
        };
        let (rule, _) = chosen.or_else(inherited)?;
        // Whatever its name is: it would be refused, and maps the regions of those that it traces.
        let attaches_itself = memhook_process::is_attacher(facts.pid) == Some(true);
        (!attaches_itself).then(|| Arc::clone(rule))
    }

    /// Why no rule chooses this process.
    pub fn why_not(&self, facts: &Facts) -> &'static str {
        if self.is_never(facts) {
            "never attached to"
        } else if memhook_process::is_attacher(facts.pid) == Some(true) {
            "memhook-rs itself"
        } else {
            "no rule fits"
        }
    }

    /// Whether it is a program that is never attached to.
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

/// Whether all that a rule says is true of a process.
fn chooses(rule: &Rule, group: Option<&ControlGroup>, facts: &Facts) -> bool {
    let is = |pattern: &Option<crate::config::Pattern>, text: Option<&str>| {
        pattern
            .as_ref()
            .is_none_or(|pattern| text.is_some_and(|text| pattern.matches(text)))
    };
    let names_program = |pattern: &crate::config::Pattern| {
        pattern.matches(&facts.name) || pattern.matches(facts.program())
    };
    is(&rule.executable, Some(&facts.executable))
        && rule.process.as_ref().is_none_or(names_program)
        && group.is_none_or(|group| group.has(&facts.groups))
        && is(&rule.container, facts.container.as_deref())
        && is(&rule.pod, facts.pod.as_deref())
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
