//! Type of a block, by its contents and by the program's declarations.

use crate::blocks::{Block, BlockTable};
use crate::dissect::Heap;
use crate::graph::declared::{DeclaredBlocks, DeclaredLimits};
use crate::ranges::{Runs, joined};
use crate::snapshot::{Snapshot, words};
use goblin::elf::{Elf, program_header::PT_LOAD};
use memhook_foreign::class_name;
use memhook_process::ModuleImage;
use memhook_symbols::DeclaredFiles;
use rustc_hash::FxHashMap;
use serde::Serialize;

/// Largest distance of a base class from the start of its object (Itanium C++ ABI 2.5.2, "offset to
/// top").
const MAX_OFFSET_TO_TOP: i64 = 1 << 20;
/// Number of printable bytes at the start that identify a block as text.
const TEXT_BYTES: usize = 8;
/// Maximum number of bytes that are read to describe a block. The beginning of a large block shows its kind; the rest
/// may be memory that was never touched.
const MOST_DESCRIBED: u64 = 1 << 20;

/// Names of C++ classes by vtable address point.
pub struct Types<'a> {
    snapshot: &'a Snapshot,
    images: &'a [ModuleImage],
    known: FxHashMap<u64, Option<String>>,
    /// The data of modules, merged and in address order.
    data: Runs,
    numbered: TypeNumbers,
    declared: DeclaredBlocks,
}

/// Evidence for the type of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// The block begins with a vtable pointer of the class.
    Vtable,
    /// The program declares a pointer to this type, and that pointer points to the block.
    Declared,
    /// No evidence: the name only describes the block's bytes.
    Contents,
}

/// Number of bytes with known types.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TypesTold {
    /// Usable bytes of all blocks whose type is known.
    pub bytes: u64,
    /// Bytes among them whose type a vtable shows.
    pub vtable_bytes: u64,
    /// Bytes among them whose type the program declares.
    pub declared_bytes: u64,
    /// Debug information that was not used, with the reasons.
    pub notes: Vec<String>,
}

impl TypesTold {
    /// Counts a block.
    pub(crate) fn count(&mut self, evidence: Evidence, bytes: u64) {
        match evidence {
            Evidence::Vtable => self.vtable_bytes += bytes,
            Evidence::Declared => self.declared_bytes += bytes,
            Evidence::Contents => return,
        }
        self.bytes += bytes;
    }
}

/// Types by number, so that the types of millions of blocks can be compared.
#[derive(Default)]
struct TypeNumbers {
    names: Vec<String>,
    evidence: Vec<Evidence>,
    by_name: FxHashMap<(String, Evidence), u32>,
    by_first_word: FxHashMap<u64, Option<u32>>,
    by_declared: FxHashMap<u32, u32>,
}

impl TypeNumbers {
    fn of(&mut self, name: &str, evidence: Evidence) -> u32 {
        let key = (name.to_owned(), evidence);
        if let Some(&number) = self.by_name.get(&key) {
            return number;
        }
        let number = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.evidence.push(evidence);
        self.by_name.insert(key, number);
        number
    }
}

impl<'a> Types<'a> {
    /// Prepares to look up names, first in the snapshot, then in RTTI, which needs the files of the
    /// modules.
    pub fn new(snapshot: &'a Snapshot, images: &'a [ModuleImage]) -> Self {
        let modules = snapshot.meta.modules.iter();
        Types {
            snapshot,
            images,
            known: FxHashMap::default(),
            data: joined(modules.flat_map(|m| m.data.iter().cloned()).collect()),
            numbered: TypeNumbers::default(),
            declared: DeclaredBlocks::default(),
        }
    }

    /// Adds the types that the program declares, if there is debug information.
    pub fn declare(&mut self, heap: &Heap, files: &DeclaredFiles, limits: DeclaredLimits) {
        self.declared = DeclaredBlocks::find(self.snapshot, heap, self, files, limits);
    }

    /// Returns the parts of the debug information that were left out, with the reasons.
    pub(crate) fn notes(&self) -> &[String] {
        &self.declared.notes
    }

    /// Returns the files of the modules.
    pub(crate) fn images(&self) -> &'a [ModuleImage] {
        self.images
    }

    /// Returns the number of the name that [`Types::describe`] gives to a block.
    pub fn number(&mut self, blocks: &BlockTable, at: u32, block: Block) -> u32 {
        if let Some((number, name)) = self.declared.numbered(at) {
            if let Some(&known) = self.numbered.by_declared.get(&number) {
                return known;
            }
            let of = self.numbered.of(name, Evidence::Declared);
            self.numbered.by_declared.insert(number, of);
            return of;
        }
        let first_word = self.snapshot.word(block.address).unwrap_or(0);
        if self.is_data(first_word) {
            let known = self.numbered.by_first_word.get(&first_word).copied();
            let known = known.unwrap_or_else(|| {
                let class = self.class(first_word);
                let number = class.map(|class| self.numbered.of(&class, Evidence::Vtable));
                self.numbered.by_first_word.insert(first_word, number);
                number
            });
            if let Some(number) = known {
                return number;
            }
        }
        let content = self.content_of(blocks, block);
        self.numbered.of(content, Evidence::Contents)
    }

    /// Returns the number of the type with this name.
    pub fn number_of(&mut self, name: &str) -> u32 {
        self.numbered.of(name, Evidence::Contents)
    }

    /// Returns the evidence for the type with this number.
    pub fn evidence(&self, number: u32) -> Evidence {
        let evidence = self.numbered.evidence.get(number as usize);
        evidence.copied().unwrap_or(Evidence::Contents)
    }

    /// Returns the name of the type with this number.
    pub fn name(&self, number: u32) -> &str {
        let name = self.numbered.names.get(number as usize);
        name.map_or("", String::as_str)
    }

    /// Returns the names of all numbered types, by number.
    pub(crate) fn names(&self) -> &[String] {
        &self.numbered.names
    }

    fn is_data(&self, address: u64) -> bool {
        let after = self.data.partition_point(|d| d.start <= address);
        let data = after.checked_sub(1).map(|i| &self.data[i]);
        data.is_some_and(|data| address < data.end)
    }

    fn content_of(&self, blocks: &BlockTable, block: Block) -> &'static str {
        let described = block.bytes.min(MOST_DESCRIBED);
        let bytes = self.snapshot.bytes(block.address, described);
        content(bytes.unwrap_or(&[]), |word| blocks.find(word).is_some())
    }

    /// Returns the name of a block: its declared type, its class, or the kind of its contents (`text`, `pointers`,
    /// `zeros`, `data`).
    pub fn describe(&mut self, blocks: &BlockTable, block: u32) -> String {
        if let Some(name) = self.declared.name(block) {
            return name.to_owned();
        }
        let block = blocks.get(block);
        let first_word = self.snapshot.word(block.address);
        if let Some(class) = first_word.and_then(|word| self.class(word)) {
            return class;
        }
        self.content_of(blocks, block).to_owned()
    }

    /// Returns the class whose objects begin with this word.
    pub fn class(&mut self, first_word: u64) -> Option<String> {
        if !first_word.is_multiple_of(8) || !self.is_data(first_word) {
            return None;
        }
        if let Some(known) = self.known.get(&first_word) {
            return known.clone();
        }
        let class = match self.snapshot.meta.classes.get(&first_word) {
            Some(class) => Some(class.clone()),
            None => self.by_rtti(first_word),
        };
        self.known.insert(first_word, class.clone());
        class
    }

    /// Looks up a class in RTTI. The words before an address point are the offset to top and the
    /// address of the type's `std::type_info`, which begins with its own vtable pointer and the
    /// name (Itanium C++ ABI 2.5.2, 2.9.5).
    fn by_rtti(&self, point: u64) -> Option<String> {
        let offset = self.snapshot.word(point.checked_sub(16)?)? as i64;
        if !(-MAX_OFFSET_TO_TOP..=0).contains(&offset) {
            return None;
        }
        let info = self.snapshot.word(point.checked_sub(8)?)?;
        let kind = self.snapshot.word(info)?;
        let name = self.snapshot.word(info.checked_add(8)?)?;
        let of_abi = self.snapshot.meta.classes.get(&kind);
        if of_abi.is_some_and(|c| !c.contains("class_type_info")) {
            return None;
        }
        let image = self
            .images
            .iter()
            .find(|m| name >= m.start && name < m.end)?;
        // GCC marks names of local types with a star.
        let mangled = string_at(image, name)?;
        let class = class_name(mangled.trim_start_matches('*'));
        let looks = class.bytes().all(|b| (32..127).contains(&b)) && !class.is_empty();
        looks.then_some(class)
    }

    /// Returns the names that were found, to save them with the snapshot.
    pub fn learnt(self) -> impl Iterator<Item = (u64, String)> {
        self.known
            .into_iter()
            .filter_map(|(at, name)| Some((at, name?)))
    }
}

/// Returns a description of a block's bytes, for a block without a known class.
fn content(bytes: &[u8], is_pointer: impl Fn(u64) -> bool) -> &'static str {
    if bytes.iter().take(4096).all(|&b| b == 0) {
        return "zeros";
    }
    let text = bytes
        .iter()
        .take_while(|b| (32..127).contains(*b) || matches!(b, b'\n' | b'\r' | b'\t'))
        .count();
    let ends = bytes.get(text).is_none_or(|&b| b == 0);
    if text >= TEXT_BYTES || (text >= 3 && ends) {
        return "text";
    }
    if words(bytes).take(64).any(is_pointer) {
        return "pointers";
    }
    "data"
}

/// Returns a zero-terminated string of a module's file by its address in the process.
fn string_at(image: &ModuleImage, address: u64) -> Option<String> {
    let elf = Elf::parse(&image.bytes).ok()?;
    let svma = address.wrapping_sub(image.base);
    let header = elf.program_headers.iter().find(|h| {
        h.p_type == PT_LOAD && svma >= h.p_vaddr && svma < h.p_vaddr.saturating_add(h.p_filesz)
    })?;
    let offset = usize::try_from(svma - header.p_vaddr + header.p_offset).ok()?;
    let bytes = image.bytes.at(offset, 4096)?;
    let end = bytes.iter().position(|&b| b == 0)?;
    String::from_utf8(bytes[..end].to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_told_apart() {
        let none = |_| false;
        assert_eq!(content(&[0; 40], none), "zeros");
        assert_eq!(content(b"hello world\0\x01\x02\x03\x04", none), "text");
        assert_eq!(content(b"abc\0\xff\xff\xff\xff", none), "text");
        assert_eq!(content(&[0xff; 16], none), "data");
        assert_eq!(
            content(&[1, 2, 0, 0, 0, 0, 0, 0], |w| w == 0x201),
            "pointers"
        );
    }
}
