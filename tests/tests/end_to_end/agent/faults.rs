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
