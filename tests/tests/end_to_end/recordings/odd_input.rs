//! Unusual recordings: empty or with one event, with names of every kind, with 10,000 threads, with
//! 50,000 sites. The output of each command must fit into its rows, must not control the terminal,
//! and must stay small.

#[allow(dead_code)] // shared with the tests of the page
#[path = "../../../../crates/report/tests/view/browser.rs"]
mod browser;

use browser::Browser;
use memhook_tests::programs::Folder;
use memhook_tests::terminal::Terminal;
use memhook_tests::{binary, build_target, run};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const READY: &str = "document.body && document.body.dataset.ready === 'yes'";
/// Number of nodes of the page, including text nodes.
const NODES: &str = "(() => { const walker = document.createTreeWalker(document); let nodes = 1; while (walker.nextNode()) nodes += 1; return nodes; })()";
const MOST_NODES: u64 = 5_000;

/// Runs memhook-rs with a program that waits for a byte and then for the end of its input.
fn with_program(arguments: &[&str], program: &Path, of_program: &[&str]) -> Output {
    let mut child = Command::new(binary())
        .args(arguments)
        .arg("--")
        .arg(program)
        .args(of_program)
        .env("XDG_CACHE_HOME", "/dev/null")
        .env_remove("DEBUGINFOD_URLS")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(b"x").expect("it reads");
    drop(input);
    child.wait_with_output().expect("it ends")
}

fn record(folder: &Folder, program: &Path, of_program: &[&str]) -> String {
    let file = folder.path("run.mhk");
    let output = with_program(
        &["run", "-q", "--stacks", "all", "-o", &file],
        program,
        of_program,
    );
    assert!(output.status.success(), "{output:?}");
    file
}

/// Returns the gate's verdict on the program: exit code and output.
fn gate(program: &Path, of_program: &[&str]) -> (Option<i32>, String) {
    let output = with_program(&["gate"], program, of_program);
    let mut text = String::from_utf8(output.stdout).expect("text");
    text += &String::from_utf8(output.stderr).expect("text");
    (output.status.code(), text)
}

fn odd_names(folder: &Folder) -> PathBuf {
    let path = format!("/src/{}.cc", vec!["directory"; 1_000].join("/"));
    let program = PathBuf::from(folder.path("odd_names"));
    // Not built into the usual folder, because its path would be part of the program's name.
    let status = Command::new("c++")
        .args(["-std=c++20", "-g", "-O2", "-pthread", "-w"])
        .arg(format!("-DLONG_FILE=\"{path}\""))
        .arg(memhook_tests::source("odd_names.cc"))
        .arg("-o")
        .arg(&program)
        .status();
    assert!(status.expect("c++").success());
    program
}

/// Returns the columns that a line takes on a terminal.
fn columns(line: &str) -> usize {
    let of = |c: char| match u32::from(c) {
        0x300..=0x36f => 0,
        0x1100..=0x115f | 0x2e80..=0xa4cf | 0xac00..=0xd7a3 | 0xff00..=0xff60 => 2,
        _ => 1,
    };
    line.chars().map(of).sum()
}

/// Checks that a text contains no terminal control sequence and does not reverse a line.
fn check_harmless(what: &str, text: &str) {
    let acts = |c: char| {
        (c.is_control() && c != '\n')
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
    };
    let bad = text.lines().find(|line| line.contains(acts));
    assert!(bad.is_none(), "{what}: {bad:?}");
}

/// Returns the output of a command on a terminal of this width. Joins lines that the terminal
/// wrapped.
fn on_terminal(name: &str, arguments: &str, width: u16) -> String {
    let command = format!(
        "XDG_CACHE_HOME=/dev/null '{}' {arguments} 2>&1; echo \"ended=$?\"; sleep 1000",
        binary().display()
    );
    let terminal = Terminal::of_size(&format!("{name}-{width}"), &command, width, 300);
    terminal.wait_for("ended=0");
    let output = terminal.tmux(&["capture-pane", "-p", "-J"]);
    let text = String::from_utf8(output.stdout).expect("text");
    let lines = text.trim_end().lines().map(str::trim_end);
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the screen of `top` as soon as it shows the expected text.
fn top(name: &str, file: &str, (width, height): (u16, u16), expected: &str) -> Terminal {
    let command = format!(
        "XDG_CACHE_HOME=/dev/null '{}' top --from '{file}'; echo exit=$?; sleep 1000",
        binary().display()
    );
    let terminal = Terminal::of_size(&format!("{name}-top-{width}"), &command, width, height);
    terminal.wait_for(expected);
    terminal
}

fn page(folder: &Folder, file: &str) -> Browser {
    let page = folder.path("page.html");
    let (code, _, errors) = run(&["view", file, "-o", &page, "--force"]);
    assert_eq!(code, 0, "{errors}");
    Browser::open(Path::new(&page), 1400, 900, READY)
}

/// Clicks on every element that opens rows or pictures, and checks that the page stays small.
fn check_size(browser: &mut Browser) {
    for selector in [
        "#groups [data-name=function]",
        "#groups [data-name=module]",
        "#groups [data-name=thread]",
        "#groups [data-name=type]",
        "#groups [data-name=site]",
        "#shapes [data-name=icicle]",
        "#shapes [data-name=callers]",
        "#shapes [data-name=sandwich]",
        "#shapes [data-name=chunks]",
        "#shapes [data-name=space]",
        "#shapes [data-name=flame]",
        "#charts [data-name=stacked]",
    ] {
        browser.click(selector);
        let nodes = browser.value(NODES).as_u64().expect("a number");
        assert!(nodes <= MOST_NODES, "{selector}: {nodes} nodes");
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}

#[test]
fn names_of_every_kind_stay_in_their_rows() {
    let folder = Folder::new("odd-names");
    let program = odd_names(&folder);
    let file = record(&folder, &program, &[]);
    for (width, views) in [
        (
            80,
            &[
                "",
                "--by function",
                "--by thread",
                "--tree top-down",
                "--scores",
            ],
        ),
        (
            160,
            &[
                "",
                "--by function",
                "--by module",
                "--tree bottom-up",
                "--by type",
            ],
        ),
    ] {
        for (at, view) in views.iter().enumerate() {
            let text = on_terminal(
                &format!("odd-names-{at}"),
                &format!("report '{file}' {view}"),
                width,
            );
            check_harmless(view, &text);
            let wide = text.lines().find(|line| columns(line) > usize::from(width));
            assert!(wide.is_none(), "{view} at {width}: {wide:?}");
            assert!(text.contains("510.5 KiB"), "{view}: {text}");
        }
    }
    for (width, height) in [(80, 24), (160, 50)] {
        let terminal = top("odd-names", &file, (width, height), "odd_names.cc:36");
        // No name exceeds its cell. The rows are drawn one after another, so the terminal may be
        // read in between.
        for line in 37..=41 {
            terminal.wait_for(&format!("odd_names.cc:{line}"));
        }
        check_harmless("top", &terminal.screen());
    }
    let (code, text) = gate(&program, &[]);
    assert_eq!(code, Some(1), "{text}");
    check_harmless("gate", &text);
    let wide = text.lines().find(|line| columns(line) > 240);
    assert!(wide.is_none(), "{wide:?}");
    assert!(text.contains("\nFAILED: 9 leaks, "), "{text}");

    let mut browser = page(&folder, &file);
    check_size(&mut browser);
    // Each name must fit into its frame, even with unusual characters.
    let beyond = "app.flame.drawn.filter((place) => { const context = app.flame.canvas.getContext('2d'); context.font = `12px ${css('--mono')}`; \
        const advance = context.measureText('x').width; const room = place.width - 8; \
        return room >= 3 * advance && context.measureText(paintedName(context, app.flame.placeText(place), room, advance)).width > room + 0.5; }).map((place) => app.flame.text(place.frame)).join()";
    assert_eq!(browser.value(beyond), "");
    let rows = browser
        .value("app.table.rows.length")
        .as_u64()
        .expect("rows");
    for row in 0..rows {
        browser.value(&format!("app.table.pick({row})"));
        browser.settle();
        // A name of 10,000 characters would fill the whole panel.
        let longest = "Math.max(...[...document.querySelectorAll('#details *')].filter((e) => !e.children.length).map((e) => e.textContent.length))";
        assert!(browser.value(longest).as_u64() <= Some(230), "row {row}");
        let text = browser.text_of("document.querySelector('main').textContent");
        // We add pairs of isolates, which prevent the characters of a name from reversing the rest.
        check_harmless("the page", &text.replace(['\u{2068}', '\u{2069}'], ""));
    }
    let cells = "[...document.querySelectorAll('.row > div')].every((cell) => { const r = cell.getBoundingClientRect(); const row = cell.parentElement.getBoundingClientRect(); return r.left >= row.left && r.right <= row.right + 1; })";
    assert_eq!(browser.value(cells), true);
}

#[test]
fn nothing_and_one_event() {
    let program = build_target("passing_threads", &[]);
    for (threads, blocks) in [("0", "0 blocks"), ("1", "1 block")] {
        let folder = Folder::new(&format!("odd-few-{threads}"));
        let file = record(&folder, &program, &[threads]);
        let is_empty = threads == "0";
        for view in [
            &[][..],
            &["--by", "function"],
            &["--by", "thread"],
            &["--by", "type"],
            &["--measure", "peak"],
            &["--scores"],
        ] {
            let (code, out, errors) = run(&[&["report", &file][..], view].concat());
            assert_eq!(code, 0, "{view:?}: {errors}");
            assert!(out.contains(blocks), "{view:?}: {out}");
            let says_so = out.contains("No block was allocated");
            assert_eq!(says_so, is_empty, "{view:?}: {out}");
        }
        let (code, out, errors) = run(&["report", &file, "--tree", "top-down"]);
        assert_eq!(code, 0, "{errors}");
        assert_eq!(out.contains("no block to show calls of"), is_empty, "{out}");
        for size in [(80, 24), (160, 50)] {
            let expected = if is_empty {
                "No block that was allocated"
            } else {
                "passing_threads.cc:"
            };
            let terminal = top(&format!("few-{threads}"), &file, size, expected);
            terminal.tmux(&["send-keys", "Down"]);
            if is_empty {
                terminal.tmux(&["send-keys", "Enter"]);
            } else {
                terminal.press("Enter", "Esc back");
                // If top read the next key together with Escape, it would not recognize Escape.
                terminal.press("Escape", "Enter stack");
            }
            terminal.press("t", "calls");
            terminal.press("q", "exit=0");
        }
        let (code, text) = gate(&program, &[threads]);
        assert_eq!(code, Some(if is_empty { 0 } else { 1 }), "{text}");
        let mut browser = page(&folder, &file);
        check_size(&mut browser);
        let nothing = browser.text("#nothing");
        let is_said = browser.value("!byId('nothing').hidden");
        assert_eq!(is_said, is_empty);
        assert_eq!(
            nothing == "No block was allocated while this was recorded.",
            is_empty
        );
        if !is_empty {
            browser.click(".row");
            // Releases were recorded, but there were none.
            assert!(
                browser
                    .text("#details")
                    .contains("None of these blocks was seen being released.")
            );
        }
    }
}

#[test]
fn ten_thousand_threads() {
    memhook_tests::patiently(|| {
        let folder = Folder::new("odd-threads");
        let program = build_target("passing_threads", &[]);
        let file = record(&folder, &program, &["10000"]);
        let (code, out, errors) = run(&["report", &file, "--by", "thread"]);
        assert_eq!(code, 0, "{errors}");
        assert!(out.lines().count() < 30, "{out}");
        // The names of a few threads are known.
        assert!(out.contains(" threads that ended"), "{out}");
        let (code, out, errors) = run(&["report", &file, "--by", "thread", "--json"]);
        assert_eq!(code, 0, "{errors}");
        assert!(out.contains("\"more_rows\":9990"), "{out}");
        let (code, out, errors) = run(&["report", &file]);
        assert_eq!(code, 0, "{errors}");
        assert!(out.contains("#1 1.2 MiB 100.0 %  one "), "{out}");
        for size in [(80, 24), (160, 50)] {
            let screen = top("threads", &file, size, "passing_threads.cc:").screen();
            assert!(
                screen.contains("one  passing_threads.cc:")
                    || screen.contains("one  targets/passing_threads.cc:"),
                "{screen}"
            );
        }
        let (code, text) = gate(&program, &["10000"]);
        assert_eq!(code, Some(1), "{text}");
        assert!(
            text.contains("\nFAILED: 1 leak, 1.2 MiB in 10,000 blocks"),
            "{text}"
        );
        let mut browser = page(&folder, &file);
        check_size(&mut browser);
        let options = browser.value("byId('thread').options.length").as_u64();
        assert!(options <= Some(202), "{options:?}");
        browser.click("#groups [data-name=thread]");
        assert_eq!(browser.text("#rows"), "10,000 rows");
        // The few threads with known names may be the first rows, because rows of equal size have
        // no order.
        let shown = "[...document.querySelectorAll('.row .name')].map((name) => name.textContent)";
        let ended = format!("{shown}.filter((name) => name.endsWith(' (ended)')).length");
        let rows = browser.value(&format!("{shown}.length")).as_u64();
        let ended = browser.value(&ended).as_u64();
        assert!(
            ended > rows.map(|rows| rows / 2),
            "{ended:?} of {rows:?} rows"
        );
    });
}

#[test]
fn fifty_thousand_sites() {
    memhook_tests::patiently(|| {
        let folder = Folder::new("odd-sites");
        let program = build_target("many_sites", &[]);
        let file = record(&folder, &program, &[]);
        let (code, out, errors) = run(&["report", &file]);
        assert_eq!(code, 0, "{errors}");
        assert!(out.lines().count() < 100, "{out}");
        assert!(out.contains("in 50,000 blocks"), "{out}");
        assert!(out.contains("... and 49,990 more sites"), "{out}");
        // The tree contains only the largest sites, but its total counts all sites.
        let terminal = top("sites", &file, (80, 24), "site49999");
        terminal.press("t", "(48,000 smaller sites)");
        terminal.wait_for("(of the 2,000 largest)");
        terminal.press("t", "site49999");
        let (code, text) = gate(&program, &[]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.lines().count() < 100, "{text}");
        assert!(text.contains("\nFAILED: 50,000 leaks, "), "{text}");
        assert!(text.contains(": site49999, and 49,999 more\n"), "{text}");
        let mut browser = page(&folder, &file);
        let rests =
            browser.text_of("app.flame.rests.map((rest) => app.flame.restText(rest)).join()");
        assert_eq!(rests, "50,000 functions, each too narrow to be drawn");
        let first = "document.querySelector('#details .entries').scrollIntoView()";
        browser.value(first);
        browser.wait("document.querySelectorAll('#details .inferences li').length === 20");
        // The largest site among the inferences comes first.
        assert!(
            browser
                .text("#details .inferences li")
                .contains("site49999")
        );
        check_size(&mut browser);
    });
}
