use super::*;
use proptest::prelude::*;
use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::SystemTime,
};

/// A directory that is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("memhook-cache-{}-{number}", std::process::id());
        Scratch(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn named(function: &str) -> Vec<Frame> {
    vec![Frame {
        function: Some(function.to_owned()),
        line: Some(7),
        ..Frame::default()
    }]
}

const ID: [u8; 4] = [0xab, 1, 2, 3];

type Names = Vec<(u64, Vec<Frame>)>;

fn files(contents: &[u8]) -> Fingerprint {
    Fingerprint::of([&crate::file::Image::Bytes(std::sync::Arc::new(
        contents.to_vec(),
    ))])
    .unwrap()
}

fn frames(cache: &SymbolCache, id: &[u8]) -> Option<Names> {
    cache.names(id, &files(b"x")).map(|module| module.frames)
}

fn keep(cache: &SymbolCache, id: &[u8], names: &[(u64, Vec<Frame>)]) {
    cache.keep_names(id, &files(b"x"), "/x", names);
}

/// Returns the directory of the entries, and the name of one entry.
fn directory(cache: &SymbolCache) -> PathBuf {
    cache.directory.join(cache.names_directory())
}

fn entry(id: &[u8]) -> String {
    file_name(id, &files(b"x"))
}

#[test]
fn names_add_up_by_build_id() {
    let scratch = Scratch::new();
    let cache = SymbolCache::at(scratch.0.clone());
    assert_eq!(frames(&cache, &ID), None);
    keep(&cache, &ID, &[(5, named("five")), (9, Vec::new())]);
    keep(&cache, &ID, &[(3, named("three"))]);
    let expected = vec![(3, named("three")), (5, named("five")), (9, Vec::new())];
    assert_eq!(frames(&cache, &ID), Some(expected));
    assert_eq!(frames(&cache, &[0xab, 1, 2, 4]), None);
    // An entry under another build's name does not belong to that build.
    let other = [0xab, 1, 2, 4];
    let directory = directory(&cache);
    std::fs::rename(directory.join(entry(&ID)), directory.join(entry(&other))).unwrap();
    assert_eq!(frames(&cache, &other), None);
    let mode = std::fs::metadata(&scratch.0).unwrap().permissions();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777,
        0o700
    );
}

#[test]
fn the_longest_unused_entries_go() {
    let scratch = Scratch::new();
    let mut cache = SymbolCache::at(scratch.0.clone());
    let id = |n: u8| [n, n, n];
    for n in 0..4 {
        keep(&cache, &id(n), &[(1, named("f"))]);
        let path = directory(&cache).join(entry(&id(n)));
        let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(u64::from(n));
        File::open(path).unwrap().set_modified(time).unwrap();
    }
    // A used entry counts as young.
    assert!(frames(&cache, &id(0)).is_some());
    let path = directory(&cache).join(entry(&id(0)));
    let size = std::fs::metadata(path).unwrap().len();
    cache.max_names_bytes = size * 7 / 2;
    keep(&cache, &id(4), &[(1, named("f"))]);
    let there: Vec<u8> = (0..5)
        .filter(|&n| frames(&cache, &id(n)).is_some())
        .collect();
    assert_eq!(there, [0, 3, 4]);
    // An entry that exceeds the size limit on its own stays until the next entry is added.
    cache.max_names_bytes = 1;
    keep(&cache, &id(5), &[(1, named("f"))]);
    let there: Vec<u8> = (0..6)
        .filter(|&n| frames(&cache, &id(n)).is_some())
        .collect();
    assert_eq!(there, [5]);
}

#[test]
fn many_writers_and_readers_see_whole_entries() {
    let scratch = Scratch::new();
    let cache = SymbolCache::at(scratch.0.clone());
    std::thread::scope(|scope| {
        for writer in 0..4u64 {
            let cache = cache.clone();
            scope.spawn(move || {
                for at in 0..25 {
                    let svma = writer * 100 + at;
                    keep(&cache, &ID, &[(svma, named(&svma.to_string()))]);
                    let names = frames(&cache, &ID).expect("an entry stays whole");
                    for (svma, frames) in names {
                        assert_eq!(frames, named(&svma.to_string()));
                    }
                }
            });
        }
    });
    let left = std::fs::read_dir(directory(&cache)).unwrap();
    assert_eq!(left.count(), 1, "no writer's own file is left");
}

#[test]
fn a_writer_that_fails_leaves_nothing() {
    let scratch = Scratch::new();
    let place = CacheDirectory {
        caches: &scratch.0,
        name: "files",
    };
    let failed = place.write_whole("x", |_, _| Err(std::io::Error::other("no")));
    assert!(failed.is_err());
    assert_eq!(
        std::fs::read_dir(scratch.0.join("files")).unwrap().count(),
        0
    );
    // If the directory cannot be created, only the cached names are lost.
    let cache = SymbolCache::at(PathBuf::from("/proc/self/status/x"));
    keep(&cache, &ID, &[(1, named("f"))]);
    assert_eq!(frames(&cache, &ID), None);
}

/// A build-id is only a file's claim about itself, so stored names are valid only for the same
/// contents.
#[test]
fn names_are_of_the_files_they_came_from() {
    let scratch = Scratch::new();
    let cache = SymbolCache::at(scratch.0.clone());
    cache.keep_names(&ID, &files(b"forged"), "/x", &[(5, named("evil"))]);
    assert_eq!(frames(&cache, &ID), None);
    keep(&cache, &ID, &[(5, named("good"))]);
    assert_eq!(frames(&cache, &ID), Some(vec![(5, named("good"))]));
    let image = |bytes: &[u8]| crate::file::Image::Bytes(std::sync::Arc::new(bytes.to_vec()));
    let of = |files: &[crate::file::Image]| Fingerprint::of(files);
    assert_ne!(
        of(&[image(b"ab"), image(b"c")]),
        of(&[image(b"a"), image(b"bc")])
    );
}

/// Nothing is written or removed through a link, or in a directory that others can write to.
#[test]
fn a_folder_that_is_not_ours_is_not_used() {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    let scratch = Scratch::new();
    let victim = scratch.0.join("victim");
    std::fs::create_dir_all(&victim).unwrap();
    std::fs::write(victim.join("precious"), "precious".repeat(1000)).unwrap();
    let untouched = |what: &str| {
        let there: Vec<_> = std::fs::read_dir(&victim).unwrap().collect();
        assert_eq!(there.len(), 1, "{what}");
    };
    let caches = scratch.0.join("caches");
    std::fs::create_dir_all(&caches).unwrap();
    let mut cache = SymbolCache::at(caches.clone());
    cache.max_names_bytes = 1;
    symlink(&victim, directory(&cache)).unwrap();
    let by_link = SymbolCache {
        directory: scratch.0.join("link"),
        max_names_bytes: 1,
    };
    symlink(&caches, &by_link.directory).unwrap();
    for cache in [&cache, &by_link] {
        keep(cache, &ID, &[(1, named("f"))]);
        assert_eq!(frames(cache, &ID), None);
        untouched("a link");
    }
    let names = directory(&cache);
    std::fs::remove_file(&names).unwrap();
    std::fs::create_dir(&names).unwrap();
    for mode in [0o777, 0o770] {
        std::fs::set_permissions(&names, PermissionsExt::from_mode(mode)).unwrap();
        keep(&cache, &ID, &[(1, named("f"))]);
        assert_eq!(std::fs::read_dir(&names).unwrap().count(), 0, "{mode:o}");
    }
    std::fs::set_permissions(&names, PermissionsExt::from_mode(0o700)).unwrap();
    keep(&cache, &ID, &[(1, named("f"))]);
    assert!(frames(&cache, &ID).is_some());
    // After `sudo -E`, the directory belongs to another user. Only root can change the owner.
    if chown(&names, Some(65534), Some(65534)).is_ok() {
        assert_eq!(frames(&cache, &ID), None);
    }
}

proptest! {
    /// A damaged entry yields its original contents, or nothing.
    #[test]
    fn a_damaged_entry_is_none(
        cut in 0.0..1.1f64,
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1..=255u8), 0..4),
        tail in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let scratch = Scratch::new();
        let cache = SymbolCache::at(scratch.0.clone());
        let names: Vec<_> = (0..50).map(|at| (at, named(&format!("function {at}")))).collect();
        keep(&cache, &ID, &names);
        let path = directory(&cache).join(entry(&ID));
        let mut bytes = std::fs::read(&path).unwrap();
        let length = (bytes.len() as f64 * cut) as usize;
        bytes.truncate(length);
        for (at, flip) in flips {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] ^= flip;
            }
        }
        bytes.extend(tail);
        std::fs::write(&path, &bytes).unwrap();
        if let Some(found) = frames(&cache, &ID) {
            prop_assert_eq!(found, names.clone());
        }
        // The next run repairs the entry.
        keep(&cache, &ID, &names);
        prop_assert_eq!(frames(&cache, &ID), Some(names));
    }
}
