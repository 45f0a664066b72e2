//! Unreachable blocks in processes that rules select. The agent reports them, or frees them if a
//! rule requests it.
//!
//! The agent does not search a process in the process's first minute. Even with shortened pauses,
//! most of these tests spend most of their time waiting, so they run in parallel.

use super::served::rule;
use memhook_tests::agents::Agent;
use memhook_tests::programs::{Folder, copy_program};
use memhook_tests::scans::scan;
use memhook_tests::{
    Attacher, ProcessorBox, Target, binary, build_library, build_target, not_run, run, until,
};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Divisor for pauses: a minute becomes two seconds, and ten minutes become twenty seconds.
const HASTE: u32 = 30;
/// Divisor for pauses: a minute becomes twenty seconds, long enough for an attach, or for delays to
/// show.
const LITTLE_HASTE: u32 = 3;

/// Returns the keys of a rule whose `reclaim` is set to `how`.
fn reclaim(how: &str) -> String {
    format!("mode = \"scan\"\ninterval = \"10m\"\nmax_hold = \"20s\"\nreclaim = \"{how}\"")
}

/// A program with leaked blocks; rules select it by its path.
struct Losing {
    target: Target,
    program: PathBuf,
    /// Number of leaked blocks, and their usable bytes.
    blocks: u64,
    bytes: u64,
}

impl Losing {
    fn start(folder: &Folder, arguments: &[&str], environment: &[(&str, &str)]) -> Losing {
        let program = PathBuf::from(folder.path("reclaimed"));
        copy_program(build_target("reclaimed", &[]), &program);
        let mut command = Command::new(&program);
        command.args(arguments).envs(environment.iter().copied());
        let mut target = Target::silent(&mut command);
        let [blocks, bytes] = numbers(&target.expect("planted"));
        target.expect("ready");
        Losing {
            target,
            program,
            blocks,
            bytes,
        }
    }

    fn pid(&self) -> u32 {
        self.target.pid()
    }

    /// Makes the program check its blocks in use. Returns the memory in use in heaps and in
    /// mappings according to its malloc, including headers.
    fn used(&mut self) -> [u64; 2] {
        self.target.go();
        numbers(&self.target.expect("done"))
    }
}

/// Returns the two numbers after a word.
fn numbers(line: &str) -> [u64; 2] {
    let mut fields = line.split_whitespace().skip(1);
    [(); 2].map(|()| fields.next().expect(line).parse().expect(line))
}

/// Waits for this number of attempts.
fn await_attempts(agent: &Agent, pid: u32, attempts: u64) -> Value {
    let found = || {
        let mut target = agent.targets().remove(&u64::from(pid)).unwrap_or_default();
        assert_eq!(target["phase"], "traced", "{target}");
        target["numbers"]["reclaim"].take()
    };
    let mut last = Value::Null;
    until(&format!("process {pid} is searched"), || {
        last = found();
        last["attempts"].as_u64() >= Some(attempts)
    });
    last
}

/// Maximum number of attempts. Even on a busy machine, fewer than this fail in a row.
const MOST_ATTEMPTS: u64 = 12;

/// Waits for an attempt with the expected result. Memory shared with other programs may prevent an
/// attempt from searching everything, and on a busy machine a process may be too starved to be
/// reclaimed.
fn await_attempt(agent: &Agent, pid: u32, is_it: impl Fn(&Value) -> bool) -> Value {
    for attempts in 1..=MOST_ATTEMPTS {
        let found = await_attempts(agent, pid, attempts);
        if is_it(&found) {
            return found;
        }
        assert!(found["refused"].is_string(), "{found}");
        // An attempt may have been abandoned because holds took too long.
        let is_starved = found["refusals"]["starved"].is_u64();
        assert!(is_starved || found["freed_blocks"] == 0, "{found}");
    }
    panic!("not in {MOST_ATTEMPTS} attempts: {}", agent.said());
}

fn await_success(agent: &Agent, pid: u32) -> Value {
    await_attempt(agent, pid, |found| found["refused"].is_null())
}

#[test]
fn what_takes_a_minute() {
    let tests = [
        blocks_are_reported_first_and_freed_when_the_rule_says_so,
        a_refusal_is_counted_each_time_and_said_once,
        a_process_that_somebody_traces_is_not_reclaimed,
        a_starved_process_is_left_alone,
        an_agent_that_ends_while_blocks_are_freed_stops_between_two_holds,
        an_agent_that_is_killed_while_blocks_are_freed_leaves_a_healthy_process,
    ];
    // A panic of one test fails all of them.
    std::thread::scope(|scope| tests.map(|test| drop(scope.spawn(test))));
}

fn blocks_are_reported_first_and_freed_when_the_rule_says_so() {
    let folder = Arc::new(Folder::new("agent-reclaim"));
    let mut losing = Losing::start(&folder, &["300"], &[]);
    let pid = losing.pid();
    let before = losing.used();
    let begin = Instant::now();
    let agent = Agent::start_hastily(
        &folder,
        &rule(&losing.program, &reclaim("report-only")),
        HASTE,
    );
    agent.await_phase(pid, "traced");
    let found = await_success(&agent, pid);
    assert!(
        begin.elapsed() >= Duration::from_secs(60) / HASTE,
        "too soon"
    );
    assert_eq!(found["rule"], "report-only");
    assert_eq!(found["reclaimable_blocks"], losing.blocks, "{found}");
    assert_eq!(found["reclaimable_bytes"], losing.bytes, "{found}");
    for nothing in ["freed_blocks", "freed_bytes", "holds"] {
        assert_eq!(found[nothing], 0, "{found}");
    }
    let words = format!("{} blocks of ", losing.blocks);
    assert!(agent.said().contains(&words), "{}", agent.said());
    assert!(agent.said().contains("would be freed"), "{}", agent.said());
    assert_eq!(losing.used(), before, "nothing is freed");
    let of_process = format!("pid=\"{pid}\"");
    let metric = |name: &str, more: &[&str]| {
        let labels = [&[of_process.as_str()], more].concat();
        agent.metric(&format!("memhook_target_{name}"), &labels)
    };
    let reported = metric("reclaimable_blocks", &["reclaim=\"report-only\""]);
    assert_eq!(reported, Some(losing.blocks as f64));
    assert_eq!(metric("reclaimed_bytes_total", &[]), Some(0.0));
    // Between two attempts, any command can search the process, and finds these blocks too.
    let dry = scan(pid, &["--reclaim", "--json", "--twice", "20ms"]);
    let dry: Value = serde_json::from_str(&dry).expect("JSON");
    if dry["refused"].is_null() {
        assert_eq!(dry["released_blocks"], losing.blocks, "{dry}");
        assert_eq!(dry["released_bytes"], losing.bytes, "{dry}");
    }

    agent.reconfigure(&rule(&losing.program, &reclaim("free")));
    until("the rule is another one", || {
        agent.targets()[&u64::from(pid)]["numbers"].is_null()
    });
    agent.await_phase(pid, "traced");
    let freed = await_success(&agent, pid);
    assert_eq!(freed["rule"], "free");
    assert_eq!(freed["freed_blocks"], losing.blocks, "{freed}");
    assert_eq!(freed["freed_bytes"], losing.bytes, "{freed}");
    assert!(freed["holds"].as_u64() > Some(0), "{freed}");
    assert!(freed["longest_hold_ms"].as_f64() > Some(0.0), "{freed}");
    assert!(freed["held_ms"].as_f64() >= freed["longest_hold_ms"].as_f64());
    let bytes = metric("reclaimed_bytes_total", &["reclaim=\"free\""]);
    assert_eq!(bytes, Some(losing.bytes as f64));
    // All blocks but one are in the heap, each with an 8-byte header.
    let after = losing.used();
    let small = losing.blocks - 1;
    assert_eq!((before[0] - after[0]) % small, 0, "{before:?} {after:?}");
    let each = (before[0] - after[0]) / small;
    let large = losing.bytes - small * (each - 8);
    assert!((300_000..310_000).contains(&large), "{large}");
    assert!((large..large + 8192).contains(&(before[1] - after[1])));
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(losing.target.status("TracerPid"), "0");
    assert!(losing.target.finish().success(), "its checks");
}

fn a_refusal_is_counted_each_time_and_said_once() {
    let folder = Arc::new(Folder::new("agent-reclaim-refused"));
    let library = build_library("wrapping_allocator", "libwrapping_allocator.so", &[]);
    let library = library.to_string_lossy();
    let mut losing = Losing::start(&folder, &["300"], &[("LD_PRELOAD", &library)]);
    let pid = losing.pid();
    let before = losing.used();
    let agent = Agent::start_hastily(&folder, &rule(&losing.program, &reclaim("free")), HASTE);
    agent.await_phase(pid, "traced");
    let twice = await_attempt(&agent, pid, |found| found["refusals"]["allocator"] == 2);
    let why = twice["refused"].as_str().expect("a reason");
    assert!(why.contains("another allocator is loaded"), "{why}");
    assert_eq!(twice["freed_blocks"], 0, "{twice}");
    let labels = [&format!("pid=\"{pid}\""), "reason=\"allocator\""];
    let refused = agent.metric("memhook_target_reclaim_refusals_total", &labels);
    assert_eq!(refused, Some(2.0));
    let said = agent.said();
    let words = format!("process {pid} (reclaimed) is not reclaimed: another allocator");
    // If a different refusal occurs between two identical refusals, all three are logged.
    let others = twice["attempts"].as_u64().expect("a number") - 2;
    let times = said.matches(&words).count() as u64;
    assert!((1..=1 + others.min(1)).contains(&times), "{said}");
    assert_eq!(losing.used(), before, "nothing is freed");
    assert_eq!(agent.end().0, Some(0));
    assert!(losing.target.finish().success(), "its checks");
}

/// Checks that the agent leaves a process with another tracer alone, because that tracer would miss
/// the releases.
fn a_process_that_somebody_traces_is_not_reclaimed() {
    let folder = Arc::new(Folder::new("agent-reclaim-traced"));
    let mut losing = Losing::start(&folder, &["300"], &[]);
    let pid = losing.pid();
    // The attach has the whole first minute.
    let keys = reclaim("free").replace("10m", "1m");
    let agent = Agent::start_hastily(&folder, &rule(&losing.program, &keys), LITTLE_HASTE);
    agent.await_phase(pid, "traced");
    // Between two attempts, any tracer can attach.
    let attacher = Attacher::start(&losing.target, &[]);
    let before = losing.used();
    let found = await_attempt(&agent, pid, |found| found["refusals"]["traced"] == 1);
    let why = found["refused"].as_str().expect("a reason");
    assert!(why.contains("already traced by memhook-rs"), "{why}");
    assert_eq!(losing.used(), before, "nothing is freed");
    attacher.finish();
    assert_eq!(agent.end().0, Some(0));
    assert!(losing.target.finish().success(), "its checks");
}

/// Checks that the agent leaves a process alone if its control group has used up its CPU quota.
fn a_starved_process_is_left_alone() {
    let Some(group) = ProcessorBox::new("reclaim-starved") else {
        return not_run("cannot create a cgroup with a processor limit here");
    };
    let folder = Arc::new(Folder::new("agent-reclaim-starved"));
    let mut losing = Losing::start(&folder, &["300", "busy"], &[]);
    let pid = losing.pid();
    let before = losing.used();
    group.take(pid);
    // Few or no waits for a processor end within the second that the agent measures.
    group.starve();
    let keys = reclaim("free").replace("10m", "1m");
    let agent = Agent::start_hastily(&folder, &rule(&losing.program, &keys), LITTLE_HASTE);
    agent.await_phase(pid, "traced");
    let found = await_attempts(&agent, pid, 1);
    assert_eq!(found["refusals"]["starved"], 1, "{found}");
    assert_eq!(agent.end().0, Some(0));
    group.set_percent(None);
    // On a busy machine, the starvation may become apparent only during the holds.
    let freed = found["freed_blocks"].as_u64().expect("a number");
    assert!(freed < losing.blocks, "{found}");
    assert_eq!(losing.used() == before, freed == 0, "{found}");
    assert!(losing.target.finish().success(), "its checks");
}

/// Starts an agent that frees many blocks, and waits until it does so.
fn freeing(folder: &Arc<Folder>, losing: &mut Losing) -> Agent {
    let before = losing.used();
    let agent = Agent::start_hastily(folder, &rule(&losing.program, &reclaim("free")), HASTE);
    agent.await_phase(losing.pid(), "traced");
    let mut tries = 0;
    // The process continues while its blocks are freed.
    while losing.used()[0] == before[0] {
        // Pause between two checks.
        std::thread::sleep(Duration::from_millis(5));
        tries += 1;
        assert!(tries < 60_000, "nothing is freed: {}", agent.said());
    }
    agent
}

/// Checks that the agent has freed as many blocks as it reports, or all of them if it was fast.
fn an_agent_that_ends_while_blocks_are_freed_stops_between_two_holds() {
    let folder = Arc::new(Folder::new("agent-reclaim-ended"));
    let mut losing = Losing::start(&folder, &["60000"], &[]);
    let before = losing.used();
    let agent = freeing(&folder, &mut losing);
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    let line = said.lines().find(|line| line.contains(" in all freed"));
    let line = line.unwrap_or_else(|| panic!("{said}"));
    let (words, _) = line.split_once(" block").expect(line);
    let number = words.rsplit(' ').next().expect(line).replace(',', "");
    let blocks: u64 = number.parse().expect(line);
    let [used, mapped] = losing.used();
    // One of the freed blocks may be the large one, which has its own mapping.
    let small = blocks - u64::from(mapped < before[1]);
    let each = (before[0] - used) / small;
    assert_eq!((before[0] - used, each), (small * each, 2016), "{line}");
    assert_eq!(losing.target.status("TracerPid"), "0");
    assert!(losing.target.finish().success(), "its checks");
}

fn an_agent_that_is_killed_while_blocks_are_freed_leaves_a_healthy_process() {
    let folder = Arc::new(Folder::new("agent-reclaim-killed"));
    let mut losing = Losing::start(&folder, &["60000"], &[]);
    let pid = losing.pid();
    let before = losing.used();
    let agent = freeing(&folder, &mut losing);
    agent.kill();
    let [after, _] = losing.used();
    assert!(after < before[0]);
    until("nobody holds it", || {
        losing.target.status("TracerPid") == "0"
    });
    assert_eq!(losing.used()[0], after, "nothing is freed any more");
    // Nothing left in the process prevents the next agent from attaching.
    let again = Agent::start_hastily(
        &folder,
        &rule(&losing.program, &reclaim("report-only")),
        HASTE,
    );
    again.await_phase(pid, "traced");
    let found = await_success(&again, pid);
    let left = found["reclaimable_blocks"].as_u64().expect("a number");
    assert!(left < losing.blocks, "{found}");
    assert_eq!(again.end().0, Some(0));
    assert!(losing.target.finish().success(), "its checks");
}

#[test]
fn check_and_plan_say_what_is_freed() {
    let folder = Folder::new("agent-reclaim-plan");
    let losing = Losing::start(&folder, &["3"], &[]);
    let file = folder.path("agent.toml");
    let show = |how: &str, option: &str| {
        std::fs::write(&file, rule(&losing.program, &reclaim(how))).expect("written");
        let (code, out, errors) = run(&["agent", "--config", &file, option]);
        assert_eq!((code, errors.as_str()), (0, ""), "{out}");
        out
    };
    let frees = "the rule \"web\" frees unreachable blocks of its processes";
    assert!(show("free", "--check").contains(frees));
    let check = show("report-only", "--check");
    assert!(check.contains("could be freed, and frees none"), "{check}");
    let pid = losing.pid();
    let plan = show("free", "--plan");
    let line = format!("The agent frees unreachable blocks of these processes: {pid}\n");
    assert!(plan.contains(&line), "{plan}");
    let plan = show("report-only", "--plan");
    let line = format!("of these processes could be freed: {pid}\n");
    assert!(plan.contains(&line), "{plan}");
    // One line names the mistake, the reason, and the remedy.
    std::fs::write(&file, rule(&losing.program, "reclaim = \"free\"")).expect("written");
    let output = Command::new(binary())
        .args(["agent", "--check", "--config", &file])
        .output()
        .expect("it runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), errors.lines().count()), (Some(2), 1));
    assert!(
        errors.contains("needs mode = \"scan\", because"),
        "{errors}"
    );
    assert!(losing.target.finish().success());
}
