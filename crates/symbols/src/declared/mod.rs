//! Types as a program declares them: its variables, and the layout of the objects that they point
//! to.
//!
//! Debug information of large programs takes gigabytes, most of it for code. One pass over the
//! entries finds the offsets of the variables and of each type's definition ([`index`]). The types
//! themselves are read on demand ([`DeclaredTypes::resolve`]). No number in debug information is
//! trusted: an invalid entry is an unknown type, and a damaged unit ends at the damage.

mod entry;
mod index;
mod types;

use crate::debug_files::SearchPath;
use crate::files::Files;
use crate::lookup::Sections;
use crate::{ModuleFile, SymbolError};
use memhook_foreign::size_text;

pub use index::DeclaredVariable;
pub use types::{DeclaredKind, DeclaredType, DeclaredTypes, Field, TypeId, TypeRef, TypesUnread};

/// Files of modules that have debug information.
pub struct DeclaredFiles {
    modules: Vec<(ModuleFile, Files)>,
}

/// Sections in memory.
pub struct DeclaredSections<'f> {
    /// Load bias of each module, and its sections.
    modules: Vec<(u64, Sections<'f>)>,
    left_out: Vec<String>,
}

impl DeclaredFiles {
    /// Opens the files of modules, skipping files without debug information. Downloads nothing.
    pub fn open(modules: Vec<ModuleFile>, search: &SearchPath) -> DeclaredFiles {
        let search = SearchPath {
            debuginfod: None,
            ..search.clone()
        };
        let opened = modules.into_iter().map(|module| {
            let mut problems: Vec<SymbolError> = Vec::new();
            let files = Files::open(&module, &search, &mut problems);
            (module, files)
        });
        DeclaredFiles {
            modules: opened.filter(|(_, files)| files.has_types()).collect(),
        }
    }

    /// Returns true if no module has debug information.
    pub fn is_empty(&self) -> bool {
        self.modules.is_empty()
    }

    /// Reads the sections that describe types, for as many modules as fit into `most_bytes` bytes.
    pub fn read(&self, most_bytes: u64) -> DeclaredSections<'_> {
        let mut left = most_bytes;
        let mut read = DeclaredSections {
            modules: Vec::new(),
            left_out: Vec::new(),
        };
        for (module, files) in &self.modules {
            let needed = files.type_bytes();
            if needed > left {
                let (path, size) = (&module.path, size_text(needed));
                read.left_out.push(format!(
                    "the debug information of {path} takes {size}, and there is room for {}",
                    size_text(left)
                ));
                continue;
            }
            left -= needed;
            if let Some(sections) = files.type_sections() {
                read.modules.push((module.base, sections));
            }
        }
        read
    }
}

impl DeclaredSections<'_> {
    /// Returns the omitted modules, each with the reason.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }
}
