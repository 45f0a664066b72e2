//! `top` in a real terminal: tmux, whose keys are pressed and whose screen is read.

use memhook_tests::terminal::Terminal;
use memhook_tests::{Target, binary, build_target, run, until};

fn top(target: &Target) -> String {
    // What is printed at the end is read before the terminal goes.
    format!(
        "'{}' top {} -i 100ms; echo exit=$?; sleep 1000",
        binary().display(),
        target.pid()
    )
}

#[test]
fn rows_orders_a_stack_a_pause_and_the_end() {
    let mut target = Target::start(&build_target("leaks", &[]), &[]);
    let terminal = Terminal::start("top", &top(&target));
    terminal.wait_for("No block that was allocated since the attach is live.");
    target.go();
    target.expect("done");
    // 1,000 reallocations in the other thread leave one block.
    terminal.wait_for("leak_in_other_thread");
    terminal.wait_for("leak_by_growing");
    terminal.press("n", "\u{25be}blocks");
    terminal.press("b", "\u{25be}live");
    terminal.press("Down", "q quit");
    terminal.press("Enter", "Esc back");
    // The largest: realloc up to 4,999 bytes.
    terminal.wait_for("by realloc");
    terminal.wait_for("main");
    terminal.press("p", "PAUSED");
    terminal.press("Escape", "Enter stack");
    terminal.press("q", "exit=0");
    let screen = terminal.screen();
    assert!(screen.contains("Detached from"), "{screen}");
    assert!(target.finish().success(), "the target's self-check");
}

#[test]
fn a_target_that_ends_and_a_terminal_that_goes_away() {
    let program = build_target("leaks", &[]);
    let target = Target::start(&program, &[]);
    let terminal = Terminal::start("top-end", &top(&target));
    terminal.wait_for("live in");
    drop(target);
    terminal.wait_for("exit=0");

    let mut target = Target::start(&program, &[]);
    let terminal = Terminal::start("top-gone", &top(&target));
    terminal.wait_for("live in");
    drop(terminal);
    // Nobody traces it any longer: it can be traced anew.
    let pid = target.pid().to_string();
    until("a second attach", || {
        run(&["attach", &pid, "-d", "10ms", "-q"]).0 == 0
    });
    target.go();
    target.expect("done");
    assert!(target.finish().success(), "the target's self-check");
}

#[test]
fn no_terminal_and_samples_are_refused() {
    let target = Target::start(&build_target("leaks", &[]), &[]);
    let pid = target.pid().to_string();
    let (code, _, errors) = run(&["top", &pid]);
    assert_eq!(code, 2);
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("needs a terminal"), "{errors}");
    assert_eq!(target.our_mappings(), 0, "the target is untouched");
}
