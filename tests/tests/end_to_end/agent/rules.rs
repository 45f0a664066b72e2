//! Processes that the rules of an agent select, and the data that the agent sends about them.

use super::served::{ask, expect_untouched, files, rule, service};
use memhook_tests::agents::{Agent, ScriptedStore};
use memhook_tests::programs::Folder;
use memhook_tests::{Target, build_target, run, until};
use std::path::Path;
use std::sync::Arc;

fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let text = text.expect("it lives");
    text.split_ascii_whitespace()
        .map(|pid| pid.parse().expect("a number"))
        .collect()
}

#[test]
fn a_service_and_its_child_are_seen_exactly_wherever_they_are_sent() {
    let folder = Arc::new(Folder::new("agent"));
    let (mut target, program) = service(&folder);
    let store = ScriptedStore::start(Vec::new());
    let [profiles, token] = ["profiles", "token"].map(|name| folder.path(name));
    std::fs::write(&token, "secret words\n").expect("written");
    let stores = format!(
        "[labels]\nregion = \"eu\"\n[files]\ndirectory = \"{profiles}\"\n\
         [pyroscope]\nurl = \"{}\"\ntenant = \"us\"\ntoken_file = \"{token}\"\n",
        store.url()
    );
    let more = "mode = \"exact\"\nsend = [\"files\", \"pyroscope\"]\ninterval = \"500ms\"\nservice = \"shop\"\nversion = \"1.2\"";
    let configuration = format!("{stores}{}", rule(&program, more));
    let mut agent = Agent::start(&folder, &configuration);
    assert_eq!(agent.get("/healthz"), "ok\n");
    let pid = target.pid();
    agent.await_phase(pid, "traced");
    ask(&mut target, "l");
    agent.await_number(pid, "live_bytes", 100_000);
    agent.await_number(pid, "allocations", 150);
    // The agent follows forks, and counts a child separately.
    ask(&mut target, "f");
    let child = children(pid)[0];
    agent.await_phase(child, "traced");
    ask(&mut target, "c");
    ask(&mut target, "l");
    agent.await_number(child, "live_bytes", 5_000);
    agent.await_number(pid, "live_bytes", 200_000);
    let label = format!("pid=\"{pid}\"");
    let labels = ["service=\"shop\"", "rule=\"web\"", "mode=\"exact\"", &label];
    for (name, value) in [
        ("memhook_target_live_bytes", 200_000.0),
        ("memhook_target_live_blocks", 200.0),
        ("memhook_target_allocated_bytes_total", 206_400.0),
        ("memhook_target_releases_total", 100.0),
        ("memhook_target_lost_events_total", 0.0),
        ("memhook_target_sample_bytes", 0.0),
    ] {
        assert_eq!(agent.metric(name, &labels), Some(value), "{name}");
    }
    assert_eq!(
        agent.metric("memhook_agent_targets", &["phase=\"traced\""]),
        Some(2.0)
    );
    // The agent rejects an invalid configuration, and continues with the old one.
    agent.reconfigure(&format!("{configuration}nonsense = 1\n"));
    agent.hear("unknown field `nonsense`");
    assert_eq!(
        agent.metric("memhook_agent_configuration_refused", &[]),
        Some(1.0)
    );
    assert_eq!(agent.targets().len(), 2);
    // After a valid configuration that selects other processes, the agent detaches from these.
    agent.reconfigure(&format!("{stores}{}", rule(Path::new("/nowhere"), "")));
    until("both are left", || agent.targets().is_empty());
    assert_eq!(
        agent.metric("memhook_agent_configuration_refused", &[]),
        Some(0.0)
    );
    expect_untouched(pid);
    expect_untouched(child);
    ask(&mut target, "l");
    until("all pushes have arrived", || {
        agent.metric("memhook_agent_queue_bytes", &["pyroscope"]) == Some(0.0)
    });
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(target.finish().success());

    let pushes = store.requests();
    for push in &pushes {
        assert_eq!(push.line, "POST /push.v1.PusherService/Push HTTP/1.1");
        for (name, value) in [
            ("content-type", "application/proto"),
            ("content-encoding", "gzip"),
            ("x-scope-orgid", "us"),
            ("authorization", "Bearer secret words"),
        ] {
            assert_eq!(
                push.headers.get(name).map(String::as_str),
                Some(value),
                "{name}"
            );
        }
    }
    let arrived = store.profiles();
    for profile in &arrived {
        assert_eq!(profile.labelled_samples, 0);
        let label = |name: &str| profile.labels.get(name).map(String::as_str);
        assert_eq!(
            (label("__name__"), label("__delta__")),
            (Some("memory"), Some("false"))
        );
        assert_eq!(
            (label("service_name"), label("version")),
            (Some("shop"), Some("1.2"))
        );
        assert_eq!((label("region"), label("pid")), (Some("eu"), None));
        assert!(label("host").is_some_and(|host| !host.is_empty()));
    }
    // The allocations of all intervals add up to the total; the live blocks match the last
    // interval.
    let written = files(&profiles);
    for (of, all) in [("files", &written), ("pyroscope", &arrived)] {
        let sum =
            |value: &str, function: &str| all.iter().map(|p| p.of(value, function)).sum::<i64>();
        assert_eq!(sum("alloc_space", "planted_leak"), 200_000, "{of}");
        assert_eq!(sum("alloc_objects", "passing"), 100, "{of}");
        assert_eq!(sum("alloc_space", "child_leak"), 5_000, "{of}");
        let most = |value, function: &str| all.iter().map(|p| p.of(value, function)).max();
        assert_eq!(most("inuse_space", "planted_leak"), Some(200_000), "{of}");
        assert_eq!(most("inuse_objects", "child_leak"), Some(10), "{of}");
        assert_eq!(most("inuse_space", "passing"), Some(0), "{of}");
        let all_of = |value: &str| all.iter().map(|p| p.sum(value)).sum::<i64>();
        assert_eq!(
            (all_of("alloc_objects"), all_of("alloc_space")),
            (310, 211_400),
            "{of}"
        );
    }
}

/// Four processes: one is refused, one is excluded, one exceeds the maximum, and one is traced only
/// for a limited time. Checks that the agent reports each once.
#[test]
fn the_agent_holds_back() {
    let folder = Arc::new(Folder::new("agent-bounds"));
    let (first, program) = service(&folder);
    let (second, _) = service(&folder);
    let listed = folder.path("served-listed");
    memhook_tests::programs::copy_program(&program, &listed);
    let listed = Target::start(Path::new(&listed), &[]);
    let pattern = format!("{}*", program.display());
    let of = |max: u32, more: &str| format!("max_targets = {max}\nmode = \"summary\"\n{more}");
    let never = "[[rule]]\nname = \"never\"\nexecutable = \"/nowhere\"\n";
    let configuration = format!("{}{never}", rule(Path::new(&pattern), &of(1, "")));
    let mut agent = Agent::start(&folder, &configuration);
    agent.hear("processes wait to be traced: the limit of targets is reached");
    // On a busy machine the order of attaching is arbitrary.
    until("one is traced", || {
        let mut targets = agent.targets().into_values();
        targets.any(|target| target["phase"] == "traced")
    });
    assert_eq!(
        agent.metric("memhook_agent_targets", &["phase=\"traced\""]),
        Some(1.0)
    );
    assert_eq!(
        agent.metric("memhook_agent_held_back", &["targets"]),
        Some(1.0)
    );
    // Allows all processes to be traced, but only for a short time. The agent still never attaches
    // to excluded programs.
    agent.reconfigure(&format!(
        "{}{never}",
        rule(Path::new(&pattern), &of(9, "duration = \"300ms\""))
    ));
    for target in [&first, &second, &listed] {
        agent.await_phase(target.pid(), "left");
        expect_untouched(target.pid());
    }
    let said = agent.said();
    assert_eq!(said.matches("processes wait").count(), 1, "{said}");
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    for target in [first, second, listed] {
        assert!(target.finish().success());
    }
}

/// Checks a process whose initial thread is a zombie, without memory and files.
#[test]
fn a_process_whose_initial_thread_has_ended_is_chosen() {
    let folder = Arc::new(Folder::new("agent-leader"));
    let program = folder.path("leader-gone");
    memhook_tests::programs::copy_program(build_target("leader_gone", &[]), &program);
    let start = || {
        let mut target = Target::start(Path::new(&program), &["wait"]);
        target.go();
        target.expect("gone");
        target
    };
    let before = start();
    let more = "memory_above = \"64K\"\nmode = \"summary\"";
    let agent = Agent::start(&folder, &rule(Path::new(&program), more));
    agent.await_phase(before.pid(), "traced");
    // The processes also stay selected later: to find another one, the agent examines all of them.
    let after = [(); 3].map(|()| {
        let target = start();
        agent.await_phase(target.pid(), "traced");
        target
    });
    for target in after.iter().chain([&before]) {
        agent.await_phase(target.pid(), "traced");
    }
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    for mut target in after.into_iter().chain([before]) {
        expect_untouched(target.pid());
        target.go();
        target.expect("done");
        assert!(target.finish().success());
    }
}

#[test]
fn a_wrong_configuration_is_placed() {
    let folder = Folder::new("agent-check");
    let file = folder.path("agent.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).expect("written");
        run(&["agent", "--check", "--config", &file])
    };
    let right = "[[rule]]\nname = \"a\"\nprocess = \"nginx\"\n";
    let (code, output, errors) = check(right);
    assert_eq!(
        (code, output),
        (0, format!("{file}: right, 1 rule\n")),
        "{errors}"
    );
    for (text, place, says) in [
        (
            format!("{right}colour = 1\n"),
            "4:1",
            "unknown field `colour`",
        ),
        (
            format!("{right}interval = \"often\"\n"),
            "4:12",
            "is not a time",
        ),
        ("[agent\n".to_owned(), "1:7", ""),
        (
            format!("{right}service = \"shop-${{MEMHOOK_NOT_SET}}\"\n"),
            "4:17",
            "the environment variable MEMHOOK_NOT_SET is not set",
        ),
    ] {
        let (code, output, errors) = check(&text);
        assert_eq!((code, output.as_str()), (2, ""), "{errors}");
        let begins = format!("memhook-rs: {file}:{place}: ");
        assert!(
            errors.starts_with(&begins) && errors.contains(says),
            "{errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
    // An environment variable that always exists.
    let (code, _, errors) = check(&format!("{right}service = \"${{PATH}}\"\n"));
    assert_eq!(code, 0, "{errors}");
    let (code, _, errors) = run(&["agent", "--check", "--config", "/nowhere/agent.toml"]);
    assert_eq!(code, 2);
    assert!(
        errors.contains("cannot read the configuration /nowhere/agent.toml"),
        "{errors}"
    );
}

/// Checks that a plan shows which processes the agent would trace, gives the reasons for all other
/// processes, and touches nothing.
#[test]
fn a_plan_shows_what_would_be_traced_and_attaches_to_nothing() {
    let folder = Folder::new("agent-plan");
    let (mut first, program) = service(&folder);
    let (second, _) = service(&folder);
    let shadowed = folder.path("served-too");
    memhook_tests::programs::copy_program(&program, &shadowed);
    let refused = Target::start(Path::new(&shadowed), &[]);
    let tracer = memhook_tests::Attacher::start(&refused, &[]);
    ask(&mut first, "f");
    let child = children(first.pid())[0];
    let pattern = format!("{}*", program.display());
    let budget = "[[rule]]\nname = \"none\"\nexecutable = \"/nowhere\"\noverhead = \"1%\"\n";
    let text = format!(
        "[agent]\nstate = \"{}\"\nmax_memory = \"160M\"\n[kubernetes]\nkubelet = \"http://127.0.0.1:9\"\n{}[[rule]]\nname = \"late\"\nexecutable = \"{}\"\n{budget}",
        folder.path("state"),
        rule(Path::new(&pattern), "max_targets = 2\nsample = \"64K\""),
        program.display()
    );
    let file = folder.path("agent.toml");
    std::fs::write(&file, text).expect("written");
    let (code, json, errors) = run(&["agent", "--config", &file, "--plan", "--json"]);
    assert_eq!(code, 0, "{errors}");
    let plan: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let schema = memhook_tests::JsonSchema::load("agent-plan-1");
    schema.check(&plan);
    assert_eq!(schema.unseen(), [""; 0]);
    let list = |name: &str| plan[name].as_array().expect("a list").clone();
    let target = |pid: u32| {
        let found = list("targets").into_iter().find(|t| t["pid"] == pid);
        found.unwrap_or_else(|| panic!("{pid}: {json}"))
    };
    let phases = [first.pid(), second.pid(), child].map(|pid| target(pid)["phase"].clone());
    assert_eq!(phases, ["attaches", "attaches", "waits"], "{json}");
    let of_first = target(first.pid());
    assert_eq!(
        (&of_first["rule"], &of_first["mode"]),
        (&"web".into(), &"sampled".into())
    );
    assert_eq!(of_first["sample_bytes"], 64 << 10);
    assert_eq!(of_first["ledger_limit_bytes"], 4 << 20);
    let resident = of_first["resident_bytes"].as_u64().expect("a number");
    assert_eq!(of_first["expected_blocks"], resident.div_ceil(64 << 10));
    let of_refused = target(refused.pid());
    let why = of_refused["why"].as_str().unwrap_or_default();
    assert_eq!(of_refused["phase"], "refused", "{of_refused}");
    assert!(why.contains("traced"), "{why}");
    let own = i64::from(std::process::id());
    let of_test = list("unchosen").into_iter().find(|one| one["pid"] == own);
    // This test program is linked with the code that attaches.
    assert_eq!(of_test.expect("this test")["why"], "memhook-rs itself");
    let (code, shown, errors) = run(&["agent", "--config", &file, "--plan"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    for words in [
        "The agent would trace 2 of ",
        "The kubelet does not list its pods, so no process in a pod would be traced: ",
        "(rule web): the rule has reached its limit of targets",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    // The warning names the rule that never matches.
    let (code, _, errors) = run(&["agent", "--config", &file, "--check"]);
    assert_eq!(code, 0, "{errors}");
    let says = "the rule \"late\" never matches: \"web\" comes first";
    assert!(errors.contains(says), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    // Nothing was created or changed.
    assert!(!Path::new(&folder.path("state")).exists());
    for pid in [first.pid(), second.pid(), child] {
        expect_untouched(pid);
    }
    tracer.finish();
    ask(&mut first, "c");
    for target in [first, second, refused] {
        assert!(target.finish().success());
    }
}

/// Checks that no event after a long pause is lost, and that a thread started during the pause
/// counts separately.
#[test]
fn a_target_that_was_quiet_is_seen_exactly() {
    let folder = Arc::new(Folder::new("agent-quiet"));
    let (mut target, program) = service(&folder);
    let agent = Agent::start(&folder, &rule(&program, "mode = \"exact\""));
    let pid = target.pid();
    agent.await_phase(pid, "traced");
    for round in 1..=5 {
        ask(&mut target, "l");
        agent.await_number(pid, "live_bytes", 100_000 * round);
        // The pause is longer than the time after which the agent stops draining.
        std::thread::sleep(std::time::Duration::from_millis(300));
    }
    let label = format!("pid=\"{pid}\"");
    for (name, value) in [
        ("memhook_target_lost_events_total", 0.0),
        ("memhook_target_gaps_total", 0.0),
    ] {
        assert_eq!(agent.metric(name, &[&label]), Some(value), "{name}");
    }
    // The agent notices the exit, although there are no events to drain.
    assert!(target.finish().success());
    until("it is gone", || agent.targets().is_empty());
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
}
