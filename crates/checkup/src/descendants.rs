//! Descendants of an examined process, which may do the actual work and hold its memory.

use memhook_advice::Child;
use memhook_process::{children, process_name, resident_counters};

/// Maximum number of descendants that are examined.
const MOST: usize = 1000;

/// Returns the descendant with the most resident memory, if that is more than the process itself
/// has.
pub fn larger_child(pid: i32) -> Option<Child> {
    let resident = |pid: i32| resident_counters(pid).map(|counters| counters.resident());
    let own = resident(pid)?;
    let mut found = children(pid);
    let mut at = 0;
    while at < found.len() && found.len() < MOST {
        // An id that was reused in between could lead back.
        let new: Vec<i32> = children(found[at]);
        found.extend(new.into_iter().filter(|child| *child != pid));
        at += 1;
    }
    let sizes = found
        .into_iter()
        .filter_map(|pid| Some((resident(pid)?, pid)));
    let (rss_bytes, pid) = sizes.max()?;
    (rss_bytes > own).then(|| Child {
        pid,
        name: process_name(pid),
        rss_bytes,
    })
}
