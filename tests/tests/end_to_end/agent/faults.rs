//! The agent while its disk is full and its store is away.

use super::served::{ask, service};
use memhook_tests::agents::{Agent, ScriptedStore, wrapped_slots};
use memhook_tests::programs::Folder;
use memhook_tests::{not_run, until};
use std::process::Command;
use std::sync::Arc;

/// A small file system of its own; gone with it.
struct SmallDisk(String);

impl SmallDisk {
    /// None, with the reason said, where nothing may be mounted.
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

    /// Leaves nothing of it but some pages.
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

/// Profiles are lost and counted, no process is attached to without being written down, and all goes on when there is room
/// and a store again.
#[test]
fn a_full_disk_and_a_store_that_is_away_cost_nothing_but_profiles() {
    let folder = Arc::new(Folder::new("agent-full"));
    let Some(disk) = SmallDisk::mount(folder.path("state")) else {
        return;
    };
    let (mut target, program) = service(&folder);
    // A port that nobody listens on until later.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
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
    // Nothing is attached to that a later agent would not find. Room for one file may be left.
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
    let (code, said) = agent.end();
    assert_eq!(code, Some(0), "{said}");
    for target in others.into_iter().chain([target]) {
        assert_eq!(wrapped_slots(target.pid()), 0);
        assert!(target.finish().success());
    }
    let most = store
        .profiles()
        .iter()
        .map(|p| p.of("inuse_space", "planted_leak"))
        .max();
    assert_eq!(most, Some(200_000));
}

/// What its own queue has filled, an agent can start on again, and what is attached to is always written down.
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
    // Of a process that has ended.
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
    agent.hear("profiles that waited there are given up");
    agent.await_phase(target.pid(), "traced");
    // The newest of them are still there, and what comes takes the place of the oldest.
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
    // Others fill the disk to the last page: the journal has its room.
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
    // As it is after a crash: the next one starts, too.
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
