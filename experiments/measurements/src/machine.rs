//! Description of the machine on which figures were measured.

use serde::{Deserialize, Serialize};
use std::process::Command;

/// The machine and the versions of its software.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Name of the processor in /proc/cpuinfo.
    pub processor: String,
    /// Number of processors.
    pub processors: usize,
    /// Installed memory in GiB.
    pub memory_gib: u64,
    /// Release of the kernel.
    pub kernel: String,
    /// Version of the C library.
    pub libc: String,
    /// Version of the C++ compiler.
    pub compiler: String,
}

fn first_line(program: &str, argument: &str) -> String {
    let output = Command::new(program).arg(argument).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned());
    let text = text.unwrap_or_default();
    text.lines().next().unwrap_or("").trim().to_owned()
}

fn field(file: &str, name: &str) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|l| l.starts_with(name));
    let value = line.and_then(|l| l.split_once(':')).map(|(_, value)| value);
    value.unwrap_or("").trim().to_owned()
}

/// Counts the lines with this field.
fn count(file: &str, name: &str) -> usize {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().filter(|line| line.starts_with(name)).count()
}

impl Machine {
    /// Describes this machine.
    pub fn here() -> Machine {
        let kib = field("/proc/meminfo", "MemTotal");
        let kib: u64 = kib.trim_end_matches(" kB").parse().unwrap_or(0);
        Machine {
            processor: field("/proc/cpuinfo", "model name"),
            processors: count("/proc/cpuinfo", "processor"),
            memory_gib: (kib + (1 << 19)) >> 20,
            kernel: first_line("uname", "-r"),
            libc: first_line("getconf", "GNU_LIBC_VERSION"),
            compiler: first_line("c++", "--version"),
        }
    }
}
