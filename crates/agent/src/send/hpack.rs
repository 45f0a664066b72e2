//! Header fields of HTTP/2 (RFC 7541): written without compression, read as servers send them. We tell the server to keep
//! no table of its own, so there is none to follow.

/// More bytes of header fields than a sensible answer has.
const MOST_BYTES: usize = 64 << 10;
/// The entries of the static table (appendix A), those whose values or names an answer may refer to.
const STATIC: [(u64, &str, &str); 10] = [
    (8, ":status", "200"),
    (9, ":status", "204"),
    (10, ":status", "206"),
    (11, ":status", "304"),
    (12, ":status", "400"),
    (13, ":status", "404"),
    (14, ":status", "500"),
    (31, "content-type", ""),
    (46, "location", ""),
    (53, "retry-after", ""),
];
const STATIC_LENGTH: u64 = 61;
/// Bits of the code of each byte (appendix B); the end of a string, which never comes, has thirty. Codes of the same
/// length follow each other in the order of what they stand for.
const CODE_BITS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

/// Header fields: names in small letters, and values.
pub type Fields = Vec<(String, String)>;

/// A block of header fields, each of them as a literal that is not to be kept.
pub fn encode(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        // Without indexing, and with a name of its own (6.2.2). What proves who we are must not be kept by others
        // either (6.2.3).
        let is_secret = *name == "authorization";
        block.push(if is_secret { 0x10 } else { 0 });
        for text in [name, value] {
            encode_length(text.len() as u64, &mut block);
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// The length of a string that is not compressed (5.1, with a prefix of seven bits).
fn encode_length(mut length: u64, block: &mut Vec<u8>) {
    if length < 127 {
        block.push(length as u8);
        return;
    }
    block.push(127);
    length -= 127;
    while length >= 128 {
        block.push((length % 128) as u8 | 128);
        length /= 128;
    }
    block.push(length as u8);
}

/// The header fields of a block; `None`: it is damaged, or refers to a table that there is not.
pub fn decode(block: &[u8]) -> Option<Fields> {
    let mut rest = block;
    let mut fields = Vec::new();
    let mut bytes = 0;
    while let Some(&first) = rest.first() {
        let (bits, is_indexed) = match first {
            0x80.. => (7, true),
            0x40..0x80 => (6, false),
            0x20..0x40 => {
                // The size of the table that we do not have: none is all that it may be (6.3).
                if integer(&mut rest, 5)? != 0 {
                    return None;
                }
                continue;
            }
            _ => (4, false),
        };
        let number = integer(&mut rest, bits)?;
        let (name, value) = match (number, is_indexed) {
            (0, true) | (STATIC_LENGTH.., _) if number != STATIC_LENGTH => return None,
            (0, false) => (string(&mut rest)?, string(&mut rest)?),
            (_, true) => {
                let (name, value) = known(number);
                (name.to_owned(), value.to_owned())
            }
            (_, false) => (known(number).0.to_owned(), string(&mut rest)?),
        };
        bytes += name.len() + value.len();
        if bytes > MOST_BYTES {
            return None;
        }
        fields.push((name, value));
    }
    Some(fields)
}

/// An entry of the static table; without a name where nobody asks for it.
fn known(number: u64) -> (&'static str, &'static str) {
    let found = STATIC.iter().find(|(of, ..)| *of == number);
    found.map_or(("", ""), |&(_, name, value)| (name, value))
}

/// A number that begins with the lowest bits of a byte (5.1).
fn integer(rest: &mut &[u8], bits: u32) -> Option<u64> {
    let mut next = || {
        let (&first, others) = rest.split_first()?;
        *rest = others;
        Some(u64::from(first))
    };
    let most = (1 << bits) - 1;
    let mut number = next()? & most;
    if number < most {
        return Some(number);
    }
    for shift in [0, 7, 14, 21] {
        let byte = next()?;
        number += (byte & 127) << shift;
        if byte < 128 {
            return Some(number);
        }
    }
    None
}

fn string(rest: &mut &[u8]) -> Option<String> {
    let is_packed = *rest.first()? >= 128;
    let length = usize::try_from(integer(rest, 7)?).ok()?;
    let (bytes, others) = rest.split_at_checked(length)?;
    *rest = others;
    if is_packed {
        unpacked(bytes)
    } else {
        Some(String::from_utf8_lossy(bytes).into_owned())
    }
}

/// What a Huffman code stands for (5.2).
fn unpacked(packed: &[u8]) -> Option<String> {
    let mut bytes = Vec::new();
    let (mut code, mut bits) = (0u32, 0u8);
    for bit in packed
        .iter()
        .flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1))
    {
        code = code << 1 | u32::from(bit);
        bits += 1;
        if let Some(byte) = coded(code, bits) {
            bytes.push(byte);
            (code, bits) = (0, 0);
        } else if bits >= 30 {
            return None;
        }
    }
    // It is filled up with ones, less than a byte of them.
    (bits < 8 && code == (1 << bits) - 1).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// The byte with this code.
fn coded(code: u32, bits: u8) -> Option<u8> {
    const LONGEST: usize = 30;
    // The first code of each length, and how many there are.
    const FIRST: [(u32, u32); LONGEST + 1] = {
        let mut first = [(0, 0); LONGEST + 1];
        let mut byte = 0;
        while byte < CODE_BITS.len() {
            first[CODE_BITS[byte] as usize].1 += 1;
            byte += 1;
        }
        let mut bits = 1;
        while bits <= LONGEST {
            first[bits].0 = (first[bits - 1].0 + first[bits - 1].1) << 1;
            bits += 1;
        }
        first
    };
    let (first, count) = FIRST[bits as usize];
    let place = code.checked_sub(first).filter(|place| *place < count)?;
    let mut of_length = (0..=255u8).filter(|byte| CODE_BITS[usize::from(*byte)] == bits);
    of_length.nth(place as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn fields_come_back() {
        let long = "x".repeat(20_000);
        let fields = [
            (":path", "/a"),
            ("grpc-status", "0"),
            ("long", long.as_str()),
        ];
        let expected: Fields = fields
            .iter()
            .map(|(name, value)| field(name, value))
            .collect();
        assert_eq!(decode(&encode(&fields)), Some(expected));
        let too_long = "x".repeat(70_000);
        assert_eq!(decode(&encode(&[("long", &too_long)])), None);
    }

    /// The examples of RFC 7541, C.4 and C.6, as far as they need no table of the server.
    #[test]
    fn packed_strings_are_read() {
        for (packed, text) in [
            (
                &[
                    0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
                ][..],
                "www.example.com",
            ),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
            (
                &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf],
                "custom-value",
            ),
            (
                &[
                    0xd0, 0x7a, 0xbe, 0x94, 0x10, 0x54, 0xd4, 0x44, 0xa8, 0x20, 0x05, 0x95, 0x04,
                    0x0b, 0x81, 0x66, 0xe0, 0x82, 0xa6, 0x2d, 0x1b, 0xff,
                ],
                "Mon, 21 Oct 2013 20:13:21 GMT",
            ),
        ] {
            assert_eq!(unpacked(packed).as_deref(), Some(text));
        }
        assert_eq!(unpacked(&[0xff; 8]), None);
        assert_eq!(unpacked(&[0xff]), None, "a whole byte of filling");
        // An indexed status, a literal with a known name, and one that a server with a table would keep.
        let block = [
            0x88, 0x0f, 0x26, 0x01, b'7', 0x40, 0x01, b'a', 0x01, b'b', 0x20,
        ];
        let expected = vec![
            field(":status", "200"),
            field("retry-after", "7"),
            field("a", "b"),
        ];
        assert_eq!(decode(&block), Some(expected));
        for damaged in [
            &[0x80][..],
            &[0xbe],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0x00, 0x05, b'a'],
            &[0x3f, 0x20],
        ] {
            assert_eq!(decode(damaged), None, "{damaged:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_that_a_server_sends_does_harm(block: Vec<u8>) {
            let _ = decode(&block);
        }
    }
}
