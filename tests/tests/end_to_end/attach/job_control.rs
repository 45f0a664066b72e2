//! Programs that `run` and `gate` start, under a shell with job control on a terminal.

use memhook_tests::programs::{Folder, installed};
use memhook_tests::terminal::Terminal;
use memhook_tests::{binary, until};
use std::time::Duration;

/// Starts an interactive shell whose prompt is `ready>`.
fn shell(name: &str) -> Terminal {
    let bash = installed("bash");
    let command = format!("env PS1='ready> ' {} --norc --noprofile -i", bash.display());
    let terminal = Terminal::start(name, &command);
    terminal.wait_for("ready>");
    terminal
}

fn enter(terminal: &Terminal, line: &str) {
    terminal.tmux(&["send-keys", "-l", line]);
    terminal.tmux(&["send-keys", "Enter"]);
}

/// Enters a line repeatedly until the screen shows a text.
fn again_until(terminal: &Terminal, line: &str, expected: &str) {
    until(&format!("{expected:?} on the screen"), || {
        enter(terminal, line);
        // The shell needs time for each line; more lines would fill the terminal.
        std::thread::sleep(Duration::from_millis(300));
        terminal.screen().contains(expected)
    });
}

fn traced(program: &str) -> String {
    format!(
        "'{}' run -q -o /dev/null --force -- {program}",
        binary().display()
    )
}

#[test]
fn the_terminal_stops_continues_and_interrupts() {
    let terminal = shell("jobs");
    enter(&terminal, &traced("cat"));
    // Text typed while the shell hands over the terminal may be lost.
    again_until(&terminal, "first", "first\nfirst\n");
    terminal.press("C-z", "Stopped");
    enter(&terminal, "jobs | wc -l; echo left=$((6*7))");
    terminal.wait_for("1\nleft=42");
    enter(&terminal, "fg");
    again_until(&terminal, "second", "second\nsecond\n");
    terminal.press("C-d", "ready>");
    enter(&terminal, "echo code=$((0+$?))");
    terminal.wait_for("code=0");

    // The program runs in the background until it reads.
    terminal.tmux(&["send-keys", "-R"]);
    enter(&terminal, &(traced("cat") + " &"));
    again_until(&terminal, "jobs", "Stopped");
    enter(&terminal, "fg");
    again_until(&terminal, "third", "third\nthird\n");
    terminal.press("C-c", "^C");
    enter(&terminal, "echo code=$((0+$?))");
    terminal.wait_for("code=130");
}

#[test]
fn a_program_that_takes_its_time_to_stop_is_waited_for() {
    let folder = Folder::new("stops");
    let program = folder.path("editor.py");
    // Cleans up like an editor, and then stops only itself.
    let text = r#"
import os, signal, time
def stop(*_):
    print("clean" + "ed", flush=True)
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTSTP)
    signal.signal(signal.SIGTSTP, stop)
    print("ba" + "ck", flush=True)
signal.signal(signal.SIGTSTP, stop)
print("u" + "p", flush=True)
while True: time.sleep(0.05)
"#;
    std::fs::write(&program, text).expect("written");
    let terminal = shell("stops");
    let python = installed("python3");
    enter(
        &terminal,
        &traced(&format!("{} {program}", python.display())),
    );
    terminal.wait_for("\nup\n");
    terminal.press("C-z", "cleaned");
    terminal.wait_for("Stopped");
    enter(&terminal, "fg");
    terminal.wait_for("\nback\n");
    terminal.press("C-c", "^C");
    enter(&terminal, "echo left=$((6*7))");
    terminal.wait_for("left=42");
}

#[test]
fn ctrl_c_ends_a_script_whose_program_it_ends() {
    let folder = Folder::new("script");
    let script = folder.path("script.sh");
    let text = format!(
        "{}\necho not reached\n",
        traced("sh -c 'echo up; sleep 100'")
    );
    std::fs::write(&script, text).expect("written");
    let terminal = shell("script");
    enter(&terminal, &format!("bash {script}"));
    terminal.wait_for("\nup\n");
    terminal.press("C-c", "^C");
    enter(&terminal, "echo code=$((0+$?))");
    terminal.wait_for("code=130");
    assert!(
        !terminal.screen().contains("not reached"),
        "{}",
        terminal.screen()
    );
}
