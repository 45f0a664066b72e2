//! A control group with a memory limit, like that of a container.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The control group. Dropping it removes the group, whose processes must have exited.
pub struct MemoryBox {
    folder: PathBuf,
    usage: &'static str,
    limit: &'static str,
}

impl MemoryBox {
    /// Creates a group of version 1 or 2, depending on the machine. Returns `None` without
    /// permission.
    pub fn new(name: &str, limit: u64) -> Option<MemoryBox> {
        // Tests that run in parallel may use the same name.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("memhook-{name}-{}-{count}", std::process::id());
        let kinds = [
            (
                "/sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            ),
            ("/sys/fs/cgroup", "memory.max", "memory.current"),
        ];
        kinds.iter().find_map(|(top, limit_file, usage)| {
            if *usage == "memory.current" {
                // Fails if the controller is not available, which is harmless.
                let _ = std::fs::write(Path::new(top).join("cgroup.subtree_control"), "+memory");
            }
            let folder = Path::new(top).join(&name);
            std::fs::create_dir(&folder).ok()?;
            let made = MemoryBox {
                folder,
                usage,
                limit: limit_file,
            };
            (made.set_limit(limit) && made.usage().is_some()).then_some(made)
        })
    }

    /// Sets another limit in bytes.
    pub fn set_limit(&self, limit: u64) -> bool {
        std::fs::write(self.folder.join(self.limit), limit.to_string()).is_ok()
    }

    /// Returns a command that runs a program in the group.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg("echo $$ > \"$0\" && exec \"$@\"")
            .arg(self.folder.join("cgroup.procs"))
            .arg(program);
        command
    }

    /// Returns the directory of the group.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Returns the bytes that the group uses.
    pub fn usage(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.folder.join(self.usage)).ok()?;
        text.trim().parse().ok()
    }
}

impl Drop for MemoryBox {
    fn drop(&mut self) {
        // A process that has just exited may still count.
        for _ in 0..1000 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
