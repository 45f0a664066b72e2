//! Effects of an attach on a process, computed from the plan of the attach.

use super::hooking::PlannedModule;
use crate::config::TraceConfig;
use crate::hook::loading::Loading;
use crate::survey::limits::region_bytes_of;
use memhook_foreign::size_text;

/// Effects of one command on a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touches {
    /// The command.
    pub command: &'static str,
    /// Threads that are stopped, and the longest time.
    pub stops: String,
    /// Functions and system calls that the process's threads are made to call.
    pub calls: Vec<String>,
    /// Bytes of address space that are mapped in the process.
    pub mapped_bytes: u64,
    /// Memory of the process that is written or protected.
    pub writes: String,
}

/// Effects of an attach with this plan and this way of loading the hook.
pub(super) fn of_attach(
    pid: i32,
    config: &TraceConfig,
    loading: Loading,
    plan: &[PlannedModule],
) -> Touches {
    let slots: usize = plan.iter().map(|module| module.slots.len()).sum();
    let pads: usize = plan.iter().map(|module| module.pads.len()).sum();
    let loader: &[&str] = match loading {
        Loading::ByLoader(_) => &["dladdr", "dl_iterate_phdr", "dlopen"],
        _ => &[],
    };
    // The first function is used to preserve the program's errno.
    let of_hook = ["__errno_location", "memhook_attach", "memhook_close"];
    let calls = loader.iter().chain(&of_hook);
    let hook_bytes = match loading {
        Loading::Present(_) => 0,
        new => new.object(pid).bytes.len() as u64,
    };
    let mapped_bytes = region_bytes_of(pid, config) + hook_bytes;
    let jumps = match pads {
        0 => String::new(),
        pads => format!(" and {pads} jumps at entries of functions"),
    };
    Touches {
        command: "attach",
        stops: "one thread for milliseconds; all, for at most 30 ms, if the loader is working"
            .into(),
        calls: calls.map(|&name| name.to_owned()).collect(),
        mapped_bytes,
        writes: format!(
            "{slots} slots{jumps}, restored at the end; the hook ({}) stays mapped",
            size_text(loading.object(pid).bytes.len() as u64)
        ),
    }
}
