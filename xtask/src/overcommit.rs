//! The machine's policy for memory that is mapped and not used (proc_sys_vm(5)), changed for a storm.

use std::{fs, io};

const MODE: &str = "/proc/sys/vm/overcommit_memory";
const PERCENT: &str = "/proc/sys/vm/overcommit_ratio";
const KIBIBYTES: &str = "/proc/sys/vm/overcommit_kbytes";

/// All mappings are charged against a limit, until this is dropped.
pub struct Charging {
    /// What was set before, in the order in which it is set again.
    before: Vec<(&'static str, String)>,
}

impl Charging {
    /// Begins with it. No other program of the machine may feel it, so the limit is far above its memory.
    pub fn begin() -> io::Result<Charging> {
        let mut before = vec![(MODE, fs::read_to_string(MODE)?)];
        // Each of the two sets the other one to 0.
        let kibibytes = fs::read_to_string(KIBIBYTES)?;
        match kibibytes.trim() {
            "0" => before.push((PERCENT, fs::read_to_string(PERCENT)?)),
            _ => before.push((KIBIBYTES, kibibytes)),
        }
        let charging = Charging { before };
        fs::write(PERCENT, "100000")?;
        fs::write(MODE, "2")?;
        Ok(charging)
    }
}

impl Drop for Charging {
    fn drop(&mut self) {
        for (file, value) in &self.before {
            if let Err(error) = fs::write(file, value) {
                eprintln!("{file} was {}: {error}", value.trim());
            }
        }
    }
}
