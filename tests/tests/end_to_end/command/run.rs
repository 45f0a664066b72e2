//! Programs that `run` starts. memhook-rs traces them from the start; otherwise they run as if a
//! shell had started them.

use memhook_tests::programs::{Folder, installed};
use memhook_tests::{binary, build_target, leave, run, run_program, until};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

fn report(program: &Path, args: &[&str]) -> (Option<i32>, serde_json::Value, String) {
    let folder = Folder::new("run");
    let file = folder.path("report.json");
    let options = ["run", "--json", "-T", "1000", "-o", &file];
    let (code, text, errors) = run_program(&options, &file, program, args);
    let last = text.lines().rfind(|l| !l.is_empty()).expect("a report");
    (code, serde_json::from_str(last).expect("JSON"), errors)
}

/// Returns the functions in the stacks of the report.
fn functions(report: &serde_json::Value) -> Vec<String> {
    let sites = report["sites"].as_array().expect("sites");
    let frames = sites
        .iter()
        .flat_map(|s| s["stack"].as_array().expect("a stack"));
    frames
        .filter_map(|f| f["function"].as_str().map(str::to_owned))
        .collect()
}

#[test]
fn constructors_are_traced_and_the_status_passes_through() {
    let program = build_target("run_constructors", &[]);
    for (end, status) in [
        ("0", 0),
        ("7", 7),
        ("SIGSEGV", 128 + 11),
        ("SIGKILL", 128 + 9),
    ] {
        let (code, report, errors) = report(&program, &[end]);
        assert_eq!(code, Some(status), "{end}: {errors}");
        assert!(errors.contains("from before its constructors"), "{errors}");
        let named = functions(&report);
        for function in ["preinit", "Global", "main"] {
            let found = named.iter().any(|name| name.starts_with(function));
            assert!(found, "{function}: {named:?}");
        }
        assert_eq!(report["final"], true);
        // The name is also available after the process has exited. For a live process, the kernel
        // has 15 bytes of the name.
        let name = report["target"]["name"].as_str().expect("a name");
        assert!(name.starts_with("run_constructor"), "{name:?}");
        assert_eq!(report["totals"]["lost_events"], 0);
    }
}

/// Checks that `run --leaks` finds blocks that are unreachable at program exit, as `attach --leaks`
/// finds them in a running program.
#[test]
fn leaks_at_the_end() {
    let program = build_target("gate_cases", &["-O1", "-g"]);
    let leaks = |case: &str| {
        let folder = Folder::new("run-leaks");
        let file = folder.path("report.json");
        let options = ["run", "--leaks", "--json", "-q", "-o", &file];
        let (code, text, errors) = run_program(&options, &file, &program, &[case]);
        assert_eq!(code, Some(0), "{errors}");
        let last = text.lines().rfind(|l| !l.is_empty()).expect("a report");
        let report: serde_json::Value = serde_json::from_str(last).expect("JSON");
        report["leaks"].clone()
    };
    let found = leaks("plain");
    assert_eq!(found["totals"]["leaked_bytes"], 960, "{found}");
    assert_eq!(found["totals"]["leaked_blocks"], 10, "{found}");
    let stack = &found["sites"][0]["stack"];
    assert_eq!(stack[0]["function"], "block", "{found}");
    assert_eq!(leaks("nothing")["totals"]["leaked_blocks"], 0);
}

#[test]
fn streams_pass_through() {
    let mut child = Command::new(binary())
        .args(["run", "-q", "-o", "/dev/null", "--force", "--"])
        .arg(installed("sh"))
        .args([
            "-c",
            "while read x; do echo \"<$x>\"; echo e >&2; done; exit 4",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut input = child.stdin.take().expect("piped");
    let mut lines = BufReader::new(child.stdout.take().expect("piped"));
    for word in ["one", "two"] {
        writeln!(input, "{word}").expect("read");
        let mut line = String::new();
        lines.read_line(&mut line).expect("a line");
        assert_eq!(line, format!("<{word}>\n"));
    }
    drop(input);
    let mut rest = String::new();
    lines.read_to_string(&mut rest).expect("the end");
    let mut errors = String::new();
    child
        .stderr
        .take()
        .expect("piped")
        .read_to_string(&mut errors)
        .expect("the end");
    assert_eq!((rest.as_str(), errors.as_str()), ("", "e\ne\n"));
    assert_eq!(child.wait().expect("it ends").code(), Some(4));
}

#[test]
fn a_signal_to_us_is_the_programs() {
    let mut child = Command::new(binary())
        .args(["run", "-q", "-o", "/dev/null", "--force", "--"])
        .arg(installed("sh"))
        .args([
            "-c",
            "trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.05; done",
        ])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    // SAFETY: plain integers; the child has not been waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    assert_eq!(lines.next().expect("a line").expect("text"), "got");
    assert_eq!(child.wait().expect("it ends").code(), Some(5));
}

#[test]
fn what_it_executes_is_traced_in_its_place() {
    let program = build_target("run_constructors", &[]);
    let shell = installed("sh");
    let command = format!("echo before; exec {} 6", program.display());
    let (code, report, errors) = report(&shell, &["-c", &command]);
    assert_eq!(code, Some(6), "{errors}");
    assert!(functions(&report).iter().any(|f| f == "main"), "{report:#}");
}

#[test]
fn a_program_killed_with_its_tracer_gone_lives_on() {
    let folder = Folder::new("orphan");
    let file = folder.path("done");
    let script = format!("echo $$; read x; sleep 0.2; echo end > {file}");
    let mut child = Command::new(binary())
        .args(["run", "-q", "--"])
        .arg(installed("sh"))
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    lines.next().expect("a line").expect("text");
    // The input is taken before the wait, which would close it.
    let mut input = child.stdin.take().expect("piped");
    child.kill().expect("killed");
    child.wait().expect("reaped");
    writeln!(input).expect("the program reads");
    until("the program ends its work", || Path::new(&file).exists());
}

#[test]
fn what_cannot_be_started_is_refused() {
    let (code, out, err) = run(&["run", "--", "/nonexistent/program"]);
    assert_eq!((code, out.as_str()), (2, ""), "{err}");
    assert!(
        err.contains("cannot start /nonexistent/program: No such file"),
        "{err}"
    );
    assert_eq!(err.lines().count(), 1, "{err}");
    let stripped = build_target("threads", &["-static", "-s"]);
    let stripped = stripped.to_str().expect("UTF-8");
    let (code, _, err) = run(&["run", "--", stripped, "16"]);
    assert_eq!(code, 2, "{err}");
    assert!(err.contains("statically linked and stripped"), "{err}");
    let (code, _, _) = run(&["gate", "--baseline", "/nonexistent", "--", "true"]);
    assert_eq!(code, 2);
}

#[test]
fn a_script_runs_in_its_interpreter() {
    let folder = Folder::new("script");
    let script = folder.path("script");
    let write = |text: &str| memhook_tests::programs::write_script(&script, text);
    write(&format!("#!{}\nexit 9\n", installed("sh").display()));
    let (code, _, errors) = report(Path::new(&script), &[]);
    assert_eq!(code, Some(9), "{errors}");
    write("#!/nonexistent/interpreter\n");
    let (code, _, err) = run(&["run", "--", &script]);
    assert_eq!(code, 2, "{err}");
    assert!(
        err.contains("cannot start") && err.lines().count() == 1,
        "{err}"
    );
}

#[test]
fn a_daemon_outlives_the_trace_of_what_started_it() {
    let folder = Folder::new("daemon");
    let file = folder.path("done");
    // Like daemon(3): forks, starts a new session, and forks again.
    let program = format!(
        "import os, time
if os.fork(): os._exit(3)
os.setsid()
if os.fork(): os._exit(0)
null = os.open('/dev/null', os.O_RDWR)
for n in range(3): os.dup2(null, n)
time.sleep(0.5)
blocks = [bytes(1000 + n) for n in range(10000)]
open('{file}', 'w').close()"
    );
    let (code, report, errors) = report(&installed("python3"), &["-c", &program]);
    assert_eq!(code, Some(3), "{errors}");
    assert_eq!(report["final"], true);
    until("the daemon ends its work", || Path::new(&file).exists());
}

#[test]
fn rights_of_the_file_are_given_as_far_as_the_kernel_allows() {
    // SAFETY: no pointers.
    if unsafe { libc::geteuid() } != 0 {
        leave("it takes root to make a set-user-ID program of another user");
    }
    let folder = Folder::new("setuid");
    let program = folder.path("id");
    memhook_tests::programs::copy_program(installed("id"), &program);
    std::os::unix::fs::chown(&program, Some(65534), None).expect("nobody's");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(&program, mode).expect("set-user-ID");
    let output = Command::new(binary())
        .args(["run", "-o", "/dev/null", "--force", "--"])
        .args([&program, "-u"])
        .output()
        .expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "65534\n",
        "{errors}"
    );
    assert!(errors.contains("from before its constructors"), "{errors}");
}
