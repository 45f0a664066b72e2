//! The agent with a full disk and an unreachable store.

use super::served::{ask, expect_untouched, service};
use memhook_tests::agents::{Agent, ScriptedStore, free_address, wrapped_slots};
use memhook_tests::programs::Folder;
use memhook_tests::{not_run, until};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::Arc;

/// A small file system; it is unmounted on drop.
struct SmallDisk(String);

impl SmallDisk {
    /// Returns `None`, and prints the reason, if mounting is not permitted.
    fn mount(path: String) -> Option<SmallDisk> {
        std::fs::create_dir_all(&path).expect("made");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=512k,mode=0700", "tmpfs", &path])
            .output()
            .expect("mount runs");
        if !mounted.status.success() {
            not_run("nothing may be mounted here");
            return None;
        }
        Some(SmallDisk(path))
    }

    /// Fills the disk except for some pages.
    fn fill(&self) {
        use std::io::Write;
        let mut file = std::fs::File::create(format!("{}/filler", self.0)).expect("made");
        while file.write_all(&[1; 4096]).is_ok() {}
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.0]).status();
    }
}

/// Checks that the agent counts lost profiles, attaches to no process that it cannot record in its
/// list, and resumes when disk space and a store are available again.
#[test]
fn a_full_disk_and_a_store_that_is_away_cost_nothing_but_profiles() {
    let folder = Arc::new(Folder::new("agent-full"));
    let Some(disk) = SmallDisk::mount(folder.path("state")) else {
        return;
    };
    let (mut target, program) = service(&folder);
    // No server listens on this port yet.
    let address = free_address();
    let mut agent = Agent::start(
        &folder,
        &format!(
            "[pyroscope]\nurl = \"http://{address}\"\n[[rule]]\nname = \"web\"\nexecutable = \"{}\"\nmode = \"exact\"\n\
             send = [\"pyroscope\"]\ninterval = \"500ms\"\n",
            program.display()
        ),
    );
    agent.await_phase(target.pid(), "traced");
    agent.hear("pyroscope takes no profiles, which wait on the disk");
    disk.fill();
    ask(&mut target, "l");
    let dropped = |reason: &str| {
        let labels = ["pyroscope", reason];
        agent
            .metric("memhook_agent_dropped_profiles_total", &labels)
            .unwrap_or(0.0)
    };
    until("profiles are dropped for want of room", || {
        dropped("reason=\"full\"") + dropped("reason=\"disk\"") >= 3.0
    });
    ask(&mut target, "l");
    agent.await_number(target.pid(), "live_bytes", 200_000);
    // The agent attaches to no process that a later agent would not find. There may be space for
    // one more entry.
    let others = [(); 3].map(|()| service(&folder).0);
    let phase = |pid: u32| {
        let target = agent.targets().remove(&u64::from(pid));
        target.map_or(String::new(), |target| target["phase"].to_string())
    };
    until("the others are refused or traced", || {
        others.iter().all(|other| {
            phase(other.pid()).contains("refused") || phase(other.pid()).contains("traced")
        })
    });
    for other in &others {
        if phase(other.pid()).contains("refused") {
            assert_eq!(wrapped_slots(other.pid()), 0);
        }
    }
    std::fs::remove_file(format!("{}/filler", disk.0)).expect("removed");
    for other in &others {
        until("it is traced when there is room", || {
            phase(other.pid()).contains("traced")
        });
    }
    let store = ScriptedStore::start_at(address);
    agent.hear("pyroscope takes profiles again");
    let most = || {
        let profiles = store.profiles();
        let sizes = profiles.iter().map(|p| p.of("inuse_space", "planted_leak"));
        sizes.max()
    };
    until("the present has arrived", || most() == Some(200_000));
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    for target in others.into_iter().chain([target]) {
        assert_eq!(wrapped_slots(target.pid()), 0);
        assert!(target.finish().success());
    }
    assert_eq!(most(), Some(200_000));
}

/// Checks that an agent can restart after its own queue has filled the disk, and that it always
/// records attached processes.
#[test]
fn a_disk_that_the_queue_has_filled_keeps_no_agent_from_starting() {
    let folder = Arc::new(Folder::new("agent-filled"));
    let Some(disk) = SmallDisk::mount(folder.path("state")) else {
        return;
    };
    let state = &disk.0;
    let queue = format!("{state}/queue/pyroscope");
    std::fs::create_dir_all(&queue).expect("made");
    let (mut target, program) = service(&folder);
    // Entry of an exited process.
    std::fs::write(format!("{state}/attached"), "4711 99\n").expect("written");
    std::fs::write(format!("{state}/lock"), "").expect("written");
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_ms = unix.expect("after 1970").as_millis();
    let fill = |number| {
        let stamp = now_ms - 60_000 + number;
        std::fs::write(format!("{queue}/{stamp:020}.push"), [1; 9000])
    };
    assert!((0..1000).any(|number| fill(number).is_err()), "it is full");
    let free = || {
        let df = Command::new("df")
            .args(["--output=avail", "-B1", state])
            .output()
            .expect("df runs");
        let text = String::from_utf8(df.stdout).expect("text");
        let bytes = text
            .lines()
            .nth(1)
            .and_then(|line| line.trim().parse().ok());
        bytes.unwrap_or(u64::MAX)
    };
    assert_eq!(free(), 0);
    let configuration = format!(
        "[pyroscope]\nurl = \"http://127.0.0.1:9\"\n[[rule]]\nname = \"web\"\nexecutable = \"{}\"\nmode = \"exact\"\n\
         send = [\"pyroscope\"]\ninterval = \"500ms\"\n",
        program.display()
    );
    let mut agent = Agent::start(&folder, &configuration);
    agent.hear("profiles that waited there were dropped");
    agent.await_phase(target.pid(), "traced");
    // The newest profiles remain, and new profiles replace the oldest.
    assert!(std::fs::read_dir(&queue).expect("there").count() > 20);
    let dropped = || {
        let labels = ["pyroscope", "reason=\"full\""];
        agent
            .metric("memhook_agent_dropped_profiles_total", &labels)
            .unwrap_or(0.0)
    };
    ask(&mut target, "l");
    let before = dropped();
    until("profiles take the place of older ones", || {
        dropped() >= before + 3.0
    });
    assert!(free() >= 32 << 10, "{}", free());
    // Other programs fill the disk completely; the journal has reserved space.
    disk.fill();
    let others = [(); 3].map(|()| service(&folder).0);
    for other in &others {
        agent.await_phase(other.pid(), "traced");
    }
    let journal = std::fs::read_to_string(format!("{state}/attached")).expect("there");
    for pid in others
        .iter()
        .chain([&target])
        .map(memhook_tests::Target::pid)
    {
        let line = format!("{pid} ");
        assert!(journal.lines().any(|l| l.starts_with(&line)), "{journal}");
    }
    // The next agent also starts after a crash in this state.
    agent.kill();
    let agent = Agent::start(&folder, &configuration);
    for target in others.iter().chain([&target]) {
        agent.await_phase(target.pid(), "traced");
    }
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    for target in others.into_iter().chain([target]) {
        assert_eq!(wrapped_slots(target.pid()), 0);
        assert!(target.finish().success());
    }
}

/// Returns the unsent profiles by file name.
fn waiting(queue: &str) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(queue).expect("there").flatten();
    let whole = entries.filter(|entry| entry.path().extension().is_some_and(|end| end == "push"));
    whole
        .filter_map(|entry| {
            let name = entry.file_name().into_string().expect("text");
            Some((name, std::fs::read(entry.path()).ok()?))
        })
        .collect()
}

/// Checks that each profile arrives once, regardless of configuration changes during an outage of
/// the store.
#[test]
fn a_reload_in_an_outage_keeps_what_waits() {
    let folder = Arc::new(Folder::new("agent-reloads"));
    let (target, program) = service(&folder);
    let address = free_address();
    let other = ScriptedStore::start(Vec::new());
    let rules = |interval: &str, send: &str| {
        format!(
            "[[rule]]\nname = \"web\"\nexecutable = \"{}\"\nmode = \"exact\"\nsend = [{send}]\ninterval = \"{interval}\"\n",
            program.display()
        )
    };
    let store = |url: &str| format!("[pyroscope]\nurl = \"{url}\"\n");
    let pyroscope = "\"pyroscope\"";
    let away = format!("http://{address}");
    let mut agent = Agent::start(&folder, &(store(&away) + &rules("500ms", pyroscope)));
    agent.await_phase(target.pid(), "traced");
    agent.hear("pyroscope takes no profiles, which wait on the disk");
    let queue = folder.path("state/queue/pyroscope");
    let more_wait = || {
        let before = waiting(&queue).len();
        until("more wait", || waiting(&queue).len() >= before + 3);
    };
    more_wait();
    agent.reconfigure(&(store(&away) + &rules("600ms", pyroscope)));
    agent.hear("the configuration was read again");
    more_wait();
    // The agent completely refuses a configuration with another store or without a store, and keeps
    // the unsent profiles.
    let refused = |times: f64| {
        until("the change is refused", || {
            agent.metric("memhook_agent_refused_configurations_total", &[]) == Some(times)
        });
    };
    agent.reconfigure(&(store(&other.url()) + &rules("500ms", pyroscope)));
    refused(1.0);
    more_wait();
    agent.reconfigure(&rules("500ms", ""));
    refused(2.0);
    more_wait();
    assert!(
        agent
            .said()
            .contains("need a restart; waiting profiles are kept")
    );
    let kept = waiting(&queue);
    assert!(kept.len() >= 12, "{}", kept.len());
    let back = ScriptedStore::start_at(address);
    agent.hear("pyroscope takes profiles again");
    until("they arrive", || {
        waiting(&queue).keys().all(|name| !kept.contains_key(name))
    });
    agent.reconfigure(&(store(&away) + &rules("600ms", pyroscope)));
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    let arrived: Vec<Vec<u8>> = back
        .requests()
        .into_iter()
        .map(|request| request.body)
        .collect();
    for (name, request) in &kept {
        let times = arrived.iter().filter(|body| *body == request).count();
        assert_eq!(times, 1, "{name}");
    }
    assert_eq!(arrived.iter().collect::<BTreeSet<_>>().len(), arrived.len());
    assert_eq!(other.requests().len(), 0);
    expect_untouched(target.pid());
    assert!(target.finish().success());
}

/// Checks that unsent data survives a configuration without its store, and is sent to the store of
/// a later configuration.
#[test]
fn a_restart_without_its_store_keeps_what_waits() {
    let folder = Arc::new(Folder::new("agent-without-store"));
    let queue = folder.path("state/queue/pyroscope");
    std::fs::create_dir_all(&queue).expect("made");
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now_ms = unix.expect("after 1970").as_millis();
    for number in 0..5 {
        let name = format!("{queue}/{:020}.push", now_ms - 1000 + number);
        std::fs::write(name, format!("request {number}")).expect("written");
    }
    let rule = "[[rule]]\nname = \"none\"\nexecutable = \"/nowhere\"\n";
    let (code, said) = Agent::start(&folder, rule).end();
    assert_eq!(code, Some(0), "{said}");
    let what = "5 profiles wait for pyroscope, which is no longer configured: they stay in";
    assert!(said.contains(what), "{said}");
    let store = ScriptedStore::start(Vec::new());
    let stores = format!("[pyroscope]\nurl = \"{}\"\n", store.url());
    let agent = Agent::start(&folder, &(stores + rule));
    until("they arrive", || store.requests().len() == 5);
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!(
        "5 profiles have waited for pyroscope; they are sent to {}",
        store.url()
    )));
    let bodies: Vec<Vec<u8>> = store
        .requests()
        .into_iter()
        .map(|request| request.body)
        .collect();
    let expected: Vec<Vec<u8>> = (0..5)
        .map(|n| format!("request {n}").into_bytes())
        .collect();
    assert_eq!((bodies, waiting(&queue).len()), (expected, 0));
}

/// Checks that the agent does not follow links that other users could have created, that only its
/// user can read its files, and that it refuses a folder that another user owns or may write to.
#[test]
fn the_state_folder_is_for_the_agent_alone() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = Arc::new(Folder::new("agent-links"));
    let (target, program) = service(&folder);
    let [state, victim, elsewhere] = ["state", "victim", "elsewhere"].map(|name| folder.path(name));
    let queue = format!("{state}/queue/pyroscope");
    let configuration = format!(
        "[pyroscope]\nurl = \"http://127.0.0.1:9\"\n[[rule]]\nname = \"web\"\nexecutable = \"{}\"\nmode = \"exact\"\n\
         send = [\"pyroscope\"]\ninterval = \"500ms\"\n",
        program.display()
    );
    for made in [&queue, &elsewhere] {
        std::fs::create_dir_all(made).expect("made");
    }
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).expect("ours");
    std::fs::write(&victim, format!("{} 1\n", target.pid())).expect("written");
    let before = std::fs::read(&victim).expect("there");
    // With a forged journal, the agent would search this target for leftovers.
    symlink(&victim, format!("{state}/attached")).expect("linked");
    symlink(&victim, format!("{state}/reserve")).expect("linked");
    symlink(&victim, format!("{queue}/00000000000000000001.push")).expect("linked");
    let mut agent = Agent::start(&folder, &configuration);
    agent.await_phase(target.pid(), "traced");
    until("profiles wait", || waiting(&queue).len() >= 2);
    agent.hear("takes no profiles");
    let mut paths = vec![state.clone()];
    while let Some(path) = paths.pop() {
        // A file may disappear at this moment, because it is being replaced or sent.
        let Ok(found) = std::fs::symlink_metadata(&path) else {
            continue;
        };
        let mode = found.permissions().mode() & 0o7777;
        assert!(!found.is_symlink(), "{path}");
        match found.is_dir() {
            true => {
                let entries = std::fs::read_dir(&path).expect("ours").flatten();
                paths.extend(entries.map(|entry| entry.path().display().to_string()));
            }
            false => assert_eq!(mode, 0o600, "{path}"),
        }
    }
    assert_eq!(std::fs::read(&victim).expect("there"), before);
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    let refused = |what: &str, words: &str| {
        let mut agent = Agent::launch(&folder, &configuration);
        until("it ends", || !agent.lives());
        until("it has said why", || agent.said().contains(words));
        assert!(!agent.said().contains("the agent runs"), "{what}");
    };
    for (at, kept) in [("queue", "kept"), ("queue/pyroscope", "kept-too")] {
        let (at, kept) = (format!("{state}/{at}"), folder.path(kept));
        std::fs::rename(&at, &kept).expect("moved");
        symlink(&elsewhere, &at).expect("linked");
        refused(&at, "symbolic link");
        std::fs::remove_file(&at).expect("removed");
        std::fs::rename(&kept, &at).expect("moved");
    }
    assert_eq!(std::fs::read_dir(&elsewhere).expect("there").count(), 0);
    for mode in [0o777, 0o770, 0o1777] {
        std::fs::set_permissions(&state, PermissionsExt::from_mode(mode)).expect("ours");
        refused("open to others", "nobody else may write to it");
    }
    std::fs::set_permissions(&state, PermissionsExt::from_mode(0o700)).expect("ours");
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        std::os::unix::fs::chown(&state, Some(65534), None).expect("root may");
        refused("of another user", "it belongs to user 65534");
    } else {
        not_run("only root makes a folder another user's");
    }
    expect_untouched(target.pid());
    assert!(target.finish().success());
}
