//! Snapshots made by hand, for tests.

use crate::snapshot::{Area, AreaKind, CopiedRegion, Meta, Method, Snapshot};

/// A snapshot with this memory, all of it anonymous.
pub fn snapshot(memory: Vec<(u64, Vec<u8>)>) -> Snapshot {
    let areas = memory.iter().map(|(start, bytes)| Area {
        start: *start,
        end: start + bytes.len() as u64,
        kind: AreaKind::Anonymous,
        name: String::new(),
    });
    Snapshot {
        meta: Meta {
            pid: 1,
            identity: None,
            method: Method::Stop,
            held_ms: 0.0,
            prepare_held_ms: 0.0,
            taken_ms: 0.0,
            held_bytes: 0,
            in_malloc: 0,
            notes: Vec::new(),
            threads: Vec::new(),
            areas: areas.collect(),
            modules: Vec::new(),
            kernel_words: Vec::new(),
            unsearched: Vec::new(),
            classes: Default::default(),
            variables: Vec::new(),
        },
        regions: memory
            .into_iter()
            .map(|(start, bytes)| CopiedRegion {
                start,
                runs: vec![start..start + bytes.len() as u64],
                bytes: bytes.into(),
            })
            .collect(),
    }
}
