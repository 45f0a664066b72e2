//! `advise` gives the right advice for programs with known problems, and the remedies save the
//! predicted amount.

use memhook_tests::programs::{Folder, installed, installed_library};
use memhook_tests::{JsonSchema, Target, binary, build_target, not_run, run as memhook};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Prefix of the log line that reports an attach.
const TRACED: &str = "session: attached ";

/// Starts a target with a problem, and waits until the problem is visible.
fn sick(disease: &str, variables: &[(&str, &str)]) -> Target {
    let program = build_target("diseased", &["-O2", "-g", "-pthread"]);
    let variables = variables.iter().copied();
    let mut target = Target::run(Command::new(program).arg(disease).envs(variables));
    target.go();
    target.expect("sick");
    target
}

/// Returns the advice on the target; other tests check its texts. If the advice is unexpected,
/// repeats the examination with a longer duration, because the target may have been suspended.
fn advice(target: &Target, expected: &str) -> Value {
    let pid = target.pid().to_string();
    let mut advice = Value::Null;
    for duration in ["6s", "12s", "20s"] {
        let options = [
            "advise",
            &pid,
            "-d",
            duration,
            "--overhead",
            "50%",
            "--json",
        ];
        let (code, out, errors) = memhook(&options);
        assert_eq!(code, 0, "{errors}");
        advice = serde_json::from_str(&out).expect("JSON");
        JsonSchema::load("advice-1").check(&advice);
        // If no finding is expected, a repetition with a longer duration must not hide a false
        // finding.
        if expected == "nothing" || first(&advice).0 == expected {
            break;
        }
    }
    advice
}

fn first(advice: &Value) -> (&str, f64) {
    let first = &advice["findings"][0];
    let gain = first["gain_bytes"].as_f64().unwrap_or_default();
    (first["kind"].as_str().unwrap_or("nothing"), gain)
}

fn resident(target: &Target) -> f64 {
    let kib = target.status("VmRSS");
    let kib = kib
        .split_whitespace()
        .next()
        .and_then(|n| n.parse::<f64>().ok());
    kib.expect("a number") * 1024.0
}

/// Returns the number after a word in the target's output.
fn said(target: &mut Target, word: &str) -> f64 {
    let line = target.expect(word);
    let number = line.split_whitespace().nth(1);
    number.and_then(|n| n.parse().ok()).expect("a number")
}

/// Makes the target apply its own remedy, and returns the saved bytes.
fn cured(target: Target) -> f64 {
    cured_by(target, |_, _| {})
}

/// Applies a remedy while the target waits for it, then stops the target. Returns the saved bytes.
fn cured_by(mut target: Target, remedy: impl FnOnce(&mut Target, f64)) -> f64 {
    target.send("x");
    let before = said(&mut target, "before");
    remedy(&mut target, before);
    let gain = before - said(&mut target, "after");
    target.expect("done");
    assert!(target.finish().success());
    gain
}

/// Returns the predicted saving for a problem that has kept growing since the examination, given
/// the current resident bytes.
fn predicted_by_now(advice: &Value, resident: f64) -> f64 {
    let at_the_look = advice["rss_bytes"].as_f64().expect("bytes");
    first(advice).1 + resident - at_the_look
}

fn assert_predicted(predicted: f64, came: f64, what: &str) {
    let off = came / predicted - 1.0;
    assert!(
        off.abs() < 0.15,
        "{what}: {predicted} predicted, {came} came back"
    );
}

#[test]
fn a_leak() {
    let target = sick("leak", &[]);
    let advice = advice(&target, "leak");
    let (kind, gain) = first(&advice);
    assert_eq!(kind, "leak", "{advice}");
    let place = advice["findings"][0]["place"].as_str().unwrap_or_default();
    assert!(
        place.contains("diseased.cc:") && place.contains("\u{2190} lose"),
        "{place}"
    );
    assert!(advice["findings"][0]["gain_bytes_an_hour"].as_f64() > Some(gain));
    // The problem continues until the remedy is applied.
    let mut predicted = 0.0;
    let came = cured_by(target, |target, resident| {
        predicted = predicted_by_now(&advice, resident);
        let pid = target.pid().to_string();
        let (code, out, errors) = memhook(&["scan", &pid, "--reclaim", "--yes", "--json"]);
        assert_eq!(code, 0, "{errors}");
        assert!(out.contains("released"), "{out}");
        target.send("x");
    });
    assert_predicted(predicted, came, "scan --reclaim, and a trim");
}

#[test]
fn a_cache_without_bounds() {
    one_that_grows("cache", "growth", "\u{2190} remember");
}

#[test]
fn a_buffer_without_bounds() {
    one_that_grows("realloc", "growth", "larger and larger by realloc");
}

/// Without a build-id, only the process itself shows which file is the right one.
#[test]
fn a_program_without_a_build_id_has_names() {
    let options = ["-O2", "-g", "-pthread", "-Wl,--build-id=none"];
    let mut target = Target::run(Command::new(build_target("diseased", &options)).arg("cache"));
    target.go();
    target.expect("sick");
    let advice = advice(&target, "growth");
    let place = advice["findings"][0]["place"].as_str().unwrap_or_default();
    assert!(place.contains("\u{2190} remember"), "{advice}");
    cured(target);
}

/// The shell has no problem, and does not do the work.
#[test]
fn a_child_that_holds_more_memory() {
    let program = build_target("diseased", &["-O2", "-g", "-pthread"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$0\" peak; true"]).arg(program);
    let mut target = Target::run(&mut shell);
    target.go();
    target.expect("sick");
    let pid = target.pid().to_string();
    let (code, out, errors) = memhook(&["advise", &pid, "-d", "1s"]);
    assert_eq!(code, 0, "{errors}");
    let first = out.lines().next().unwrap_or_default();
    assert!(
        first.starts_with("Nothing was found, but its child process "),
        "{out}"
    );
    assert!(first.contains("(diseased"), "{out}");
    cured(target);
}

#[test]
fn what_is_mapped_beside_the_heap() {
    one_that_grows("mappings", "mappings", "map_more (");
}

/// Tests a program that keeps allocating, and releases all of this memory when its remedy limits
/// it.
fn one_that_grows(disease: &str, expected: &str, words: &str) {
    let target = sick(disease, &[]);
    let advice = advice(&target, expected);
    assert_eq!(first(&advice).0, expected, "{advice}");
    let first = &advice["findings"][0];
    let [found, place] = ["found", "place"].map(|name| first[name].as_str().unwrap_or_default());
    assert!(
        found.contains(words) || place.contains(words),
        "{found} {place}"
    );
    let mut predicted = 0.0;
    let came = cured_by(target, |_, resident| {
        predicted = predicted_by_now(&advice, resident);
    });
    assert_predicted(predicted, came, disease);
}

#[test]
fn free_memory_that_glibc_keeps() {
    free_memory_that_is_kept(&[]);
}

#[test]
fn free_memory_that_jemalloc_keeps() {
    let keeps = "dirty_decay_ms:-1,muzzy_decay_ms:-1";
    let jemalloc = installed_library("libjemalloc.so.2").display().to_string();
    free_memory_that_is_kept(&[("LD_PRELOAD", &jemalloc), ("MALLOC_CONF", keeps)]);
}

#[test]
fn a_remedy_that_is_tried() {
    let target = sick("peak", &[]);
    let pid = target.pid().to_string();
    let before = resident(&target);
    let (code, out, errors) = memhook(&[
        "advise",
        &pid,
        "-d",
        "3s",
        "--try",
        "--json",
        "--max-hold",
        "10s",
    ]);
    assert_eq!(code, 0, "{errors}");
    let advice: Value = serde_json::from_str(&out).expect("JSON");
    JsonSchema::load("advice-1").check(&advice);
    let number = |name: &str| advice["tried"][name].as_f64().expect("a number");
    let came = number("given_back_bytes");
    assert_predicted(number("predicted_bytes"), came, "--try");
    assert_predicted(came, before - resident(&target), "the kernel's count");
    // No problem remains.
    let (code, out, errors) = memhook(&["advise", &pid, "-d", "3s", "--try", "--max-hold", "10s"]);
    assert_eq!(code, 0, "{errors}");
    assert!(errors.contains("nothing was tried: "), "{errors}");
    assert!(!out.contains("Tried: "), "{out}");
    cured(target);
}

fn free_memory_that_is_kept(variables: &[(&str, &str)]) {
    let target = sick("peak", variables);
    let advice = advice(&target, "retention");
    let (kind, predicted) = first(&advice);
    assert_eq!(kind, "retention", "{advice}");
    let before = resident(&target);
    let (code, _, errors) = memhook(&["trim", &target.pid().to_string(), "--max-hold", "10s"]);
    assert_eq!(code, 0, "{errors}");
    assert_predicted(predicted, before - resident(&target), "trim");
    cured(target);
}

#[test]
fn free_memory_that_is_pinned() {
    let target = sick("pins", &[]);
    let advice = advice(&target, "fragmentation");
    let (kind, predicted) = first(&advice);
    assert_eq!(kind, "fragmentation", "{advice}");
    assert_predicted(predicted, cured(target), "blocks of their own");
}

#[test]
fn many_arenas() {
    started_anew("arenas", "arenas", ("MALLOC_ARENA_MAX", "2"));
}

#[test]
fn caches_of_threads() {
    let no_caches = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
    started_anew("caches", "thread_caches", no_caches);
}

#[test]
fn huge_pages_that_are_hardly_used() {
    let modes = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let modes = modes.unwrap_or_else(|_| "[never]".into());
    if modes.contains("[never]") {
        return not_run("this system makes no huge pages");
    }
    started_anew("huge", "huge_pages", ("NO_HUGE_PAGES", "1"));
}

/// Tests a problem whose remedy is an environment variable at program start.
fn started_anew(disease: &str, expected: &str, remedy: (&str, &str)) {
    let target = sick(disease, &[]);
    let advice = advice(&target, expected);
    let (kind, predicted) = first(&advice);
    assert_eq!(kind, expected, "{advice}");
    let setting = match remedy.0 {
        // Implementation of the setting in the target.
        "NO_HUGE_PAGES" => "prctl(PR_SET_THP_DISABLE, 1".to_owned(),
        _ => format!("{}={}", remedy.0, remedy.1),
    };
    let advised = advice["findings"][0]["remedy"].as_str();
    assert!(
        advised.is_some_and(|text| text.contains(&setting)),
        "{advice}"
    );
    drop(target);
    // Runs the program with and without the remedy, both untraced.
    let [with, without] = [&[remedy][..], &[]].map(|variables| {
        let mut target = sick(disease, variables);
        target.send("x");
        said(&mut target, "before")
    });
    assert_predicted(predicted, without - with, disease);
}

#[test]
fn stacks_of_threads() {
    let target = sick("stacks", &[]);
    let advice = advice(&target, "stacks");
    let (kind, predicted) = first(&advice);
    assert_eq!(kind, "stacks", "{advice}");
    // glibc keeps up to 40 MiB of address space for the stacks of exited threads, enough for five
    // of the 32.
    let share = cured(target) / predicted;
    assert!(
        (0.75..1.05).contains(&share),
        "{share} of {predicted} came back"
    );
}

#[test]
fn a_healthy_program() {
    let target = sick("healthy", &[]);
    let advice = advice(&target, "nothing");
    assert_eq!(advice["findings"], Value::Array(Vec::new()), "{advice}");
    assert_eq!(advice["answer"], Value::Null);
    cured(target);
}

/// Checks a full cache, in which each new entry replaces an older one, mostly from before the
/// trace. Checks it with sampling, too.
#[test]
fn a_cache_at_its_limit() {
    for overhead in ["50%", "0.1%"] {
        let target = sick("bounded", &[]);
        let pid = target.pid().to_string();
        let options = ["advise", &pid, "-d", "6s", "--overhead", overhead, "--json"];
        let (code, out, errors) = memhook(&options);
        assert_eq!(code, 0, "{errors}");
        let advice: Value = serde_json::from_str(&out).expect("JSON");
        JsonSchema::load("advice-1").check(&advice);
        assert_eq!(first(&advice).0, "nothing", "{advice}");
        assert_eq!(advice["class"], "nothing", "{advice}");
        // The cache allocates a gigabyte or more per hour.
        let rate = advice["lines"][0]["bytes_an_hour"].as_f64();
        assert!(rate.is_some_and(|rate| rate.abs() < 200e6), "{advice}");
        if overhead == "50%" {
            let site = &advice["sites"][0];
            assert_eq!(site["class"], "bounded", "{advice}");
            let name = site["site"].as_str().unwrap_or_default();
            assert!(name.contains("replace_oldest"), "{name}");
        }
        cured(target);
    }
}

/// Starts a program that begins to grow near the end of the first examination, which therefore
/// cannot tell whether the growth continues.
fn late_grower() -> (Target, impl FnOnce(&mut Target)) {
    let program = build_target("diseased", &["-O2", "-g", "-pthread"]);
    let target = Target::run(Command::new(program).arg("cache"));
    (target, |target: &mut Target| {
        // The growth must start at a certain time: in the last quarter of an examination of six
        // seconds.
        std::thread::sleep(Duration::from_millis(4500));
        target.go();
        target.expect("sick");
    })
}

/// Starts `advise`, and returns when it traces the process.
fn advising(target: &Target, options: &str) -> Child {
    let pid = target.pid().to_string();
    let mut child = Command::new(binary())
        .args(["-v", "advise", &pid, "--overhead", "50%", "--json"])
        .args(words(options))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut log = BufReader::new(child.stderr.take().expect("piped")).lines();
    let traced = log.find(|line| line.as_ref().is_ok_and(|line| line.contains(TRACED)));
    assert!(traced.is_some(), "it is traced");
    // Keeps the output from filling the pipe.
    std::thread::spawn(move || log.for_each(drop));
    child
}

fn answered(child: Child) -> Value {
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    let advice = serde_json::from_slice(&output.stdout).expect("JSON");
    JsonSchema::load("advice-1").check(&advice);
    advice
}

#[test]
fn an_unsure_answer_is_followed_by_a_longer_look() {
    let (mut target, grow) = late_grower();
    let child = advising(&target, "-d 6s --until-sure 100s");
    grow(&mut target);
    let advice = answered(child);
    assert_eq!(advice["class"], "unbounded", "{advice}");
    assert_eq!(advice["more_seconds"], Value::Null, "{advice}");
    assert!(advice["seconds"].as_f64() > Some(11.0), "{advice}");
    cured(target);
}

#[test]
fn no_look_is_longer_than_the_user_wants() {
    let (mut target, grow) = late_grower();
    let child = advising(&target, "-d 6s --until-sure 10s");
    grow(&mut target);
    let advice = answered(child);
    assert_eq!(advice["class"], "unsure", "{advice}");
    assert!(advice["more_seconds"].as_u64() >= Some(12), "{advice}");
    // Checks that an interrupt ends the examination, and that no other follows.
    let child = advising(&target, "-d 100s --until-sure 1000s");
    let pid = i32::try_from(child.id()).expect("a pid");
    // SAFETY: kill takes plain integers; the child has not been waited for.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
    let advice = answered(child);
    assert!(advice["seconds"].as_f64() < Some(100.0), "{advice}");
    let pid = target.pid().to_string();
    let (code, out, errors) = memhook(&["advise", &pid, "--until-sure", "5s"]);
    assert_eq!((code, out.as_str()), (2, ""), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    cured(target);
}

/// Checks a process whose memory is mostly the heap of a language runtime, which only the runtime's
/// own tool can inspect.
#[test]
fn heaps_of_languages() {
    let folder = Folder::new("managed");
    let java = folder.path("Keeps.java");
    let keeps = "public class Keeps { public static void main(String[] a) throws Exception {\n\
                 byte[][] kept = new byte[128][]; for (int i = 0; i < 128; i++) kept[i] = new byte[1 << 20];\n\
                 System.out.println(\"ready\"); System.in.read(); } }";
    std::fs::write(&java, keeps).expect("written");
    let python = "import sys\nkept = [{'at': i} for i in range(400000)]\n\
                  print('ready', flush=True)\nsys.stdin.read()";
    let node = "const kept = []; for (let i = 0; i < 2e6; i++) kept.push({ at: i });\n\
                console.log('ready'); process.stdin.on('data', () => console.log(kept.length));";
    // java needs the compiler to run a source file.
    installed("javac");
    for (program, arguments, tool) in [
        ("python3", ["-c", python], "memray attach"),
        ("node", ["-e", node], "heap snapshot"),
        ("java", ["-Xmx512m", &java], "jcmd"),
    ] {
        let mut target = Target::silent(Command::new(installed(program)).args(arguments));
        target.expect("ready");
        let pid = target.pid().to_string();
        let (code, out, errors) = memhook(&["advise", &pid, "-d", "3s", "--json"]);
        assert_eq!(code, 0, "{program}: {errors}");
        let advice: Value = serde_json::from_str(&out).expect("JSON");
        JsonSchema::load("advice-1").check(&advice);
        assert_eq!(advice["class"], "managed", "{program}: {advice}");
        let remedy = advice["findings"][0]["remedy"].as_str();
        let names_it = |text: &str| text.contains(tool) && text.contains(&pid);
        assert!(remedy.is_some_and(names_it), "{program}: {advice}");
    }
}

/// Checks that `advise` reports only the half of the kept memory that is never read.
#[test]
fn blocks_that_nobody_touches() {
    let folder = Folder::new("untouched");
    let file = folder.path("run.mhk");
    let target = sick("untouched", &[]);
    let pid = target.pid().to_string();
    let options = "-d 20s --on-full wait --stale=4s --leaks --rss -q -o";
    let (code, _, errors) = memhook(&[&["attach", &pid][..], &words(options), &[&file]].concat());
    assert_eq!(code, 0, "{errors}");
    let (code, out, errors) = memhook(&["advise", &file, "--json"]);
    assert_eq!(code, 0, "{errors}");
    let advice: Value = serde_json::from_str(&out).expect("JSON");
    JsonSchema::load("advice-1").check(&advice);
    let (kind, gain) = first(&advice);
    assert_eq!(kind, "untouched", "{advice}");
    let place = advice["findings"][0]["place"].as_str().unwrap_or_default();
    assert!(place.contains("load_and_forget"), "{place}");
    // Half of the memory loaded since the attach.
    let live = advice["lines"][0]["bytes"].as_f64().expect("bytes");
    assert_predicted(gain, live / 2.0, "what was loaded and forgotten");
    cured(target);
}

#[test]
fn a_page_and_what_is_there_already() {
    let folder = Folder::new("advice-page");
    let page = folder.path("advice.html");
    let target = sick("peak", &[]);
    let pid = target.pid().to_string();
    let (code, out, errors) = memhook(&["advise", &pid, "-d", "2s", "-o", &page]);
    assert_eq!(code, 0, "{errors}");
    let answer = out.lines().next().expect("an answer");
    let text = std::fs::read_to_string(&page).expect("a page");
    assert!(text.contains(&format!("<h1>{answer}</h1>")), "{text}");
    assert!(text.contains("memhook-rs trim"), "{text}");
    assert!(!text.contains("<script"), "{text}");
    // Refused before the process is touched.
    let (code, out, errors) = memhook(&["advise", &pid, "-o", &page]);
    assert_eq!((code, out.as_str()), (2, ""), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    cured(target);
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[test]
fn a_recording_and_what_it_lacks() {
    let folder = Folder::new("advice");
    let file = folder.path("run.mhk");
    let target = sick("cache", &[]);
    let pid = target.pid().to_string();
    let record = [
        "attach",
        &pid,
        "-d",
        "6s",
        "--on-full",
        "wait",
        "-qo",
        &file,
    ];
    let (code, _, errors) = memhook(&record);
    assert_eq!(code, 0, "{errors}");
    cured(target);
    let (code, out, errors) = memhook(&["advise", &file]);
    assert_eq!(code, 0, "{errors}");
    assert!(
        out.starts_with("Growth, by blocks that are still in use ("),
        "{out}"
    );
    for missing in ["attach --rss", "attach --leaks", "attach --stale"] {
        assert!(out.contains(missing), "{out}");
    }
    let (code, _, errors) = memhook(&["advise", &file, "--try"]);
    assert_eq!((code, errors.lines().count()), (2, 1), "{errors}");
    let (code, _, errors) = memhook(&["advise", "/nowhere/run.mhk"]);
    assert_eq!((code, errors.lines().count()), (2, 1), "{errors}");
}
