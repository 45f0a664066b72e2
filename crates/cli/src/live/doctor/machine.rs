//! Facts about the machine, for `doctor` without a process: whether processes can be traced here at
//! all, and by whom.

use memhook_process::{Check, proc_text};

/// Capabilities by their numbers (capabilities(7)).
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;

/// Facts about the machine and this process.
struct Machine {
    /// Version of Linux, as `uname -r` shows it.
    release: String,
    /// `kernel.yama.ptrace_scope`; empty if the kernel has no Yama.
    scope: String,
    /// `kernel.perf_event_paranoid`, if the kernel has perf events.
    paranoid: Option<i32>,
    /// Effective capabilities of this process.
    capabilities: u64,
}

impl Machine {
    fn read() -> Machine {
        let setting = |name: &str| proc_text(format!("/proc/sys/kernel/{name}")).ok();
        let text = |name: &str| setting(name).unwrap_or_default().trim().to_owned();
        let status = proc_text("/proc/self/status").unwrap_or_default();
        let mut masks = status.lines().filter_map(|l| l.strip_prefix("CapEff:"));
        let mask = masks.next().unwrap_or_default().trim();
        Machine {
            release: text("osrelease"),
            scope: text("yama/ptrace_scope"),
            paranoid: setting("perf_event_paranoid").and_then(|n| n.trim().parse().ok()),
            capabilities: u64::from_str_radix(mask, 16).unwrap_or(0),
        }
    }

    fn has(&self, capability: u32) -> bool {
        self.capabilities >> capability & 1 == 1
    }

    /// Returns true if the kernel has at least this version.
    fn is_since(&self, major: u32, minor: u32) -> bool {
        let numbers = self.release.split(|c: char| !c.is_ascii_digit());
        let mut numbers = numbers.map_while(|n| n.parse::<u32>().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        version >= (major, minor)
    }

    fn kernel(&self) -> Check {
        let finding = format!("Linux {}", self.release);
        match self.is_since(4, 14) {
            true => Check::good("kernel", finding),
            false => Check::bad(
                "kernel",
                finding,
                "tracing needs Linux 4.14 (MADV_WIPEONFORK)",
            ),
        }
    }

    fn rights(&self) -> Check {
        const MORE: &str =
            "for other processes, run as root, or with CAP_SYS_PTRACE and CAP_DAC_OVERRIDE";
        let has_both = self.has(CAP_SYS_PTRACE) && self.has(CAP_DAC_OVERRIDE);
        match (self.scope.as_str(), has_both) {
            ("3", _) => Check::bad(
                "rights",
                "nobody may trace anything: kernel.yama.ptrace_scope is 3",
                "only a reboot with another setting changes that",
            ),
            (_, true) => Check::good("rights", "to trace every process of this machine"),
            ("2", false) => Check::bad(
                "rights",
                "only root may trace: kernel.yama.ptrace_scope is 2",
                "run as root, or with CAP_SYS_PTRACE and CAP_DAC_OVERRIDE",
            ),
            ("1", false) => Check::note(
                "rights",
                "to trace only programs started by run and gate: kernel.yama.ptrace_scope is 1",
                MORE,
            ),
            _ => Check::note("rights", "to trace your own processes", MORE),
        }
    }

    fn written_pages(&self) -> Check {
        match self.is_since(6, 7) {
            true => Check::good(
                "written pages",
                "stale and scan see which pages are written",
            ),
            false => Check::note(
                "written pages",
                format!(
                    "Linux {} does not show which pages are written",
                    self.release
                ),
                "from Linux 6.7 on, stale sees all writes; here it has watchpoints alone",
            ),
        }
    }

    fn watchpoints(&self) -> Check {
        let may_use = self.has(CAP_PERFMON) || self.has(CAP_SYS_ADMIN);
        match self.paranoid {
            Some(level) if level <= 2 || may_use => {
                Check::good("watchpoints", "stale and --access sampled may use them")
            }
            Some(level) => Check::note(
                "watchpoints",
                format!("not permitted: kernel.perf_event_paranoid is {level}"),
                "run as root or with CAP_PERFMON, or: sysctl kernel.perf_event_paranoid=2",
            ),
            None => Check::note(
                "watchpoints",
                "this kernel has no perf events",
                "stale sees only writes, and --access sampled is not possible",
            ),
        }
    }
}

/// Returns the checks that decide whether anything can be traced here.
pub fn checks() -> [Check; 4] {
    let machine = Machine::read();
    [
        machine.kernel(),
        machine.rights(),
        machine.written_pages(),
        machine.watchpoints(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(release: &str, scope: &str, capabilities: u64) -> Machine {
        Machine {
            release: release.into(),
            scope: scope.into(),
            paranoid: Some(3),
            capabilities,
        }
    }

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let of = |release: &str| machine(release, "", 0);
        assert!(of("6.18.0-generic").is_since(6, 7) && of("7.0").is_since(6, 18));
        assert!(!of("6.1.0-13-amd64").is_since(6, 7) && !of("").is_since(4, 14));
    }

    #[test]
    fn rights_follow_from_yama_and_capabilities() {
        let both = 1 << CAP_SYS_PTRACE | 1 << CAP_DAC_OVERRIDE;
        for (scope, capabilities, ok, word) in [
            ("", 0, true, "your own"),
            ("0", 0, true, "your own"),
            ("1", 0, true, "run and gate"),
            ("1", both, true, "every process"),
            ("2", 0, false, "only root"),
            ("2", both, true, "every process"),
            ("3", both, false, "nobody"),
        ] {
            let check = machine("6.18", scope, capabilities).rights();
            assert!(
                check.ok == ok && check.finding.contains(word),
                "{scope}: {check:?}"
            );
        }
        assert!(machine("6.18", "", 0).watchpoints().remedy.is_some());
        assert!(
            machine("6.18", "", 1 << CAP_PERFMON)
                .watchpoints()
                .remedy
                .is_none()
        );
    }
}
