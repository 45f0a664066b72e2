//! Reads symbol files: only the necessary parts, and only of the right files.

use crate::{ModuleFile, SymbolError};
use memhook_foreign::{Extent, is_regular, open_below, open_regular};
use object::{Endianness, ReadCache, ReadRef, read::elf::ElfFile64};
use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    fs::File,
    ops::Range,
    os::{fd::AsRawFd, unix::fs::FileExt},
    path::{Path, PathBuf},
    sync::Arc,
};

/// A file's contents.
pub(crate) enum Image {
    /// All contents, in memory.
    Bytes(Arc<Vec<u8>>),
    /// Parts, read on demand, because most of a large file is never needed. The cache keeps its
    /// contents, so large sections are read from the file directly.
    Parts {
        cache: Box<ReadCache<File>>,
        file: File,
        extent: Extent,
        /// Number of bytes that may still be read in large parts. In a damaged file, many tables
        /// may name the same part.
        left: Cell<u64>,
        /// Offset and size of each large part in the cache.
        cached: RefCell<HashSet<(u64, u64)>>,
    },
}

/// Minimum size of a large part. Small parts, such as headers, are read more than once.
const SMALL_BYTES: u64 = 64 << 10;
/// Maximum length of names. Longer names are cut off.
pub(crate) const LONGEST_STRING: u64 = 64 << 10;

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
            Image::Parts { cache, cached, .. } => {
                // A file is parsed several times, but each part is read only once.
                if !cached.borrow().contains(&(offset, size)) {
                    self.take(offset, size).ok_or(())?;
                    if size > SMALL_BYTES {
                        cached.borrow_mut().insert((offset, size));
                    }
                }
                cache.read_bytes_at(offset, size)
            }
        }
    }

    fn read_bytes_at_until(self, range: Range<u64>, delimiter: u8) -> Result<&'a [u8], ()> {
        let range = range.start..range.end.min(range.start.saturating_add(LONGEST_STRING));
        match self {
            Image::Bytes(bytes) => (&bytes[..]).read_bytes_at_until(range, delimiter),
            Image::Parts { cache, .. } => cache.read_bytes_at_until(range, delimiter),
        }
    }
}

impl Image {
    /// Opens a file for reading in parts. Fails for anything but a regular file, because a pipe in
    /// the file system of a target would block us. Links below one of these roots stay inside it.
    pub fn open(path: &Path, roots: &[PathBuf]) -> Result<Image, SymbolError> {
        let refused = |error: std::io::Error| {
            if is_regular(&error) {
                read_error(path, error)
            } else {
                format_error(path, error)
            }
        };
        let root = roots.iter().filter(|root| root.as_os_str() != "/");
        let mut inside = root.filter_map(|root| Some((root, path.strip_prefix(root).ok()?)));
        let opened = match inside.next() {
            Some((root, inside)) => open_below(root, inside),
            None => open_regular(path),
        };
        let file = opened.map_err(refused)?;
        Image::of(file).map_err(refused)
    }

    /// Prepares an open file for reading in parts.
    pub fn of(file: File) -> std::io::Result<Image> {
        let extent = Extent::of(&file)?;
        let cache = Box::new(ReadCache::new(file.try_clone()?));
        Ok(Image::Parts {
            cache,
            file,
            extent,
            left: Cell::new(extent.believable_bytes().saturating_mul(2)),
            cached: RefCell::default(),
        })
    }

    /// Returns the open file without the parts that were read.
    pub fn unread(self) -> std::io::Result<Image> {
        match self {
            Image::Bytes(bytes) => Ok(Image::Bytes(bytes)),
            Image::Parts { file, .. } => Image::of(file),
        }
    }

    /// Reserves `size` bytes; `None` if they may not be read.
    fn take(&self, offset: u64, size: u64) -> Option<()> {
        let Image::Parts { extent, left, .. } = self else {
            return Some(());
        };
        if offset.checked_add(size)? > extent.bytes || !extent.may_hold(size) {
            return None;
        }
        if size > SMALL_BYTES {
            left.set(left.get().checked_sub(size)?);
        }
        Some(())
    }

    /// Returns the checksum of the file, as used by `.gnu_debuglink`.
    pub fn checksum(&self) -> std::io::Result<u32> {
        let (file, extent) = match self {
            Image::Bytes(bytes) => return Ok(crc32fast::hash(bytes)),
            Image::Parts { file, extent, .. } => (file, extent),
        };
        if !extent.may_hold(extent.bytes) {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        let mut hasher = crc32fast::Hasher::new();
        let mut piece = vec![0; 1 << 20];
        let mut at = 0;
        // Bytes that are appended meanwhile do not belong to the file that was found.
        while at < extent.bytes {
            let wanted = (extent.bytes - at).min(piece.len() as u64) as usize;
            let read = file.read_at(&mut piece[..wanted], at)?;
            if read == 0 {
                break;
            }
            hasher.update(&piece[..read]);
            at += read as u64;
        }
        Ok(hasher.finalize())
    }

    /// Returns a large part, which is freed when the caller drops it; `None` if the file is
    /// shorter.
    pub fn part(&self, offset: u64, size: u64) -> Option<std::borrow::Cow<'_, [u8]>> {
        match self {
            Image::Bytes(_) => Some(self.read_bytes_at(offset, size).ok()?.into()),
            Image::Parts { file, .. } => {
                // The bytes are reserved first, because a damaged header may request any amount of
                // memory.
                self.take(offset, size)?;
                let mut bytes = vec![0; usize::try_from(size).ok()?];
                file.read_exact_at(&mut bytes, offset).ok()?;
                Some(bytes.into())
            }
        }
    }
}

/// A 64-bit ELF file.
pub(crate) type Elf<'d> = ElfFile64<'d, Endianness, &'d Image>;

/// Returns the error for a file that could not be read.
pub(crate) fn read_error(path: &Path, error: std::io::Error) -> SymbolError {
    SymbolError::Read {
        path: path.to_owned(),
        error,
    }
}

/// Returns the error for a file with the wrong contents.
pub(crate) fn format_error(path: &Path, reason: impl ToString) -> SymbolError {
    SymbolError::Format {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

pub(crate) fn parse<'d>(path: &Path, data: &'d Image) -> Result<Elf<'d>, SymbolError> {
    ElfFile64::parse(data).map_err(|e| format_error(path, e))
}

/// Formats a build-id in hexadecimal digits.
pub(crate) fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Fails for a file with another build-id. If neither build-id is known, there is nothing to
/// compare.
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

/// Opens a module's own file, and returns a name for messages about it.
pub(crate) fn image(
    module: &ModuleFile,
    roots: &[PathBuf],
    problems: &mut Vec<SymbolError>,
) -> Option<(PathBuf, Image)> {
    let given = module.image.clone();
    let given = given.map(|bytes| (PathBuf::from(&module.path), Image::Bytes(bytes)));
    // A very large file is available only in its mapped parts, without names. Without a build-id,
    // it is unknown whether another file is identical.
    let has_names = |image: &Image| {
        parse(Path::new(""), image).is_ok_and(|elf| elf.elf_section_table().iter().len() > 1)
    };
    match given {
        Some((path, image)) if module.build_id.is_none() || has_names(&image) => {
            return Some((path, image));
        }
        _ => {}
    }
    if let Some(file) = &module.opened {
        let path = PathBuf::from(&module.path);
        let image = open_again(file).and_then(Image::of);
        let image = image.map_err(|error| read_error(&path, error));
        match image.and_then(|image| with_build_id(&path, image, module.build_id.as_deref())) {
            Ok(image) => return Some((path, image)),
            Err(problem) => problems.push(problem),
        }
    }
    for path in &module.candidates {
        match open_checked(path, roots, module.build_id.as_deref()) {
            Ok(image) => return Some((path.clone(), image)),
            Err(problem) => problems.push(problem),
        }
    }
    given
}

/// Opens the file again with a separate offset, because another thread may be reading it.
fn open_again(file: &File) -> std::io::Result<File> {
    open_regular(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))
}

fn with_build_id(path: &Path, image: Image, build_id: Option<&[u8]>) -> Result<Image, SymbolError> {
    check_build_id(path, &parse(path, &image)?, build_id)?;
    Ok(image)
}

/// Opens a file that must have this build-id.
pub(crate) fn open_checked(
    path: &Path,
    roots: &[PathBuf],
    build_id: Option<&[u8]>,
) -> Result<Image, SymbolError> {
    with_build_id(path, Image::open(path, roots)?, build_id)
}
