//! The debug information that provides the types of blocks.

use super::Args;
use memhook_heap::module_file;
use memhook_heap::{Captured, DeclaredLimits, ModuleInfo};
use memhook_process::TargetRoot;
use memhook_symbols::{DeclaredFiles, ModuleFile, SearchPath};

impl Args {
    /// Returns the files with debug information, read from the process's root, or from this machine
    /// if a file is scanned.
    pub(super) fn declared_files(&self, pid: i32, captured: &Captured) -> DeclaredFiles {
        let roots = match self.is_live() {
            true => TargetRoot::of(pid).search_order(),
            false => vec!["/".into()],
        };
        let modules = match captured.images.is_empty() {
            true => captured
                .snapshot
                .meta
                .modules
                .iter()
                .filter_map(saved)
                .collect(),
            false => captured.images.iter().map(module_file).collect(),
        };
        DeclaredFiles::open(modules, &SearchPath::from(roots))
    }

    /// Returns the limits of the search for types.
    pub(super) fn declared_limits(&self) -> DeclaredLimits {
        let usual = DeclaredLimits::default();
        DeclaredLimits {
            bytes: usual.bytes.min(self.limits.max_memory.unwrap_or(u64::MAX)),
            ..usual
        }
    }
}

/// Returns the file of a module that a snapshot names, if the file is certainly unchanged.
fn saved(module: &ModuleInfo) -> Option<ModuleFile> {
    module.build_id.as_ref()?;
    Some(ModuleFile {
        path: module.path.clone(),
        candidates: vec![module.path.clone().into()],
        build_id: module.build_id.clone(),
        base: module.base,
        start: module.start,
        end: module.end,
        ..ModuleFile::default()
    })
}
