//! Reading the files: only what is needed of them, and only if they are the right ones.

use crate::{ModuleFile, SymbolError};
use object::{Endianness, ReadCache, ReadRef, read::elf::ElfFile64};
use std::{
    fs::File,
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// A file's contents.
pub(crate) enum Image {
    /// All of them.
    Bytes(Arc<[u8]>),
    /// Read when they are asked for: of a file of a gigabyte, most never are. What the cache has read
    /// it keeps, so large sections go around it, through the file.
    Parts { cache: ReadCache<File>, file: File },
}

impl<'a> ReadRef<'a> for &'a Image {
    fn len(self) -> Result<u64, ()> {
        match self {
            Image::Bytes(bytes) => Ok(bytes.len() as u64),
            Image::Parts { cache, .. } => cache.len(),
        }
    }

    fn read_bytes_at(self, offset: u64, size: u64) -> Result<&'a [u8], ()> {
        match self {
            Image::Bytes(bytes) => (&bytes[..]).read_bytes_at(offset, size),
            Image::Parts { cache, .. } => cache.read_bytes_at(offset, size),
        }
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        match self {
            Image::Bytes(bytes) => (&bytes[..]).read_bytes_at_until(range, delimiter),
            Image::Parts { cache, .. } => cache.read_bytes_at_until(range, delimiter),
        }
    }
}

impl Image {
    /// Opens a file for reading in parts. Anything but a regular file is refused: a target's file
    /// system is not ours, and a pipe in it would hang us.
    pub fn open(path: &Path) -> Result<Image, SymbolError> {
        let read_error = |source| SymbolError::Read {
            path: path.to_owned(),
            source,
        };
        let metadata = std::fs::metadata(path).map_err(read_error)?;
        if !metadata.is_file() {
            return Err(format_error(path, "not a regular file"));
        }
        let file = File::open(path).map_err(read_error)?;
        let cache = ReadCache::new(file.try_clone().map_err(read_error)?);
        Ok(Image::Parts { cache, file })
    }

    /// A large part; `None` if the file is shorter. The caller owns it: what it drops is free again.
    pub fn part(&self, offset: u64, size: u64) -> Option<std::borrow::Cow<'_, [u8]>> {
        match self {
            Image::Bytes(_) => Some(self.read_bytes_at(offset, size).ok()?.into()),
            Image::Parts { file, .. } => {
                // Before memory is taken for what a damaged header asks for.
                if offset.checked_add(size)? > file.metadata().ok()?.len() {
                    return None;
                }
                let mut bytes = vec![0; usize::try_from(size).ok()?];
                file.read_exact_at(&mut bytes, offset).ok()?;
                Some(bytes.into())
            }
        }
    }
}

/// A 64-bit ELF file.
pub(crate) type Elf<'d> = ElfFile64<'d, Endianness, &'d Image>;

pub(crate) fn format_error(path: &Path, reason: impl ToString) -> SymbolError {
    SymbolError::Format {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

pub(crate) fn parse<'d>(path: &Path, data: &'d Image) -> Result<Elf<'d>, SymbolError> {
    ElfFile64::parse(data).map_err(|e| format_error(path, e))
}

/// A build-id as it is written.
pub(crate) fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Refuses a file with another build-id. When neither has one, there is nothing to compare.
pub(crate) fn check_build_id(
    path: &Path,
    elf: &Elf<'_>,
    expected: Option<&[u8]>,
) -> Result<(), SymbolError> {
    use object::Object;
    let found = elf.build_id().map_err(|e| format_error(path, e))?;
    if found == expected {
        return Ok(());
    }
    let text = |id: Option<&[u8]>| id.map_or_else(|| "none".into(), hex);
    Err(SymbolError::BuildId {
        path: path.to_owned(),
        found: text(found),
        expected: text(expected),
    })
}

/// A module's own file, and a name for it in messages.
pub(crate) fn image(
    module: &ModuleFile,
    problems: &mut Vec<SymbolError>,
) -> Option<(PathBuf, Image)> {
    let given = module.image.clone();
    if let Some(bytes) = given {
        return Some((PathBuf::from(&module.path), Image::Bytes(bytes)));
    }
    for path in &module.candidates {
        match open_checked(path, module.build_id.as_deref()) {
            Ok(image) => return Some((path.clone(), image)),
            Err(problem) => problems.push(problem),
        }
    }
    None
}

/// Opens a file that must have this build-id.
pub(crate) fn open_checked(path: &Path, build_id: Option<&[u8]>) -> Result<Image, SymbolError> {
    let image = Image::open(path)?;
    check_build_id(path, &parse(path, &image)?, build_id)?;
    Ok(image)
}
