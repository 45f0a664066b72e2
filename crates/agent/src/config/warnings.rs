//! Warnings about parts of a configuration that are valid but probably not what the author meant.

use super::{Fault, File, Kubernetes, Pattern, Rule, Store};
use crate::http_client::unusable_files;
use crate::rules::NEVER;
use crate::said::chain;

/// Returns places and texts, in the order of the file.
pub fn warnings(file: &File) -> Vec<Fault> {
    let mut found = Vec::new();
    for (at, spanned) in file.rule.iter().enumerate() {
        let rule = spanned.get_ref();
        let mut warn = |why: String| found.push((rule.name.span(), why));
        let earlier = file.rule[..at].iter().map(toml::Spanned::get_ref);
        let shadow = earlier.into_iter().find(|earlier| covers(earlier, rule));
        if let Some(earlier) = shadow {
            warn(format!(
                "the rule \"{}\" never matches: \"{}\" comes first and matches the same processes; move it up",
                rule.name.get_ref(),
                earlier.name.get_ref()
            ));
        }
        let names = [&rule.process, &rule.executable].into_iter().flatten();
        let is_never = |name: &&Pattern| {
            NEVER.contains(&name.0.as_str())
                || file.agent.never.iter().any(|never| is_within(name, never))
        };
        if let Some(name) = names.into_iter().find(is_never) {
            warn(format!(
                "the rule \"{}\" never matches: \"{}\" is never attached to",
                rule.name.get_ref(),
                name.0
            ));
        }
        // A whole line of /proc/PID/cgroup contains colons.
        if let Some(group) = &rule.cgroup
            && !group.starts_with('/')
            && !group.contains(':')
        {
            warn(format!(
                "cgroup = \"{group}\" is not an absolute path, and is treated as \"/{group}\""
            ));
        }
    }
    for store in [&file.pyroscope, &file.otlp].into_iter().flatten() {
        let Store {
            password_file,
            token_file,
            ca,
            ..
        } = store.get_ref();
        let secrets = [password_file, token_file].into_iter().flatten();
        for error in unusable_files(secrets, ca.as_deref()) {
            found.push((store.span(), chain(&error)));
        }
    }
    if let Some(kubernetes) = &file.kubernetes {
        of_kubernetes(file, kubernetes, &mut found);
    }
    found
}

fn of_kubernetes(file: &File, spanned: &toml::Spanned<Kubernetes>, found: &mut Vec<Fault>) {
    let kubernetes = spanned.get_ref();
    let token = &kubernetes.token_file;
    for error in unusable_files(token, kubernetes.ca.as_deref()) {
        found.push((spanned.span(), chain(&error)));
    }
    if token.is_some() && !kubernetes.kubelet.get_ref().starts_with("https://") {
        let why = "the token is sent to the kubelet without encryption: use https://";
        found.push((kubernetes.kubelet.span(), why.into()));
    }
    if kubernetes.namespace.is_empty() {
        return;
    }
    let all = *file.agent.max_targets.get_ref();
    for (at, namespace) in kubernetes.namespace.iter().enumerate() {
        let (name, limits) = (&namespace.get_ref().name, namespace.get_ref());
        let pattern = name.get_ref();
        let earlier = kubernetes.namespace[..at].iter();
        let mut earlier = earlier.map(|earlier| earlier.get_ref().name.get_ref());
        if let Some(earlier) = earlier.find(|earlier| is_within(pattern, earlier)) {
            let why = format!(
                "the limits for \"{}\" never apply: those for \"{}\" come first and match the same namespaces; move them up",
                pattern.0, earlier.0
            );
            found.push((name.span(), why));
        }
        if limits.max_targets.is_some_and(|most| most > all) {
            let why = format!(
                "each namespace like \"{}\" may have more targets than the agent, which has at most {all}",
                pattern.0
            );
            found.push((name.span(), why));
        }
        if limits
            .max_cpu
            .is_some_and(|share| share > file.agent.max_cpu)
        {
            let why = format!(
                "each namespace like \"{}\" may take more of the processors than the agent (its max_cpu)",
                pattern.0
            );
            found.push((name.span(), why));
        }
    }
}

/// Returns true if the first rule matches every process that the second one matches.
fn covers(first: &Rule, second: &Rule) -> bool {
    let pattern = |first: &Option<Pattern>, second: &Option<Pattern>| match (first, second) {
        (None, _) => true,
        (Some(first), Some(second)) => is_within(second, first),
        (Some(_), None) => false,
    };
    let workload = |rule: &Rule| rule.workload.as_ref().map(|w| w.get_ref().clone());
    let group = match (&first.cgroup, &second.cgroup) {
        (None, _) => true,
        (Some(first), Some(second)) => {
            let rest = second.strip_prefix(first.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        (Some(_), None) => false,
    };
    pattern(&first.executable, &second.executable)
        && pattern(&first.process, &second.process)
        && pattern(&first.container, &second.container)
        && pattern(&first.pod, &second.pod)
        && pattern(&first.namespace, &second.namespace)
        && pattern(&workload(first), &workload(second))
        && (!first.opt_in || second.opt_in)
        && group
        && first
            .memory_above
            .is_none_or(|size| second.memory_above.is_some_and(|other| other >= size))
        && first.uid.is_none_or(|uid| second.uid == Some(uid))
}

/// Returns true if `other` obviously matches everything that `one` matches. If `one` has a star and
/// `other` has a question mark, only equal patterns count, because the question mark would match
/// the star.
fn is_within(one: &Pattern, other: &Pattern) -> bool {
    let is_plain = !one.0.contains('*') || !other.0.contains('?');
    one == other || (is_plain && other.matches(&one.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Experiments, parse};

    fn says(text: &str) -> Vec<String> {
        let file = parse(text, Experiments::default()).expect("right");
        warnings(&file).into_iter().map(|(_, why)| why).collect()
    }

    #[test]
    fn a_rule_in_the_shadow_of_another_is_found() {
        for (first, second, is_shadowed) in [
            ("process = \"ngin*\"", "process = \"nginx\"", true),
            ("process = \"ngin*\"", "process = \"nginx*\"", true),
            ("process = \"nginx\"", "process = \"ngin*\"", false),
            ("process = \"ngin?\"", "process = \"ngin*\"", false),
            ("process = \"ngin?\"", "process = \"ngin?\"", true),
            ("process = \"*\"", "uid = 7", false),
            ("uid = 7", "uid = 7\nprocess = \"a\"", true),
            ("uid = 7", "uid = 8", false),
            ("uid = 7\npod = \"x\"", "uid = 7", false),
            ("memory_above = \"1G\"", "memory_above = \"2G\"", true),
            ("memory_above = \"2G\"", "memory_above = \"1G\"", false),
            ("cgroup = \"/a\"", "cgroup = \"/a/b\"", true),
            ("cgroup = \"/a\"", "cgroup = \"/ab\"", false),
            ("executable = \"/usr/*\"", "process = \"a\"", false),
            ("namespace = \"*\"", "namespace = \"shop\"", true),
            ("namespace = \"shop\"", "pod = \"web-*\"", false),
        ] {
            let text =
                format!("[[rule]]\nname = \"one\"\n{first}\n[[rule]]\nname = \"two\"\n{second}\n");
            let found = says(&text);
            let is_found = found.iter().any(|why| {
                why.contains("\"two\" never matches") && why.contains("\"one\" comes first")
            });
            assert_eq!(is_found, is_shadowed, "{text}: {found:?}");
            assert_eq!(found.len(), usize::from(is_shadowed), "{found:?}");
        }
    }

    #[test]
    fn other_mistakes_are_found() {
        let rule = |says: &str| format!("[[rule]]\nname = \"one\"\n{says}\n");
        for (text, word) in [
            (rule("process = \"sshd\""), "never attached to"),
            (
                format!(
                    "[agent]\nnever = [\"ban*\"]\n{}",
                    rule("process = \"bank\"")
                ),
                "never attached to",
            ),
            (rule("cgroup = \"web/a\""), "treated as \"/web/a\""),
            (
                format!(
                    "{}[pyroscope]\nurl = \"http://x\"\ntoken_file = \"/nowhere/token\"\n",
                    rule("uid = 1")
                ),
                "/nowhere/token",
            ),
        ] {
            let found = says(&text);
            assert!(found.len() == 1 && found[0].contains(word), "{found:?}");
        }
        assert!(says(&rule("cgroup = \"0::/web\"\nprocess = \"*\"")).is_empty());
        let kubernetes = |more: &str| {
            let rules = "[[rule]]\nname = \"in\"\nopt_in = true\nuid = 1\n[[rule]]\nname = \"all\"\nuid = 1\n";
            says(&format!("{rules}[kubernetes]\n{more}"))
        };
        let limit = |name: &str, more: &str| {
            format!("[[kubernetes.namespace]]\nname = \"{name}\"\n{more}\n")
        };
        let secure = "kubelet = \"https://x\"\n";
        for (more, word) in [
            (
                format!("{secure}token_file = \"/nowhere/token\"\n"),
                "/nowhere/token",
            ),
            (
                "kubelet = \"http://x\"\ntoken_file = \"/etc/hostname\"\n".into(),
                "without encryption",
            ),
            (
                [
                    secure,
                    &limit("*", "max_targets = 1"),
                    &limit("shop", "max_targets = 9"),
                ]
                .concat(),
                "never apply",
            ),
            (
                format!("{secure}{}", limit("*", "max_targets = 99")),
                "more targets",
            ),
            (
                format!("{secure}{}", limit("*", "max_cpu = \"3%\"")),
                "more of the processors",
            ),
        ] {
            let found = kubernetes(&more);
            assert!(
                found.len() == 1 && found[0].contains(word),
                "{more}: {found:?}"
            );
        }
        let two = [
            secure,
            &limit("shop", "max_targets = 9"),
            &limit("*", "max_cpu = \"1%\""),
        ];
        assert!(kubernetes(&two.concat()).is_empty());
    }
}
