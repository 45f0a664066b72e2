//! Columns of numbers encoded as bytes, which a page decodes several times as fast as JSON.
//!
//! The data of a page begins with the length of the header (four bytes, little-endian) and the
//! header itself, in JSON. The numbers of all columns follow, in the order in which the header
//! lists the columns. A number is a zigzag varint: 0, -1, 1, -2, ... become 0, 1, 2, 3, ..., in
//! groups of seven bits, the lowest first. If the highest bit of a byte is set, another byte
//! follows.

use serde::Serialize;

/// Columns and their list.
#[derive(Default)]
pub(super) struct Packed {
    /// Name and length of each column, for the head.
    pub list: Vec<Column>,
    /// Numbers of all columns.
    pub bytes: Vec<u8>,
}

/// Name and length of a column, and true if each number is stored as the difference from the
/// previous one.
#[derive(Serialize)]
pub(super) struct Column(String, usize, bool);

impl Packed {
    /// Adds a column of numbers.
    pub fn plain<T: TryInto<i64>>(&mut self, name: &str, values: impl IntoIterator<Item = T>) {
        self.add(name, values, false);
    }

    /// Adds a column whose numbers are close to their predecessors.
    pub fn running<T: TryInto<i64>>(&mut self, name: &str, values: impl IntoIterator<Item = T>) {
        self.add(name, values, true);
    }

    fn add<T: TryInto<i64>>(
        &mut self,
        name: &str,
        values: impl IntoIterator<Item = T>,
        is_running: bool,
    ) {
        let mut length = 0;
        let mut last = 0;
        for value in values {
            // No count is close to the largest number.
            let value = value.try_into().unwrap_or(i64::MAX);
            self.push(if is_running {
                value.wrapping_sub(last)
            } else {
                value
            });
            last = value;
            length += 1;
        }
        self.list.push(Column(name.to_owned(), length, is_running));
    }

    fn push(&mut self, value: i64) {
        let mut rest = ((value << 1) ^ (value >> 63)) as u64;
        while rest >= 0x80 {
            self.bytes.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.bytes.push(rest as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_numbers_take_one_byte() {
        let mut packed = Packed::default();
        packed.plain("signs", [0_i64, -1, 1, -64, 63, 64]);
        packed.running("times", [1_000_000_u64, 1_000_001, 999_999]);
        assert_eq!(
            packed.bytes,
            [0, 1, 2, 127, 126, 128, 1, 128, 137, 122, 2, 3]
        );
        let list = serde_json::to_string(&packed.list).expect("JSON");
        assert_eq!(list, r#"[["signs",6,false],["times",3,true]]"#);
    }

    #[test]
    fn the_largest_numbers_have_their_place() {
        let mut packed = Packed::default();
        packed.plain("ends", [i64::MAX, i64::MIN]);
        assert_eq!(packed.bytes.len(), 20);
        packed.plain("beyond", [u64::MAX]);
        assert_eq!(packed.bytes[20..], packed.bytes[..10]);
    }
}
