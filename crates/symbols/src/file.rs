//! Reading the files: only what is needed of them, and only if they are the right ones.

use crate::{ModuleFile, SymbolError};
use object::{Endianness, ReadCache, ReadRef, read::elf::ElfFile64};
use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A 64-bit ELF file over any way to read one.
pub(crate) type Elf<'d, R> = ElfFile64<'d, Endianness, R>;

/// Sections are read when they are asked for: of a debug file of a gigabyte, most never are.
pub(crate) type Cached = ReadCache<File>;

pub(crate) fn format_error(path: &Path, reason: impl ToString) -> SymbolError {
    SymbolError::Format {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// Opens a file for reading in parts. Anything but a regular file is refused: a target's file
/// system is not ours, and a pipe in it would hang us.
pub(crate) fn open(path: &Path) -> Result<Cached, SymbolError> {
    let read_error = |source| SymbolError::Read {
        path: path.to_owned(),
        source,
    };
    let metadata = std::fs::metadata(path).map_err(read_error)?;
    if !metadata.is_file() {
        return Err(format_error(path, "not a regular file"));
    }
    Ok(ReadCache::new(File::open(path).map_err(read_error)?))
}

pub(crate) fn parse<'d, R: ReadRef<'d>>(path: &Path, data: R) -> Result<Elf<'d, R>, SymbolError> {
    ElfFile64::parse(data).map_err(|e| format_error(path, e))
}

fn hex(id: Option<&[u8]>) -> String {
    match id {
        Some(id) => id.iter().map(|byte| format!("{byte:02x}")).collect(),
        None => "none".into(),
    }
}

/// Refuses a file with another build-id. When neither has one, there is nothing to compare.
pub(crate) fn check_build_id<'d, R: ReadRef<'d>>(
    path: &Path,
    elf: &Elf<'d, R>,
    expected: Option<&[u8]>,
) -> Result<(), SymbolError> {
    use object::Object;
    let found = elf.build_id().map_err(|e| format_error(path, e))?;
    if found == expected {
        return Ok(());
    }
    Err(SymbolError::BuildId {
        path: path.to_owned(),
        found: hex(found),
        expected: hex(expected),
    })
}

/// The bytes of a module's own file, and a name for it in messages.
pub(crate) fn image(
    module: &ModuleFile,
    problems: &mut Vec<SymbolError>,
) -> Option<(PathBuf, Arc<[u8]>)> {
    let given = module.image.clone();
    if let Some(bytes) = given {
        return Some((PathBuf::from(&module.path), bytes));
    }
    for path in &module.candidates {
        match read_image(path, module.build_id.as_deref()) {
            Ok(bytes) => return Some((path.clone(), bytes)),
            Err(problem) => problems.push(problem),
        }
    }
    None
}

fn read_image(path: &Path, build_id: Option<&[u8]>) -> Result<Arc<[u8]>, SymbolError> {
    let cache = open(path)?;
    check_build_id(path, &parse(path, &cache)?, build_id)?;
    drop(cache);
    let bytes = std::fs::read(path).map_err(|source| SymbolError::Read {
        path: path.to_owned(),
        source,
    })?;
    Ok(bytes.into())
}
