//! Completions, man pages and help for every command.

use memhook_tests::programs::Folder;
use memhook_tests::run;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Runs memhook-rs, which must succeed, and returns its standard output.
fn output(args: &[&str]) -> String {
    let (code, out, err) = run(args);
    assert_eq!(code, 0, "{args:?}: {err}");
    assert_eq!(err, "", "{args:?}");
    out
}

/// Returns the commands in the output of `--help` for these words.
fn commands_of(words: &[&str]) -> Vec<String> {
    let help = output(&[words, &["--help"]].concat());
    // The command's own options are in groups, below the examples.
    let listed = help.lines().take_while(|line| *line != "Options:");
    let listed = listed.skip_while(|line| !words.is_empty() && *line != "Commands:");
    let names = listed.filter(|line| line.starts_with("  ") && !line.starts_with("  memhook-rs"));
    // Continuation lines of a description are indented deeper.
    let names = names.filter(|line| !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    let names = names.filter(|name| *name != "help");
    names.map(str::to_owned).collect()
}

/// Returns every command as its words, such as `attach` and `symbols pack`.
fn commands() -> Vec<Vec<String>> {
    let mut all = Vec::new();
    let first = commands_of(&[]);
    assert!(first.len() >= 12, "{first:?}");
    for name in first {
        let below = commands_of(&[&name]);
        let with_below = below.iter().map(|b| vec![name.clone(), b.clone()]);
        all.extend(with_below.collect::<Vec<_>>());
        all.push(vec![name]);
    }
    all
}

/// Returns the long options in a text.
fn long_options(text: &str) -> BTreeSet<String> {
    let lines = text
        .lines()
        .filter(|line| line.trim_start().starts_with('-'));
    let words = lines.flat_map(|line| line.split([' ', ',', '[', '=', '<']));
    let options = words.filter_map(|word| word.strip_prefix("--"));
    // `--verbose...` is a repeatable option.
    options
        .map(|option| option.trim_end_matches('.'))
        .filter(|o| !o.is_empty())
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_command_has_a_man_page_with_all_its_options() {
    let folder = Folder::new("man");
    let directory = folder.path("man1");
    output(&["man", &directory]);
    let read = |words: &[String]| {
        let name = [&["memhook-rs".to_owned()], words].concat().join("-");
        let file = format!("{directory}/{name}.1");
        std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{file}: {e}"))
    };
    let whole = read(&[]);
    for words in commands() {
        // roff writes a hyphen as \-.
        let page = read(&words).replace("\\-", "-");
        assert!(page.contains(".TH "), "{words:?}: {page}");
        let args: Vec<&str> = words.iter().map(String::as_str).collect();
        let options = long_options(&output(&[&args[..], &["--help"]].concat()));
        assert!(options.contains("help"), "{words:?}: {options:?}");
        for option in options {
            assert!(
                page.contains(&format!("--{option}")),
                "{words:?}: --{option}"
            );
        }
        if let [name] = &words[..] {
            let named = whole
                .replace("\\-", "-")
                .contains(&format!("memhook-rs-{name}(1)"));
            assert!(named, "the page of the program does not name {name}");
        }
    }
    let pages = std::fs::read_dir(&directory).expect("written").count();
    assert_eq!(pages, commands().len() + 1);
}

#[test]
fn the_table_of_exit_codes_has_every_command() {
    let page = include_str!("../../../../docs/exit-codes.md");
    let (_, table) = page.split_once("| command |").expect("the table");
    for words in commands() {
        let name = words.join(" ");
        let is_named = table.contains(&format!("`{name}`")) || table.contains(&format!("`{name} "));
        assert!(is_named, "docs/exit-codes.md does not name {name}");
    }
}

/// Returns the rows of the table of exit codes for a command.
fn codes_of_table(name: &str) -> BTreeSet<usize> {
    let page = include_str!("../../../../docs/exit-codes.md");
    let (_, table) = page.split_once("| command |").expect("the table");
    let rows = table.lines().skip(2).take_while(|row| row.starts_with('|'));
    let mut codes = BTreeSet::new();
    for row in rows {
        let cells: Vec<&str> = row.split('|').skip(1).map(str::trim).collect();
        let commands = cells[0].split('`').skip(1).step_by(2);
        if commands
            .into_iter()
            .any(|c| c == name || c.starts_with(&format!("{name} ")))
        {
            let is_given = |&(_, cell): &(usize, &&str)| !cell.is_empty();
            codes.extend(
                cells[1..]
                    .iter()
                    .enumerate()
                    .filter(is_given)
                    .map(|(code, _)| code),
            );
        }
    }
    codes
}

/// Returns the codes below "Exit codes:" in a help text.
fn codes_of_help(text: &str) -> BTreeSet<usize> {
    let (_, below) = text.split_once("\nExit codes:\n").unwrap_or_default();
    let lines = below.lines().filter_map(|line| line.strip_prefix("  "));
    let codes = lines.filter_map(|line| line.split_once("  ")?.0.parse().ok());
    codes.collect()
}

#[test]
fn help_and_table_have_the_same_exit_codes() {
    for words in commands() {
        // `symbols` only groups other commands, and the help of `run` and `demo` describes exit
        // codes in sentences.
        let name = words.join(" ");
        if ["symbols", "run", "demo"].contains(&name.as_str()) {
            continue;
        }
        let args: Vec<&str> = words.iter().map(String::as_str).collect();
        let help = codes_of_help(&output(&[&args[..], &["--help"]].concat()));
        assert_eq!(
            help,
            codes_of_table(&name),
            "{name}: help and docs/exit-codes.md"
        );
    }
}

/// Checks the sentence of the guide that lists the commands without JSON output.
#[test]
fn the_guide_names_the_commands_without_json() {
    let page = include_str!("../../../../docs/guide/commands.md");
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, after) = page
        .split_once("These commands have no `--json`:")
        .expect("the sentence");
    let (sentence, _) = after.split_once(". ").expect("its end");
    let listed: BTreeSet<&str> = sentence.split('`').skip(1).step_by(2).collect();
    let all = commands();
    let without = all.iter().filter(|words| {
        let args: Vec<&str> = words.iter().map(String::as_str).collect();
        !long_options(&output(&[&args[..], &["--help"]].concat())).contains("json")
    });
    let without: Vec<String> = without.map(|words| words.join(" ")).collect();
    assert_eq!(listed, without.iter().map(String::as_str).collect());
}

#[test]
fn every_shell_completes_every_command() {
    let commands = commands();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = output(&["completions", shell]);
        for words in &commands {
            let name = words.last().expect("a name");
            assert!(script.contains(name.as_str()), "{shell}: {name}");
        }
        assert!(script.contains("depth"), "{shell}");
    }
    let (code, out, err) = run(&["completions", "cmd"]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
}

#[test]
fn bash_completes_a_command_and_an_option() {
    if !Path::new("/bin/bash").exists() {
        return memhook_tests::not_run("there is no bash");
    }
    let folder = Folder::new("completions");
    let file = folder.path("memhook-rs.bash");
    std::fs::write(&file, output(&["completions", "bash"])).expect("written");
    for (words, wanted) in [
        ("memhook-rs det", "detach"),
        ("memhook-rs attach --dep", "--depth"),
    ] {
        let last = words.split(' ').next_back().expect("a word");
        let count = words.split(' ').count() - 1;
        // The completion script registers one of its functions with bash.
        let script = format!(
            "source '{file}'; words=$(complete -p memhook-rs); name=${{words#*-F }}; \
             COMP_WORDS=({words}); COMP_CWORD={count}; \
             ${{name%% *}} memhook-rs '{last}' '' 2>&1; echo \"${{COMPREPLY[@]}}\""
        );
        let completed = Command::new("/bin/bash").args(["-c", &script]).output();
        let completed = completed.expect("bash runs").stdout;
        assert_eq!(
            String::from_utf8_lossy(&completed).trim(),
            wanted,
            "{words}"
        );
    }
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let script = format!(
        "{} completions bash | true",
        memhook_tests::binary().display()
    );
    let ended = Command::new("/bin/sh").args(["-c", &script]).output();
    let ended = ended.expect("sh runs");
    assert!(ended.status.success());
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
}
