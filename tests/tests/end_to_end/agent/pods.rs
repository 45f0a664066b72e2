//! Processes in Kubernetes pods: their names, pod annotations that control tracing, and limits per
//! namespace.

use super::certificates;
use super::served::{Ended, ask, expect_untouched, rule, service};
use memhook_tests::agents::{Agent, ScriptedStore, free_address};
use memhook_tests::pods::{KubeletEndpoint, PodGroup, pod_list};
use memhook_tests::programs::{Folder, copy_program, installed, unshare};
use memhook_tests::{Target, build_target, not_run, run, until};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

const TOKEN: &str = "of the service account";

/// Creates this number of pod groups, each with a service in it.
fn services<const N: usize>(folder: &Folder) -> Option<([(PodGroup, Target); N], PathBuf)> {
    let mut program = None;
    let mut made = Vec::new();
    for number in 0..N {
        // Tests run in parallel in one process.
        let unique = folder.path("").bytes().fold(7u32, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u32::from(byte))
        });
        let Some(group) = PodGroup::new(unique.wrapping_add(number as u32)) else {
            not_run("no control group can be made: it takes root");
            return None;
        };
        let (target, path) = service(folder);
        group.take(target.pid());
        program = Some(path);
        made.push((group, target));
    }
    Some((made.try_into().ok()?, program?))
}

/// Returns a configuration for this kubelet.
fn kubernetes(folder: &Folder, url: &str, more: &str) -> String {
    let token = folder.path("token");
    std::fs::write(&token, format!("{TOKEN}\n")).expect("written");
    format!("[kubernetes]\nkubelet = \"{url}\"\ntoken_file = \"{token}\"\nrefresh = \"5s\"\n{more}")
}

fn finish(of: impl IntoIterator<Item = (PodGroup, Target)>) {
    for (group, target) in of {
        assert!(target.finish().success());
        drop(group);
    }
}

#[test]
fn pods_give_names_and_have_the_last_word() {
    let folder = Arc::new(Folder::new("agent-pods"));
    let Some((mut pods, program)) = services::<4>(&folder) else {
        return;
    };
    let outside = Target::start(&program, &[]);
    let say = |value: &str| json!({"memhook-rs/trace": value, "other/a": "b"});
    let [web, out, unclear, late] = [0, 1, 2, 3].map(|at: usize| pods[at].1.pid());
    let listed: [Value; 4] = [
        pods[0].0.listed("web-1", &Value::Null),
        pods[1].0.listed("web-2", &say("false")),
        pods[2].0.listed("web-3", &say("\u{1b}[31m")),
        pods[3].0.listed("web-4", &say("true")),
    ];
    let kubelet = KubeletEndpoint::start(TOKEN, &listed[..3]);
    let store = ScriptedStore::start(Vec::new());
    let more = "mode = \"exact\"\nsend = [\"pyroscope\"]\ninterval = \"500ms\"";
    let configuration = format!(
        "{}[pyroscope]\nurl = \"{}\"\n{}",
        kubernetes(&folder, &kubelet.url(), ""),
        store.url(),
        rule(&program, more)
    );
    let mut agent = Agent::start(&folder, &configuration);
    agent.await_phase(web, "traced");
    agent.await_phase(outside.pid(), "traced");
    let target = agent.targets().remove(&u64::from(web)).expect("traced");
    for (name, value) in [
        ("namespace", "shop"),
        ("pod", "web-1"),
        ("pod_uid", pods[0].0.uid()),
        ("container_name", "app"),
        ("workload_type", "deployment"),
        ("workload", "web"),
    ] {
        assert_eq!(target[name], value, "{target}");
    }
    ask(&mut pods[0].1, "l");
    let labels = [
        "namespace=\"shop\"",
        "pod=\"web-1\"",
        "container=\"app\"",
        "workload=\"web\"",
        "workload_type=\"deployment\"",
    ];
    until("the metrics have its labels", || {
        agent.metric("memhook_target_live_bytes", &labels) == Some(100_000.0)
    });
    until("a profile has its labels", || {
        let of_web = |profile: &memhook_tests::agents::Pprof| {
            let label = |name: &str| profile.labels.get(name).map_or("", String::as_str);
            let names = ["namespace", "pod", "container", "workload", "workload_type"];
            names.map(label) == ["shop", "web-1", "app", "web", "deployment"]
        };
        store.profiles().iter().any(of_web)
    });
    // Two processes are excluded by their pods' annotations, and one because the kubelet has not
    // listed its pod.
    assert_eq!(agent.targets().len(), 2);
    let file = folder.path("agent.toml");
    let (code, shown, errors) = run(&["agent", "--config", &file, "--plan", "--json"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let plan: Value = serde_json::from_str(&shown).expect("JSON");
    memhook_tests::JsonSchema::load("agent-plan-1").check(&plan);
    assert_eq!(plan["kubelet"], json!({"pods": 3, "error": null}));
    let unchosen = plan["unchosen"].as_array().expect("a list");
    for (pid, why) in [
        (out, "its pod opts out"),
        (
            unclear,
            "its pod's annotation is neither \"true\" nor \"false\"",
        ),
        (late, "the kubelet has not listed its pod"),
    ] {
        let found = unchosen.iter().find(|one| one["pid"] == pid);
        assert_eq!(found.expect("not chosen")["why"], why, "{shown}");
    }
    // The agent soon requests the list again if a pod is missing.
    kubelet.lists(&listed);
    agent.await_phase(late, "traced");
    // The annotation of a pod changes, and the agent detaches from the pod's process.
    let changed = pods[0].0.listed("web-1", &say("false"));
    kubelet.lists(&[
        changed,
        listed[1].clone(),
        listed[2].clone(),
        listed[3].clone(),
    ]);
    until("it is left", || {
        !agent.targets().contains_key(&u64::from(web))
    });
    // If the kubelet stops answering, nothing changes for the pods that it has listed.
    kubelet.wants("another token");
    agent.hear("the kubelet does not list its pods");
    agent.hear("HTTP status 401; check the token");
    assert_eq!(agent.targets().len(), 2);
    let failures = agent.metric("memhook_agent_pod_list_failures_total", &[]);
    assert!(failures.is_some_and(|failures| failures >= 1.0));
    assert_eq!(agent.metric("memhook_agent_pods", &[]), Some(4.0));
    for pid in [web, out, unclear] {
        expect_untouched(pid);
    }
    assert!(kubelet.answered() > 2);
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    finish(pods);
    assert!(outside.finish().success());
}

/// Checks rules that require an annotation, and the maximum number of targets per namespace.
#[test]
fn a_namespace_has_no_more_targets_than_it_may_have() {
    let folder = Arc::new(Folder::new("agent-namespace"));
    let Some((pods, program)) = services::<3>(&folder) else {
        return;
    };
    let yes = json!({"memhook-rs/trace": "true"});
    let listed = [
        pods[0].0.listed("web-1", &yes),
        pods[1].0.listed("web-2", &yes),
        pods[2].0.listed("web-3", &Value::Null),
    ];
    let kubelet = KubeletEndpoint::start(TOKEN, &listed);
    let configuration = |most: u32| {
        let limit = format!("[[kubernetes.namespace]]\nname = \"sh*\"\nmax_targets = {most}\n");
        let asked = rule(&program, "opt_in = true\nmode = \"summary\"");
        format!("{}{asked}", kubernetes(&folder, &kubelet.url(), &limit))
    };
    let mut agent = Agent::start(&folder, &configuration(1));
    // If an attach fails because no processor is free, the other process is attached to instead.
    let mut traced = None;
    until("one of its processes is traced", || {
        let targets = agent.targets();
        let phase_of = |at: usize| Some(&targets.get(&u64::from(pods[at].1.pid()))?["phase"]);
        let is_traced = |at: &usize| phase_of(*at).is_some_and(|phase| phase == "traced");
        traced = [0, 1].into_iter().find(is_traced);
        traced.is_some()
    });
    let waiting = pods[1 - traced.expect("one of two")].1.pid();
    agent.hear("their namespace has reached its limit of targets");
    let held = |by: &str| agent.metric("memhook_agent_held_back", &[by]);
    assert_eq!(
        (held("namespace"), held("\"targets\"")),
        (Some(1.0), Some(0.0))
    );
    agent.await_phase(waiting, "waiting");
    let file = folder.path("agent.toml");
    let (code, json, errors) = run(&["agent", "--config", &file, "--plan", "--json"]);
    assert_eq!((code, errors.as_str()), (0, ""));
    let plan: Value = serde_json::from_str(&json).expect("JSON");
    memhook_tests::JsonSchema::load("agent-plan-1").check(&plan);
    let unchosen = plan["unchosen"].as_array().expect("a list").iter();
    let third = unchosen.clone().find(|one| one["pid"] == pods[2].1.pid());
    assert_eq!(third.expect("not chosen")["why"], "its pod does not opt in");
    agent.reconfigure(&configuration(2));
    agent.await_phase(waiting, "traced");
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    std::fs::write(&file, configuration(1)).expect("written");
    let (_, shown, _) = run(&["agent", "--config", &file, "--plan"]);
    for words in [
        "The agent would trace 1 of ",
        "shop/web-1/app",
        "its namespace shop has reached its limit of targets (\"sh*\": at most 1 target)",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    let (code, shown, errors) = run(&["agent", "--config", &file, "--check"]);
    assert_eq!(code, 0, "{errors}");
    assert!(
        errors.contains("is sent to the kubelet without encryption"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
    for words in [
        "a pod with the annotation memhook-rs/trace = \"false\" is left alone",
        "the rule \"web\" takes pods with the annotation memhook-rs/trace = \"true\" only",
        "each namespace like \"sh*\": at most 1 target",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    finish(pods);
}

/// The targets of one namespace are too busy for its share. The targets of the other namespace are
/// not.
#[test]
fn a_namespace_takes_no_more_of_the_processors_than_it_may() {
    let folder = Arc::new(Folder::new("agent-share"));
    let Some((pods, program)) = services::<1>(&folder) else {
        return;
    };
    let busy_program = folder.path("busy");
    copy_program(build_target("changing_rate", &["-O1"]), &busy_program);
    let Some(group) = PodGroup::new(u32::MAX - 1) else {
        return;
    };
    let busy = Target::start(Path::new(&busy_program), &["64", "150000", "0"]);
    group.take(busy.pid());
    let mut elsewhere = group.listed("busy-1", &Value::Null);
    elsewhere["metadata"]["namespace"] = "load".into();
    let kubelet =
        KubeletEndpoint::start(TOKEN, &[pods[0].0.listed("web-1", &Value::Null), elsewhere]);
    let limit = "[[kubernetes.namespace]]\nname = \"load\"\nmax_cpu = \"0.01%\"\n";
    let both = format!(
        "[[rule]]\nname = \"busy\"\nexecutable = \"{busy_program}\"\nmode = \"exact\"\n{}",
        rule(&program, "mode = \"exact\"")
    );
    let configuration = format!("{}{both}", kubernetes(&folder, &kubelet.url(), limit));
    let mut agent = Agent::start(&folder, &configuration);
    agent.await_phase(pods[0].1.pid(), "traced");
    agent.hear("is left, because tracing the namespace load uses more of the processors");
    // The busy process waits until its namespace has regained the used time. Other namespaces are
    // not affected.
    agent.await_phase(busy.pid(), "refused");
    agent.hear("their namespace has reached its limit of targets or of processor time");
    agent.await_phase(pods[0].1.pid(), "traced");
    assert!(agent.metric("memhook_agent_shed_targets_total", &[]) >= Some(1.0));
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    drop(busy);
    drop(group);
    finish(pods);
}

/// Checks that the agent does not send its token to a server whose certificate it cannot verify,
/// unless the configuration allows that.
#[test]
fn a_kubelet_has_to_prove_who_it_is() {
    let folder = Arc::new(Folder::new("agent-kubelet-tls"));
    let Some((pods, program)) = services::<1>(&folder) else {
        return;
    };
    let address = free_address();
    certificates::make(&folder, address.ip());
    let list = pod_list(&[pods[0].0.listed("web-1", &Value::Null)]);
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{list}",
        list.len()
    );
    std::fs::write(folder.path("pods"), answer).expect("written");
    let _server = Ended(
        Command::new(installed("openssl"))
            .args([
                "s_server",
                "-quiet",
                "-HTTP",
                "-accept",
                &address.to_string(),
            ])
            .args(["-cert", "leaf.pem", "-key", "leaf.key"])
            .current_dir(folder.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it runs"),
    );
    until("the kubelet listens", || {
        std::net::TcpStream::connect(address).is_ok()
    });
    let ca = format!("ca = \"{}\"\n", folder.path("ca.pem"));
    for (more, is_trusted) in [("", false), (&*ca, true), ("verify = false\n", true)] {
        let asks = kubernetes(&folder, &format!("https://{address}"), more);
        let mut agent = Agent::start(&folder, &format!("{asks}{}", rule(&program, "")));
        if is_trusted {
            agent.await_phase(pods[0].1.pid(), "traced");
        } else {
            agent.hear("invalid peer certificate");
            assert!(agent.targets().is_empty());
        }
        let (code, said) = agent.end();
        assert_eq!(code, Some(0), "{said}");
    }
    finish(pods);
}

/// Checks the agent in a container with the host's process ids, where the kernel shows control
/// groups relative to the container's own group.
#[test]
fn control_groups_are_those_of_the_machine() {
    let folder = Folder::new("agent-cgroupns");
    let groups = [u32::MAX - 2, u32::MAX - 3].map(PodGroup::new);
    let [Some(of_target), Some(of_agent)] = groups else {
        return not_run("no control group can be made: it takes root");
    };
    let text = format!(
        "[agent]\nstate = \"{}\"\n[[rule]]\nname = \"pods\"\ncgroup = \"/kubepods.slice\"\nprocess = \"sleep\"\n",
        folder.path("state")
    );
    let file = folder.path("agent.toml");
    std::fs::write(&file, text).expect("written");
    // Uses a separate PID namespace, whose process 1 is the shell, because process 1 of this
    // machine may be inaccessible.
    let script = "sh -c 'echo $$ > \"$0\" && exec sleep 300' \"$0\" & \
        until grep -qs sleep /proc/$!/comm; do :; done; export TARGET=$! && \
        sh -c 'echo $$ > \"$0\" && exec unshare --cgroup \"$@\"' \"$@\"; kill $TARGET; wait";
    let output = Command::new(unshare())
        .args([
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            script,
        ])
        .args([of_target.processes(), of_agent.processes()])
        .args(["sh", "-c", "cat /proc/$TARGET/cgroup && exec \"$0\" \"$@\""])
        .arg(memhook_tests::binary())
        .args(["agent", "--config", &file, "--plan"])
        .output()
        .expect("it runs");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    // Confirms that the kernel shows the path in this form.
    assert!(
        shown.contains(":/../../kubepods-burstable-pod"),
        "{output:?}"
    );
    assert!(shown.contains("The agent would trace 1 of "), "{shown}");
    drop((of_target, of_agent));
}
