//! The files with the names of one module, and address lookups in them.
//!
//! Parsed forms borrow from the files' bytes, so they live only during a call of [`Files::read`].

use crate::debug_files::{DebugFile, SearchPath, find, find_alone, find_supplementary};
use crate::file::{Elf, Image, format_error, image, parse};
use crate::lookup::{
    Lookup, Sections, context, has_dwarf, inflated_bytes, sections, type_bytes, type_sections,
};
use crate::mini_debug_info::mini_symbols;
use crate::split::SplitDwarf;
use crate::symbol_table::SymbolTable;
use crate::{ModuleFile, Source, SymbolError};
use memhook_foreign::size_text;
use object::elf::ProgramHeader64;
use object::{Endianness, Object, ObjectSection};
use std::path::{Path, PathBuf};

/// The open files of a module.
pub(crate) struct Files {
    own: Option<(PathBuf, Image)>,
    separate: Option<DebugFile>,
    supplementary: Option<DebugFile>,
    /// Contents of `.gnu_debugdata` in the module's own file.
    mini: Option<Image>,
    /// Roots for the search for files of split DWARF.
    roots: Vec<PathBuf>,
}

/// Result of reading a module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Read {
    pub source: Source,
    /// True if no file that may be installed later would give better names.
    pub is_final: bool,
    /// Unused file with debug information, with the reason.
    pub unused: Option<(PathBuf, String)>,
}

impl Read {
    /// Updates the result after a lookup.
    pub fn by(self, lookup: &Lookup<'_>) -> Read {
        Read {
            is_final: self.is_final && !lookup.lacks_files(),
            ..self
        }
    }

    pub fn problem(&self) -> Option<SymbolError> {
        let (path, why) = self.unused.as_ref()?;
        Some(format_error(path, why))
    }
}

impl Files {
    /// Opens the files, reading only enough to check that they are the right files.
    pub fn open(
        module: &ModuleFile,
        search: &SearchPath,
        problems: &mut Vec<SymbolError>,
    ) -> Files {
        let own = image(module, &search.roots, problems);
        let elf = own.as_ref().and_then(|(path, image)| {
            let parsed = parse(path, image);
            parsed.map_err(|problem| problems.push(problem)).ok()
        });
        let separate = match &elf {
            Some(elf) if has_dwarf(elf) => None,
            Some(elf) => find(Path::new(&module.path), elf, search, problems),
            // The debug file contains everything that names need.
            None => {
                let id = module.build_id.as_deref();
                id.and_then(|id| find_alone(id, search, problems))
            }
        };
        let mini = elf.as_ref().zip(own.as_ref());
        let mini = mini.and_then(|(elf, (_, image))| mini_symbols(elf, image));
        drop(elf);
        let mut files = Files {
            own,
            separate,
            supplementary: None,
            mini,
            roots: search.roots.clone(),
        };
        let supplementary = files.parsed(|parsed| {
            let (path, elf, _) = parsed.with_dwarf?;
            find_supplementary(path, elf, search, problems)
        });
        files.supplementary = supplementary;
        let found = files.debug_file();
        tracing::debug!(module = module.path, debug_file = ?found, "names are looked up");
        files
    }

    /// Returns the separate debug file.
    pub fn debug_file(&self) -> Option<&PathBuf> {
        self.separate.as_ref().map(|file| &file.path)
    }

    /// Returns the contents of the module's own file, of the separate debug file, and of its
    /// supplementary file.
    pub fn images(&self) -> [Option<&Image>; 3] {
        [
            self.own.as_ref().map(|(_, image)| image),
            self.separate.as_ref().map(|file| &file.data),
            self.supplementary.as_ref().map(|file| &file.data),
        ]
    }

    /// Returns the same open files, with nothing of them read into memory.
    pub fn unread(self) -> std::io::Result<Files> {
        let of_debug = |file: DebugFile| -> std::io::Result<DebugFile> {
            Ok(DebugFile {
                data: file.data.unread()?,
                ..file
            })
        };
        let own = match self.own {
            Some((path, image)) => Some((path, image.unread()?)),
            None => None,
        };
        Ok(Files {
            own,
            separate: self.separate.map(of_debug).transpose()?,
            supplementary: self.supplementary.map(of_debug).transpose()?,
            mini: self.mini,
            roots: self.roots,
        })
    }

    /// Passes the program headers of the module's own file, or else of its debug file, to `then`.
    /// The flag is true for the module's own file.
    pub fn with_segments<R>(
        &self,
        then: impl FnOnce(&[ProgramHeader64<Endianness>], bool) -> Option<R>,
    ) -> Option<R> {
        self.parsed(|parsed| {
            let elf = parsed.own.or(parsed.separate)?;
            then(elf.elf_program_headers(), parsed.own.is_some())
        })
    }

    fn parsed<'s, R>(&'s self, then: impl FnOnce(&Parsed<'_, 's>) -> R) -> R {
        let own = self.own.as_ref();
        let own_elf = own.and_then(|(path, image)| parse(path, image).ok());
        let separate = self.separate.as_ref();
        let separate_elf = separate.and_then(|file| parse(&file.path, &file.data).ok());
        let of_separate = separate
            .zip(separate_elf.as_ref())
            .map(|(file, elf)| (&*file.path, elf, &file.data));
        let of_own = own
            .zip(own_elf.as_ref())
            .map(|((path, image), elf)| (&**path, elf, image));
        let with_dwarf = of_separate.or(of_own);
        then(&Parsed {
            own: own_elf.as_ref(),
            separate: separate_elf.as_ref(),
            with_dwarf: with_dwarf.filter(|(_, elf, _)| has_dwarf(elf)),
        })
    }

    fn mini_elf(&self) -> Option<Elf<'_>> {
        let image = self.mini.as_ref()?;
        parse(Path::new(""), image).ok()
    }

    /// Returns true if the files have debug information.
    pub fn has_types(&self) -> bool {
        self.parsed(|parsed| parsed.with_dwarf.is_some())
    }

    /// Returns the bytes that [`Files::type_sections`] takes.
    pub fn type_bytes(&self) -> u64 {
        self.parsed(|parsed| parsed.with_dwarf.map_or(0, |(_, elf, _)| type_bytes(elf)))
    }

    /// Returns the sections that describe variables and types.
    pub fn type_sections(&self) -> Option<Sections<'_>> {
        self.parsed(|parsed| {
            let (_, elf, image) = parsed.with_dwarf?;
            Some(type_sections(elf, image))
        })
    }

    /// Estimates the memory for reading the files: for symbols, and for debug information.
    pub fn bytes(&self) -> (u64, u64) {
        let supplementary = self.supplementary.as_ref();
        let supplementary = supplementary.and_then(|file| parse(&file.path, &file.data).ok());
        self.parsed(|parsed| {
            let with_dwarf = parsed.with_dwarf.map(|(_, elf, _)| elf);
            let debug = with_dwarf.into_iter().chain(&supplementary);
            let debug = debug.map(inflated_bytes).fold(0, u64::saturating_add);
            let mini = self.mini_elf();
            let symbols = [parsed.own, parsed.separate, mini.as_ref()];
            let symbols = symbols.into_iter().flatten();
            let symbols = symbols.map(symbol_bytes).fold(0, u64::saturating_add);
            (symbols, debug.saturating_mul(PARSED_TIMES))
        })
    }

    /// Parses the files for the duration of the call. Debug information that takes more than
    /// `most_bytes` is left out.
    pub fn read<R>(&self, most_bytes: u64, then: impl FnOnce(&Lookup<'_>, Read) -> R) -> R {
        let supplementary = self.supplementary.as_ref();
        let supplementary_elf = supplementary.and_then(|file| parse(&file.path, &file.data).ok());
        let (symbol_bytes, debug_bytes) = self.bytes();
        let needed = symbol_bytes.saturating_add(debug_bytes);
        let mini = self.mini_elf();
        self.parsed(|parsed| {
            let symbols = || {
                let mut symbols = SymbolTable::default();
                for elf in [parsed.own, parsed.separate].into_iter().flatten() {
                    symbols.add(elf);
                }
                symbols.add_mini(mini.as_ref(), parsed.own);
                symbols.finish();
                symbols
            };
            let fits = needed <= most_bytes;
            let with_dwarf = parsed.with_dwarf.filter(|_| fits);
            let supplementary_sections = supplementary
                .zip(supplementary_elf.as_ref())
                .filter(|_| with_dwarf.is_some())
                .map(|(file, elf)| sections(elf, &file.data));
            let own_sections = with_dwarf.map(|(_, elf, image)| sections(elf, image));
            let dwarf = own_sections
                .as_ref()
                .and_then(|own| context(own, supplementary_sections.as_ref()));
            let unused = match (parsed.with_dwarf, &dwarf) {
                (Some((path, ..)), None) if fits => {
                    Some((path.into(), "its debug information is damaged".into()))
                }
                (Some((path, ..)), None) => Some((
                    path.into(),
                    format!(
                        "its debug information takes {}, more than the {} available for names",
                        size_text(needed),
                        size_text(most_bytes)
                    ),
                )),
                _ => None,
            };
            let is_final = with_dwarf.is_some_and(|(_, elf, _)| {
                let wants_more = elf.gnu_debugaltlink().ok().flatten().is_some();
                dwarf.is_some() && (!wants_more || supplementary.is_some())
            });
            let skeletons = with_dwarf.map(|(path, ..)| path);
            let room = most_bytes.saturating_sub(needed) / PARSED_TIMES;
            let split = SplitDwarf::new(skeletons, &self.roots, room);
            let lookup = Lookup::new(dwarf, &symbols, &split);
            let read = Read {
                source: lookup.source(),
                is_final,
                unused,
            };
            then(&lookup, read)
        })
    }
}

/// Ratio of the memory of parsed debug information to the size of its sections. Half of it is for
/// abbreviations, and for the functions and lines of the units that contain addresses.
const PARSED_TIMES: u64 = 2;

/// Parsed files.
struct Parsed<'p, 'd> {
    own: Option<&'p Elf<'d>>,
    separate: Option<&'p Elf<'d>>,
    /// The file with debug information.
    with_dwarf: Option<(&'p Path, &'p Elf<'d>, &'d Image)>,
}

/// Estimates the bytes of symbols and their names. An entry of our table is as large as an entry in
/// the file, and both are in memory.
fn symbol_bytes(elf: &Elf<'_>) -> u64 {
    [".symtab", ".strtab", ".dynsym", ".dynstr"]
        .iter()
        .filter_map(|name| elf.section_by_name(name))
        .map(|section| section.size().saturating_mul(2))
        .fold(0, u64::saturating_add)
}
