//! Input bytes as a source of decisions. Bytes past the end read as zero, so that every input is
//! valid.

/// The rest of an input.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Returns true at the end of the input.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes this number of bytes, or fewer at the end.
    pub fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, left) = self.0.split_at(bytes.min(self.0.len()));
        self.0 = left;
        taken
    }

    /// Takes one byte.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// Takes two bytes, little-endian.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Takes four bytes, little-endian.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Takes eight bytes, little-endian.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Takes a value that is often small or close to a power of two, where most bugs are.
    pub fn size(&mut self) -> u64 {
        match self.byte() {
            kind @ 0..64 => u64::from(kind),
            kind @ 64..128 => 1 << (kind - 64),
            kind @ 128..192 => (1u64 << (kind - 128)).wrapping_sub(1),
            192..208 => u64::MAX - u64::from(self.byte()),
            208..232 => u64::from(self.u16()),
            _ => self.u64(),
        }
    }

    /// Takes a length-prefixed part.
    pub fn part(&mut self) -> &'a [u8] {
        let bytes = usize::from(self.u16());
        self.take(bytes)
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let taken = self.take(N);
        out[..taken.len()].copy_from_slice(taken);
        out
    }
}
