//! Split DWARF. With `-gsplit-dwarf`, functions and their names are in `.dwo` files next to the
//! object files, or in one package (`.dwp`) next to the program. The program has only skeletons of
//! the units, which name the `.dwo` files.

use crate::debug_files::below;
use crate::file::{Image, parse};
use crate::lookup::{MOST_INFLATED_BYTES, Slice, contents};
use addr2line::{LookupContinuation, LookupResult, SplitDwarfLoad};
use gimli::{
    Dwarf, DwarfPackageSections, DwarfSections, DwoId, EndianSlice, LittleEndian, SectionId,
};
use object::Object;
use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum number of units of a module that are read. Each is a separate file.
const MOST_UNITS: usize = 2048;

/// A list that only grows, so that its items can be borrowed.
struct Shelf<T>(OnceCell<Box<(T, Shelf<T>)>>);

impl<T> Shelf<T> {
    fn put(&self, item: T) -> &T {
        let mut end = self;
        while let Some(full) = end.0.get() {
            end = &full.1;
        }
        &end.0
            .get_or_init(|| Box::new((item, Shelf(OnceCell::new()))))
            .0
    }
}

type Units = DwarfSections<Cow<'static, [u8]>>;
type Package = DwarfPackageSections<Cow<'static, [u8]>>;

/// Locations of the split units of a module, and the units read so far.
pub(crate) struct SplitDwarf<'p> {
    /// The file with the skeletons.
    path: Option<&'p Path>,
    roots: &'p [PathBuf],
    units: Shelf<Units>,
    count: Cell<usize>,
    package: OnceCell<Option<Package>>,
    /// Number of bytes that may still be read.
    left: Cell<u64>,
    lacks_any: Cell<bool>,
}

impl<'p> SplitDwarf<'p> {
    /// Creates a reader that has read no units yet, and may use at most `most_bytes`.
    pub fn new(path: Option<&'p Path>, search: &'p [PathBuf], most_bytes: u64) -> SplitDwarf<'p> {
        SplitDwarf {
            path,
            roots: search,
            units: Shelf(OnceCell::new()),
            count: Cell::new(0),
            package: OnceCell::new(),
            left: Cell::new(most_bytes.min(MOST_INFLATED_BYTES)),
            lacks_any: Cell::new(false),
        }
    }

    /// Returns true if a unit was not found, so that files that are installed later would give
    /// better names.
    pub fn lacks_any(&self) -> bool {
        self.lacks_any.get()
    }

    /// Completes a lookup with the split units that it needs.
    pub fn complete<'s, L>(&'s self, mut found: LookupResult<L>) -> L::Output
    where
        L: LookupContinuation<Buf = Slice<'s>>,
    {
        loop {
            match found {
                LookupResult::Output(output) => return output,
                LookupResult::Load { load, continuation } => {
                    let unit = self.unit(&load);
                    self.lacks_any.set(self.lacks_any.get() || unit.is_none());
                    found = continuation.resume(unit);
                }
            }
        }
    }

    fn unit<'s>(&'s self, load: &SplitDwarfLoad<Slice<'s>>) -> Option<Arc<Dwarf<Slice<'s>>>> {
        let slice = |data: &'s Cow<'static, [u8]>| EndianSlice::new(&data[..], LittleEndian);
        if let Some(package) = self.package.get_or_init(|| self.read_package()) {
            let empty = EndianSlice::new(&[], LittleEndian);
            let package = package.borrow(slice, empty).ok()?;
            if let Some(unit) = package.find_cu(load.dwo_id, &load.parent).ok().flatten() {
                return Some(Arc::new(unit));
            }
        }
        if self.count.get() >= MOST_UNITS {
            return None;
        }
        self.count.set(self.count.get() + 1);
        let name = Path::new(OsStr::from_bytes(load.path.as_ref()?.slice()));
        let folder = load.comp_dir.as_ref().map(|dir| dir.slice());
        let folder = Path::new(OsStr::from_bytes(folder.unwrap_or_default()));
        let mut found = self.places(&folder.join(name)).into_iter();
        let units = found.find_map(|path| self.read_unit(&path, load.dwo_id))?;
        let mut unit = self.units.put(units).borrow(slice);
        unit.make_dwo(&load.parent);
        Some(Arc::new(unit))
    }

    /// Returns possible paths of a file that a skeleton names: below each root, or next to the
    /// program.
    fn places(&self, named: &Path) -> Vec<PathBuf> {
        let roots = self.roots.iter().filter(|_| named.is_absolute());
        let beside = self.path.and_then(Path::parent).zip(named.file_name());
        roots
            .map(|root| below(root, named))
            .chain(beside.map(|(folder, name)| folder.join(name)))
            .collect()
    }

    /// Returns the sections of the file, if it has the unit with this id.
    fn read_unit(&self, path: &Path, id: DwoId) -> Option<Units> {
        let image = Image::open(path, self.roots).ok()?;
        let units = DwarfSections::load(|section| self.section(path, &image, section)).ok()?;
        has_unit(&units, id).then_some(units)
    }

    fn read_package(&self) -> Option<Package> {
        let program = self.path?;
        let mut name = program.file_name()?.to_owned();
        name.push(".dwp");
        let path = program.with_file_name(name);
        let image = Image::open(&path, self.roots).ok()?;
        DwarfPackageSections::load(|section| {
            self.section(&path, &image, section)
                .map_err(|()| gimli::Error::UnexpectedEof(gimli::ReaderOffsetId(0)))
        })
        .ok()
    }

    /// Returns a section of a split file, or an empty section if it is missing.
    fn section(
        &self,
        path: &Path,
        image: &Image,
        section: SectionId,
    ) -> Result<Cow<'static, [u8]>, ()> {
        let elf = parse(path, image).map_err(drop)?;
        let name = section.dwo_name().unwrap_or(section.name());
        let Some(section) = elf.section_by_name(name) else {
            return Ok(Cow::Borrowed(&[]));
        };
        let mut left = self.left.get();
        let bytes = contents(&section, image, &mut left).ok_or(())?;
        self.left
            .set(left.checked_sub(bytes.len() as u64).ok_or(())?);
        Ok(Cow::Owned(bytes.into_owned()))
    }
}

fn has_unit(units: &Units, id: DwoId) -> bool {
    let dwarf = units.borrow(|data| EndianSlice::new(&data[..], LittleEndian));
    let mut headers = dwarf.units();
    while let Ok(Some(header)) = headers.next() {
        let unit = dwarf.unit(header);
        if unit.is_ok_and(|unit| unit.dwo_id == Some(id)) {
            return true;
        }
    }
    false
}
