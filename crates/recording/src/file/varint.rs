//! Variable-length integers: seven bits in each byte, low bits first. The top bit means that more
//! bytes follow.

use crate::Error;

/// Maximum length of an encoded `u64`, in bytes.
pub(crate) const MAX_VARINT: usize = 10;

/// Appends `value`.
#[inline]
pub(crate) fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a length and the bytes.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Maps small differences of either sign to small numbers.
#[inline]
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Undoes [`zigzag`].
#[inline]
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Reads untrusted bytes from front to back. At the end, every method fails, and none panics.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
}

/// The bytes end too early, or a number is too long.
#[derive(Debug)]
pub(crate) struct Short;

/// Message for [`Short`].
pub(crate) const RUNS_PAST_THE_END: &str = "a number or text runs past the end of its chunk";

impl From<Short> for Error {
    fn from(_: Short) -> Self {
        Error::damaged(RUNS_PAST_THE_END)
    }
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the number of bytes left.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    pub fn byte(&mut self) -> Result<u8, Short> {
        let (&first, rest) = self.bytes.split_first().ok_or(Short)?;
        self.bytes = rest;
        Ok(first)
    }

    #[inline]
    pub fn varint(&mut self) -> Result<u64, Short> {
        let first = self.byte()?;
        if first < 0x80 {
            return Ok(u64::from(first));
        }
        self.long_varint(first)
    }

    fn long_varint(&mut self, first: u8) -> Result<u64, Short> {
        let mut value = u64::from(first & 0x7f);
        for i in 1..MAX_VARINT {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Short)
    }

    #[inline]
    pub fn signed(&mut self) -> Result<i64, Short> {
        Ok(unzigzag(self.varint()?))
    }

    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Short> {
        let (head, rest) = self.bytes.split_at_checked(len).ok_or(Short)?;
        self.bytes = rest;
        Ok(head)
    }

    /// Reads bytes written by [`put_bytes`].
    pub fn bytes(&mut self) -> Result<&'a [u8], Short> {
        let len = usize::try_from(self.varint()?).map_err(|_| Short)?;
        self.take(len)
    }

    /// Reads a text, replacing anything that is not UTF-8.
    pub fn text(&mut self) -> Result<String, Short> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    /// Reads the number of items of at least `item_bytes` each. The result never exceeds the number
    /// of items that can follow.
    pub fn count(&mut self, item_bytes: usize) -> Result<usize, Short> {
        let count = usize::try_from(self.varint()?).map_err(|_| Short)?;
        match count.checked_mul(item_bytes) {
            Some(bytes) if bytes <= self.len() => Ok(count),
            _ => Err(Short),
        }
    }

    /// Reads a `u32`.
    pub fn u32(&mut self) -> Result<u32, Short> {
        u32::try_from(self.varint()?).map_err(|_| Short)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        let values = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX];
        let mut out = Vec::new();
        for value in values {
            put(&mut out, value);
            put(&mut out, zigzag(value as i64));
        }
        let mut cursor = Cursor::new(&out);
        for value in values {
            assert_eq!(cursor.varint().unwrap(), value);
            assert_eq!(cursor.signed().unwrap(), value as i64);
        }
        assert!(cursor.is_empty());
    }

    #[test]
    fn foreign_bytes_end_in_an_error() {
        assert!(Cursor::new(&[0x80]).varint().is_err());
        assert!(Cursor::new(&[0xff; 11]).varint().is_err());
        assert!(Cursor::new(&[5, 1, 2]).bytes().is_err());
        assert!(Cursor::new(&[200, 1, 0]).count(1).is_err());
    }
}
