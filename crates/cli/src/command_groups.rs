//! The first page of the help: where to start, and the commands grouped by the user's task.

use memhook_report::wrapped;

/// Maximum width of the help.
const WIDEST: usize = 100;

/// Every command that is shown, below a heading.
const GROUPS: [(&str, &[&str]); 5] = [
    (
        "Look at a live process",
        &[
            "attach", "top", "advise", "scan", "stale", "rss", "probe", "watch", "doctor",
        ],
    ),
    (
        "Record and report",
        &["run", "report", "diff", "view", "symbols", "mark"],
    ),
    ("In CI", &["gate", "sdk"]),
    ("Many processes", &["agent", "symbolize", "emit"]),
    (
        "Housekeeping",
        &["demo", "trim", "detach", "completions", "help"],
    ),
];

/// Lists the commands in groups.
pub fn grouped(mut command: clap::Command) -> clap::Command {
    command.build();
    let about = |name: &str| {
        let found = command.get_subcommands().find(|c| c.get_name() == name);
        let about = found.and_then(clap::Command::get_about);
        about.map(ToString::to_string).unwrap_or_default()
    };
    let mut list = format!("{}\n", include_str!("help/start-here.txt"));
    for (heading, names) in GROUPS {
        list += &format!("{heading}:\n");
        for name in names {
            list += &format!("  {name:11}  {}\n", about(name));
        }
        list += "\n";
    }
    let width = crate::output::width().unwrap_or(WIDEST).min(WIDEST);
    let list = wrapped(&list, width);
    command.help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}Options:\n{{options}}{{after-help}}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_command_is_in_one_group() {
        let mut command = crate::Cli::command();
        command.build();
        let shown = command.get_subcommands().filter(|c| !c.is_hide_set());
        let mut shown: Vec<&str> = shown.map(clap::Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        shown.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, shown);
    }
}
