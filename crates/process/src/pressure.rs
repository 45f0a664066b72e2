//! Time that processes have waited for memory, as measured by the kernel (Documentation/accounting/psi.rst).

use crate::proc_text;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The pressure is not measured.
#[derive(Debug, thiserror::Error)]
#[error(
    "memory pressure cannot be watched here: this kernel does not measure it ({}: {error}), as without CONFIG_PSI or with psi=0",
    .path.display()
)]
pub struct NoPressure {
    /// File with the pressure.
    path: PathBuf,
    /// Error of the kernel.
    error: std::io::Error,
}

/// Memory pressure of a control group, or of the machine.
pub struct MemoryPressure {
    path: PathBuf,
}

impl MemoryPressure {
    /// Returns the pressure of a group or, if it has none, of the machine.
    ///
    /// # Errors
    /// The kernel does not measure it.
    pub fn of(group: Option<&Path>) -> Result<MemoryPressure, NoPressure> {
        let of_group = group.map(|group| group.join("memory.pressure"));
        let path = of_group
            .filter(|path| path.exists())
            .unwrap_or_else(|| PathBuf::from("/proc/pressure/memory"));
        // With psi=0 the file exists, but cannot be read.
        match proc_text(&path) {
            Ok(_) => Ok(MemoryPressure { path }),
            Err(error) => Err(NoPressure { path, error }),
        }
    }

    /// Returns how long at least one of the processes has waited, and how long all of them have waited at the same
    /// time.
    pub fn waited(&self) -> Option<[Duration; 2]> {
        totals(&proc_text(&self.path).ok()?)
    }
}

fn totals(text: &str) -> Option<[Duration; 2]> {
    let total = |kind| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        let total = line.split_once("total=")?.1.trim();
        Some(Duration::from_micros(total.parse().ok()?))
    };
    Some([total("some ")?, total("full ")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_read() {
        let text = "some avg10=1.25 avg60=0.00 avg300=0.00 total=1500000\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=250\n";
        let expected = [Duration::from_millis(1500), Duration::from_micros(250)];
        assert_eq!(totals(text), Some(expected));
        assert_eq!(totals("some avg10=0.00 total=x\nfull total=1\n"), None);
        assert_eq!(totals(""), None);
        let gone = MemoryPressure {
            path: "/no/such/account".into(),
        };
        assert_eq!(gone.waited(), None, "a group may go");
    }
}
