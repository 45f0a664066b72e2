//! What is right in a configuration, and hardly what was meant.

use super::{Fault, File, Pattern, Rule};
use crate::rules::NEVER;
use crate::said::chain;
use crate::send::unusable_files;

/// Places and texts, in the order of the file.
pub fn warnings(file: &File) -> Vec<Fault> {
    let mut found = Vec::new();
    for (at, spanned) in file.rule.iter().enumerate() {
        let rule = spanned.get_ref();
        let mut warn = |why: String| found.push((rule.name.span(), why));
        let earlier = file.rule[..at].iter().map(toml::Spanned::get_ref);
        let shadow = earlier.into_iter().find(|earlier| covers(earlier, rule));
        if let Some(earlier) = shadow {
            warn(format!(
                "the rule \"{}\" never matches: all that it fits falls under \"{}\" before it; move it up",
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
        // A whole line of /proc/PID/cgroup has colons in it.
        if let Some(group) = &rule.cgroup
            && !group.starts_with('/')
            && !group.contains(':')
        {
            warn(format!(
                "cgroup = \"{group}\" is no absolute path, and is taken for \"/{group}\""
            ));
        }
    }
    for store in [&file.pyroscope, &file.otlp].into_iter().flatten() {
        for error in unusable_files(store.get_ref()) {
            found.push((store.span(), chain(&error)));
        }
    }
    found
}

/// Whether every process that the second rule fits is one that the first fits.
fn covers(first: &Rule, second: &Rule) -> bool {
    let pattern = |first: &Option<Pattern>, second: &Option<Pattern>| match (first, second) {
        (None, _) => true,
        (Some(first), Some(second)) => is_within(second, first),
        (Some(_), None) => false,
    };
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
        && group
        && first
            .memory_above
            .is_none_or(|size| second.memory_above.is_some_and(|other| other >= size))
        && first.uid.is_none_or(|uid| second.uid == Some(uid))
}

/// Whether all that one pattern matches is matched by the other, where that is easy to see. A star of the first can
/// only be taken by a star of the other: where that has none but question marks, only equal ones count.
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
        ] {
            let text =
                format!("[[rule]]\nname = \"one\"\n{first}\n[[rule]]\nname = \"two\"\n{second}\n");
            let found = says(&text);
            let is_found = found
                .iter()
                .any(|why| why.contains("\"two\" never matches") && why.contains("under \"one\""));
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
            (rule("cgroup = \"web/a\""), "taken for \"/web/a\""),
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
    }
}
