//! The first texts that users read: the help of every command, and the messages about mistakes.

use memhook_tests::{run, run_with};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum width of a help text on a wide terminal.
const COLUMNS: usize = 100;

/// Words of every command; empty for the program itself.
const COMMANDS: [&[&str]; 26] = [
    &["advise"],
    &[],
    &["attach"],
    &["report"],
    &["diff"],
    &["view"],
    &["symbols"],
    &["symbols", "pack"],
    &["run"],
    &["sdk"],
    &["gate"],
    &["top"],
    &["probe"],
    &["detach"],
    &["demo"],
    &["scan"],
    &["stale"],
    &["rss"],
    &["trim"],
    &["watch"],
    &["symbolize"],
    &["emit"],
    &["mark"],
    &["agent"],
    &["doctor"],
    &["completions"],
];

/// Returns the help of a command on a terminal of this width.
fn help(words: &[&str], flag: &str, columns: usize) -> String {
    let words = [words, &[flag]].concat();
    let (code, out, err) = run_with(&words, &[("COLUMNS", &columns.to_string())]);
    assert_eq!((code, err.as_str()), (0, ""), "{words:?}");
    out
}

/// Returns the lines of a help text that begin the description of an option.
fn option_lines(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim_start);
    // Possible values are listed as `- value`.
    let is_option = |line: &&str| line.starts_with('-') && !line.starts_with("- ");
    lines.filter(is_option).collect()
}

#[test]
fn the_list_of_commands_is_whole() {
    let text = help(&[], "--help", COLUMNS);
    let listed = text.lines().take_while(|line| *line != "Options:");
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names = names.filter(|name| !["help", "memhook-rs"].contains(name));
    let names: BTreeSet<&str> = names.collect();
    let known = COMMANDS.iter().filter(|words| words.len() == 1);
    let known: BTreeSet<&str> = known.map(|words| words[0]).collect();
    assert_eq!(names, known);
    for words in [&["-h"][..], &[]] {
        let (_, out, err) = run(words);
        for heading in ["Start here:", "Look at a live process:", "In CI:"] {
            assert!(format!("{out}{err}").contains(heading), "{out}{err}");
        }
    }
}

#[test]
fn help_fits_the_terminal() {
    for words in COMMANDS {
        for (flag, columns) in [("-h", 60), ("-h", 80), ("--help", 60), ("--help", 300)] {
            let text = help(words, flag, columns);
            // A usage line must stay one line for copying.
            for line in text.lines().filter(|line| !line.starts_with("Usage: ")) {
                let width = line.chars().count();
                assert!(width <= columns.min(COLUMNS), "{words:?} {flag}: {line}");
            }
        }
    }
}

/// Checks that a short help fits a terminal of 80 columns and 40 lines.
#[test]
fn the_short_help_fits_one_screen() {
    // The page of the program itself lists all commands.
    for words in COMMANDS.into_iter().filter(|words| !words.is_empty()) {
        let lines = help(words, "-h", 80).lines().count();
        assert!(lines <= 40, "{words:?}: {lines} lines");
    }
}

#[test]
fn the_short_help_has_one_line_for_each_option() {
    for words in COMMANDS {
        let text = help(words, "-h", COLUMNS);
        for line in text.lines() {
            // Continuation lines are indented deeper than any option.
            assert!(!line.starts_with("          "), "{words:?}: {text}");
        }
        assert!(!option_lines(&text).is_empty(), "{words:?}");
    }
}

/// Options that every command has: --help, --verbose and --audit. The sum of all options counts
/// them once.
const OF_ALL: usize = 3;

/// Checks that readers can still find options.
#[test]
fn no_command_has_too_many_options() {
    const MOST: usize = 40;
    const MOST_IN_ALL: usize = 320;
    let mut all = OF_ALL;
    for words in COMMANDS {
        let text = help(words, "--help", COLUMNS);
        // Descriptions are indented deeper than options.
        let options = text.lines().filter(|line| !line.starts_with("          "));
        let count = option_lines(&options.collect::<Vec<_>>().join("\n")).len();
        // --help does not count.
        assert!(count <= MOST + 1, "{words:?} has {count} options");
        all += count - OF_ALL;
    }
    assert!(all <= MOST_IN_ALL, "there are {all} options in all");
}

/// Returns the memhook-rs command lines in an example: `cat x | memhook-rs report -` contains one.
fn command_lines(example: &str) -> Vec<Vec<String>> {
    let example = example.trim_start().split("   ").next().unwrap_or_default();
    let (mut commands, mut word, mut quote) = (vec![Vec::new()], String::new(), None);
    for c in example.chars().chain([' ']) {
        match c {
            '\'' | '"' if quote == Some(c) => quote = None,
            '\'' | '"' if quote.is_none() => quote = Some(c),
            _ if quote.is_some() => word.push(c),
            '|' | '>' => commands.push(Vec::new()),
            c if c.is_whitespace() => {
                let done = std::mem::take(&mut word);
                commands
                    .last_mut()
                    .expect("a command")
                    .extend(Some(done).filter(|w| !w.is_empty()));
            }
            c => word.push(c),
        }
    }
    let ours = commands.into_iter().filter_map(|words| {
        let name = words.iter().position(|word| word == "memhook-rs")?;
        Some(words[name + 1..].to_vec())
    });
    ours.collect()
}

#[test]
fn every_command_has_examples_that_it_understands_and_exit_codes() {
    for words in COMMANDS {
        let text = help(words, "--help", COLUMNS);
        let is_group = *words == ["symbols"];
        assert!(is_group || text.contains("\nExit codes:\n"), "{words:?}");
        let after = |title: &str| text.split_once(title).map(|parts| parts.1);
        let examples = ["\nExamples:\n", "\nExample:\n", "\nStart here:\n"];
        let examples = examples.iter().find_map(|title| after(title));
        let examples = examples.unwrap_or_else(|| panic!("{words:?} has no examples: {text}"));
        let lines = examples.lines().take_while(|line| line.starts_with("  "));
        let mut count = 0;
        for line in lines.flat_map(command_lines) {
            count += 1;
            // Words after a program's name belong to the program. The recording that gate judges is
            // also dropped.
            let is_program = |word: &str| word == "--" || (line[0] == "gate" && word == "run.mhk");
            let own = line
                .iter()
                .map(String::as_str)
                .take_while(|word| !is_program(word));
            let own = own.map(|word| if word == "PID" { "1" } else { word });
            let asked: Vec<&str> = own.chain(["--help"]).collect();
            let (code, out, err) = run(&asked);
            assert_eq!(code, 0, "{asked:?}: {err}");
            assert!(out.contains("\nUsage: memhook-rs"), "{asked:?}: {out}");
        }
        assert!(count > 0, "{words:?}: {text}");
    }
}

/// Checks that a short option such as `-d, --duration <TIME>` has the same meaning and a value in
/// every command.
#[test]
fn a_flag_means_the_same_in_every_command() {
    let mut long: BTreeMap<String, (bool, &[&str])> = BTreeMap::new();
    let mut short: BTreeMap<String, (String, &[&str])> = BTreeMap::new();
    for words in COMMANDS {
        let text = help(words, "--help", COLUMNS);
        for line in option_lines(&text) {
            let mut parts = line.split([' ', ',']).filter(|part| !part.is_empty());
            let first = parts.next().expect("a flag");
            let name = match first.strip_prefix("--") {
                Some(name) => name,
                None => parts
                    .next()
                    .and_then(|name| name.strip_prefix("--"))
                    .expect(line),
            };
            if !first.starts_with("--") {
                let seen = short.entry(first.to_owned());
                let (other, whose) = seen.or_insert((name.to_owned(), words));
                assert_eq!(other, name, "{first} of {words:?} and {whose:?}");
            }
            // An optional value is for experts.
            let takes_value = line.contains(" <");
            let (other, whose) = *long.entry(name.to_owned()).or_insert((takes_value, words));
            assert_eq!(other, takes_value, "--{name} of {words:?} and {whose:?}");
        }
    }
    assert!(long.len() > 50, "{long:?}");
}

#[test]
fn mistakes_keep_their_lines() {
    for (words, lines) in [
        (
            &["report"][..],
            &[
                "memhook-rs: the following required arguments were not provided:",
                "  <FILE>",
                "See memhook-rs report --help",
            ][..],
        ),
        (
            &["completions", "cmd"],
            &[
                "memhook-rs: invalid value 'cmd' for '<SHELL>'",
                "  [possible values: bash, elvish, fish, powershell, zsh]",
                "See memhook-rs completions --help",
            ],
        ),
        (
            &["frobnicate"],
            &["memhook-rs: unrecognized subcommand 'frobnicate'; see memhook-rs --help"],
        ),
        (
            &["atach"],
            &[
                "memhook-rs: unrecognized subcommand 'atach'",
                "  tip: some similar subcommands exist: 'attach', 'watch', 'detach'",
                "See memhook-rs --help",
            ],
        ),
    ] {
        let (code, out, err) = run(words);
        assert_eq!((code, out.as_str()), (2, ""), "{words:?}: {err}");
        assert_eq!(err.lines().collect::<Vec<_>>(), lines, "{words:?}");
    }
}

/// Checks that `-q` and `-v` have one meaning in all commands, because people type them without
/// reading the help.
#[test]
fn quiet_and_verbose_mean_the_same_everywhere() {
    for (short, meaning) in [
        ("-q, --quiet", "Print no status lines"),
        (
            "-v, --verbose...",
            "Leave nothing out, and log each step (-vv: in detail)",
        ),
    ] {
        let mut commands = 0;
        for words in COMMANDS {
            let text = help(words, "--help", COLUMNS);
            let mut lines = text.lines().map(str::trim);
            if lines.any(|line| line == short) {
                assert_eq!(lines.next(), Some(meaning), "{words:?}");
                commands += 1;
            }
            let others = text.lines().map(str::trim_start).filter(|line| {
                let is_short = line.starts_with(&short[..2]);
                is_short && !line.starts_with(short)
            });
            assert_eq!(others.collect::<Vec<_>>(), [""; 0], "{words:?}");
        }
        assert!(commands >= 3, "{short}");
    }
}
