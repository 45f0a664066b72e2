//! Files that the processes of one run share: those of their modules, with what was found in them.
//!
//! Nearly all that an attach reads comes from these files, and the processes of a build or a test suite run the same
//! few programs and libraries. A file is the same one if device, inode, size, and times of change are.

use crate::unwinding::tables::{KnownTables, UnwindTables};
use memhook_process::{ModuleBytes, ModuleFiles, ModuleImage};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Files that the last process did not use are forgotten when all of them together are larger than this (bytes).
const MOST_BYTES: u64 = 512 << 20;
/// And when there are more than this: they stay open, and a file system with an open file cannot be unmounted.
const MOST_FILES: usize = 64;

/// Files that were read for one process, to be used for the next.
#[derive(Clone)]
pub struct KnownFiles {
    files: ModuleFiles,
    tables: KnownTables,
    vdso: Option<Arc<ModuleBytes>>,
}

impl Default for KnownFiles {
    fn default() -> KnownFiles {
        KnownFiles {
            files: ModuleFiles::in_parts(),
            tables: KnownTables::default(),
            vdso: None,
        }
    }
}

impl KnownFiles {
    /// For an attach, which looks whether they have changed meanwhile.
    pub fn files(&self) -> ModuleFiles {
        self.files.for_another_process()
    }

    /// Their tables.
    pub fn tables(&self) -> UnwindTables {
        UnwindTables::with_known(&self.tables)
    }

    /// All processes have the same vDSO, whose bytes are read from each.
    pub fn share_vdso(&mut self, vdso: &mut ModuleImage) {
        match &self.vdso {
            Some(known) if known[..] == vdso.bytes[..] => vdso.bytes = Arc::clone(known),
            _ => self.vdso = Some(Arc::clone(&vdso.bytes)),
        }
    }

    /// Remembers what an attach has found; `modules`: all that it uses.
    pub fn learn(&mut self, files: &ModuleFiles, tables: &UnwindTables, modules: &[ModuleImage]) {
        self.files = files.clone();
        tables.tell(&mut self.tables);
        if self.files.bytes() > MOST_BYTES || self.files.count() > MOST_FILES {
            self.files.keep_only(modules);
            self.tables.keep_only(modules);
        }
    }
}

/// Files shared by attaches to many processes on several threads: the bytes of a library, its symbols and its unwind
/// table are in memory once for all of them.
#[derive(Default)]
pub struct SharedFiles(Mutex<KnownFiles>);

impl SharedFiles {
    fn lock(&self) -> MutexGuard<'_, KnownFiles> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For one attach, which does not keep others waiting.
    pub(crate) fn known(&self) -> KnownFiles {
        self.lock().clone()
    }

    /// Adds what that attach knows now. What another one has found meanwhile may be found again.
    pub(crate) fn learn(&self, known: KnownFiles) {
        *self.lock() = known;
    }

    /// Forgets all of them, so that nothing is open any more but what an attach under way uses: to be called when a process
    /// has ended or been left, whose file system may be about to be unmounted.
    pub fn forget(&self) {
        *self.lock() = KnownFiles::default();
    }
}
