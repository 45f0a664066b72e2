//! Separate debug files, as distributions install them (gdb manual, "Debugging Information in
//! Separate Files").

use crate::file::{Elf, Image, check_build_id, format_error, hex, parse, read_error};
use crate::{Debuginfod, RunNames, SharedReaders, SymbolCache, SymbolError};
use object::Object;
use std::{
    ffi::OsStr,
    io::ErrorKind,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Returns an absolute path below another root.
pub(crate) fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Places to search for debug files and names.
#[derive(Clone, Debug, Default)]
pub struct SearchPath {
    /// Roots of file systems. Absolute paths are searched below each root.
    pub roots: Vec<PathBuf>,
    /// Directories of debug files, with the layout of `/usr/lib/debug`. They are searched first.
    pub debug_directories: Vec<PathBuf>,
    /// Store of names between runs.
    pub cache: Option<SymbolCache>,
    /// Names that other symbolizers of this run have found.
    pub run_names: Option<RunNames>,
    /// Servers, which are asked last.
    pub debuginfod: Option<Debuginfod>,
    /// Shared readers of files for several symbolizers. Without them, each symbolizer reads the
    /// files itself.
    pub readers: Option<SharedReaders>,
}

/// Creates a search path from roots of file systems alone.
impl From<Vec<PathBuf>> for SearchPath {
    fn from(roots: Vec<PathBuf>) -> SearchPath {
        SearchPath {
            roots,
            ..SearchPath::default()
        }
    }
}

impl SearchPath {
    /// Iterates over the directories of debug files, including those of the roots.
    fn directories(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let of_roots = self
            .roots
            .iter()
            .map(|root| below(root, Path::new("/usr/lib/debug")));
        self.debug_directories.iter().cloned().chain(of_roots)
    }

    /// Iterates over the paths for this build-id in all directories.
    fn by_build_id<'a>(&'a self, id: &'a [u8]) -> impl Iterator<Item = PathBuf> + 'a {
        self.directories()
            .filter_map(|directory| by_build_id(&directory, id))
    }

    /// Returns possible paths of a file that a module names: next to the module, in `.debug/` next
    /// to it, and below the directories of debug files.
    fn by_link(&self, module: &Path, name: &Path) -> Vec<PathBuf> {
        let directory = module.parent().unwrap_or(Path::new("/"));
        let mut paths = Vec::new();
        for root in &self.roots {
            paths.push(below(root, &directory.join(name)));
            paths.push(below(root, &directory.join(".debug").join(name)));
        }
        for debug in self.directories() {
            paths.push(below(&debug, &directory.join(name)));
            paths.push(debug.join(name));
        }
        paths
    }
}

/// Returns `.build-id/ab/cdef.debug` in a directory of debug files.
fn by_build_id(directory: &Path, id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let rest = hex(rest);
    (!rest.is_empty()).then(|| directory.join(format!(".build-id/{first:02x}/{rest}.debug")))
}

/// An open debug file.
pub(crate) struct DebugFile {
    pub path: PathBuf,
    pub data: Image,
}

/// Finds the separate debug file of a module. Files that exist but do not match are recorded as
/// problems.
pub(crate) fn find(
    module: &Path,
    elf: &Elf<'_>,
    search: &SearchPath,
    problems: &mut Vec<SymbolError>,
) -> Option<DebugFile> {
    let id = elf.build_id().ok().flatten();
    if let Some(file) = id.and_then(|id| find_by_build_id(id, search, problems)) {
        return Some(file);
    }
    let linked = elf
        .gnu_debuglink()
        .ok()
        .flatten()
        .and_then(|(name, checksum)| {
            // The link must be a file name. A path would lead to places where debug files are not
            // installed.
            let name = Path::new(OsStr::from_bytes(name)).file_name()?;
            let mut paths = search.by_link(module, Path::new(name)).into_iter();
            paths.find_map(|path| accept(path, &search.roots, id, Some(checksum), problems))
        });
    linked.or_else(|| download(id?, search, problems))
}

fn download(id: &[u8], search: &SearchPath, problems: &mut Vec<SymbolError>) -> Option<DebugFile> {
    search.debuginfod.as_ref()?.find(id, problems)
}

/// Finds the separate debug file of a module whose own file is not available.
pub(crate) fn find_alone(
    id: &[u8],
    search: &SearchPath,
    problems: &mut Vec<SymbolError>,
) -> Option<DebugFile> {
    find_by_build_id(id, search, problems).or_else(|| download(id, search, problems))
}

fn find_by_build_id(
    id: &[u8],
    search: &SearchPath,
    problems: &mut Vec<SymbolError>,
) -> Option<DebugFile> {
    let mut paths = search.by_build_id(id);
    paths.find_map(|path| accept(path, &search.roots, Some(id), None, problems))
}

/// Opens a file if it exists and matches.
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
            // Most places have no file.
            let is_there = |error: &std::io::Error| {
                !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
            };
            let is_news = !matches!(&problem, SymbolError::Read { error, .. } if !is_there(error));
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
    // The build-id identifies the file and is cheap to read. Without a build-id, the checksum of
    // the whole file must match.
    if id.is_some() {
        return check_build_id(path, &elf, id);
    }
    let Some(expected) = checksum else {
        return Err(format_error(
            path,
            "nothing shows whether it is the right file",
        ));
    };
    let found = data.checksum().map_err(|error| read_error(path, error))?;
    if found == expected {
        return Ok(());
    }
    Err(SymbolError::Checksum {
        path: path.to_owned(),
        found,
        expected,
    })
}

/// Finds the supplementary file into which `dwz -m` moved common DWARF.
pub(crate) fn find_supplementary(
    debug_path: &Path,
    elf: &Elf<'_>,
    search: &SearchPath,
    problems: &mut Vec<SymbolError>,
) -> Option<DebugFile> {
    let (name, id) = elf.gnu_debugaltlink().ok().flatten()?;
    let name = Path::new(OsStr::from_bytes(name));
    let beside = debug_path
        .parent()
        .filter(|_| name.is_relative())
        .map(|directory| directory.join(name));
    let roots = search.roots.iter().filter(|_| name.is_absolute());
    let named = roots.map(|root| below(root, name));
    let mut paths = beside
        .into_iter()
        .chain(search.by_build_id(id))
        .chain(named);
    let found = paths.find_map(|path| accept(path, &search.roots, Some(id), None, problems));
    found.or_else(|| download(id, search, problems))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search() {
        let search = SearchPath {
            roots: vec!["/proc/7/root".into()],
            debug_directories: vec!["/symbols".into()],
            ..SearchPath::default()
        };
        let by_id: Vec<PathBuf> = search.by_build_id(&[0xab, 0xcd, 0x0f]).collect();
        let expected = [
            "/symbols/.build-id/ab/cd0f.debug",
            "/proc/7/root/usr/lib/debug/.build-id/ab/cd0f.debug",
        ];
        assert_eq!(by_id, expected.map(PathBuf::from));
        assert_eq!(search.by_build_id(&[0xab]).next(), None);
        let by_link = search.by_link(Path::new("/opt/x/prog"), Path::new("prog.debug"));
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
