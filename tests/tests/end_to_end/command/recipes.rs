//! Runs the commands of the README as written, in its first minute and its five recipes, on the
//! demo service.

use memhook_tests::patience::TRIES;
use memhook_tests::programs::{Folder, installed};
use memhook_tests::terminal::Terminal;
use memhook_tests::{Target, binary, run};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the text of the README from a heading to the next heading of this or a higher level.
fn section(heading: &str) -> String {
    section_of("README.md", heading)
}

fn section_of(page: &str, heading: &str) -> String {
    let text = std::fs::read_to_string(root().join(page)).expect("the page");
    let level = heading.split(' ').next().expect("signs").len();
    let mut lines = text.lines().skip_while(|line| *line != heading).skip(1);
    let is_inside = |line: &&str| {
        let signs = line.split(' ').next().unwrap_or_default();
        signs.is_empty() || signs.chars().any(|c| c != '#') || signs.len() > level
    };
    let text: Vec<&str> = lines.by_ref().take_while(is_inside).collect();
    assert!(!text.is_empty(), "no {heading:?}");
    text.join("\n")
}

/// Returns the lines of the code blocks in a text.
fn code(text: &str) -> Vec<&str> {
    let parts = text.split("```").skip(1).step_by(2);
    // Skips the line with the language.
    parts.flat_map(|part| part.lines().skip(1)).collect()
}

/// Returns the commands of memhook-rs in a section of the README.
fn commands(heading: &str) -> Vec<String> {
    commands_in(&section(heading))
}

fn commands_in(text: &str) -> Vec<String> {
    let lines = code(text).into_iter();
    let lines = lines.filter(|line| line.starts_with("memhook-rs "));
    let lines = lines.map(|line| line.split(" # ").next().unwrap_or(line).trim().to_owned());
    lines.collect()
}

/// Starts the demo service, with debug information like that in the binary.
fn service(folder: &Folder) -> Target {
    let program = folder.path("demo-service");
    let built = Command::new("g++")
        .args(["-g", "-O2", "-std=c++20", "-pthread", "-o", &program])
        .arg(root().join("crates/cli/demo/service.cc"))
        .status();
    assert!(built.expect("g++").success());
    Target::run(&mut Command::new(program))
}

/// Runs a command line of the README in a folder, with its placeholders filled in as a reader
/// would.
fn typed(line: &str, pid: u32, folder: &Folder) -> Output {
    let line = line
        // The default would be a minute.
        .replace("advise PID", "advise PID -d 5s")
        .replace("PID", &pid.to_string())
        .replace("-d 10m", "-d 2s")
        .replace("-d 1m", "-d 2s")
        .replace("-d 30s", "-d 2s")
        .replace("--from 10s --to 20s", "--from 1s --to 2s")
        // A command that runs until it is interrupted gets a duration instead of Ctrl-C.
        .replace("--func pool_alloc", "-d 1s --func export_history");
    let folder_of_binary = binary().parent().expect("a folder").display();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("sh");
    shell
        .args(["-ec", &line])
        .current_dir(folder.path(""))
        .env("PATH", format!("{folder_of_binary}:{path}"))
        .env("XDG_CACHE_HOME", "/dev/null");
    shell.output().expect("sh")
}

/// What the README promises about each of its commands, by command prefix.
const PROMISES: &[(&str, &[&str])] = &[
    ("memhook-rs attach PID -q -d 10m -o run.mhk", &[]),
    (
        "memhook-rs report run.mhk",
        &["export_history", "open_session"],
    ),
    ("memhook-rs view run.mhk", &["run.html"]),
    ("memhook-rs advise PID", &["A leak", "#1 ", "Do: "]),
    (
        "memhook-rs scan PID",
        &["leaked", "a user with a rather long name"],
    ),
    (
        "memhook-rs rss PID --pins",
        &["live heap", "fragmentation", "Pinned is"],
    ),
    ("memhook-rs trim PID --dry-run", &["would give back"]),
    (
        "memhook-rs attach PID -d 30s --by function",
        &["function\n", "export_history"],
    ),
    (
        "memhook-rs attach PID -d 30s --stacks all",
        &["Who frees what", "freed by handle_search"],
    ),
    (
        "memhook-rs report who.mhk --measure temporary",
        &["render_page"],
    ),
    ("memhook-rs probe PID", &["export_history", "handle_export"]),
    ("memhook-rs rss PID", &["live heap", "file pages", "stacks"]),
    (
        "memhook-rs attach PID -d 1m --rss --mappings",
        &["Mappings:", "resident", "export_history"],
    ),
];

#[test]
fn every_command_does_what_it_says() {
    let folder = Folder::new("recipes");
    let service = service(&folder);
    let headings = [
        "### It grows",
        "### Is it a leak, or the allocator?",
        "### Who allocates here?",
        "### What does my RSS consist of?",
    ];
    let lines: Vec<String> = headings.into_iter().flat_map(commands).collect();
    assert!(lines.len() >= PROMISES.len(), "{lines:?}");
    for line in lines {
        let promise = PROMISES.iter().find(|(begin, _)| line.starts_with(begin));
        let (_, words) = promise.unwrap_or_else(|| panic!("what does {line:?} promise?"));
        let all = |text: &str| words.iter().all(|word| text.contains(word));
        let mut text = String::new();
        // The service may be suspended for the whole examination.
        for _ in 0..TRIES {
            let mut outputs = line.split(' ').skip_while(|word| *word != "-o");
            if let Some(output) = outputs.nth(1) {
                let _ = std::fs::remove_file(folder.path(output));
            }
            let output = typed(&line, service.pid(), &folder);
            text = String::from_utf8_lossy(&output.stdout).into_owned();
            text += &String::from_utf8_lossy(&output.stderr);
            // Exit code 1: the process temporarily ran untraced, because no processor was free.
            let code = output.status.code();
            assert!(matches!(code, Some(0 | 1)), "{line}: {code:?}\n{text}");
            if code == Some(0) && all(&text) {
                break;
            }
        }
        assert!(all(&text), "{line}: not all of {words:?} in\n{text}");
    }
    // Opens the page that `view` wrote.
    let page = Command::new(installed("chromium"))
        .args(["--headless", "--no-sandbox", "--disable-gpu"])
        // Waits until the scripts of the page are idle.
        .args(["--virtual-time-budget=10000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.path("browser")))
        .arg(format!("file://{}", folder.path("run.html")))
        .stderr(Stdio::null())
        .output()
        .expect("chromium");
    // The data in the page is packed, so this text must have been rendered.
    let page = String::from_utf8_lossy(&page.stdout);
    let is_shown = page.contains("export_history");
    assert!(
        is_shown,
        "{}",
        page.split("<script").next().unwrap_or_default()
    );
}

/// Checks that the step of a CI job fails if the reader's tests leak.
#[test]
fn the_step_of_a_job_fails_for_a_leak() {
    let folder = Folder::new("leak-in-ci");
    let source = folder.path("tests.c");
    std::fs::create_dir(folder.path("build")).expect("a directory");
    let text = "#include <stdlib.h>\nint main(void) {\n  char *volatile lost = malloc(100);\n  lost = 0;\n  return lost != 0;\n}\n";
    std::fs::write(&source, text).expect("written");
    let built = Command::new("cc")
        .args(["-g", &source, "-o", &folder.path("build/tests")])
        .status();
    assert!(built.expect("cc").success());
    let text = section("### A leak in CI");
    let mut steps = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("run: "));
    let output = typed(steps.next().expect("a step"), 0, &folder);
    let out = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{out}");
    assert!(out.contains("::error file=tests.c,line=3"), "{out}");
    assert!(Path::new(&folder.path("leaks.sarif")).exists());
}

/// Checks that at most three commands answer three questions: which line grows, who frees its
/// blocks, and whether it is a leak.
#[test]
fn three_questions_take_three_commands() {
    let folder = Folder::new("questions");
    let service = service(&folder);
    let text = section_of("docs/guide/recordings.md", "## Three questions about a run");
    let lines = commands_in(&text);
    let outputs: Vec<String> = lines
        .iter()
        .map(|line| {
            let output = typed(line, service.pid(), &folder);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{line}: {}\n{text}", output.status);
            text
        })
        .collect();
    let [leaks, growth, frees] = outputs.as_slice() else {
        panic!("{lines:?}");
    };
    let first = growth.lines().find(|line| line.starts_with("#1 "));
    let first = first.unwrap_or_else(|| panic!("{growth}"));
    assert!(first.contains("service.cc:"), "{first}");
    assert!(frees.contains("freed by"), "{frees}");
    // The first row for the forgotten sessions says how much is leaked.
    assert!(leaks.contains("of it unreachable"), "{leaks}");
}

/// Replaces the numbers in a line: `0x1f`, `1,234`, `2.4 MiB`, `31354`.
fn shape(line: &str) -> String {
    let mut shape = String::new();
    // An estimate has an error instead of a peak.
    let line = line.split(" (peak ").next().unwrap_or(line);
    let mut words = line.split_ascii_whitespace();
    while let Some(word) = words.next() {
        if word == "\u{b1}" {
            let _ = words.next();
            continue;
        }
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        let word = if is_number { "0" } else { word };
        let is_unit = [
            "B", "KiB", "MiB", "GiB", "B,", "KiB,", "MiB,", "ms", "s", "ms,",
        ];
        if !is_unit.contains(&word) {
            shape += word;
            shape.push(' ');
        }
    }
    shape
}

/// Checks that the first example matches the output of the demo, except for the numbers.
#[test]
fn the_first_minute_is_as_shown() {
    let text = section("## Sixty seconds");
    let example = code(&text).into_iter();
    let example: Vec<&str> = example
        .skip_while(|line| *line != "$ memhook-rs demo")
        .skip(1)
        .collect();
    let end = example
        .iter()
        .position(|line| line.starts_with("memhook-rs doctor"));
    let mut printed = String::new();
    for _ in 0..5 {
        let (code, out, err) = run(&["demo", "-d", "3s"]);
        assert!(matches!(code, 0 | 1), "{code}: {err}");
        // On a busy machine, numbers are estimates with errors, the peak is missing, the trace has
        // gaps, and there are too few requests for the usual order of the rows.
        let is_usual = |line: &str| line.starts_with("#1 ") && line.contains("export_history");
        let is_quiet = code == 0 && !out.contains('\u{b1}') && out.lines().any(is_usual);
        printed = out + &err;
        if is_quiet {
            break;
        }
    }
    let shapes: Vec<String> = printed.lines().map(shape).collect();
    let shown = example[..end.expect("a process of one's own")].iter();
    let shown = shown.filter(|line| !line.is_empty() && **line != "...");
    for line in shown {
        let shape = shape(line);
        assert!(
            shapes.contains(&shape),
            "{shape:?} ({line}) is not in\n{printed}"
        );
    }
}

/// Checks that `top` shows the growing site, on a terminal as large as the one in the picture.
#[test]
fn top_shows_what_grows() {
    let folder = Folder::new("top-recipe");
    let service = service(&folder);
    let command = format!("{} top {}", binary().display(), service.pid());
    let terminal = Terminal::of_size("recipe", &command, 80, 24);
    terminal.wait_for("export_history");
    terminal.wait_for("service.cc");
}
