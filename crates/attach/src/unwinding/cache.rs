//! Compiled unwind tables, kept for the next run.
//!
//! The key of a table is a digest of everything that it is compiled from: the bytes of the call frame information, and
//! the addresses to which it is relative. Build-ids and modification times do not count. A file with a copied build-id
//! or a changed modification time but different call frame information therefore has a different table. A damaged,
//! truncated or foreign entry is treated as absent. As for the cache of names, [`CacheDirectory`] decides whether the
//! directory can be trusted.

use memhook_abi::{MAX_ROWS, unwind_rule as rule};
use memhook_foreign::{CacheDirectory, open_regular, read_exactly, user_caches};
use memhook_unwind::{Sections, UnwindTable};
use ring::digest::{Context, Digest, SHA256};
use std::{io::Write, path::PathBuf, sync::Arc};

/// Name of the directory below the directory of all our caches. Increase the number in the name when the same call
/// frame information results in a different table, or when the format changes.
const NAME: &str = "unwind-1";
const MAGIC: [u8; 8] = *b"mhkunwnd";
/// Total size of all tables in bytes.
const MOST_BYTES: u64 = 128 << 20;
/// Size of call frame information below which compiling is as fast as reading an entry.
const WORTHWHILE_BYTES: usize = 8 << 10;
/// Magic, key, and the numbers of rules, of rows, and of rows that no rule describes.
const HEADER_BYTES: usize = 8 + 32 + 3 * 4;
const DIGEST_BYTES: usize = 32;

/// Key of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// Returns the key of an ELF file's table; `None` if the table is not worth keeping.
    pub fn of(elf: &[u8]) -> Option<Key> {
        let sections = Sections::of(elf).ok()?;
        if sections.eh_frame.len() + sections.debug_frame.len() < WORTHWHILE_BYTES {
            return None;
        }
        let mut digest = Context::new(&SHA256);
        for bases in [&sections.bases.eh_frame_hdr, &sections.bases.eh_frame] {
            for base in [bases.section, bases.text, bases.data] {
                digest.update(&[u8::from(base.is_some())]);
                digest.update(&base.unwrap_or(0).to_le_bytes());
            }
        }
        for section in [&sections.eh_frame, &sections.debug_frame] {
            digest.update(&(section.len() as u64).to_le_bytes());
            digest.update(section);
        }
        Some(Key(bytes_of(&digest.finish())?))
    }

    fn file_name(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn bytes_of(digest: &Digest) -> Option<[u8; 32]> {
    digest.as_ref().first_chunk().copied()
}

/// Directory of tables.
#[derive(Clone, Debug)]
pub struct TableCache {
    caches: PathBuf,
    most_bytes: u64,
}

impl TableCache {
    /// Returns the user's cache, if the user has a directory for it.
    pub fn of_user() -> Option<TableCache> {
        Some(TableCache::at(user_caches()?))
    }

    fn at(caches: PathBuf) -> TableCache {
        TableCache {
            caches,
            most_bytes: MOST_BYTES,
        }
    }

    fn place(&self) -> CacheDirectory<'_> {
        CacheDirectory {
            caches: &self.caches,
            name: NAME,
        }
    }

    /// Returns the bytes that are stored under this key, for [`decode`].
    pub fn read(&self, key: &Key) -> Option<Vec<u8>> {
        let path = self.place().find(&key.file_name())?;
        let file = open_regular(&path).ok()?;
        let bytes = file.metadata().ok()?.len();
        let most = HEADER_BYTES + usize::from(u16::MAX) * 8 + MAX_ROWS * 6 + DIGEST_BYTES;
        if bytes > most as u64 {
            return None;
        }
        let bytes = read_exactly(&file, bytes).ok()?;
        CacheDirectory::note_use(&path);
        Some(bytes)
    }

    /// Stores tables, if the directory is writable.
    pub fn keep(&self, tables: &[(Key, Arc<UnwindTable>)]) {
        let mut last = None;
        for (key, table) in tables {
            let name = key.file_name();
            let bytes = encode(table, key);
            let written = self
                .place()
                .write_whole(&name, |file, _| file.write_all(&bytes));
            if written.is_err() {
                break;
            }
            last = Some(name);
        }
        if let Some(name) = last {
            self.place().prune(&name, self.most_bytes);
        }
    }
}

fn encode(table: &UnwindTable, key: &Key) -> Vec<u8> {
    let mut bytes = [&MAGIC[..], &key.0].concat();
    for number in [table.rules.len(), table.offsets.len(), table.inexpressible] {
        bytes.extend((number as u32).to_le_bytes());
    }
    bytes.extend(table.rules.iter().flat_map(|rule| rule.to_le_bytes()));
    bytes.extend(table.offsets.iter().flat_map(|at| at.to_le_bytes()));
    bytes.extend(table.row_rules.iter().flat_map(|row| row.to_le_bytes()));
    let digest = ring::digest::digest(&SHA256, &bytes);
    bytes.extend(digest.as_ref());
    bytes
}

/// Decodes the table; returns `None` unless these bytes were written under this key.
pub fn decode(bytes: &[u8], key: &Key) -> Option<UnwindTable> {
    let (content, digest) = bytes.split_at_checked(bytes.len().checked_sub(DIGEST_BYTES)?)?;
    let (header, rest) = content.split_at_checked(HEADER_BYTES)?;
    let (begin, numbers) = header.split_at(MAGIC.len() + key.0.len());
    let (magic, its_key) = begin.split_at(MAGIC.len());
    if magic != MAGIC || its_key != key.0 {
        return None;
    }
    let mut numbers = numbers.as_chunks::<4>().0.iter();
    let mut number = || Some(u32::from_le_bytes(*numbers.next()?) as usize);
    let (rules, rows, inexpressible) = (number()?, number()?, number()?);
    let (rules, rest) = rest.split_at_checked(rules.checked_mul(8)?)?;
    let (offsets, row_rules) = rest.split_at_checked(rows.checked_mul(4)?)?;
    if Some(row_rules.len()) != rows.checked_mul(2)
        || ring::digest::digest(&SHA256, content).as_ref() != digest
    {
        return None;
    }
    let words = |bytes: &[u8]| {
        bytes
            .as_chunks::<8>()
            .0
            .iter()
            .map(|w| u64::from_le_bytes(*w))
            .collect()
    };
    let halves = |bytes: &[u8]| {
        bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|w| u32::from_le_bytes(*w))
            .collect()
    };
    let quarters = |bytes: &[u8]| {
        bytes
            .as_chunks::<2>()
            .0
            .iter()
            .map(|w| u16::from_le_bytes(*w))
            .collect()
    };
    let table = UnwindTable {
        rules: words(rules),
        offsets: halves(offsets),
        row_rules: quarters(row_rules),
        inexpressible,
    };
    is_well_formed(&table).then_some(table)
}

/// Returns true if a table has the form that the compiler gives to every table.
fn is_well_formed(table: &UnwindTable) -> bool {
    let is_rule = |&packed: &u64| {
        rule::cfa_kind(packed) <= rule::END && rule::rbp_kind(packed) <= rule::RBP_AT_RBP
    };
    let has_rule = |&number: &u16| usize::from(number) < table.rules.len();
    table.rules.first() == Some(&rule::STOP)
        && table.rules.len() <= usize::from(u16::MAX)
        && table.rules.iter().all(is_rule)
        && table.offsets.is_sorted_by(|a, b| a < b)
        && table.row_rules.iter().all(has_rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use memhook_unwind::compile;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let name = format!("memhook-tables-{name}-{}", std::process::id());
            let directory = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&directory);
            Scratch(directory)
        }

        fn cache(&self) -> TableCache {
            TableCache::at(self.0.clone())
        }

        fn entry(&self, key: &Key) -> PathBuf {
            self.0.join(NAME).join(key.file_name())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn find(cache: &TableCache, key: &Key) -> Option<UnwindTable> {
        decode(&cache.read(key)?, key)
    }

    fn libc() -> (Vec<u8>, Key, Arc<UnwindTable>) {
        let bytes = std::fs::read(LIBC).unwrap();
        let (key, table) = (Key::of(&bytes).unwrap(), compile(&bytes).unwrap());
        (bytes, key, Arc::new(table))
    }

    #[test]
    fn a_table_comes_back_as_it_was_compiled() {
        let scratch = Scratch::new("back");
        let (_, key, table) = libc();
        assert_eq!(find(&scratch.cache(), &key), None);
        scratch.cache().keep(&[(key, table.clone())]);
        assert_eq!(find(&scratch.cache(), &key).as_ref(), Some(&*table));
    }

    /// The key covers everything that the compiler reads, and the build-id is not included.
    #[test]
    fn a_changed_file_has_another_key() {
        use object::{Object, ObjectSection};
        let (bytes, key, _) = libc();
        let range = |name: &str| {
            let file = object::File::parse(&*bytes).unwrap();
            file.section_by_name(name).unwrap().file_range().unwrap()
        };
        let changed = |at: u64| {
            let mut other = bytes.clone();
            other[at as usize] ^= 1;
            Key::of(&other)
        };
        let (frames, frame_bytes) = range(".eh_frame");
        for at in [0, frame_bytes / 2, frame_bytes - 5] {
            assert_ne!(changed(frames + at), Some(key), "{at}");
        }
        assert_eq!(changed(range(".note.gnu.build-id").0 + 20), Some(key));
        assert_eq!(changed(range(".text").0), Some(key));
        // Address of .text (sh_addr): pointers may be relative to it.
        let table = u64::from_le_bytes(bytes[0x28..0x30].try_into().unwrap());
        let text = object::File::parse(&*bytes)
            .unwrap()
            .section_by_name(".text")
            .unwrap()
            .index()
            .0;
        assert_ne!(changed(table + text as u64 * 64 + 0x11), Some(key));
        assert_eq!(Key::of(b"no ELF file"), None);
    }

    #[test]
    fn damaged_and_foreign_entries_are_absent() {
        let scratch = Scratch::new("damaged");
        let (cache, (_, key, table)) = (scratch.cache(), libc());
        cache.keep(&[(key, table.clone())]);
        let path = scratch.entry(&key);
        let good = std::fs::read(&path).unwrap();
        let found = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            find(&cache, &key)
        };
        assert!(found(&good).is_some());
        for cut in [
            0,
            1,
            DIGEST_BYTES,
            HEADER_BYTES,
            good.len() / 2,
            good.len() - 1,
        ] {
            assert_eq!(found(&good[..cut]), None, "{cut}");
        }
        assert_eq!(found(&[&good[..], b"x"].concat()), None);
        let step = good.len() / 97;
        for at in (0..good.len()).step_by(step).chain(0..HEADER_BYTES) {
            let mut bad = good.clone();
            bad[at] ^= 0x41;
            assert_eq!(found(&bad), None, "{at}");
        }
        // A complete entry under the name of another entry.
        let other = Key([7; 32]);
        std::fs::write(scratch.entry(&other), &good).unwrap();
        assert_eq!(find(&cache, &other), None);
        // Correctly encoded, but not a table that the compiler would produce.
        let forged = |change: &dyn Fn(&mut UnwindTable)| {
            let mut table = UnwindTable::clone(&table);
            change(&mut table);
            decode(&encode(&table, &key), &key)
        };
        assert!(forged(&|_| ()).is_some());
        assert_eq!(forged(&|t| t.offsets.swap(3, 4)), None);
        assert_eq!(forged(&|t| t.row_rules[5] = u16::MAX), None);
        assert_eq!(forged(&|t| t.rules[0] = t.rules[1]), None);
        assert_eq!(forged(&|t| t.rules[1] = 9), None);
        assert_eq!(forged(&|t| t.rules.clear()), None);
        assert_eq!(forged(&|t| t.row_rules.truncate(9)), None);
        // A file that we must not read.
        std::fs::remove_file(&path).unwrap();
        nix_fifo(&path);
        assert_eq!(find(&cache, &key), None);
        // The next run repairs it.
        std::fs::remove_file(&path).unwrap();
        cache.keep(&[(key, table.clone())]);
        assert_eq!(find(&cache, &key).as_ref(), Some(&*table));
    }

    fn nix_fifo(path: &Path) {
        let made = std::process::Command::new("mkfifo").arg(path).status();
        assert!(made.unwrap().success());
    }

    #[test]
    fn a_directory_that_is_not_ours_or_cannot_be_written_to() {
        let scratch = Scratch::new("foreign");
        let (cache, (_, key, table)) = (scratch.cache(), libc());
        cache.keep(&[(key, table.clone())]);
        let directory = scratch.0.join(NAME);
        for mode in [0o777, 0o770] {
            std::fs::set_permissions(&directory, PermissionsExt::from_mode(mode)).unwrap();
            assert_eq!(find(&cache, &key), None, "{mode:o}: others can forge it");
            let before = std::fs::metadata(scratch.entry(&key))
                .unwrap()
                .modified()
                .unwrap();
            cache.keep(&[(key, table.clone())]);
            let after = std::fs::metadata(scratch.entry(&key))
                .unwrap()
                .modified()
                .unwrap();
            assert_eq!(before, after, "{mode:o}");
        }
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o700)).unwrap();
        let link = Scratch::new("link");
        symlink(&scratch.0, &link.0).unwrap();
        assert_eq!(find(&link.cache(), &key), None);
        std::fs::remove_file(&link.0).unwrap();
        // No directory can be created there, not even by root.
        let nowhere = TableCache::at("/proc/self/none".into());
        nowhere.keep(&[(key, table.clone())]);
        assert_eq!(find(&nowhere, &key), None);
        assert_eq!(find(&cache, &key).as_ref(), Some(&*table));
    }

    #[test]
    fn many_writers_and_readers_see_whole_tables() {
        let scratch = Scratch::new("writers");
        let (cache, (_, key, table)) = (scratch.cache(), libc());
        cache.keep(&[(key, table.clone())]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        cache.keep(&[(key, table.clone())]);
                        assert_eq!(find(&cache, &key).as_ref(), Some(&*table));
                    }
                });
            }
        });
        let left = std::fs::read_dir(scratch.0.join(NAME)).unwrap();
        assert_eq!(left.count(), 1, "no writer's own file is left");
        // The directory's size is limited.
        let small = TableCache {
            most_bytes: 1,
            ..cache.clone()
        };
        small.keep(&[(Key([1; 32]), table.clone()), (Key([2; 32]), table.clone())]);
        let left = std::fs::read_dir(scratch.0.join(NAME)).unwrap();
        assert_eq!(left.count(), 1, "the last one stays");
    }
}
