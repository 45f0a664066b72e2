//! Memory of each mapping of a process: `/proc/PID/smaps` (proc_pid_smaps(5)).

use crate::maps::parse_line;
use crate::threads::field_of_process;
use crate::{Error, Mapping, proc_path, proc_text};
use std::fs::File;
use std::io::Read;
use std::time::{Duration, Instant};

/// Maximum length of the text: 65,530 mappings with about 700 bytes each.
const MOST_TEXT: usize = 128 << 20;

/// Bytes of one mapping, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Resident bytes.
    pub rss: u64,
    /// Resident bytes, with each page divided by the number of processes that map it.
    pub pss: u64,
    /// Bytes of resident pages that only this process maps, and that were written to.
    pub private_dirty: u64,
    /// Bytes swapped out.
    pub swap: u64,
    /// Resident bytes in huge pages: of anonymous memory, of shared memory and of files.
    pub huge_pages: u64,
    /// Bytes in hugetlbfs pages, which the kernel does not count as resident.
    pub hugetlb: u64,
    /// Bytes of pages that are marked as accessed. The marks stay until the kernel scans memory for reclaim, or until
    /// /proc/PID/clear_refs clears them.
    pub referenced: u64,
}

impl MemoryUse {
    /// Adds the memory of another mapping.
    pub fn add(&mut self, other: &MemoryUse) {
        self.rss += other.rss;
        self.pss += other.pss;
        self.private_dirty += other.private_dirty;
        self.swap += other.swap;
        self.huge_pages += other.huge_pages;
        self.hugetlb += other.hugetlb;
        self.referenced += other.referenced;
    }

    /// Parses one line of the file, if it is one of these fields.
    fn read(&mut self, line: &str) {
        let Some((name, value)) = line.split_once(':') else {
            return;
        };
        let field = match name {
            "Rss" => &mut self.rss,
            "Pss" => &mut self.pss,
            "Private_Dirty" => &mut self.private_dirty,
            "Swap" => &mut self.swap,
            "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" => &mut self.huge_pages,
            "Referenced" => &mut self.referenced,
            "Shared_Hugetlb" | "Private_Hugetlb" => &mut self.hugetlb,
            _ => return,
        };
        let kibibytes = value.trim().strip_suffix(" kB");
        let kibibytes = kibibytes.and_then(|digits| digits.parse::<u64>().ok());
        *field = field.saturating_add(kibibytes.unwrap_or(0).saturating_mul(1024));
    }
}

/// A mapping with its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingUse {
    /// The mapping.
    pub mapping: Mapping,
    /// Memory of the mapping.
    pub memory: MemoryUse,
}

/// Returns the mappings of a process with their memory, in address order.
pub fn smaps(pid: i32) -> Result<Vec<MappingUse>, Error> {
    read(proc_path(pid, "smaps")).map(|text| parse_smaps(&text))
}

/// Time that the kernel took to generate `/proc/PID/smaps`. The kernel walks the page tables of one mapping at a time,
/// and meanwhile threads of the process that map or unmap memory wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmapsHold {
    /// Longest time for one mapping.
    pub longest: Duration,
    /// Time for all mappings.
    pub all: Duration,
}

/// Returns the mappings of a process with their memory, in address order, and the time that reading them took. The
/// mappings are read one by one.
pub fn smaps_by_mapping(pid: i32) -> Result<(Vec<MappingUse>, SmapsHold), Error> {
    // Buffer size, less than the text of one mapping: the kernel stops after the mapping that fills the buffer
    // (`seq_read_iter` of fs/seq_file.c).
    const TEXT_BYTES: usize = 512;
    let path = proc_path(pid, "smaps");
    let failed = |cause| Error::Proc {
        path: path.clone(),
        cause,
    };
    let mut file = File::open(&path).map_err(failed)?;
    let mut text = Vec::new();
    let mut hold = SmapsHold::default();
    loop {
        let (begin, mut part) = (Instant::now(), [0; TEXT_BYTES]);
        let read = file.read(&mut part).map_err(failed)?;
        let took = begin.elapsed();
        hold.longest = hold.longest.max(took);
        hold.all += took;
        if read == 0 || text.len() > MOST_TEXT {
            break;
        }
        text.extend_from_slice(&part[..read]);
    }
    Ok((parse_smaps(&String::from_utf8_lossy(&text)), hold))
}

/// Returns the memory of all mappings of a process together, which the kernel sums in one pass.
pub fn memory_use(pid: i32) -> Result<MemoryUse, Error> {
    let text = read(proc_path(pid, "smaps_rollup"))?;
    let mut sum = MemoryUse::default();
    text.lines().for_each(|line| sum.read(line));
    Ok(sum)
}

/// Resident memory of a process according to counters of the kernel (proc_pid_status(5)); no page is examined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidentCounters {
    /// Bytes of anonymous memory.
    pub anonymous: u64,
    /// Bytes of files.
    pub file: u64,
    /// Bytes of shared memory.
    pub shared: u64,
    /// Bytes swapped out, which are not resident.
    pub swap: u64,
    /// Bytes of hugetlbfs, which the kernel does not count as resident.
    pub hugetlb: u64,
}

impl ResidentCounters {
    /// Returns the sum of resident bytes.
    pub fn resident(&self) -> u64 {
        self.anonymous + self.file + self.shared
    }
}

/// Returns the counters; `None` if the process has ended.
pub fn resident_counters(pid: i32) -> Option<ResidentCounters> {
    let text = proc_text(proc_path(pid, "status")).ok()?;
    let bytes = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kibibytes = value.trim().strip_suffix(" kB")?.parse::<u64>().ok()?;
        kibibytes.checked_mul(1024)
    };
    Some(ResidentCounters {
        anonymous: bytes("RssAnon:")?,
        file: bytes("RssFile:")?,
        shared: bytes("RssShmem:")?,
        swap: bytes("VmSwap:").unwrap_or(0),
        hugetlb: bytes("HugetlbPages:").unwrap_or(0),
    })
}

/// Returns the bytes that a process has locked (mlock(2), mlockall(2)), including untouched pages.
pub fn locked_bytes(pid: i32) -> Option<u64> {
    let value = field_of_process(pid, "VmLck:")?;
    let kibibytes = value.strip_suffix(" kB")?.parse::<u64>().ok()?;
    kibibytes.checked_mul(1024)
}

fn read(path: String) -> Result<String, Error> {
    proc_text(&path).map_err(|cause| Error::Proc { path, cause })
}

/// Parses the text of the file.
pub fn parse_smaps(text: &str) -> Vec<MappingUse> {
    let mut found: Vec<MappingUse> = Vec::new();
    for line in text.lines() {
        // Names of fields begin with a capital letter, and addresses are in lower case.
        if line.starts_with(|c: char| c.is_ascii_uppercase()) {
            if let Some(last) = found.last_mut() {
                last.memory.read(line);
            }
        } else if let Some(mapping) = parse_line(line) {
            found.push(MappingUse {
                mapping,
                memory: MemoryUse::default(),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_belong_to_the_mapping_before_them() {
        let text = "\
1000-3000 rw-p 00000000 00:00 0                          [heap]
Size:                  8 kB
Rss:                   8 kB
Pss:                   4 kB
Private_Dirty:         4 kB
Referenced:            8 kB
Swap:                  0 kB
SwapPss:               9 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me dc ac
3000-4000 r--s 00000000 fe:01 7                          /A: 4 kB
Rss:                   4 kB
FilePmdMapped:         4 kB
Private_Hugetlb:      16 kB
";
        let found = parse_smaps(text);
        assert_eq!(found.len(), 2);
        let heap = MemoryUse {
            rss: 8192,
            pss: 4096,
            private_dirty: 4096,
            swap: 0,
            huge_pages: 2 << 20,
            hugetlb: 0,
            referenced: 8192,
        };
        assert_eq!(
            (&found[0].mapping.path[..], found[0].memory),
            ("[heap]", heap)
        );
        assert_eq!(found[1].mapping.path, "/A: 4 kB");
        assert_eq!(found[1].memory.hugetlb, 16 << 10);
        let mut sum = found[0].memory;
        sum.add(&found[1].memory);
        assert_eq!((sum.rss, sum.huge_pages), (12 << 10, (2 << 20) + 4096));
    }

    #[test]
    fn the_sum_is_that_of_the_kernel() {
        // A sleeping process, so that nothing changes between the two readings.
        let mut child = std::process::Command::new("sleep")
            .arg("600")
            .spawn()
            .unwrap();
        let pid = child.id() as i32;
        let is_asleep = || {
            let call = std::fs::read_to_string(proc_path(pid, "syscall")).unwrap_or_default();
            call.starts_with(&format!("{} ", nix::libc::SYS_clock_nanosleep))
        };
        while !is_asleep() {
            std::thread::yield_now();
        }
        let (all, sum) = (smaps(pid), memory_use(pid));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut added = MemoryUse::default();
        all.unwrap().iter().for_each(|m| added.add(&m.memory));
        let sum = sum.unwrap();
        assert!(sum.rss > 0);
        let own = resident_counters(std::process::id() as i32).unwrap();
        assert!(own.anonymous > 0 && own.file > 0);
        assert_eq!(resident_counters(i32::MAX), None);
        assert_eq!(
            (added.rss, added.private_dirty),
            (sum.rss, sum.private_dirty)
        );
        assert!(smaps(i32::MAX).is_err() && memory_use(i32::MAX).is_err());
    }

    proptest! {
        #[test]
        fn never_panics(text in "(\\PC{0,40}\n|Rss: {0,3}[0-9]{0,22} kB\n|1-2 rw-p 0 0:0 0\n){0,20}") {
            parse_smaps(&text);
        }
    }
}
