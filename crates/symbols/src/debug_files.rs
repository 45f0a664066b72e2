//! Separate debug files, as distributions install them (gdb manual, "Debugging Information in
//! Separate Files").

use crate::SymbolError;
use crate::file::{Cached, Elf, check_build_id, format_error, open, parse};
use object::{Object, ReadRef};
use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// An absolute path below another root.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// `/usr/lib/debug/.build-id/ab/cdef.debug`
fn by_build_id(root: &Path, id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    let file = format!("/usr/lib/debug/.build-id/{first:02x}/{rest}.debug");
    (!rest.is_empty()).then(|| below(root, Path::new(&file)))
}

/// Beside the module, in `.debug/` beside it, and in its folder below `/usr/lib/debug`.
fn by_link(root: &Path, module: &Path, name: &Path) -> Vec<PathBuf> {
    let folder = module.parent().unwrap_or(Path::new("/"));
    let global = Path::new("/usr/lib/debug");
    [
        folder.join(name),
        folder.join(".debug").join(name),
        global
            .join(folder.strip_prefix("/").unwrap_or(folder))
            .join(name),
    ]
    .iter()
    .map(|path| below(root, path))
    .collect()
}

/// A debug file that was found, open.
pub(crate) struct DebugFile {
    pub path: PathBuf,
    pub data: Cached,
}

/// The separate debug file of a module. Files that are there but are not the right ones are told.
pub(crate) fn find<'d, R: ReadRef<'d>>(
    module: &Path,
    elf: &Elf<'d, R>,
    roots: &[PathBuf],
    problems: &mut Vec<SymbolError>,
) -> Option<DebugFile> {
    let id = elf.build_id().ok().flatten();
    let link = elf.gnu_debuglink().ok().flatten();
    for root in roots {
        let by_id = id.and_then(|id| by_build_id(root, id));
        if let Some(file) = by_id.and_then(|path| accept(path, id, None, problems)) {
            return Some(file);
        }
        let Some((name, checksum)) = link else {
            continue;
        };
        // The link is a file name; a path would lead out of the places to search.
        let Some(name) = Path::new(OsStr::from_bytes(name)).file_name() else {
            continue;
        };
        for path in by_link(root, module, Path::new(name)) {
            if let Some(file) = accept(path, id, Some(checksum), problems) {
                return Some(file);
            }
        }
    }
    None
}

/// Opens a file if it is there and is the one meant.
fn accept(
    path: PathBuf,
    id: Option<&[u8]>,
    checksum: Option<u32>,
    problems: &mut Vec<SymbolError>,
) -> Option<DebugFile> {
    if !path.exists() {
        return None;
    }
    let checked = open(&path).and_then(|data| {
        check(&path, &data, id, checksum)?;
        Ok(data)
    });
    match checked {
        Ok(data) => Some(DebugFile { path, data }),
        Err(problem) => {
            problems.push(problem);
            None
        }
    }
}

fn check(
    path: &Path,
    data: &Cached,
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
    let bytes = std::fs::read(path).map_err(|source| SymbolError::Read {
        path: path.to_owned(),
        source,
    })?;
    let found = crc32fast::hash(&bytes);
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
pub(crate) fn find_supplementary<'d, R: ReadRef<'d>>(
    debug_path: &Path,
    elf: &Elf<'d, R>,
    roots: &[PathBuf],
    problems: &mut Vec<SymbolError>,
) -> Option<DebugFile> {
    let (name, id) = elf.gnu_debugaltlink().ok().flatten()?;
    let name = Path::new(OsStr::from_bytes(name));
    let beside = debug_path.parent().map(|folder| folder.join(name));
    let in_roots = roots.iter().flat_map(|root| {
        let named = name.is_absolute().then(|| below(root, name));
        by_build_id(root, id).into_iter().chain(named)
    });
    let beside = beside.filter(|_| name.is_relative());
    beside
        .into_iter()
        .chain(in_roots)
        .find_map(|path| accept(path, Some(id), None, problems))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let root = Path::new("/proc/7/root");
        assert_eq!(
            by_build_id(root, &[0xab, 0xcd, 0x0f]).unwrap(),
            Path::new("/proc/7/root/usr/lib/debug/.build-id/ab/cd0f.debug")
        );
        assert_eq!(by_build_id(root, &[0xab]), None);
        let places = by_link(root, Path::new("/opt/x/prog"), Path::new("prog.debug"));
        let expected = [
            "/proc/7/root/opt/x/prog.debug",
            "/proc/7/root/opt/x/.debug/prog.debug",
            "/proc/7/root/usr/lib/debug/opt/x/prog.debug",
        ];
        assert_eq!(places, expected.map(PathBuf::from));
    }
}
