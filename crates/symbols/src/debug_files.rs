//! Separate debug files, as distributions install them (gdb manual, "Debugging Information in
//! Separate Files").

use crate::file::{Elf, Image, check_build_id, format_error, hex, parse};
use crate::{Debuginfod, SymbolCache, SymbolError};
use object::Object;
use std::{
    ffi::OsStr,
    io::ErrorKind,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// An absolute path below another root.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Where to search.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// File systems: what stands at an absolute path stands there below one of these.
    pub roots: Vec<PathBuf>,
    /// Folders of debug files, laid out as `/usr/lib/debug` is; searched first.
    pub debug_folders: Vec<PathBuf>,
    /// Where names are kept from one run to the next.
    pub cache: Option<SymbolCache>,
    /// Servers, asked last.
    pub debuginfod: Option<Debuginfod>,
}

impl Places {
    /// The folders of debug files, those of the roots too.
    fn folders(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let of_roots = self.roots.iter();
        let of_roots = of_roots.map(|root| below(root, Path::new("/usr/lib/debug")));
        self.debug_folders.iter().cloned().chain(of_roots)
    }

    /// Each folder's file with this build-id.
    fn by_build_id<'a>(&'a self, id: &'a [u8]) -> impl Iterator<Item = PathBuf> + 'a {
        self.folders().filter_map(|folder| by_build_id(&folder, id))
    }

    /// Beside the module, in `.debug/` beside it, and in its folder below the debug folders.
    fn by_link(&self, module: &Path, name: &Path) -> Vec<PathBuf> {
        let folder = module.parent().unwrap_or(Path::new("/"));
        let mut paths = Vec::new();
        for root in &self.roots {
            paths.push(below(root, &folder.join(name)));
            paths.push(below(root, &folder.join(".debug").join(name)));
        }
        for debug in self.folders() {
            paths.push(below(&debug, &folder.join(name)));
            paths.push(debug.join(name));
        }
        paths
    }
}

/// `.build-id/ab/cdef.debug` in a folder of debug files.
fn by_build_id(folder: &Path, id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let rest = hex(rest);
    (!rest.is_empty()).then(|| folder.join(format!(".build-id/{first:02x}/{rest}.debug")))
}

/// A debug file that was found, open.
pub(crate) struct DebugFile {
    pub path: PathBuf,
    pub data: Image,
}

/// The separate debug file of a module. Files that are there but are not the right ones are told.
pub(crate) fn find(
    module: &Path,
    elf: &Elf<'_>,
    places: &Places,
    problems: &mut Vec<SymbolError>,
) -> Option<DebugFile> {
    let id = elf.build_id().ok().flatten();
    if let Some(file) = id.and_then(|id| find_by_build_id(id, places, problems)) {
        return Some(file);
    }
    let linked = elf
        .gnu_debuglink()
        .ok()
        .flatten()
        .and_then(|(name, checksum)| {
            // The link is a file name; a path would lead out of the places to search.
            let name = Path::new(OsStr::from_bytes(name)).file_name()?;
            let mut paths = places.by_link(module, Path::new(name)).into_iter();
            paths.find_map(|path| accept(path, &places.roots, id, Some(checksum), problems))
        });
    linked.or_else(|| download(id?, places, problems))
}

fn download(id: &[u8], places: &Places, problems: &mut Vec<SymbolError>) -> Option<DebugFile> {
    places.debuginfod.as_ref()?.find(id, problems)
}

/// The separate debug file of a module whose own file is not at hand.
pub(crate) fn find_alone(
    id: &[u8],
    places: &Places,
    problems: &mut Vec<SymbolError>,
) -> Option<DebugFile> {
    find_by_build_id(id, places, problems).or_else(|| download(id, places, problems))
}

fn find_by_build_id(
    id: &[u8],
    places: &Places,
    problems: &mut Vec<SymbolError>,
) -> Option<DebugFile> {
    let mut paths = places.by_build_id(id);
    paths.find_map(|path| accept(path, &places.roots, Some(id), None, problems))
}

/// Opens a file if it is there and is the one meant.
fn accept(
    path: PathBuf,
    roots: &[PathBuf],
    id: Option<&[u8]>,
    checksum: Option<u32>,
    problems: &mut Vec<SymbolError>,
) -> Option<DebugFile> {
    let checked = Image::open(&path, roots).and_then(|data| {
        check(&path, &data, id, checksum)?;
        Ok(data)
    });
    match checked {
        Ok(data) => Some(DebugFile { path, data }),
        Err(problem) => {
            // Most places have none.
            let is_there = |error: &std::io::Error| {
                !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
            };
            let is_news =
                !matches!(&problem, SymbolError::Read { source, .. } if !is_there(source));
            problems.extend(is_news.then_some(problem));
            None
        }
    }
}

fn check(
    path: &Path,
    data: &Image,
    id: Option<&[u8]>,
    checksum: Option<u32>,
) -> Result<(), SymbolError> {
    let elf = parse(path, data)?;
    // The build-id says all, and is cheap; without one, the checksum of the whole file must do.
    if id.is_some() {
        return check_build_id(path, &elf, id);
    }
    let Some(expected) = checksum else {
        return Err(format_error(
            path,
            "nothing tells whether it is the right file",
        ));
    };
    let found = data.checksum().map_err(|source| SymbolError::Read {
        path: path.to_owned(),
        source,
    })?;
    if found == expected {
        return Ok(());
    }
    Err(SymbolError::Checksum {
        path: path.to_owned(),
        found,
        expected,
    })
}

/// The supplementary file that `dwz -m` moved common DWARF into.
pub(crate) fn find_supplementary(
    debug_path: &Path,
    elf: &Elf<'_>,
    places: &Places,
    problems: &mut Vec<SymbolError>,
) -> Option<DebugFile> {
    let (name, id) = elf.gnu_debugaltlink().ok().flatten()?;
    let name = Path::new(OsStr::from_bytes(name));
    let beside = debug_path.parent().map(|folder| folder.join(name));
    let named = places.roots.iter().map(|root| below(root, name));
    let named = named.filter(|_| name.is_absolute());
    let beside = beside.filter(|_| name.is_relative());
    let mut paths = beside
        .into_iter()
        .chain(places.by_build_id(id))
        .chain(named);
    let found = paths.find_map(|path| accept(path, &places.roots, Some(id), None, problems));
    found.or_else(|| download(id, places, problems))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let places = Places {
            roots: vec!["/proc/7/root".into()],
            debug_folders: vec!["/symbols".into()],
            ..Places::default()
        };
        let by_id: Vec<PathBuf> = places.by_build_id(&[0xab, 0xcd, 0x0f]).collect();
        let expected = [
            "/symbols/.build-id/ab/cd0f.debug",
            "/proc/7/root/usr/lib/debug/.build-id/ab/cd0f.debug",
        ];
        assert_eq!(by_id, expected.map(PathBuf::from));
        assert_eq!(places.by_build_id(&[0xab]).next(), None);
        let by_link = places.by_link(Path::new("/opt/x/prog"), Path::new("prog.debug"));
        let expected = [
            "/proc/7/root/opt/x/prog.debug",
            "/proc/7/root/opt/x/.debug/prog.debug",
            "/symbols/opt/x/prog.debug",
            "/symbols/prog.debug",
            "/proc/7/root/usr/lib/debug/opt/x/prog.debug",
            "/proc/7/root/usr/lib/debug/prog.debug",
        ];
        assert_eq!(by_link, expected.map(PathBuf::from));
    }
}
