//! Modules of a process that has ended, from the files that its core dump names.

use super::layers::below_overlays;
use super::{CoreFile, u16_at, u32_at, u64_at};
use crate::load_segments::{LoadSegment, LoadSegments};
use crate::{Mapping, ModuleFacts, ModuleFiles, ModuleImage};
use memhook_foreign::open_regular;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

const PAGE_BYTES: usize = 4096;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const NT_GNU_BUILD_ID: u32 = 3;

/// Module without its file, described by its first page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingModule {
    /// Path that the process had mapped.
    pub path: String,
    /// Load bias, if the core contains the module's first page.
    pub base: u64,
    /// First address.
    pub start: u64,
    /// Address after the last one.
    pub end: u64,
    /// Writable segments of the module.
    pub data: Vec<Range<u64>>,
    /// Reason why there is no file.
    pub reason: String,
}

/// Modules that a core dump names.
#[derive(Default)]
pub struct CoreModules {
    /// Modules whose files were found.
    pub images: Vec<ModuleImage>,
    /// Modules whose files were not found.
    pub missing: Vec<MissingModule>,
}

/// Contents of the first page of a module.
#[derive(Default)]
struct FirstPage {
    loads: LoadSegments,
    /// Writable addresses in the file.
    writable: Vec<Range<u64>>,
    build_id: Option<Vec<u8>>,
}

impl FirstPage {
    fn parse(page: &[u8]) -> Option<FirstPage> {
        if !page.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let at = usize::try_from(u64_at(page, 0x20)?).ok()?;
        let count = usize::from(u16_at(page, 0x38)?);
        let mut found = FirstPage::default();
        for i in 0..count {
            let header = page.get(at.checked_add(i * 56)?..)?;
            let (address, bytes) = (u64_at(header, 16)?, u64_at(header, 40)?);
            let (offset, file_bytes) = (u64_at(header, 8)?, u64_at(header, 32)?);
            match u32_at(header, 0)? {
                PT_LOAD => {
                    let flags = u32_at(header, 4)?;
                    found.loads.0.push(LoadSegment {
                        svma: address,
                        bytes,
                        offset,
                        file_bytes,
                        exec: flags & PF_X != 0,
                    });
                    if flags & PF_W != 0 {
                        let end = address.checked_add(bytes)?.checked_next_multiple_of(4096)?;
                        found.writable.push(address & !0xfff..end);
                    }
                }
                PT_NOTE => {
                    let from = usize::try_from(offset).ok()?;
                    let to = from.checked_add(usize::try_from(file_bytes).ok()?)?;
                    let id = page.get(from..to).and_then(build_id);
                    found.build_id = found.build_id.or(id);
                }
                _ => {}
            }
        }
        Some(found)
    }
}

fn build_id(mut notes: &[u8]) -> Option<Vec<u8>> {
    loop {
        let (name, contents) = (u32_at(notes, 0)? as usize, u32_at(notes, 4)? as usize);
        let begin = 12usize.checked_add(name)?.checked_next_multiple_of(4)?;
        let end = begin.checked_add(contents)?;
        let found = notes.get(begin..end)?;
        if u32_at(notes, 8)? == NT_GNU_BUILD_ID && notes.get(12..16) == Some(b"GNU\0") {
            return Some(found.to_vec());
        }
        notes = notes.get(end.checked_next_multiple_of(4)?..)?;
    }
}

impl CoreFile {
    /// Returns the modules, the executable first, then in address order. If the core contains a module's build-id, a
    /// file is used only if its build-id shows that it is the file that ran.
    pub fn modules(&self) -> CoreModules {
        let maps: Vec<Mapping> = self.segments.iter().map(|s| s.mapping.clone()).collect();
        let mut files = ModuleFiles::new();
        let mut found = CoreModules::default();
        // More than one segment of a module may begin with the first byte of its file.
        let mut last: Option<(&Mapping, u64)> = None;
        for (i, first) in maps.iter().enumerate() {
            let is_mapped_file = first.file_id.2 != 0 && first.path.starts_with('/');
            if first.offset != 0 || !is_mapped_file || first.shared {
                continue;
            }
            if last.is_some_and(|(of, end)| first.start < end && first.is_same_file(of)) {
                continue;
            }
            let run = crate::module::run(&maps[i..]);
            if !run.iter().any(|m| m.exec) {
                continue; // it was mapped as data
            }
            let mut page = [0; PAGE_BYTES];
            let page = self
                .read(first.start, &mut page)
                .then(|| FirstPage::parse(&page));
            if let Some(None) = page {
                continue; // no ELF file
            }
            let page = page.flatten();
            let end = match &page {
                Some(page) => page.loads.end(first, &maps),
                None => run.last().map(|m| m.end),
            };
            let Some(end) = end else {
                continue; // it was mapped as data
            };
            last = Some((first, end));
            match self.image(first, end, page.as_ref(), &maps, &mut files) {
                Ok(image) => found.images.push(image),
                Err(reason) => found.missing.push(missing(first, end, page, reason)),
            }
        }
        found.images.sort_by_key(|m| (!m.is_main, m.start));
        crate::module::mark_permanent(&mut found.images);
        found
    }

    fn image(
        &self,
        first: &Mapping,
        end: u64,
        page: Option<&FirstPage>,
        maps: &[Mapping],
        files: &mut ModuleFiles,
    ) -> Result<ModuleImage, String> {
        if first.deleted {
            return Err("it had been deleted when the process ended".into());
        }
        let expected = page.and_then(|page| page.build_id.as_ref());
        let mut read = |place: &Path| -> Result<_, String> {
            let file = open_regular(place).map_err(|error| error.to_string())?;
            let bytes = files
                .of_path(&file, maps, first)
                .ok_or("it cannot be read, or is too large")?;
            let facts = ModuleFacts::of(&bytes).ok_or("it is not an x86-64 module")?;
            if expected.is_some() && expected != facts.build_id.as_ref() {
                return Err("the file has been replaced (its build-id differs)".into());
            }
            Ok((place.to_owned(), bytes, facts))
        };
        let named = read(Path::new(&first.path));
        let (file, bytes, facts) = named.or_else(|reason| {
            // If the file's path differs from the path in the core, only the build-id shows that it is the right file.
            let places = match expected {
                Some(_) => below_overlays(&first.path),
                None => Vec::new(),
            };
            let mut read = places.iter().map(|place| read(place));
            read.find_map(Result::ok).ok_or(reason)
        })?;
        let is_main = self
            .program_headers
            .is_some_and(|at| (first.start..end).contains(&at));
        Ok(ModuleImage {
            path: file.to_string_lossy().into_owned(),
            file,
            base: first.start.wrapping_sub(facts.loads.lowest()),
            start: first.start,
            end: facts.loads.end(first, maps).unwrap_or(end),
            build_id: facts.build_id.clone(),
            is_main,
            is_loader: self.loader == Some(first.start),
            is_libc: crate::c_library::is_glibc(&facts),
            is_permanent: false,
            bytes: Arc::new(bytes.into()),
            facts: Arc::new(facts),
        })
    }
}

fn missing(first: &Mapping, end: u64, page: Option<FirstPage>, reason: String) -> MissingModule {
    let page = page.unwrap_or_default();
    let base = first.start.wrapping_sub(page.loads.lowest());
    let data = page.writable.iter().map(|range| {
        let start = base.wrapping_add(range.start);
        start..base.wrapping_add(range.end).max(start)
    });
    MissingModule {
        path: first.path.clone(),
        base,
        start: first.start,
        end,
        data: data
            .filter(|d| d.start >= first.start && d.end <= end)
            .collect(),
        reason,
    }
}
