//! Numbers and layouts of the file. `FORMAT.md` also states the numbers, and a test compares the
//! two.

/// First bytes of a file. As in PNG, the high bit, line ends and end-of-file mark reveal a transfer
/// as text.
pub const MAGIC: [u8; 8] = *b"\x89MHK\r\n\x1a\n";
/// Format version. Any change to the layout or to the encoding of events increases it.
pub const VERSION: u32 = 2;
/// Last bytes of a finished file.
pub const END_MAGIC: [u8; 8] = *b"MHK-END\n";
/// First bytes of a chunk.
pub const CHUNK_MAGIC: [u8; 4] = *b"MHKc";
/// Maximum size of a chunk before compression, in bytes.
pub const MAX_CHUNK_BYTES: usize = 1 << 26;

/// A field of a fixed layout: name, offset and bytes. Tests compare FORMAT.md with these tables,
/// and use them to parse the output of `chunk`.
#[cfg(test)]
pub(crate) type Field = (&'static str, usize, usize);

/// Fields at the start of a file.
#[cfg(test)]
pub(crate) const FILE_HEADER: [Field; 5] = [
    ("magic", 0, 8),
    ("version", 8, 4),
    ("part", 12, 4),
    ("reserved", 16, 4),
    ("checksum", 20, 4),
];
/// Bytes of the file header.
pub const FILE_HEADER_BYTES: usize = 24;

/// Fields at the start of a chunk.
#[cfg(test)]
pub(crate) const CHUNK_HEADER: [Field; 10] = [
    ("magic", 0, 4),
    ("kind", 4, 1),
    ("reserved", 5, 3),
    ("stored_bytes", 8, 4),
    ("raw_bytes", 12, 4),
    ("from_ns", 16, 8),
    ("to_ns", 24, 8),
    ("items", 32, 4),
    ("payload_checksum", 36, 4),
    ("header_checksum", 40, 4),
];
/// Bytes of a chunk header.
pub const CHUNK_HEADER_BYTES: usize = 44;

/// Fields at the end of a finished file.
#[cfg(test)]
pub(crate) const TRAILER: [Field; 2] = [("index_offset", 0, 8), ("end_magic", 8, 8)];
/// Bytes of the trailer.
pub const TRAILER_BYTES: usize = 16;

macro_rules! kinds {
    ($($(#[$meta:meta])* $name:ident = $value:literal,)*) => {
        /// Kind of a chunk's contents.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Kind { $($(#[$meta])* $name = $value,)* }
        impl Kind {
            pub(crate) const ALL: &'static [(&'static str, Kind)] =
                &[$((stringify!($name), Kind::$name),)*];
        }
    };
}

kinds! {
    /// Facts about the run: see [`crate::Meta`].
    Meta = 1,
    /// Modules that were loaded or unloaded.
    Modules = 2,
    /// Backtraces.
    Stacks = 3,
    /// A frame of events.
    Events = 4,
    /// A part of the live heap at one moment, between two frames.
    Checkpoint = 5,
    /// Thread names.
    Threads = 6,
    /// Counters of events that were not recorded.
    Losses = 7,
    /// Sums of an interval, in place of events.
    Summary = 8,
    /// Points of the target's clock and the time of day.
    Clock = 9,
    /// Offsets of the chunks.
    Index = 10,
    /// Last events before the first checkpoint of a later part, repeated from the previous part.
    LeadIn = 11,
    /// Names of frames that are in no file.
    Names = 12,
}

impl Kind {
    pub(crate) fn from_code(code: u8) -> Option<Kind> {
        let found = Self::ALL.iter().find(|(_, kind)| *kind as u8 == code);
        found.map(|(_, kind)| *kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::columns::{self, COLUMNS};

    const PAGE: &str = include_str!("../../FORMAT.md");

    /// Returns the cells of the table under the heading `title`, without its two header rows.
    fn table(title: &str) -> Vec<Vec<String>> {
        let section = PAGE
            .split("\n## ")
            .find(|section| section.starts_with(title))
            .unwrap_or_else(|| panic!("FORMAT.md has no section \"{title}\""));
        section
            .lines()
            .filter(|line| line.starts_with('|'))
            .skip(2)
            .map(|line| {
                let cells = line.trim_matches('|').split('|');
                cells
                    .map(|c| c.trim().trim_matches('`').to_owned())
                    .collect()
            })
            .collect()
    }

    fn check_layout(title: &str, fields: &[Field], bytes: usize) {
        let page: Vec<_> = table(title)
            .into_iter()
            .map(|row| row[..3].to_vec())
            .collect();
        let mut at = 0;
        let code: Vec<_> = fields
            .iter()
            .map(|(name, offset, bytes)| {
                assert_eq!(*offset, at, "{name} leaves a hole");
                at += bytes;
                vec![offset.to_string(), bytes.to_string(), (*name).to_owned()]
            })
            .collect();
        assert_eq!(at, bytes);
        assert_eq!(page, code, "{title}");
    }

    #[test]
    fn layouts_are_those_of_the_page() {
        check_layout("File header", &FILE_HEADER, FILE_HEADER_BYTES);
        check_layout("Chunk header", &CHUNK_HEADER, CHUNK_HEADER_BYTES);
        check_layout("Trailer", &TRAILER, TRAILER_BYTES);
    }

    #[test]
    fn kinds_are_those_of_the_page() {
        let page: Vec<_> = table("Chunk kinds")
            .iter()
            .map(|row| row[..2].to_vec())
            .collect();
        let code: Vec<_> = Kind::ALL
            .iter()
            .map(|(name, kind)| vec![(*kind as u8).to_string(), (*name).to_owned()])
            .collect();
        assert_eq!(page, code);
    }

    #[test]
    fn columns_are_those_of_the_page() {
        let page: Vec<_> = table("Columns").iter().map(|row| row[0].clone()).collect();
        assert_eq!(page, COLUMNS);
    }

    #[test]
    fn numbers_are_those_of_the_page() {
        use columns::{age, control, kind, place};
        let text = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let code = [
            ("MAGIC", text(&MAGIC)),
            ("END_MAGIC", text(&END_MAGIC)),
            ("CHUNK_MAGIC", text(&CHUNK_MAGIC)),
            ("VERSION", VERSION.to_string()),
            ("MAX_CHUNK_BYTES", MAX_CHUNK_BYTES.to_string()),
            ("MAX_FRAME_EVENTS", columns::MAX_FRAME_EVENTS.to_string()),
            ("CLASS_RANKS", crate::file::model::CLASS_RANKS.to_string()),
            ("CLASSES", crate::file::model::CLASSES.to_string()),
            (
                "CLASS_BIASES",
                format!("{:?}", crate::file::model::CLASS_BIASES),
            ),
            ("SEQUENCE_BITS", memhook_abi::SEQUENCE_BITS.to_string()),
            ("SEQUENCE_WORDS", memhook_abi::SEQUENCE_WORDS.to_string()),
            ("kind::ALLOCATION", kind::ALLOCATION.to_string()),
            ("kind::RELEASE", kind::RELEASE.to_string()),
            ("kind::REALLOC_RELEASE", kind::REALLOC_RELEASE.to_string()),
            ("kind::CONTROL", kind::CONTROL.to_string()),
            ("place::RELEASED", place::RELEASED.to_string()),
            ("place::STRANGER", place::STRANGER.to_string()),
            ("place::LAST_RELEASED", place::LAST_RELEASED.to_string()),
            ("place::BEHIND", place::BEHIND.to_string()),
            ("place::EXPLICIT", place::EXPLICIT.to_string()),
            ("age::EXPLICIT", age::EXPLICIT.to_string()),
            ("age::STRANGER", age::STRANGER.to_string()),
            ("control::RING", control::RING.to_string()),
            ("control::RING_AGAIN", control::RING_AGAIN.to_string()),
            ("control::PASS", control::PASS.to_string()),
            ("control::EMPTY_PASSES", control::EMPTY_PASSES.to_string()),
            ("control::TIME", control::TIME.to_string()),
            (
                "control::REALLOC_FAILED",
                control::REALLOC_FAILED.to_string(),
            ),
            ("control::PAIRS", control::PAIRS.to_string()),
        ];
        let page: Vec<_> = table("Numbers")
            .into_iter()
            .map(|row| (row[0].clone(), row[1].clone()))
            .collect();
        let code = code.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(page, code);
    }
}
