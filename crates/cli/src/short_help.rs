//! The options that `-h` shows for a command with many options: one screen with the most important
//! ones. `--help` shows all.

/// Commands with many options, and the ids of the options that `-h` shows.
const SHOWN: [(&str, &[&str]); 6] = [
    (
        "attach",
        &[
            "duration",
            "interval",
            "leaks",
            "stale",
            "rss",
            "by",
            "top",
            "json",
            "output",
            "when",
            "depth",
            "sample",
            "overhead",
            "follow_fork",
            "all",
        ],
    ),
    (
        "run",
        &[
            "duration",
            "interval",
            "leaks",
            "rss",
            "by",
            "top",
            "json",
            "output",
            "quiet",
            "depth",
            "sample",
            "overhead",
            "follow_fork",
        ],
    ),
    (
        "gate",
        &[
            "fail_on",
            "judge",
            "allow_partial",
            "suppressions",
            "gen_suppressions",
            "baseline",
            "write_baseline",
            "json",
            "outputs",
            "pid",
            "duration",
            "growth",
        ],
    ),
    (
        "report",
        &[
            "measure",
            "by",
            "sort",
            "top",
            "tree",
            "who_frees",
            "focus",
            "from",
            "to",
            "format",
            "json",
            "output",
            "scores",
        ],
    ),
    (
        "watch",
        &[
            "when",
            "output",
            "keep",
            "exec",
            "duration",
            "sample",
            "read_only",
            "cgroup",
        ],
    ),
    (
        "scan",
        &[
            "json",
            "twice",
            "census",
            "retained",
            "why",
            "save",
            "from",
            "core",
            "read_only",
            "reclaim",
            "yes",
        ],
    ),
];

/// Hides all other options of these commands in `-h`.
pub fn shortened(mut command: clap::Command) -> clap::Command {
    for (name, shown) in SHOWN {
        command = command.mut_subcommand(name, |command| {
            command.mut_args(|arg| {
                let is_shown = arg.is_positional() || shown.contains(&arg.get_id().as_str());
                arg.hide_short_help(!is_shown)
            })
        });
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_option_that_is_shown_exists() {
        let command = crate::Cli::command();
        for (name, shown) in SHOWN {
            let command = command.find_subcommand(name).expect(name);
            let ids: Vec<&str> = command
                .get_arguments()
                .map(|arg| arg.get_id().as_str())
                .collect();
            for id in shown {
                assert!(ids.contains(id), "{name} has no {id}: {ids:?}");
            }
        }
    }
}
