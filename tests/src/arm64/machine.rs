//! The emulated machine: it boots, runs one command, returns the results, and shuts down.

use super::root::{EMULATOR, Root, archive, make_executable};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit for booting and for writing results.
const AROUND: Duration = Duration::from_secs(60);
/// Size of the disk for results.
const DISK_BYTES: u64 = 256 << 20;

/// An AArch64 machine that has not been started.
pub struct Machine {
    root: Root,
    processor: String,
    limit: Duration,
    files: Vec<(PathBuf, String)>,
}

/// Result of a command.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; 124 or 137 after a timeout.
    pub code: i32,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Folder with the files that the command left in its working directory; removed when this value is dropped.
    pub files: PathBuf,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let folder = self.files.ancestors().nth(2);
        let _ = folder.map(fs::remove_dir_all);
    }
}

impl Machine {
    /// Returns a machine with this processor (a name of `qemu-system-aarch64 -cpu help`), and this time limit for a
    /// command.
    ///
    /// # Errors
    /// Returns a one-line message if a tool is missing.
    pub fn new(processor: &str, limit: Duration) -> Result<Machine, String> {
        Ok(Machine {
            root: Root::get()?,
            processor: processor.to_owned(),
            limit,
            files: Vec::new(),
        })
    }

    /// Returns the packages that this machine consists of.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Adds a file to the machine. `there` is its path without the leading slash. Executables go to `bin/`.
    pub fn put(&mut self, file: &Path, there: &str) {
        self.files.push((file.to_owned(), there.to_owned()));
    }

    /// Runs a shell script in the machine.
    ///
    /// # Errors
    /// Returns the last lines of the console if the script did not finish.
    pub fn run(&self, script: &str) -> Result<Ended, String> {
        let folder = std::env::temp_dir().join(format!("arm64-{}-{}", std::process::id(), turn()));
        let ended = self.run_in(&folder, script);
        let _ = fs::remove_dir_all(folder.join("given"));
        for file in ["initramfs", "disk"] {
            let _ = fs::remove_file(folder.join(file));
        }
        if ended.is_err() {
            let _ = fs::remove_dir_all(&folder);
        }
        ended
    }

    fn run_in(&self, folder: &Path, script: &str) -> Result<Ended, String> {
        let failed = |e: io::Error| format!("{}: {e}", folder.display());
        let given = folder.join("given");
        fs::create_dir_all(&given).map_err(failed)?;
        fs::write(given.join("command"), script).map_err(failed)?;
        fs::write(given.join("limit"), self.limit.as_secs().to_string()).map_err(failed)?;
        for (file, there) in &self.files {
            let to = given.join(there);
            fs::create_dir_all(to.parent().unwrap_or(&given)).map_err(failed)?;
            fs::copy(file, &to).map_err(|e| format!("{}: {e}", file.display()))?;
            if there.starts_with("bin/") {
                make_executable(&to).map_err(failed)?;
            }
        }
        // The kernel unpacks consecutive archives (Documentation/driver-api/early-userspace/buffer-format.rst).
        let initramfs = folder.join("initramfs");
        let own = folder.join("given.cpio");
        archive(&given, &[], &own)?;
        let mut whole = File::create(&initramfs).map_err(failed)?;
        for part in [&self.root.initramfs(), &own] {
            let mut part = File::open(part).map_err(failed)?;
            io::copy(&mut part, &mut whole).map_err(failed)?;
        }
        fs::remove_file(own).map_err(failed)?;
        let disk = folder.join("disk");
        let file = File::create(&disk).map_err(failed)?;
        file.set_len(DISK_BYTES).map_err(failed)?;

        let console = self.boot(&initramfs, &disk).map_err(failed)??;
        let results = folder.join("results");
        fs::create_dir_all(&results).map_err(failed)?;
        let unpacked = Command::new("tar")
            .arg("-xf")
            .arg(&disk)
            .arg("-C")
            .arg(&results)
            .stderr(Stdio::null())
            .status();
        let status = fs::read_to_string(results.join("status")).unwrap_or_default();
        let Ok(code) = status.trim().parse() else {
            return Err(format!(
                "the machine gave no results ({unpacked:?}); its console ends: {}",
                last_lines(&console)
            ));
        };
        let read = |name: &str| fs::read(results.join(name)).map_err(failed);
        Ok(Ended {
            code,
            stdout: read("stdout")?,
            stderr: read("stderr")?,
            files: results.join("files"),
        })
    }

    /// Boots the machine, waits until it shuts down, and returns its console output.
    fn boot(&self, initramfs: &Path, disk: &Path) -> io::Result<Result<String, String>> {
        // The cipher that QEMU uses for pointer authentication would otherwise take most of the time.
        let processor = match self.processor.as_str() {
            "max" => "max,pauth-impdef=on",
            other => other,
        };
        let mut child = Command::new(EMULATOR)
            .args(["-M", "virt", "-cpu", processor, "-smp", "2", "-m", "1536"])
            .args(["-nic", "none", "-nographic", "-no-reboot"])
            .args(["-append", "console=ttyAMA0 quiet panic=-1", "-kernel"])
            .arg(self.root.kernel())
            .arg("-initrd")
            .arg(initramfs)
            .arg("-drive")
            .arg(format!(
                "file={},format=raw,if=virtio,cache=unsafe",
                disk.display()
            ))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut outputs: [Box<dyn Read + Send>; 2] = [
            Box::new(child.stdout.take().expect("piped")),
            Box::new(child.stderr.take().expect("piped")),
        ];
        let until = Instant::now() + self.limit + AROUND;
        std::thread::scope(|scope| {
            let readers = outputs.each_mut().map(|output| {
                scope.spawn(move || {
                    let mut bytes = Vec::new();
                    let _ = output.read_to_end(&mut bytes);
                    String::from_utf8_lossy(&bytes).into_owned()
                })
            });
            let mut status = None;
            while status.is_none() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(50));
                status = child.try_wait()?;
            }
            if status.is_none() {
                child.kill()?;
                child.wait()?;
            }
            let console: String = readers
                .map(|reader| reader.join().unwrap_or_default())
                .concat();
            Ok(match status {
                Some(status) if status.success() => Ok(console),
                Some(status) => Err(format!("{EMULATOR}: {status}: {}", last_lines(&console))),
                None => Err(format!(
                    "the machine did not shut down within {} s; its console ends: {}",
                    (self.limit + AROUND).as_secs(),
                    last_lines(&console)
                )),
            })
        })
    }
}

/// Returns the number of this run within the process.
fn turn() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static TURN: AtomicU32 = AtomicU32::new(0);
    TURN.fetch_add(1, Ordering::Relaxed)
}

fn last_lines(console: &str) -> String {
    let lines: Vec<&str> = console.lines().filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(5)..].join(" | ")
}
