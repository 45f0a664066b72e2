//! Which mappings can hold pointers to heap blocks.

use crate::snapshot::{Area, AreaKind, ModuleInfo};
use memhook_process::Mapping;

/// The mappings to copy, in address order.
///
/// Writable ones, and private read-only ones that were writable once: RELRO data of modules and
/// anonymous memory. Not files mapped shared (pointers in them would not outlive the process), not
/// devices (reading them may have effects), not our own memory in the target.
pub fn areas(maps: &[Mapping], modules: &[ModuleInfo]) -> Vec<Area> {
    let wanted = maps.iter().filter_map(|m| {
        Some(Area {
            start: m.start,
            end: m.end,
            kind: kind(m, modules)?,
            name: m.path.clone(),
        })
    });
    wanted.collect()
}

fn kind(m: &Mapping, modules: &[ModuleInfo]) -> Option<AreaKind> {
    if !m.read || m.path.starts_with("/memfd:memhook") || m.path.starts_with("[v") {
        return None;
    }
    if m.shared {
        let memory = ["/dev/zero", "/dev/shm/", "/SYSV", "/memfd:"];
        let is_memory = m.path.is_empty() || memory.iter().any(|p| m.path.starts_with(p));
        return (m.write && is_memory).then_some(AreaKind::Shared);
    }
    if m.path == "[heap]" {
        return Some(AreaKind::Brk);
    }
    if m.path == "[stack]" {
        return Some(AreaKind::Stack);
    }
    if m.file_id.2 == 0 {
        let is_name = m.path.is_empty() || m.path.starts_with("[anon");
        return (is_name || m.write).then_some(AreaKind::Anonymous);
    }
    if m.path.starts_with("/dev/") && !m.path.starts_with("/dev/zero") {
        return None;
    }
    let was_writable = modules
        .iter()
        .flat_map(|module| &module.data)
        .any(|&(start, end)| m.start < end && m.end > start);
    (m.write || was_writable).then_some(AreaKind::File)
}
