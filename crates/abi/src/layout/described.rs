//! Allocators that the user has described: which functions they have, and how their blocks are named.
//!
//! A heap of its own means that one address can be that of a block of several heaps: a pool hands out the first bytes
//! of a slab that malloc has handed out to it. So the blocks of a described heap are known by *keys* that no address
//! has, with the heap in them. They are in the place of addresses wherever events, filters and tables have these.
//!
//! ```text
//! bit  47      set: no address of a process has it, with four levels of page tables
//! bits 44..47  the heap
//! bits 35..44  the window: which 4 GiB of the address space, as the heap's table of windows has it
//! bits  3..35  the address within the window
//! bits  0..3   0, as events leave them out
//! ```
//!
//! So keys tell blocks apart that do not even have different addresses modulo 8.

use super::{ACCESS_OFFSET, BOUNDS_OFFSET, SAMPLE_OFFSET, WINDOWS_OFFSET};
use crate::HOOKED_FUNCTIONS;

/// Heaps that can be described.
pub const MAX_HEAPS: usize = 8;
/// Functions that can be described. Their ids follow those of [`HOOKED_FUNCTIONS`].
pub const MAX_DESCRIBED: usize = 32;
/// Windows of a heap, a power of two.
pub const HEAP_WINDOWS: usize = 512;
/// The bit that only keys have.
pub const KEY_BIT: u64 = 1 << 47;
/// Lowest bit of the heap in a key.
pub const KEY_HEAP_SHIFT: u32 = 44;
/// Lowest bit of the window in a key.
pub const KEY_WINDOW_SHIFT: u32 = 35;
/// Lowest bit of the address in a key.
pub const KEY_ADDRESS_SHIFT: u32 = 3;
/// The id of the first described function.
pub const FIRST_DESCRIBED: usize = HOOKED_FUNCTIONS.len();

/// Offset of what the described functions do: a word each, see [`DescribedFunction`].
pub const DESCRIBED_OFFSET: usize = SAMPLE_OFFSET + 45_056;

/// What a described function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DescribedRole {
    /// Returns a new block.
    Allocates = 1,
    /// Takes a block back.
    Releases = 2,
    /// Replaces a block.
    Reallocates = 3,
}

/// By what a function says that it has succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Success {
    /// By a block that is not null.
    #[default]
    Block = 0,
    /// By returning 0, as an int.
    Zero = 1,
    /// By returning another number than 0, as an int.
    NotZero = 2,
}

/// An argument that is passed in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Argument {
    /// 1 to 6 (psABI 3.2.3).
    pub number: u8,
    /// Only its lower 32 bits mean something.
    pub is_narrow: bool,
}

/// Where a function gets the size of a block from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockSize {
    /// An argument, in bytes.
    Argument(Argument),
    /// Two arguments: their product in bytes.
    Product(Argument, Argument),
    /// All blocks have so many bytes.
    Fixed(u32),
}

/// What the hook has to know of a described function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DescribedFunction {
    /// What it does.
    pub role: DescribedRole,
    /// Its heap, below [`MAX_HEAPS`].
    pub heap: u8,
    /// The size; not of a function that releases.
    pub size: BlockSize,
    /// The argument with the block that is released, or with its address if `old_is_indirect`; 0: none.
    pub old: u8,
    /// See `old`.
    pub old_is_indirect: bool,
    /// The argument that says where to put the new block's address; 0: it is returned.
    pub result: u8,
    /// How it says that there is one.
    pub success: Success,
}

impl DescribedFunction {
    /// As the hook reads it: `described.hpp` has the same places.
    pub const fn pack(&self) -> u64 {
        let (size, count, fixed) = match self.size {
            BlockSize::Argument(size) => (pack_argument(size), 0, 0),
            BlockSize::Product(count, size) => (pack_argument(size), pack_argument(count), 0),
            BlockSize::Fixed(bytes) => (0, 0, bytes),
        };
        self.role as u64
            | (self.heap as u64) << 4
            | size << 8
            | count << 12
            | (self.old as u64) << 16
            | (self.old_is_indirect as u64) << 19
            | (self.result as u64) << 20
            | (self.success as u64) << 24
            | (fixed as u64) << 32
    }
}

/// Four bits: the number, and whether it is narrow.
const fn pack_argument(argument: Argument) -> u64 {
    argument.number as u64 & 7 | (argument.is_narrow as u64) << 3
}

/// The heap that a block belongs to by its address or key: 0 is that of malloc and its like, 1 the first described one.
#[inline(always)]
pub const fn heap_of(address: u64) -> usize {
    if address & KEY_BIT == 0 {
        return 0;
    }
    1 + (address >> KEY_HEAP_SHIFT & (MAX_HEAPS as u64 - 1)) as usize
}

/// The address that a key of a described heap stands for. `window`: the entries of the heap's table, by their numbers.
/// `None` of what is no key, or one whose window the table does not have.
pub fn address_of_key(key: u64, window: impl FnOnce(usize) -> u32) -> Option<u64> {
    if key & KEY_BIT == 0 {
        return None;
    }
    let number = (key >> KEY_WINDOW_SHIFT) as usize & (HEAP_WINDOWS - 1);
    let high = u64::from(window(number).checked_sub(1)?);
    Some(high << 32 | key >> KEY_ADDRESS_SHIFT & 0xffff_ffff)
}

const _: () = assert!(DESCRIBED_OFFSET + MAX_DESCRIBED * 8 <= BOUNDS_OFFSET);
const _: () = assert!(MAX_HEAPS * HEAP_WINDOWS * 4 <= ACCESS_OFFSET - WINDOWS_OFFSET);
const _: () = assert!(FIRST_DESCRIBED + MAX_DESCRIBED <= 256);
const _: () = assert!(MAX_DESCRIBED * super::MAX_VARIANTS <= 128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_have_all_parts() {
        let wide = |number| Argument {
            number,
            is_narrow: false,
        };
        let function = DescribedFunction {
            role: DescribedRole::Reallocates,
            heap: 5,
            size: BlockSize::Product(
                wide(2),
                Argument {
                    number: 6,
                    is_narrow: true,
                },
            ),
            old: 1,
            old_is_indirect: true,
            result: 4,
            success: Success::NotZero,
        };
        assert_eq!(function.pack(), 0x0249_2e53);
        let fixed = DescribedFunction {
            size: BlockSize::Fixed(u32::MAX),
            ..function
        };
        assert_eq!(fixed.pack(), 0xffff_ffff_0249_0053);
    }

    #[test]
    fn keys_name_their_heap() {
        assert_eq!(heap_of(0x7fff_ffff_fff0), 0);
        assert_eq!(heap_of(KEY_BIT), 1);
        assert_eq!(heap_of(KEY_BIT | 7 << KEY_HEAP_SHIFT), 8);
    }

    #[test]
    fn keys_lead_back_to_addresses() {
        let key = KEY_BIT | 3 << KEY_HEAP_SHIFT | 511 << KEY_WINDOW_SHIFT | 0xffff_ff01 << 3;
        let window = |number| if number == 511 { 0x7ff4 } else { 0 };
        assert_eq!(address_of_key(key, window), Some(0x7ff3_ffff_ff01));
        assert_eq!(address_of_key(key & !(1 << 40), window), None);
        assert_eq!(address_of_key(0x7ff3_ffff_ff00, window), None);
    }
}
