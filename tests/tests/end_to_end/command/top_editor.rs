//! `top` opens source lines in the user's editor. In these tests, tmux is the terminal and a script
//! is the editor.

use memhook_tests::programs::{Folder, write_script};
use memhook_tests::terminal::Terminal;
use memhook_tests::{Target, binary, build_target, compile, not_run, run, source, until};
use std::os::unix::fs::PermissionsExt;

/// Prints its arguments, and waits for a line; exits with code 3 on `3`, and with code 4 on Ctrl-C.
const EDITOR: &str = r#"#!/bin/sh
trap 'exit 4' INT
cd "$(dirname "$0")" || exit 9
for argument; do printf '%s\0' "$argument"; done > arguments
for file in /proc/$$/fd/*; do echo "$file"; done > descriptors
{ id -u; echo "$HOME"; stty -a; } > state
echo "THE EDITOR IS OPEN"
read -r line
test "$line" = 3 && exit 3
exit 0
"#;

/// Creates a folder with the editor that all users can access.
fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    write_script(folder.path("editor"), EDITOR);
    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder.path(""), mode).expect("it is ours");
    folder
}

/// Returns a command that runs `top` with environment variables and arguments.
fn top(variables: &str, words: &str) -> String {
    format!(
        "env -u VISUAL -u EDITOR {variables} '{}' top {words} -i 100ms; echo exit=$?; sleep 1000",
        binary().display()
    )
}

fn arguments(folder: &Folder) -> Vec<String> {
    let found = std::fs::read_to_string(folder.path("arguments")).expect("the editor ran");
    let mut all: Vec<String> = found.split('\0').map(str::to_owned).collect();
    assert_eq!(all.pop().as_deref(), Some(""));
    all
}

fn state(folder: &Folder) -> String {
    std::fs::read_to_string(folder.path("state")).expect("the editor ran")
}

/// Returns the flags for the alternate screen and the mouse.
fn modes(terminal: &Terminal) -> String {
    let flags = terminal.tmux(&["display-message", "-p", "#{alternate_on}#{mouse_any_flag}"]);
    String::from_utf8_lossy(&flags.stdout).trim().to_owned()
}

/// Returns the number of the first line of `forsaken.cc` that contains this text.
fn line_of(text: &str) -> usize {
    let file = std::fs::read_to_string(source("forsaken.cc")).expect("the source");
    let at = file.lines().position(|line| line.contains(text));
    at.expect("it is there") + 1
}

/// Checks that the editor can be opened, closed and reopened while the process is traced as usual.
#[test]
fn the_line_of_a_row_is_opened_and_the_process_is_served() {
    let folder = folder("top-editor");
    let mut target = Target::start(&build_target("forsaken", &["-g"]), &[]);
    let variables = format!("EDITOR='{}'", folder.path("editor"));
    // A full ring would block the process.
    let words = format!("{} --on-full wait", target.pid());
    let terminal = Terminal::start("top-editor", &top(&variables, &words));
    terminal.wait_for("live in");
    target.send("b");
    target.expect("done");
    terminal.wait_for("forsaken.cc");
    until("the mouse", || modes(&terminal) == "11");
    terminal.press("v", "THE EDITOR IS OPEN");
    // The terminal is in its initial state, and the editor has inherited no descriptor.
    assert_eq!(modes(&terminal), "00");
    let settings = state(&folder);
    for setting in ["icanon", "echo", "isig"] {
        let mut words = settings.split_whitespace();
        assert!(words.any(|word| word == setting), "{settings}");
    }
    let file = source("forsaken.cc").canonicalize().expect("the source");
    let line = line_of("keep(block = malloc(before_size))");
    let expected = [format!("+{line}"), file.display().to_string()];
    assert_eq!(arguments(&folder), expected);
    let descriptors = std::fs::read_to_string(folder.path("descriptors")).expect("a list");
    let numbers: Vec<u32> = descriptors
        .lines()
        .filter_map(|path| path.rsplit('/').next()?.parse().ok())
        .collect();
    // The shell has descriptors for the script and for the redirection.
    assert!(
        numbers.iter().filter(|&&n| (3..10).contains(&n)).count() <= 1,
        "{descriptors}"
    );
    // 600,000 events are far more than a ring can hold.
    target.send("p");
    target.expect("done");
    terminal.tmux(&["send-keys", "Enter"]);
    terminal.wait_for("v source");
    until("the screen is ours again", || modes(&terminal) == "11");
    // Data that arrived meanwhile.
    terminal.wait_for("in 90 blocks");
    terminal.press("v", "THE EDITOR IS OPEN");
    terminal.send("3", "3");
    terminal.tmux(&["send-keys", "Enter"]);
    terminal.wait_for("The editor ended with code 3");
    // A gap would end with exit code 1.
    terminal.press("q", "exit=0");
    assert_eq!(modes(&terminal), "00");
    assert!(target.finish().success());
}

/// Checks that keys that send signals go only to the editor.
#[test]
fn keys_that_interrupt_and_suspend_do_nothing_to_top() {
    let folder = folder("top-editor-keys");
    let mut target = Target::start(&build_target("forsaken", &["-g"]), &[]);
    let words = format!("{} --editor '{}'", target.pid(), folder.path("editor"));
    let terminal = Terminal::start("top-editor-keys", &top("", &words));
    terminal.wait_for("live in");
    target.send("b");
    target.expect("done");
    terminal.wait_for("forsaken.cc");
    terminal.press("v", "THE EDITOR IS OPEN");
    terminal.press("C-c", "The editor ended with code 4");
    terminal.press("v", "THE EDITOR IS OPEN");
    // top resumes the editor, because no other process would.
    terminal.press("C-z", "^Z");
    target.send("p");
    target.expect("done");
    terminal.tmux(&["send-keys", "Enter"]);
    terminal.wait_for("v source");
    // Ctrl-C stops top again.
    terminal.press("C-c", "exit=0");
    assert!(target.finish().success());
    // SIGTERM ends the trace, and leaves the terminal to the editor.
    let mut target = Target::start(&build_target("forsaken", &["-g"]), &[]);
    let words = format!("{} --editor '{}'", target.pid(), folder.path("editor"));
    let terminal = Terminal::start("top-editor-term", &top("", &words));
    terminal.wait_for("live in");
    target.send("b");
    target.expect("done");
    terminal.wait_for("forsaken.cc");
    terminal.press("v", "THE EDITOR IS OPEN");
    let panes = terminal.tmux(&["list-panes", "-F", "#{pane_pid}"]);
    let shell = String::from_utf8_lossy(&panes.stdout).trim().to_owned();
    let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"));
    let children = children.expect("a list of children");
    let top = children.split_whitespace().next().expect("top");
    // SAFETY: kill takes plain integers; the shell has not reaped top.
    unsafe { libc::kill(top.parse().expect("a pid"), libc::SIGTERM) };
    let pid = target.pid().to_string();
    until("the detach", || {
        run(&["attach", &pid, "-d", "10ms", "-q"]).0 == 0
    });
    assert!(
        !terminal.screen().contains("exit="),
        "{}",
        terminal.screen()
    );
    terminal.tmux(&["send-keys", "Enter"]);
    terminal.wait_for("exit=0");
    assert!(target.finish().success());
}

#[test]
fn what_cannot_be_opened_is_said_at_the_bottom() {
    let root = source("");
    let root = root.to_str().expect("a plain path").trim_end_matches('/');
    let moved = format!("-ffile-prefix-map={root}=/nowhere");
    for (name, flags, variables, expected) in [
        (
            "none",
            &["-g"][..],
            "EDITOR=' '",
            "No editor: $VISUAL and $EDITOR are not set here",
        ),
        (
            "missing",
            &["-g"],
            "VISUAL=/nowhere/vi",
            "Cannot start the editor /nowhere/vi: No such file",
        ),
        (
            "moved",
            &["-g", &moved],
            "EDITOR=vi",
            "Cannot open /nowhere/forsaken.cc here: No such file",
        ),
        (
            "bare",
            &["-g0"],
            "EDITOR=vi",
            "The source line is not known",
        ),
    ] {
        let mut target = Target::start(&build_target("forsaken", flags), &[]);
        let name = format!("top-editor-{name}");
        let terminal = Terminal::start(&name, &top(variables, &target.pid().to_string()));
        terminal.wait_for("live in");
        target.send("b");
        target.expect("done");
        terminal.wait_for("█ before");
        terminal.press("v", expected);
        terminal.press("t", "Enter open");
        if name.ends_with("moved") {
            terminal.press("v", "A call of the tree has no source line");
        }
        terminal.press("q", "exit=0");
        assert!(target.finish().success());
    }
    let (code, _, errors) = run(&["top", "1", "--editor", "vscode://file{file}"]);
    assert_eq!((code, errors.lines().count()), (2, 1), "{errors}");
    assert!(errors.contains("expected a command"), "{errors}");
}

/// Checks that no shell interprets the file name, which comes from the process's debug information.
#[test]
fn names_of_files_are_arguments_and_nothing_else() {
    let folder = folder("top-editor-names");
    let hostile = "$(touch pwned) `touch pwned`;touch pwned '-c !x";
    let inner = format!("{}{hostile}", folder.path(""));
    std::fs::create_dir(&inner).expect("a directory");
    for file in ["forsaken.cc", "target.hpp"] {
        std::fs::copy(source(file), format!("{inner}/{file}")).expect("copied");
    }
    let program = folder.path("program");
    let file = format!("{inner}/forsaken.cc");
    compile(file.as_ref(), &["-pthread"], &["-g"], program.as_ref());
    let mut target = Target::start(program.as_ref(), &[]);
    // A variable with options is a command line for a shell.
    let variables = format!("VISUAL='{} -R' EDITOR=false", folder.path("editor"));
    let command = top(&variables, &target.pid().to_string());
    let command = format!("cd '{}' && {command}", folder.path(""));
    let terminal = Terminal::start("top-editor-names", &command);
    terminal.wait_for("live in");
    target.send("b");
    target.expect("done");
    terminal.wait_for("forsaken.cc");
    terminal.press("v", "THE EDITOR IS OPEN");
    let line = line_of("keep(block = malloc(before_size))");
    let file = std::fs::canonicalize(file).expect("the source");
    let expected = [
        "-R".to_owned(),
        format!("+{line}"),
        file.display().to_string(),
    ];
    assert_eq!(arguments(&folder), expected);
    terminal.tmux(&["send-keys", "Enter"]);
    terminal.wait_for("v source");
    terminal.press("q", "exit=0");
    assert!(!std::path::Path::new(&folder.path("pwned")).exists());
    assert!(target.finish().success());
}

/// Checks that the editor does not run as root if root runs top through sudo, because the file may
/// be another user's.
#[test]
fn with_sudo_the_editor_runs_as_its_caller() {
    // SAFETY: no arguments, cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return not_run("only root can become another user");
    }
    let folder = folder("top-editor-sudo");
    let mut target = Target::start(&build_target("forsaken", &["-g"]), &[]);
    let variables = format!(
        "SUDO_UID=65534 SUDO_GID=65534 EDITOR='{}'",
        folder.path("editor")
    );
    let terminal = Terminal::start(
        "top-editor-sudo",
        &top(&variables, &target.pid().to_string()),
    );
    terminal.wait_for("live in");
    target.send("b");
    target.expect("done");
    terminal.wait_for("forsaken.cc");
    terminal.press("v", "THE EDITOR IS OPEN");
    let known = state(&folder);
    let passwd = std::fs::read_to_string("/etc/passwd").expect("readable");
    let nobody = passwd.lines().find(|line| line.contains(":65534:65534:"));
    let home = nobody
        .and_then(|line| line.split(':').nth(5))
        .expect("nobody");
    let mut lines = known.lines();
    assert_eq!(
        (lines.next(), lines.next()),
        (Some("65534"), Some(home)),
        "{known}"
    );
    terminal.tmux(&["send-keys", "Enter"]);
    terminal.wait_for("v source");
    terminal.press("q", "exit=0");
    assert!(target.finish().success());
}

/// Checks that the editor gets the terminal even if standard input is a recording.
#[test]
fn a_recording_and_a_family_have_it_too() {
    let folder = folder("top-editor-from");
    let program = build_target("forsaken", &["-g"]);
    let mut target = Target::start(&program, &[]);
    let file = folder.path("run.mhk");
    let recorder = std::thread::spawn({
        let (pid, file) = (target.pid().to_string(), file.clone());
        move || run(&["attach", &pid, "-q", "-o", &file])
    });
    until("the attach", || target.our_mappings() > 0);
    until("the first event", || {
        // Enough data that memhook-rs writes it immediately.
        for what in ["b", "p"] {
            target.send(what);
            target.expect("done");
        }
        std::fs::metadata(&file).is_ok_and(|file| file.len() > 4096)
    });
    assert!(target.finish().success());
    let (code, _, errors) = recorder.join().expect("no panic");
    assert_eq!(code, 0, "{errors}");
    let editor = format!("EDITOR='{}'", folder.path("editor"));
    let words = format!("--from - < '{file}'");
    let command = format!(
        "env {editor} '{}' top {words}; echo exit=$?; sleep 1000",
        binary().display()
    );
    let terminal = Terminal::start("top-editor-from", &command);
    terminal.wait_for("forsaken.cc");
    terminal.press("v", "THE EDITOR IS OPEN");
    terminal.tmux(&["send-keys", "Enter"]);
    terminal.wait_for("v source");
    terminal.press("q", "exit=0");
    drop(terminal);

    let mut target = Target::start(&program, &[]);
    let words = format!("{} --follow-fork", target.pid());
    let terminal = Terminal::start("top-editor-family", &top(&editor, &words));
    terminal.wait_for("live in");
    target.send("b");
    target.expect("done");
    terminal.wait_for("forsaken.cc");
    terminal.press("v", "THE EDITOR IS OPEN");
    target.send("p");
    target.expect("done");
    terminal.tmux(&["send-keys", "Enter"]);
    terminal.wait_for("v source");
    terminal.press("q", "exit=0");
    assert!(target.finish().success());
}
