//! Available memory: for a copy, the memory that this process may use; for writes to pages shared
//! with a fork, the memory that the target may use.

use memhook_foreign::size_text;
use memhook_process::CgroupMemory;

/// Available memory, and what limits it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// Bytes.
    pub bytes: u64,
    /// Description of the limit.
    pub limit: String,
}

impl Room {
    /// Returns the room for a size that the user has set.
    pub fn of(bytes: u64) -> Room {
        Room {
            bytes,
            limit: "is allowed".into(),
        }
    }

    /// Returns the memory that the machine, and the memory cgroups of a process, have available
    /// now; `None` if the kernel does not report it.
    pub fn for_process(pid: i32) -> Option<Room> {
        let level = CgroupMemory::of(pid).tightest_of_all()?;
        Some(Room {
            bytes: level.free,
            limit: level.to_string(),
        })
    }

    /// Returns the memory that this process may use: the size that the user has set, or all
    /// available memory.
    pub fn for_copy(most: Option<u64>) -> Option<Room> {
        most.map(Room::of)
            .or_else(|| Room::for_process(std::process::id() as i32))
    }
}

impl std::fmt::Display for Room {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", size_text(self.bytes), self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_this_machine() {
        let room = Room::for_copy(None).expect("the kernel tells it");
        assert!(
            room.bytes > 0 && room.to_string().contains(" is "),
            "{room}"
        );
        assert_eq!(Room::for_copy(Some(7)), Some(Room::of(7)));
    }
}
