//! `top` in a real terminal: tmux, in which the test presses keys and reads the screen.

use memhook_tests::programs::Folder;
use memhook_tests::terminal::Terminal;
use memhook_tests::{Target, binary, build_target, run, until};

fn top(target: &Target) -> String {
    top_with("", target)
}

/// Returns the command for `top` with variables in its environment.
fn top_with(variables: &str, target: &Target) -> String {
    let words = target.pid().to_string();
    format!("{variables} {}", top_words(&words))
}

/// Returns the command for `top` followed by these words.
fn top_words(words: &str) -> String {
    // Keeps the terminal open until the test has read the final output.
    format!(
        "'{}' top {words} -i 100ms; echo exit=$?; sleep 1000",
        binary().display()
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
    terminal.wait_for(" resident: ");
    terminal.press("n", "\u{25be}blocks");
    terminal.press("b", "\u{25be}live");
    terminal.press("Down", "q quit");
    terminal.press("Enter", "Esc back");
    // The largest site: realloc up to 4,999 bytes.
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
    terminal.wait_for("ENDED after");
    terminal.press("?", "averages of the last 10 updates");
    terminal.press("q", "Enter stack");
    terminal.press("q", "exit=0");

    // Adds a column for untouched bytes.
    let mut target = Target::start(&program, &[]);
    let words = format!("{} --stale=500ms", target.pid());
    let terminal = Terminal::start("top-stale", &top_words(&words));
    terminal.wait_for("live in");
    target.go();
    target.expect("done");
    terminal.press("u", "\u{25be}stale");
    terminal.press("q", "exit=0");
    assert!(target.finish().success(), "the target's self-check");

    let mut target = Target::start(&program, &[]);
    let terminal = Terminal::start("top-gone", &top(&target));
    terminal.wait_for("live in");
    drop(terminal);
    // The process is no longer traced, so another trace works.
    let pid = target.pid().to_string();
    until("a second attach", || {
        run(&["attach", &pid, "-d", "10ms", "-q"]).0 == 0
    });
    target.go();
    target.expect("done");
    assert!(target.finish().success(), "the target's self-check");
}

/// Checks that `top` does not look up the process of a recording from a pipe, which may come from
/// another machine.
#[test]
fn a_recording_that_comes_through_a_pipe() {
    let mut target = Target::start(&build_target("leaks", &[]), &[]);
    let (program, pid) = (binary().display(), target.pid());
    let command = format!(
        "'{program}' attach {pid} -q -o - 2>/dev/null | '{program}' top --from - -i 200ms; echo exit=$?; sleep 1000"
    );
    let terminal = Terminal::start("top-from", &command);
    let pid = pid.to_string();
    // A trace that accepts a mark has begun.
    until("the attach", || run(&["mark", &pid, "begin"]).0 == 0);
    target.go();
    target.expect("done");
    terminal.wait_for("leak_in_other_thread");
    terminal.wait_for("leak_by_growing");
    terminal.press("n", "\u{25be}blocks");
    terminal.press("Down", "q quit");
    terminal.press("Enter", "main");
    terminal.press("q", "What was recorded so far");
    // Tracing continues without a viewer.
    assert!(target.finish().success(), "the target's self-check");
    let (code, out, errors) = run(&["top", "--from", "/nowhere.mhk"]);
    assert_eq!((code, out.as_str()), (2, ""), "{errors}");
}

/// Checks that `top` shows one heap at a time for a process with described allocators.
#[test]
fn heaps_that_are_described() {
    let mut target = Target::start(&build_target("own_pools", &["-g", "-O2"]), &["waits"]);
    let words = format!(
        "{} --allocators 'items: alloc slab_get(size=arg2) -> ptr; free slab_put(ptr=arg2)'",
        target.pid()
    );
    let terminal = Terminal::start("top-heaps", &top_words(&words));
    terminal.wait_for("heap 1 of 2");
    target.go();
    target.expect("done");
    terminal.wait_for("lose_of_c");
    terminal.press("Tab", "heap 2 of 2");
    terminal.wait_for("in 569 blocks");
    terminal.wait_for("keep_items");
    terminal.wait_for(", items (");
    let screen = terminal.screen();
    assert!(!screen.contains("lose_of_c"), "{screen}");
    terminal.press("Down", "q quit");
    terminal.press("Enter", "by slab_get");
    terminal.press("Tab", "heap 1 of 2");
    terminal.press("q", "exit=0");
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

/// Returns a target with its leaks, and its screen.
fn leaking(name: &str, variables: &str, columns: u16, lines: u16) -> (Target, Terminal) {
    let mut target = Target::start(&build_target("leaks", &[]), &[]);
    let command = top_with(variables, &target);
    let terminal = Terminal::of_size(name, &command, columns, lines);
    terminal.wait_for("No block that was allocated");
    target.go();
    target.expect("done");
    terminal.wait_for("leak_by_growing");
    (target, terminal)
}

#[test]
fn screens_of_all_sizes_show_the_sites() {
    for (columns, lines, has, lacks) in [
        // On a narrow screen, the columns that distinguish rows disappear last.
        (60, 20, "site", "growth/s"),
        (80, 24, "site", "oldest"),
        (200, 50, "past", "\0"),
    ] {
        let name = format!("top-{columns}");
        let (target, terminal) = leaking(&name, "", columns, lines);
        terminal.wait_for("leak_in_other_thread");
        let screen = terminal.screen();
        let titles = screen.lines().find(|line| line.contains("\u{25be}live"));
        let titles = titles.expect("the titles");
        assert!(titles.contains(has) && !titles.contains(lacks), "{screen}");
        terminal.press("q", "exit=0");
        assert!(target.finish().success(), "the target's self-check");
    }
}

#[test]
fn help_a_filter_a_tree_and_the_mouse() {
    let (target, terminal) = leaking("top-keys", "", 100, 30);
    terminal.press("?", "detach and quit");
    terminal.press("?", "Enter stack");
    terminal.press("h", "detach and quit");
    terminal.press("Escape", "Enter stack");
    terminal.press("/", "Esc clear");
    terminal.send("other_thread", "/other_thread");
    until("only what passes the filter", || {
        let screen = terminal.screen();
        screen.contains("leak_in_other_thread") && !screen.contains("leak_by_growing")
    });
    terminal.press("Enter", "Esc clears");
    terminal.press("Escape", "leak_by_growing");
    terminal.press("t", "\u{25be} main");
    terminal.press("Down", "q quit");
    terminal.press("t", "leak_by_growing");
    // SGR coordinates are counted from 1 (xterm's ctlseqs, mode 1006). This is the title of the
    // second column.
    let screen = terminal.screen();
    let title = screen
        .lines()
        .position(|line| line.contains("\u{25be}live"));
    let title = title.expect("the titles") + 1;
    terminal.send(&format!("\x1b[<0;20;{title}M"), "\u{25be}blocks");
    let row = title + 1;
    terminal.send(
        &format!("\x1b[<0;90;{row}M\x1b[<0;90;{row}m"),
        "Enter stack",
    );
    terminal.send(&format!("\x1b[<0;90;{row}M"), "Esc back");
    terminal.press("q", "exit=0");
    // The shell has the mouse again.
    let flags = terminal.tmux(&["display-message", "-p", "#{mouse_any_flag}#{alternate_on}"]);
    assert_eq!(String::from_utf8_lossy(&flags.stdout).trim(), "00");
    assert!(target.finish().success(), "the target's self-check");
}

#[test]
fn colours_are_for_terminals_that_have_them() {
    // ECMA-48, SGR 30 to 37 and 38: foreground colours.
    let is_colored = |text: &str| {
        let codes = text.split("\x1b[").skip(1);
        let codes = codes.filter_map(|rest| rest.split_once('m'));
        let mut numbers = codes.flat_map(|(codes, _)| codes.split(';'));
        numbers.any(|code| code.starts_with('3') && code.len() == 2 && code != "39")
    };
    for (variables, expected) in [("", true), ("TERM=dumb", false), ("NO_COLOR=1", false)] {
        let name = format!("top-colors-{}", variables.len());
        let (target, terminal) = leaking(&name, variables, 100, 30);
        // The chart of the past is never empty for long.
        terminal.wait_for("\u{2588}");
        assert_eq!(is_colored(&terminal.colors()), expected, "{variables}");
        terminal.press("q", "exit=0");
        assert!(target.finish().success(), "the target's self-check");
    }
}

/// Checks that `top` shows a server and its workers, one process at a time.
#[test]
fn children_one_at_a_time() {
    let mut server = Target::start(&build_target("prefork", &["-pthread", "-ldl"]), &[]);
    let words = format!("{} --follow-fork", server.pid());
    let terminal = Terminal::of_size("top-family", &top_words(&words), 120, 30);
    let head = format!("({})", server.pid());
    terminal.wait_for(&head);
    server.send("f");
    let children: Vec<String> = (0..5)
        .map(|_| server.expect("child ").trim()["child ".len()..].to_owned())
        .collect();
    // The list includes the child whose parent exited immediately. Each process is recorded from
    // its first call.
    terminal.wait_for("process 1 of 6, ");
    terminal.wait_for(&head);
    terminal.press("Tab", "process 2 of 6, ");
    // Each worker constantly allocates and releases.
    terminal.wait_for("work_of_child");
    let screen = terminal.screen();
    assert!(
        children
            .iter()
            .any(|pid| screen.contains(&format!("({pid})"))),
        "{screen}"
    );
    terminal.press("BTab", &head);
    terminal.press("BTab", "process 6 of 6, ");
    // The displayed process exits.
    let shown = |child: &&String| terminal.screen().contains(&format!("({child})"));
    let ended = children.iter().find(shown).expect("a child is shown");
    // SAFETY: plain integers; the server has not reaped it.
    unsafe { libc::kill(ended.parse().expect("a pid"), libc::SIGKILL) };
    terminal.wait_for("process 1 of 5, ");
    terminal.press("q", "exit=0");
    let screen = terminal.screen();
    assert!(screen.contains("Traced 6 processes for "), "{screen}");
    assert!(screen.contains("; 5 still run, with "), "{screen}");
    // The processes still work.
    for child in children.iter().filter(|child| *child != ended) {
        let (code, output, errors) = run(&["detach", child]);
        assert_eq!(code, 0, "{output}{errors}");
        // SAFETY: as above.
        unsafe { libc::kill(child.parse().expect("a pid"), libc::SIGKILL) };
    }
    assert!(server.finish().success());
}

/// Returns a command that runs in a folder.
fn inside(folder: &Folder, command: &str) -> String {
    format!("cd '{}' && {command}", folder.path(""))
}

/// Returns a report, which only its owner can read.
fn report_in(folder: &Folder, name: &str) -> String {
    let path = folder.path(name);
    let metadata = std::fs::metadata(&path).expect("a report");
    let mode = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions());
    assert_eq!(mode & 0o777, 0o600, "{path}");
    std::fs::read_to_string(path).expect("text")
}

/// Checks that a key writes the output of `attach` to files with new names.
#[test]
fn a_report_of_the_moment() {
    let folder = Folder::new("top-reports");
    let mut target = Target::start(&build_target("leaks", &[]), &[]);
    let pid = target.pid();
    // A file of another user, or a link to one.
    let (taken, link) = (
        format!("heap-leaks-{pid}-1.txt"),
        format!("heap-leaks-{pid}-2.txt"),
    );
    std::fs::write(folder.path(&taken), "mine").expect("written");
    std::os::unix::fs::symlink("/etc/passwd", folder.path(&link)).expect("a link");
    let terminal = Terminal::start("top-w", &inside(&folder, &top(&target)));
    terminal.wait_for("No block that was allocated");
    target.go();
    target.expect("done");
    terminal.wait_for("leak_in_other_thread");
    let names = [3, 4].map(|number| format!("heap-leaks-{pid}-{number}.txt"));
    for name in &names {
        terminal.press("w", &format!("Report written to {name}"));
    }
    terminal.press("p", "PAUSED");
    assert!(!terminal.screen().contains("Report written"), "until a key");
    terminal.press("q", "exit=0");
    let screen = terminal.screen();
    for name in &names {
        let path = folder.path(name);
        let line = format!("Report: {path}");
        assert!(screen.contains(&line), "{screen}");
        let report = report_in(&folder, name);
        assert!(report.starts_with("leaks"), "{report}");
        assert!(
            report.contains("\n#1 ") && report.contains("leak_by_growing"),
            "{report}"
        );
    }
    let taken = std::fs::read_to_string(folder.path(&taken));
    assert_eq!(taken.expect("still there"), "mine");
    assert!(target.finish().success(), "the target's self-check");
}

/// Checks that the screen shows a failed write of a report, and continues.
#[test]
fn a_report_that_cannot_be_written() {
    let folder = Folder::new("top-no-reports");
    let target = Target::start(&build_target("leaks", &[]), &[]);
    let command = inside(&folder, &top(&target));
    let terminal = Terminal::start("top-no-w", &command);
    terminal.wait_for("live in");
    std::fs::remove_dir(folder.path("")).expect("removed");
    terminal.press("w", "No report: ");
    terminal.press("Down", "q quit");
    terminal.press("q", "exit=0");
}

#[test]
fn the_mouse_goes_back_to_the_terminal_and_comes_again() {
    let (target, terminal) = leaking("top-mouse", "", 100, 30);
    let has_mouse = || {
        let flag = terminal.tmux(&["display-message", "-p", "#{mouse_any_flag}"]);
        String::from_utf8_lossy(&flag.stdout).trim() == "1"
    };
    until("the mouse is ours", has_mouse);
    terminal.press("m", "The mouse selects text in the terminal");
    until("the mouse is the terminal's", || !has_mouse());
    terminal.press("m", "q quit");
    until("the mouse is ours again", has_mouse);
    terminal.press("q", "exit=0");
    assert!(target.finish().success(), "the target's self-check");
}

/// Checks that the last process of a family stays on the screen with its names and a report, as
/// does a recording.
#[test]
fn the_end_of_a_family_and_of_a_recording() {
    let folder = Folder::new("top-ends");
    let program = build_target("leaks", &[]);
    let mut target = Target::start(&program, &[]);
    let pid = target.pid();
    let words = format!("{pid} --follow-fork");
    let command = inside(&folder, &top_words(&words));
    let terminal = Terminal::start("top-family-end", &command);
    terminal.wait_for("live in");
    target.go();
    target.expect("done");
    terminal.wait_for("leak_by_growing");
    drop(target);
    terminal.wait_for("ENDED after");
    terminal.press("Down", "q quit");
    terminal.press("Enter", "by realloc");
    terminal.press("w", &format!("Report written to heap-leaks-{pid}-1.txt"));
    assert!(report_in(&folder, &format!("heap-leaks-{pid}-1.txt")).contains("leak_by_growing"));
    terminal.press("q", "exit=0");
    let screen = terminal.screen();
    assert!(screen.contains("Traced 1 process for "), "{screen}");
    assert!(screen.contains("; none still runs"), "{screen}");

    let mut target = Target::start(&program, &[]);
    let (pid, file) = (target.pid(), folder.path("run.mhk"));
    let recorded = std::thread::spawn({
        let file = file.clone();
        move || run(&["attach", &pid.to_string(), "-q", "-o", &file])
    });
    // A trace that accepts a mark has begun.
    until("the attach", || {
        run(&["mark", &pid.to_string(), "begin"]).0 == 0
    });
    let words = format!("--from '{file}'");
    let terminal = Terminal::start("top-from-end", &inside(&folder, &top_words(&words)));
    target.go();
    target.expect("done");
    terminal.wait_for("leak_by_growing");
    assert!(
        !terminal.screen().contains("ENDED"),
        "{}",
        terminal.screen()
    );
    drop(target);
    let (code, _, errors) = recorded.join().expect("attach runs");
    assert_eq!(code, 0, "{errors}");
    terminal.wait_for("ENDED after");
    terminal.press("w", &format!("Report written to heap-leaks-{pid}-1.txt"));
    terminal.press("q", "exit=0");
    let screen = terminal.screen();
    assert!(screen.contains("The recording of leaks"), "{screen}");
    assert!(
        screen.contains(&format!(
            "Report: {}",
            folder.path("").trim_end_matches('/')
        )),
        "{screen}"
    );
}
