//! Code that a process generates at run time: its areas, the names that the process publishes for it, and, for an
//! emulator, the program that it translates.

use memhook_process::{Mapping, TargetRoot, effective_user, emulated_program, inner_tid, mappings};
use memhook_symbols::{JitDump, PerfMap};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// Time between two searches for new code.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of examined areas. Compilers reserve a few large areas.
const MOST_AREAS: usize = 256;

/// Identity of one version of a file.
type Version = (u64, u64, Option<SystemTime>);

/// Run-time code of a process.
#[derive(Default)]
pub(super) struct MadeCode {
    areas: Vec<Range<u64>>,
    /// Path of the program that the process emulates.
    emulated: Option<String>,
    next_look: Duration,
    /// The file for `perf inject --jit`. The process that writes it also maps it, so that perf(1) can find it.
    dump: Option<Mapping>,
    /// Last names that were read.
    names: Mutex<Option<(Version, Arc<PerfMap>)>>,
    /// Inode of the dump file, the state of reading it, and the names read from it.
    dumped: Mutex<Option<(u64, JitDump, Arc<PerfMap>)>>,
}

impl MadeCode {
    /// Finds the run-time code of process `pid` with these mappings.
    pub fn of(pid: i32, maps: &[Mapping]) -> MadeCode {
        MadeCode {
            areas: areas(maps),
            emulated: emulated_program(pid, maps),
            dump: dump(maps),
            next_look: LOOK_PAUSE,
            ..MadeCode::default()
        }
    }

    /// Returns the areas (avma).
    pub fn areas(&self) -> &[Range<u64>] {
        &self.areas
    }

    /// Returns the path of the program that the process emulates.
    pub fn emulated(&self) -> Option<&str> {
        self.emulated.as_deref()
    }

    /// Repeats the search if it is due. Returns true if an area has changed.
    pub fn look(&mut self, pid: i32, now: Duration) -> bool {
        if now < self.next_look {
            return false;
        }
        self.next_look = now.saturating_add(LOOK_PAUSE);
        let Ok(maps) = mappings(pid) else {
            return false;
        };
        let areas = areas(&maps);
        self.dump = dump(&maps).or(self.dump.take());
        self.emulated = emulated_program(pid, &maps).or(self.emulated.take());
        let is_other = areas != self.areas;
        self.areas = areas;
        is_other
    }

    /// Returns the names that the process has written so far.
    pub fn names(&self, pid: i32, root: &TargetRoot) -> Option<Arc<PerfMap>> {
        if self.areas.is_empty() {
            return None;
        }
        self.dumped_names(root)
            .filter(|names| !names.is_empty())
            .or_else(|| self.listed_names(pid, root))
    }

    /// Reads names from the file that the process has mapped. The path of the file is used only if it leads to the same
    /// file.
    fn dumped_names(&self, root: &TargetRoot) -> Option<Arc<PerfMap>> {
        let mut dumped = self.dumped.lock().unwrap_or_else(|e| e.into_inner());
        let known = |dumped: &Option<(u64, JitDump, Arc<PerfMap>)>| {
            dumped.as_ref().map(|(_, _, names)| Arc::clone(names))
        };
        let Some(mapping) = &self.dump else {
            return known(&dumped);
        };
        let number = mapping.file_id.2;
        let Ok(file) = root.open(Path::new(&mapping.path)) else {
            return known(&dumped);
        };
        if file.metadata().ok()?.ino() != number {
            return known(&dumped);
        }
        if dumped.as_ref().is_none_or(|(file, ..)| *file != number) {
            *dumped = Some((number, JitDump::default(), Arc::default()));
        }
        let (_, dump, names) = dumped.as_mut()?;
        if dump.read_on(&file).ok()? {
            *names = Arc::new(dump.names().clone());
        }
        Some(Arc::clone(names))
    }

    /// Reads names from the file that perf(1) reads (`/tmp/perf-PID.map`, with the process's own view of its pid). Any
    /// user can create that file, so it counts only if it belongs to the process's user or to root.
    fn listed_names(&self, pid: i32, root: &TargetRoot) -> Option<Arc<PerfMap>> {
        let known = || {
            let names = self.names.lock().unwrap_or_else(|e| e.into_inner());
            names.as_ref().map(|(_, map)| Arc::clone(map))
        };
        // If the process has ended, the names that were read last still describe its code.
        let Some(inner) = inner_tid(pid, pid) else {
            return known();
        };
        let path = format!("/tmp/perf-{inner}.map");
        let Ok(file) = root.open(Path::new(&path)) else {
            return known();
        };
        let metadata = file.metadata().ok()?;
        let owner = metadata.uid();
        if owner != 0 && Some(owner) != effective_user(pid) {
            return None;
        }
        let version = (metadata.ino(), metadata.len(), metadata.modified().ok());
        let mut names = self.names.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((known, map)) = names.as_ref()
            && *known == version
        {
            return Some(Arc::clone(map));
        }
        let map = Arc::new(PerfMap::read(&file).ok()?);
        *names = Some((version, Arc::clone(&map)));
        Some(map)
    }
}

/// Returns the file for `perf inject --jit`: `jit-PID.dump`, mapped as if it were code.
fn dump(maps: &[Mapping]) -> Option<Mapping> {
    let is_dump = |m: &&Mapping| {
        let name = m.path.rsplit('/').next().unwrap_or_default();
        let number = name
            .strip_prefix("jit-")
            .and_then(|n| n.strip_suffix(".dump"));
        let is_number = |n: &str| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit());
        m.exec && m.offset == 0 && !m.deleted && number.is_some_and(is_number)
    };
    maps.iter().find(is_dump).cloned()
}

/// Returns the executable memory that is not file-backed, and the memory next to it that the compiler has reserved for
/// more code.
fn areas(maps: &[Mapping]) -> Vec<Range<u64>> {
    // .NET maps a memory file twice: one mapping for writing, the other for execution.
    let is_made = |m: &Mapping| {
        let is_anonymous = m.file_id.2 == 0 && !(m.path.starts_with("[v") || m.path == "[uprobes]");
        m.exec && (is_anonymous || m.path.starts_with("/memfd:doublemapper"))
    };
    let is_reserved = |m: &Mapping| m.file_id.2 == 0 && !m.read && !m.write && !m.exec;
    let mut areas: Vec<(Range<u64>, bool)> = Vec::new();
    for m in maps.iter().filter(|m| is_made(m) || is_reserved(m)) {
        match areas.last_mut() {
            Some((last, has_code)) if last.end == m.start => {
                last.end = m.end;
                *has_code |= m.exec;
            }
            _ => areas.push((m.start..m.end, m.exec)),
        }
    }
    areas.retain(|(_, has_code)| *has_code);
    areas.truncate(MOST_AREAS);
    areas.into_iter().map(|(area, _)| area).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use memhook_process::parse_maps;

    #[test]
    fn made_code_and_what_is_reserved_for_it() {
        let maps = parse_maps(
            "1000-2000 r-xp 00000000 08:01 7 /bin/server\n\
             3000-4000 rwxp 00000000 00:00 0 \n\
             4000-9000 ---p 00000000 00:00 0 \n\
             9000-a000 r-xp 00000000 00:00 0 \n\
             a000-b000 rw-p 00000000 00:00 0 \n\
             b000-c000 ---p 00000000 00:00 0 \n\
             d000-e000 r-xp 00000000 00:01 9 /memfd:doublemapper (deleted)\n\
             e000-f000 r-xp 00000000 00:00 0 [vdso]\n",
        );
        assert_eq!(areas(&maps), [0x3000..0xa000, 0xd000..0xe000]);
        assert_eq!(dump(&maps), None);
    }

    #[test]
    fn the_file_for_perf_is_known_by_its_mapping() {
        let maps = parse_maps(
            "1000-2000 r-xp 00000000 08:01 7 /tmp/jit-.dump\n\
             2000-3000 rw-p 00000000 08:01 8 /tmp/jit-12.dump\n\
             3000-4000 r-xp 00000000 08:01 9 /tmp/x/jit-12.dump\n",
        );
        assert_eq!(dump(&maps).map(|m| m.start), Some(0x3000));
    }
}
