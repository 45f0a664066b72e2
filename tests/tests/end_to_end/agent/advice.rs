//! Processes that the agent periodically traces for a minute to give advice on their memory.

use super::served::{expect_untouched, rule};
use memhook_tests::agents::{Agent, wrapped_slots};
use memhook_tests::programs::{Folder, copy_program};
use memhook_tests::{Attacher, JsonSchema, Target, build_target, run, until};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

/// Divisor of pauses: a minute becomes three seconds, and ten minutes become half a minute.
const HASTE: u32 = 20;
/// Divisor of pauses: a minute becomes six seconds, during which the test must stop the agent.
const LITTLE_HASTE: u32 = 10;
/// Remaining keys of the configuration. Processor time is not limited, because a debug build of the
/// agent is slow.
const KEYS: &str =
    "mode = \"scan\"\ninterval = \"1h\"\nmax_hold = \"20s\"\nadvise = \"10m\"\noverhead = \"50%\"";

/// A program with a memory problem; rules select it by its path.
struct Sick {
    target: Target,
    program: PathBuf,
}

impl Sick {
    fn start(folder: &Folder, disease: &str) -> Sick {
        let program = PathBuf::from(folder.path("diseased"));
        copy_program(
            build_target("diseased", &["-O2", "-g", "-pthread"]),
            &program,
        );
        let mut target = Target::run(Command::new(&program).arg(disease));
        target.go();
        target.expect("sick");
        Sick { target, program }
    }

    fn pid(&self) -> u32 {
        self.target.pid()
    }

    /// Checks that the target still works, and that memhook-rs has left nothing in it.
    fn finish(mut self) {
        expect_untouched(self.pid());
        assert_eq!(self.target.status("TracerPid"), "0");
        self.target.send("x");
        self.target.expect("before");
        // The leaking program waits for its remedy.
        self.target.send("x");
        self.target.expect("after");
        self.target.expect("done");
        assert!(self.target.finish().success(), "its checks");
    }
}

/// Waits until the agent has given advice this number of times. Tolerates refused examinations only
/// if processor time was short.
fn await_advice(agent: &Agent, pid: u32, times: u64) -> Value {
    let mut last = Value::Null;
    // An examination starts within half a minute, but some may be refused.
    for _ in 0..6 {
        let before = last["attempts"].as_u64().unwrap_or(0);
        until(&format!("process {pid} is examined"), || {
            let mut target = agent.targets().remove(&u64::from(pid)).unwrap_or_default();
            last = target["numbers"]["advice"].take();
            last["attempts"].as_u64() > Some(before)
        });
        let refusals = last["refusals"].as_object().expect("refusals");
        assert!(refusals.keys().all(|why| why == "starved"), "{last}");
        if last["given"].as_u64() >= Some(times) {
            break;
        }
    }
    last
}

#[test]
fn a_leak_is_found_and_told_in_numbers_and_a_document() {
    let folder = Arc::new(Folder::new("agent-advice"));
    let sick = Sick::start(&folder, "leak");
    let pid = sick.pid();
    let files = folder.path("files");
    let keys = format!("{KEYS}\nsend = [\"files\"]\n[files]\ndirectory = \"{files}\"");
    let agent = Agent::start_hastily(&folder, &rule(&sick.program, &keys), HASTE);
    agent.await_phase(pid, "traced");
    let found = await_advice(&agent, pid, 1);
    assert_eq!(found["given"], 1, "{found} {}", agent.said());
    assert_eq!(found["every_seconds"], 600.0);
    assert!(found["age_seconds"].as_f64() >= Some(0.0), "{found}");
    let answer = found["answer"].as_str().expect("an answer");
    assert!(answer.starts_with("A leak"), "{answer}");
    let words = format!("advice: {answer}");
    until("it has said so", || agent.said().contains(&words));

    let path = found["document"].as_str().expect("a document");
    let document = agent.get(path);
    let file = format!("{files}/memhook-diseased-{pid}.advice.json");
    assert_eq!(std::fs::read_to_string(file).expect("a file"), document);
    let document: Value = serde_json::from_str(&document).expect("JSON");
    JsonSchema::load("advice-1").check(&document);
    assert_eq!(document["pid"], pid);
    assert!(document["seconds"].as_f64() >= Some(2.5), "{document}");
    let first = &document["findings"][0];
    assert_eq!(first["kind"], "leak", "{document}");
    let site = first["place"].as_str().unwrap_or_default();
    let is_named = site.contains("filled (") && site.contains(") \u{2190} lose");
    assert!(is_named && site.contains("diseased.cc:"), "{site}");
    let of_leak = [&format!("pid=\"{pid}\""), "finding=\"leak\""];
    let metric = |name: &str, labels: &[&str]| {
        let labels = [&of_leak[..1], labels].concat();
        agent.metric(&format!("memhook_target_advice{name}"), &labels)
    };
    let gain = metric("_gain_bytes", &of_leak[1..]);
    assert_eq!(gain, found["gain_bytes"]["leak"].as_f64(), "{found}");
    assert!(gain > Some(0.0), "{document}");
    assert!(metric("_gain_bytes_per_hour", &of_leak[1..]) > gain);
    assert_eq!(metric("s_total", &[]), Some(1.0));
    assert!(metric("_age_seconds", &[]) >= Some(0.0));

    // The agent detaches after each examination, and examines the process again.
    let again = await_advice(&agent, pid, 2);
    assert_eq!(again["given"], 2, "{again} {}", agent.said());
    let said = agent.said();
    assert_eq!(said.matches("advice: A leak").count(), 1, "{said}");
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    sick.finish();
}

/// Checks that the next agent still reports the advice, and does not examine the process too early.
#[test]
fn advice_outlasts_the_agent() {
    let folder = Arc::new(Folder::new("agent-advice-kept"));
    let sick = Sick::start(&folder, "leak");
    let pid = sick.pid();
    let file = PathBuf::from(folder.path("state")).join(format!("advice/{pid}.json"));
    // A minute becomes 0.6 seconds, ten minutes become six seconds, and a day becomes a quarter of
    // an hour.
    let start = |every: &str| {
        let keys = KEYS.replace("10m", every);
        Agent::start_hastily(&folder, &rule(&sick.program, &keys), 100)
    };
    let advice = |agent: &Agent| {
        let mut target = agent.targets().remove(&u64::from(pid)).unwrap_or_default();
        target["numbers"]["advice"].take()
    };
    let examined = || {
        let kept = std::fs::read(&file).expect("it is kept");
        let kept: Value = serde_json::from_slice(&kept).expect("JSON");
        let examined = &kept["examined"]["since_boot_ms"];
        examined.as_u64().expect("a moment")
    };
    let agent = start("10m");
    let mut made = Value::Null;
    until("there is advice", || {
        made = advice(&agent);
        !made["document"].is_null()
    });
    let document = agent.get(made["document"].as_str().expect("a document"));
    let mode = std::fs::metadata(&file).expect("a file").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    agent.kill();
    let first = examined();

    let agent = start("daily");
    let mut told = Value::Null;
    until("the next agent tells it", || {
        told = advice(&agent);
        !told["document"].is_null()
    });
    for key in ["made_unix_ms", "answer", "gain_bytes", "document"] {
        assert_eq!(told[key], made[key], "{key} in {told}");
    }
    assert_eq!((&told["attempts"], &told["given"]), (&0.into(), &0.into()));
    let path = told["document"].as_str().expect("a path");
    assert_eq!(agent.get(path), document);
    let of_process = format!("pid=\"{pid}\"");
    let age = agent.metric("memhook_target_advice_age_seconds", &[&of_process]);
    assert!(age > Some(0.0), "{age:?}");
    agent.kill();

    let agent = start("10m");
    until("it is examined again", || examined() != first);
    assert!(examined() >= first + 6000, "{first}, {}", examined());
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    // The agent forgets processes that have exited, even those that exited before it started.
    let other = rule(&sick.program, "");
    sick.finish();
    assert!(file.exists());
    let agent = Agent::start(&folder, &other);
    assert!(!file.exists());
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
}

/// Checks that the agent leaves a process with another tracer alone, and that it gives no advice if
/// it is stopped during an examination.
#[test]
fn a_trace_of_somebody_else_is_respected_and_the_end_is_not_delayed() {
    let folder = Arc::new(Folder::new("agent-advice-traced"));
    let sick = Sick::start(&folder, "healthy");
    let pid = sick.pid();
    let mut agent = Agent::start_hastily(&folder, &rule(&sick.program, KEYS), LITTLE_HASTE);
    agent.await_phase(pid, "traced");
    // Between two examinations, any tracer can attach.
    let attacher = Attacher::start(&sick.target, &[]);
    let words =
        format!("no advice on process {pid} (diseased): process {pid} is already traced by");
    agent.hear(&words);
    let of_process = format!("pid=\"{pid}\"");
    let refused = || {
        let labels = [of_process.as_str(), "reason=\"traced\""];
        agent.metric("memhook_target_advice_refusals_total", &labels)
    };
    until("the refusal is counted", || refused() == Some(1.0));
    attacher.finish();
    let before = agent.said().matches("advice: ").count();
    until("the agent traces it", || wrapped_slots(pid) > 0);
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said.matches("advice: ").count(), before, "{said}");
    sick.finish();
}

#[test]
fn check_and_plan_say_what_is_examined() {
    let folder = Folder::new("agent-advice-plan");
    let sick = Sick::start(&folder, "healthy");
    let file = folder.path("agent.toml");
    std::fs::write(&file, rule(&sick.program, KEYS)).expect("written");
    let show = |option: &str| {
        let (code, out, errors) = run(&["agent", "--config", &file, option]);
        assert_eq!((code, errors.as_str()), (0, ""), "{out}");
        out
    };
    let check = show("--check");
    let words = "the rule \"web\" traces each of its processes for a minute, once in 10 min 00 s";
    assert!(check.contains(words), "{check}");
    let plan = show("--plan");
    let plan: Vec<&str> = plan.split_whitespace().collect();
    let plan = plan.join(" ");
    let words = format!(
        "what to do about their memory: {} (once in 10 min 00 s",
        sick.pid()
    );
    assert!(plan.contains(&words), "{plan}");
    sick.finish();
}
