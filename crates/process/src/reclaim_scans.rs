//! Counter that shows whether the kernel has scanned anonymous memory for reclaim: `/proc/vmstat` (proc_vmstat(5)).

use crate::proc_text;

/// Returns the number of pages that the kernel has scanned for reclaim since the machine was started. While it does not
/// change, only writers to `/proc/PID/clear_refs` clear the marks of accesses in page tables. `None` on kernels without
/// this counter.
pub fn reclaim_scans() -> Option<u64> {
    scans(&proc_text("/proc/vmstat").ok()?, has_swap())
}

/// Returns true if the kernel may swap out memory, or if that is unknown.
pub fn has_swap() -> bool {
    proc_text("/proc/meminfo").map_or(true, |text| names_swap(&text))
}

fn names_swap(meminfo: &str) -> bool {
    let mut lines = meminfo.lines();
    let total = lines.find_map(|line| line.strip_prefix("SwapTotal:"));
    total.is_none_or(|rest| rest.split_whitespace().next() != Some("0"))
}

/// Sums the counters. Without swap, the kernel leaves anonymous pages alone. With swap, the multi-generational LRU
/// examines them before it counts any of them (`should_run_aging` of mm/vmscan.c), so each pass counts.
fn scans(vmstat: &str, has_swap: bool) -> Option<u64> {
    let mut sum = None;
    for line in vmstat.lines() {
        let Some((name, value)) = line.split_once(' ') else {
            continue;
        };
        if name == "pgscan_anon" || has_swap && name.starts_with("pgscan_") {
            let more = value.trim().parse::<u64>().ok()?;
            sum = Some(sum.unwrap_or(0u64).wrapping_add(more));
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_added_up() {
        let text = "nr_free_pages 5\npgscan_kswapd 100\npgscan_direct 20\npgscan_anon 7\nworkingset_nodes 3\n";
        assert_eq!(scans(text, false), Some(7));
        assert_eq!(scans(text, true), Some(127));
        assert_eq!(scans("pgscan_anon x\n", false), None);
        assert_eq!(scans("", true), None);
        assert!(!names_swap("MemTotal: 9 kB\nSwapTotal:       0 kB\n"));
        assert!(names_swap("SwapTotal:       8 kB\n") && names_swap(""));
        assert!(reclaim_scans().is_some());
    }
}
