//! Files that the processes of one run share: the files of their modules, with the facts found in them.
//!
//! Nearly all data that an attach reads comes from these files, and the processes of a build or a test suite run the
//! same few programs and libraries. A file is considered unchanged if its device, inode, size and change times are the
//! same.

use crate::unwinding::tables::{KnownTables, UnwindTables};
use memhook_process::{ModuleBytes, ModuleFiles, ModuleImage};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Total size in bytes above which files that the last process did not use are forgotten.
const MOST_BYTES: u64 = 512 << 20;
/// Number of files above which unused files are closed too: an open file prevents its file system from being unmounted.
const MOST_FILES: usize = 64;

/// Files that were read for one process and are reused for the next.
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
    /// Returns the files for an attach. The attach checks that they are unchanged.
    pub fn files(&self) -> ModuleFiles {
        self.files.for_another_process()
    }

    /// Returns the unwind tables of the files.
    pub fn tables(&self) -> UnwindTables {
        UnwindTables::with_known(&self.tables)
    }

    /// Shares the bytes of the vDSO, which are read from each process although they are the same in all processes.
    pub fn share_vdso(&mut self, vdso: &mut ModuleImage) {
        match &self.vdso {
            Some(known) if known[..] == vdso.bytes[..] => vdso.bytes = Arc::clone(known),
            _ => self.vdso = Some(Arc::clone(&vdso.bytes)),
        }
    }

    /// Stores the findings of an attach. `modules`: all modules that the attach uses.
    pub fn learn(&mut self, files: &ModuleFiles, tables: &UnwindTables, modules: &[ModuleImage]) {
        self.files = files.clone();
        tables.tell(&mut self.tables);
        if self.files.bytes() > MOST_BYTES || self.files.count() > MOST_FILES {
            self.files.keep_only(modules);
            self.tables.keep_only(modules);
        }
    }
}

/// Files shared by attaches to many processes on several threads. Each library's bytes, symbols and unwind table are in
/// memory only once for all of them.
#[derive(Default)]
pub struct SharedFiles(Mutex<KnownFiles>);

impl SharedFiles {
    fn lock(&self) -> MutexGuard<'_, KnownFiles> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy for one attach, so that other attaches do not wait.
    pub(crate) fn known(&self) -> KnownFiles {
        self.lock().clone()
    }

    /// Adds the findings of an attach. Findings of a concurrent attach may be lost and found again.
    pub(crate) fn learn(&self, known: KnownFiles) {
        *self.lock() = known;
    }

    /// Drops all files, so that only files of attaches in progress stay open. Call this when a process has ended, or
    /// after a detach from it, because its file system may be about to be unmounted.
    pub fn forget(&self) {
        *self.lock() = KnownFiles::default();
    }
}
