//! The areas of probe pads that a process maps, and the jumps that lead to them.

use super::guided::PROBE_PATHS;
use super::residue::is_attacher;
use crate::hold::code_exchanges::{has_jump, has_own_jump};
use memhook_inject::CodeExchange;
use memhook_probe::{AreaHeader, JournalEntry};
use memhook_process::{Mapping, RemoteAddress, mappings, read_memory};
use std::ops::Range;

pub(crate) const AREA_PATH: &str = "/memfd:memhook-probe";
pub(crate) const COUNTS_PATH: &str = "/memfd:memhook-probe-counts";
/// Name of the code that probe pads call.
pub(crate) const CODE_PATH: &str = "/memfd:memhook-probe-code";

/// Returns true if memory belongs to probes.
pub(crate) fn is_of_probes(mapping: &Mapping) -> bool {
    let path = mapping.path.as_str();
    [AREA_PATH, COUNTS_PATH, CODE_PATH].contains(&path) || PROBE_PATHS.contains(&path)
}

/// Area of pads in a process.
pub(crate) struct Found {
    pub mapping: Mapping,
    pub header: Option<AreaHeader>,
    journal: Vec<JournalEntry>,
}

impl Found {
    fn new(pid: i32, mapping: &Mapping) -> Found {
        let mut bytes = [0; AreaHeader::BYTES];
        let at = RemoteAddress(mapping.start);
        let read = read_memory(pid, at, &mut bytes).is_ok();
        let header = read.then(|| AreaHeader::read(&bytes)).flatten();
        let inside = |h: &AreaHeader| {
            h.bytes == mapping.end - mapping.start
                && (AreaHeader::BYTES + h.journal_bytes()) as u64 <= h.bytes
        };
        let header = header.filter(inside);
        let mut journal = vec![0; header.map_or(0, |h| h.journal_bytes())];
        let read = read_memory(pid, at + AreaHeader::BYTES as u64, &mut journal).is_ok();
        Found {
            mapping: mapping.clone(),
            header,
            journal: if read {
                AreaHeader::journal(&journal)
            } else {
                Vec::new()
            },
        }
    }

    pub fn range(&self) -> Range<u64> {
        self.mapping.start..self.mapping.end
    }

    /// Returns the exchanges that remove the remaining jumps to this area.
    pub fn exchanges<'a>(
        &'a self,
        pid: i32,
        maps: &'a [Mapping],
    ) -> impl Iterator<Item = CodeExchange> + 'a {
        self.journal
            .iter()
            .filter(move |entry| {
                has_jump(pid, maps, entry.at, &entry.jump) && self.is_reached_by(entry)
            })
            .map(|entry| CodeExchange {
                at: RemoteAddress(entry.at),
                from: entry.jump.to_vec(),
                to: entry.original.to_vec(),
            })
    }

    /// Returns the number of functions that jump to this area but must not be changed, because the process generated
    /// their code at run time.
    pub fn own_jumps(&self, pid: i32, maps: &[Mapping]) -> u64 {
        let journal = self.journal.iter();
        let own = journal.filter(|entry| {
            has_own_jump(pid, maps, entry.at, &entry.jump) && self.is_reached_by(entry)
        });
        own.count() as u64
    }

    fn is_reached_by(&self, entry: &JournalEntry) -> bool {
        let [0xe9, distance @ ..] = entry.jump else {
            return false;
        };
        let behind = entry.at.wrapping_add(memhook_probe::JUMP_BYTES as u64);
        let to = behind.wrapping_add_signed(i64::from(i32::from_le_bytes(distance)));
        self.mapping.contains(to)
    }
}

/// Returns the areas of a process.
pub(crate) fn areas(pid: i32, maps: &[Mapping]) -> Vec<Found> {
    let is_area = |m: &&Mapping| m.path == AREA_PATH && !m.shared;
    maps.iter()
        .filter(is_area)
        .map(|m| Found::new(pid, m))
        .collect()
}

/// Returns true if a process has pads.
pub(crate) fn is_probed(pid: i32) -> bool {
    mappings(pid).is_ok_and(|maps| maps.iter().any(|m| m.path == AREA_PATH))
}

/// Returns the pid of the running memhook-rs that probes a process.
pub(crate) fn attacher(pid: i32, maps: &[Mapping]) -> Option<u32> {
    let headers = areas(pid, maps)
        .into_iter()
        .filter_map(|found| found.header);
    headers
        .map(|header| header.attacher)
        .find(|&pid| is_attacher(pid))
}

/// Returns the mappings of a process's pads.
pub(crate) fn area_mappings(pid: i32) -> Vec<Mapping> {
    let mut maps = mappings(pid).unwrap_or_default();
    maps.retain(|m| m.path == AREA_PATH);
    maps
}
