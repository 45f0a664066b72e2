//! Allocators that the user has described: their functions, and the names of their blocks.
//!
//! The same address can belong to blocks of several heaps: a pool may return the first bytes of a slab that it got from
//! malloc. So the blocks of a described heap are identified by *keys*, which include the heap and never equal an
//! address. Keys replace addresses in events, filters and tables.
//!
//! ```text
//! bit  47      set: no address of a process has it, with four levels of page tables
//! bits 44..47  the heap
//! bits 35..44  the window: 4 GiB of the address space, by the heap's table of windows
//! bits  3..35  the address within the window
//! bits  0..3   0, as events leave them out
//! ```
//!
//! So keys also distinguish blocks whose addresses are equal modulo 8.

use super::{ACCESS_OFFSET, BOUNDS_OFFSET, SAMPLE_OFFSET, WINDOWS_OFFSET};
use crate::HOOKED_FUNCTIONS;

/// Maximum number of described heaps.
pub const MAX_HEAPS: usize = 8;
/// Maximum number of described functions. Their ids follow those of [`HOOKED_FUNCTIONS`].
pub const MAX_DESCRIBED: usize = 32;
/// Windows of a heap, a power of two.
pub const HEAP_WINDOWS: usize = 512;
/// Bit that only keys have.
pub const KEY_BIT: u64 = 1 << 47;
/// Lowest bit of the heap in a key.
pub const KEY_HEAP_SHIFT: u32 = 44;
/// Lowest bit of the window in a key.
pub const KEY_WINDOW_SHIFT: u32 = 35;
/// Lowest bit of the address in a key.
pub const KEY_ADDRESS_SHIFT: u32 = 3;
/// Id of the first described function.
pub const FIRST_DESCRIBED: usize = HOOKED_FUNCTIONS.len();

/// Offset of the described functions, one word each; see [`DescribedFunction`].
pub const DESCRIBED_OFFSET: usize = SAMPLE_OFFSET + 45_056;

/// Effect of a described function.
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

/// Test for a function's success.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Success {
    /// The block is not null.
    #[default]
    Block = 0,
    /// The function returns 0, as an int.
    Zero = 1,
    /// The function returns a number other than 0, as an int.
    NotZero = 2,
}

/// An argument in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Argument {
    /// Number of the argument, 1 to 6 (psABI 3.2.3).
    pub number: u8,
    /// True if only its lower 32 bits count.
    pub is_narrow: bool,
}

/// Source of the size of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockSize {
    /// An argument, in bytes.
    Argument(Argument),
    /// Product of two arguments, in bytes.
    Product(Argument, Argument),
    /// All blocks have this number of bytes.
    Fixed(u32),
}

/// The hook's facts about a described function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DescribedFunction {
    /// Effect of the function.
    pub role: DescribedRole,
    /// Heap of the function, below [`MAX_HEAPS`].
    pub heap: u8,
    /// Size of its blocks; unused for a function that releases.
    pub size: BlockSize,
    /// Argument with the released block, or with the address of a variable that contains it if `old_is_indirect`; 0:
    /// none.
    pub old: u8,
    /// True if `old` is the address of a variable that contains the block.
    pub old_is_indirect: bool,
    /// Argument with the address of the variable that receives the new block; 0: the function returns it.
    pub result: u8,
    /// Sign of success.
    pub success: Success,
}

impl DescribedFunction {
    /// Packs the description for the hook. `described.hpp` has the same layout.
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

/// Packs four bits: the number, and a flag for an argument of 32 bits.
const fn pack_argument(argument: Argument) -> u64 {
    argument.number as u64 & 7 | (argument.is_narrow as u64) << 3
}

/// Returns the heap of a block by its address or key: 0 is the heap of malloc and related functions, and 1 is the first
/// described heap.
#[inline(always)]
pub const fn heap_of(address: u64) -> usize {
    if address & KEY_BIT == 0 {
        return 0;
    }
    1 + (address >> KEY_HEAP_SHIFT & (MAX_HEAPS as u64 - 1)) as usize
}

/// Returns the address that `key`, a key of a described heap, stands for. `window` returns the entry with a given
/// number from the heap's table of windows. Returns `None` if `key` is not a key, or if that entry is empty.
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
