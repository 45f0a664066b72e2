//! Simulated hosts. Each host has its own network, PID, mount and UTS namespaces, in which fleet/demo/host.sh starts
//! programs.

use super::{SAMPLE_BYTES, run_well};
use crate::root;
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

pub const NAMES: [&str; 2] = ["one", "two"];
/// Network namespace of the stores.
pub const STORES: &str = "memhook-stores";

/// Network namespaces, removed on drop.
pub struct Network;

fn ip(words: &str) -> Result<String> {
    run_well(Command::new("ip").args(words.split(' ')))
}

fn namespace(name: &str) -> String {
    format!("memhook-{name}")
}

impl Network {
    /// Creates the networks. Each host shares a separate network with the stores: 10.222.NUMBER.1 is the address of the
    /// stores, 10.222.NUMBER.2 is the host's address.
    pub fn new() -> Result<Network> {
        let network = Network;
        network.remove();
        ip(&format!("netns add {STORES}"))?;
        ip(&format!("-n {STORES} link set lo up"))?;
        for (number, name) in NAMES.iter().enumerate() {
            let host = namespace(name);
            ip(&format!("netns add {host}"))?;
            ip(&format!("-n {host} link set lo up"))?;
            ip(&format!(
                "-n {STORES} link add to-{name} type veth peer name eth0 netns {host}"
            ))?;
            for (space, device, address) in
                [(STORES, format!("to-{name}"), 1), (&host, "eth0".into(), 2)]
            {
                ip(&format!(
                    "-n {space} addr add 10.222.{number}.{address}/24 dev {device}"
                ))?;
                ip(&format!("-n {space} link set {device} up"))?;
            }
        }
        Ok(network)
    }

    fn remove(&self) {
        for name in NAMES
            .iter()
            .map(|name| namespace(name))
            .chain([STORES.to_owned()])
        {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Returns a command in a network namespace.
pub fn inside(space: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", space]).arg(program);
    command
}

/// Running host. Dropping it kills all its processes.
pub struct Host {
    name: &'static str,
    folder: PathBuf,
    child: Child,
}

impl Host {
    /// Starts the host.
    pub fn start(number: usize, work: &Path) -> Result<Host> {
        let name = NAMES[number];
        let folder = work.join(name);
        std::fs::create_dir_all(folder.join("profiles"))?;
        std::fs::write(folder.join("agent.toml"), configuration(number, &folder))?;
        let leaky = folder.join("leaky");
        memhook_tests::programs::copy_program(memhook_tests::build_target("served", &[]), &leaky);
        let log = std::fs::File::create(folder.join("host.log"))?;
        let child = inside(&namespace(name), "unshare")
            .args([
                "--pid",
                "--mount",
                "--uts",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "bash",
            ])
            .arg(root().join("fleet/demo/host.sh").canonicalize()?)
            .arg(name)
            .arg(&folder)
            .arg(memhook_tests::binary())
            .arg(&leaky)
            .arg(format!("10.222.{number}.2:9464"))
            .stdin(std::process::Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot run unshare")?;
        let mut host = Host {
            name,
            folder,
            child,
        };
        host.wait_for("started")?;
        Ok(host)
    }

    fn wait_for(&mut self, file: &str) -> Result<String> {
        let until = Instant::now() + Duration::from_secs(120);
        loop {
            if let Ok(text) = std::fs::read_to_string(self.folder.join(file))
                && (file == "started" || text.ends_with('\n'))
            {
                return Ok(text.trim().to_owned());
            }
            self.expect_alive()?;
            ensure!(
                Instant::now() < until,
                "host {}: no file {file}: {}",
                self.name,
                self.said()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn said(&self) -> String {
        let read = |file: &str| std::fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        format!("{}{}", read("host.log"), read("agent.log"))
    }

    /// Checks that the host is running.
    pub fn expect_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) if !self.folder.join("ended").exists() => {
                bail!("host {} has ended ({status}): {}", self.name, self.said())
            }
            _ => Ok(()),
        }
    }

    /// Shuts the host down, copies its profiles and its agent's messages, and returns the number of leaks of the
    /// planted program.
    pub fn finish(mut self, out: &Path) -> Result<u64> {
        std::fs::write(self.folder.join("stop"), "")?;
        let leaks = self.wait_for("leaks")?.parse()?;
        let code = self.wait_for("ended")?;
        ensure!(
            code == "0",
            "the agent of host {} ended with {code}: {}",
            self.name,
            self.said()
        );
        let copy = out.join(self.name);
        run_well(
            Command::new("cp")
                .arg("-r")
                .arg(self.folder.join("profiles"))
                .arg(&copy),
        )?;
        std::fs::copy(self.folder.join("agent.log"), copy.join("agent.log"))?;
        Ok(leaks)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // Killing unshare also ends its PID namespace.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configuration(number: usize, folder: &Path) -> String {
    let folder = folder.display();
    let mut text = format!(
        "[agent]\nstate = \"{folder}/state\"\nmax_targets = 40\nmax_cpu = \"25%\"\nmax_memory = \"1G\"\n\
         experimental_otlp = true\n[http]\nlisten = \"10.222.{number}.2:9464\"\n\
         [labels]\nfleet = \"demo\"\n[files]\ndirectory = \"{folder}/profiles\"\nkeep = 100000\n\
         [pyroscope]\nurl = \"http://10.222.{number}.1:4040\"\ntenant = \"demo\"\n\
         [otlp]\nurl = \"http://10.222.{number}.1:4318\"\n"
    );
    for (rule, chooses) in [
        ("redis", "process = \"redis-server\""),
        ("nginx", "process = \"nginx\""),
        ("postgresql", "process = \"postgres\""),
        ("leak", "executable = \"*/leaky\""),
    ] {
        text += &format!(
            "[[rule]]\nname = \"{rule}\"\nservice = \"{rule}\"\n{chooses}\nsample = {SAMPLE_BYTES}\ninterval = \"2s\"\n\
             send = [\"pyroscope\", \"otlp\", \"files\"]\n"
        );
    }
    text
}
