//! What a block is, by its contents.

use crate::blocks::BlockTable;
use crate::snapshot::{Snapshot, words};
use goblin::elf::{Elf, program_header::PT_LOAD};
use memhook_foreign::class_name;
use memhook_process::ModuleImage;
use rustc_hash::FxHashMap;

/// No part of an object is further from its start (Itanium C++ ABI 2.5.2, "offset to top").
const MAX_OFFSET_TO_TOP: i64 = 1 << 20;
/// So many printable bytes at the start are taken for text.
const TEXT_BYTES: usize = 8;
/// The beginning of a large block shows what it is; the rest may be memory that nobody has touched.
const MOST_DESCRIBED: u64 = 1 << 20;

/// Names of C++ classes by vtable address point.
pub struct Types<'a> {
    snapshot: &'a Snapshot,
    images: &'a [ModuleImage],
    known: FxHashMap<u64, Option<String>>,
}

impl<'a> Types<'a> {
    /// Looks in the names that the snapshot has, then in RTTI, for which the files of the modules are needed.
    pub fn new(snapshot: &'a Snapshot, images: &'a [ModuleImage]) -> Self {
        Types {
            snapshot,
            images,
            known: FxHashMap::default(),
        }
    }

    /// What a block is called: its class, or what its contents look like (`text`, `pointers`, `zeros`,
    /// `data`).
    pub fn describe(&mut self, blocks: &BlockTable, block: u32) -> String {
        let block = blocks.get(block);
        let first_word = self.snapshot.word(block.address);
        if let Some(class) = first_word.and_then(|word| self.class(word)) {
            return class;
        }
        let described = block.bytes.min(MOST_DESCRIBED);
        let bytes = self.snapshot.bytes(block.address, described);
        content(bytes.unwrap_or(&[]), |word| blocks.find(word).is_some()).to_owned()
    }

    /// The class whose objects begin with this word.
    pub fn class(&mut self, first_word: u64) -> Option<String> {
        let data = |m: &crate::ModuleInfo| m.data.iter().any(|d| d.contains(&first_word));
        if !first_word.is_multiple_of(8) || !self.snapshot.meta.modules.iter().any(data) {
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

    /// The words before an address point are the offset to top and the address of the type's
    /// `std::type_info`, which begins with its own vtable pointer and the name (Itanium C++ ABI 2.5.2, 2.9.5).
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

    /// The names that were found, to be saved with the snapshot.
    pub fn learnt(self) -> impl Iterator<Item = (u64, String)> {
        self.known
            .into_iter()
            .filter_map(|(at, name)| Some((at, name?)))
    }
}

/// What the bytes of a block look like if their class is not known.
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

/// A zero-terminated string of a module's file by its address in the process.
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
