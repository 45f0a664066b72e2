//! Layout of jemalloc's structures (edata.h, extent_structs.h, rtree.h, sc.h of its sources).

/// The smallest unit of extents (LG_PAGE is 12 on x86-64).
pub const PAGE_BYTES: u64 = 4096;
/// Maximum number of regions in a slab (SC_SLAB_MAXREGS).
pub const MOST_REGIONS: u64 = 512;
/// Size classes of slabs (SC_NBINS).
pub const SLAB_CLASSES: u64 = 36;
/// Total number of size classes (SC_NSIZES).
pub const CLASSES: u64 = 232;
/// Bytes of `edata_t`, called `extent_t` before 5.3.
pub const EXTENT_BYTES: u64 = 128;
/// Offset of the bitmap.
pub const BITMAP: u64 = 64;

/// State of free pages that could be returned to the kernel (`extent_state_dirty`).
pub const STATE_DIRTY: u64 = 1;

/// Returns the usable bytes of a size class (`sz_index2size`): 8, then four classes up to 64, then four classes per
/// doubling.
pub fn class_bytes(index: u64) -> Option<u64> {
    match index {
        0 => Some(8),
        1..=4 => Some(index * 16),
        5..CLASSES => {
            let (group, step) = ((index - 5) / 4, (index - 5) % 4 + 1);
            Some((64 << group) + (16 << group) * step)
        }
        _ => None,
    }
}

/// Fields of `e_bits`, and the format of a leaf entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The versions that have this layout.
    pub versions: &'static str,
    state_shift: u32,
    state_bits: u32,
    class_shift: u32,
    free_shift: u32,
    /// Low bits of a leaf entry that are not part of the address.
    leaf_flags: u64,
    /// For leaf entries of two words: position of the slab flag and the size class in the second word.
    leaf_slab_shift: u32,
    leaf_class_shift: u32,
}

/// All layouts known.
pub const LAYOUTS: [Layout; 2] = [
    Layout {
        versions: "5.3",
        state_shift: 17,
        state_bits: 3,
        class_shift: 20,
        free_shift: 28,
        leaf_flags: 0x7f,
        // After the flags and the state.
        leaf_slab_shift: 0,
        leaf_class_shift: 5,
    },
    Layout {
        versions: "5.2",
        state_shift: 16,
        state_bits: 2,
        class_shift: 18,
        free_shift: 26,
        leaf_flags: 1,
        // A separate field.
        leaf_slab_shift: 32,
        leaf_class_shift: 0,
    },
];

/// Decoded `e_bits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentBits {
    /// Number of the arena.
    pub arena: u32,
    /// True if it is divided into regions.
    pub is_slab: bool,
    /// 0: active, 1: dirty, 2: muzzy, 3: retained. Any other value marks a transition between two states.
    pub state: u64,
    /// Index of the size class.
    pub class: u64,
    /// Free regions.
    pub free: u64,
}

impl Layout {
    /// Decodes `e_bits`.
    pub fn bits(&self, bits: u64) -> ExtentBits {
        let field = |shift: u32, width: u32| bits >> shift & ((1 << width) - 1);
        ExtentBits {
            arena: field(0, 12) as u32,
            is_slab: field(12, 1) == 1,
            state: field(self.state_shift, self.state_bits),
            class: field(self.class_shift, 8),
            free: field(self.free_shift, 10),
        }
    }

    /// Returns the slab flag and the size class from the second word of a leaf entry.
    pub fn leaf_knows(&self, word: u64) -> (bool, u64) {
        let is_slab = word >> self.leaf_slab_shift & 1 == 1;
        (is_slab, u64::from(word as u32 >> self.leaf_class_shift))
    }

    /// Returns the address of the extent's descriptor from a leaf entry whose upper bits have no other use.
    pub fn descriptor(&self, leaf: u64) -> u64 {
        leaf & !self.leaf_flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_classes() {
        let some = [0, 1, 4, 5, 8, 9, 35, 36, 40].map(|index| class_bytes(index).unwrap());
        assert_eq!(
            some,
            [8, 16, 64, 80, 128, 160, 14 << 10, 16 << 10, 32 << 10]
        );
        // SC_LARGE_MAXCLASS.
        assert_eq!(class_bytes(CLASSES - 1), Some((1 << 62) + (3 << 60)));
        assert_eq!(class_bytes(CLASSES), None);
    }
}
