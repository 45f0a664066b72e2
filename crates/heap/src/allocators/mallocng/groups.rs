//! Groups of slots, and the slots that are blocks.
//!
//! A bit of the group's descriptor marks a free slot. A header before each slot has the start of its block, the slot's
//! index, and the number of bytes that the program has not requested. A slot may be in use while its header says
//! otherwise, for as long as a thread is in the middle of malloc or free.

use super::context::{CLASSES, MAPPED_CLASS, Meta};
use crate::live_memory::Memory;
use std::ops::Range;

/// Unit of slot sizes, and alignment of blocks.
pub const UNIT: u64 = 16;
/// Bytes at the end of each slot that hold the header of the next slot.
const HEADER_BYTES: u64 = 4;
const PAGE_BYTES: u64 = 4096;

/// Number of units in a slot of each class (musl, src/malloc/mallocng/malloc.c, `size_classes`).
const SIZE_CLASSES: [u64; CLASSES] = [
    1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 18, 20, 25, 31, 36, 42, 50, 63, 72, 84, 102, 127, 146,
    170, 204, 255, 292, 340, 409, 511, 584, 682, 818, 1023, 1169, 1364, 1637, 2047, 2340, 2730,
    3276, 4095, 4680, 5460, 6552, 8191,
];

/// A group with a sound descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub meta: Meta,
    /// Distance between slots in bytes.
    pub stride: u64,
}

/// Contents of a slot that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot {
    /// A block: its address, and the number of bytes that the program has requested.
    Block(u64, u64),
    /// A group of smaller slots at this address.
    Group(u64),
    /// The header contradicts the descriptor.
    Unclear(&'static str),
}

impl Group {
    /// Returns the group and the slot of a block, using the header before the block.
    pub fn of_block(memory: &impl Memory, block: u64) -> Option<(Group, u64)> {
        let header = Header::at(memory, block)?;
        let units = header.distance(memory, block)?;
        let mem = block.checked_sub(UNIT + units * UNIT)?;
        let meta = Meta::at(memory, memory.word(mem)?)?;
        let index = u64::from(header.bits & 31);
        let group = Group::of(memory, meta).ok()?;
        (meta.mem == mem && index <= meta.last).then_some((group, index))
    }

    /// Returns the group of a descriptor. The error says why the descriptor has no group.
    pub fn of(memory: &impl Memory, meta: Meta) -> Result<Group, &'static str> {
        let all = u32::MAX >> (31 - meta.last);
        if memory.word(meta.mem) != Some(meta.address) || !meta.mem.is_multiple_of(UNIT) {
            return Err("a group does not belong to its descriptor");
        }
        if meta.avail & meta.freed != 0 || (meta.avail | meta.freed) & !all != 0 {
            return Err("a group has slots that it cannot have");
        }
        let mapped_bytes = meta
            .pages
            .checked_mul(PAGE_BYTES)
            .ok_or("a group is too large")?;
        let stride = match SIZE_CLASSES.get(meta.class as usize) {
            _ if meta.last == 0 && meta.pages > 0 => mapped_bytes - UNIT,
            Some(units) => units * UNIT,
            None => return Err("a group has no size class"),
        };
        let is_mapped = meta.class == MAPPED_CLASS;
        if meta.class >= CLASSES as u64 && !(is_mapped && meta.pages > 0) {
            return Err("a group has no size class");
        }
        let group = Group { meta, stride };
        let bytes = group.range().end - meta.mem;
        if meta.pages > 0 && bytes > mapped_bytes {
            return Err("a group does not fit into its mapping");
        }
        if !memory.has(meta.mem, bytes) {
            return Err("a group is not completely mapped");
        }
        Ok(group)
    }

    /// Returns the memory of the group, including its header.
    pub fn range(&self) -> Range<u64> {
        let slots = UNIT + self.stride * (self.meta.last + 1);
        self.meta.mem..self.meta.mem.saturating_add(slots)
    }

    /// Returns true if a slot is not free.
    pub fn is_used(&self, index: u64) -> bool {
        (self.meta.avail | self.meta.freed) >> index & 1 == 0
    }

    /// Returns the memory of a slot.
    pub fn slot_range(&self, index: u64) -> Range<u64> {
        let start = self.meta.mem + UNIT + self.stride * index;
        start..start + self.stride
    }

    /// Returns the contents of a slot that is in use.
    pub fn slot(&self, memory: &impl Memory, index: u64) -> Slot {
        let Range { start, end } = self.slot_range(index);
        let end = end - HEADER_BYTES;
        let unclear = Slot::Unclear("the header of a slot in use contradicts the slot");
        let Some(header) = Header::at(memory, start) else {
            return unclear;
        };
        // The block begins later, and the header at the start of the slot has only the offset of the block.
        let shift = if header.bits == 7 << 5 {
            u64::from(header.offset)
        } else {
            0
        };
        // A block aligned to more than a mebibyte is farther away than two bytes can express.
        let farthest = if self.meta.last == 0 && shift != 0 {
            (end - start) / UNIT
        } else {
            shift
        };
        let block = (shift..=farthest).step_by(1 << 16).find_map(|units| {
            let address = start + units * UNIT;
            let header = Header::at(memory, address).filter(|_| address < end)?;
            let units = (address - self.meta.mem - UNIT) / UNIT;
            let fits = u64::from(header.bits & 31) == index
                && header.distance(memory, address) == Some(units);
            fits.then_some((address, header.bits >> 5))
        });
        let Some((address, unused)) = block else {
            return unclear;
        };
        let unused = match unused {
            5 => match memory.half(end - 4) {
                Some(bytes) if bytes >= 5 => u64::from(bytes),
                _ => return unclear,
            },
            6 => return Slot::Group(address),
            7 => return unclear,
            bytes => u64::from(bytes),
        };
        let Some(bytes) = (end - address).checked_sub(unused) else {
            return unclear;
        };
        // The byte after a block and the last byte of its slot are zero: free() aborts the program otherwise.
        let is_zero = |at: u64| memory.byte(at) == Some(0);
        if !is_zero(address + bytes) || !is_zero(end) {
            return Slot::Unclear("a block was written past its end");
        }
        Slot::Block(address, bytes)
    }
}

/// The eight bytes before a block.
struct Header {
    bytes: [u8; 8],
    bits: u8,
    offset: u16,
}

impl Header {
    fn at(memory: &impl Memory, address: u64) -> Option<Header> {
        let bytes = memory.word(address.checked_sub(8)?)?.to_le_bytes();
        Some(Header {
            bytes,
            bits: bytes[5],
            offset: u16::from_le_bytes([bytes[6], bytes[7]]),
        })
    }

    /// Returns the number of units from the first slot to the block.
    fn distance(&self, memory: &impl Memory, address: u64) -> Option<u64> {
        if self.bytes[4] == 0 {
            return Some(u64::from(self.offset));
        }
        let wide = memory.half(address - 8)?;
        (self.offset == 0 && wide > 0xffff).then_some(u64::from(wide))
    }
}
