//! Changes the machine's overcommit policy during a storm (proc_sys_vm(5)).

use std::{fs, io};

const MODE: &str = "/proc/sys/vm/overcommit_memory";
const PERCENT: &str = "/proc/sys/vm/overcommit_ratio";
const KIBIBYTES: &str = "/proc/sys/vm/overcommit_kbytes";

/// Guard: while it lives, all mappings are charged against a limit.
pub struct Charging {
    /// Previous settings, in the order in which they are restored.
    before: Vec<(&'static str, String)>,
}

impl Charging {
    /// Changes the policy. The limit is far above the machine's memory, so that no other program is affected.
    pub fn begin() -> io::Result<Charging> {
        let mut before = vec![(MODE, fs::read_to_string(MODE)?)];
        // Setting either of the two resets the other to 0.
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
