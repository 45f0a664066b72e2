use super::*;
use proptest::prelude::*;

/// A folder that goes away.
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

fn frames(cache: &SymbolCache, id: &[u8]) -> Option<Vec<(u64, Vec<Frame>)>> {
    cache.names(id).map(|module| module.frames)
}

#[test]
fn names_add_up_by_build_id() {
    let scratch = Scratch::new();
    let cache = SymbolCache::at(scratch.0.clone());
    assert_eq!(frames(&cache, &ID), None);
    cache.keep_names(&ID, "/x", &[(5, named("five")), (9, Vec::new())]);
    cache.keep_names(&ID, "/y", &[(3, named("three"))]);
    let expected = vec![(3, named("three")), (5, named("five")), (9, Vec::new())];
    assert_eq!(frames(&cache, &ID), Some(expected));
    assert_eq!(frames(&cache, &[0xab, 1, 2, 4]), None);
    // An entry under another build's name is not that build's.
    let folder = cache.names_folder();
    std::fs::rename(folder.join(hex(&ID)), folder.join("ab010204")).unwrap();
    assert_eq!(frames(&cache, &[0xab, 1, 2, 4]), None);
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
        cache.keep_names(&id(n), "/x", &[(1, named("f"))]);
        let path = cache.names_folder().join(hex(&id(n)));
        let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(u64::from(n));
        File::open(path).unwrap().set_modified(time).unwrap();
    }
    // To be used is to be young.
    assert!(frames(&cache, &id(0)).is_some());
    let path = cache.names_folder().join(hex(&id(0)));
    let size = std::fs::metadata(path).unwrap().len();
    cache.max_names_bytes = size * 7 / 2;
    cache.keep_names(&id(4), "/x", &[(1, named("f"))]);
    let there: Vec<u8> = (0..5)
        .filter(|&n| frames(&cache, &id(n)).is_some())
        .collect();
    assert_eq!(there, [0, 3, 4]);
    // One that is too large alone stays until the next one comes.
    cache.max_names_bytes = 1;
    cache.keep_names(&id(5), "/x", &[(1, named("f"))]);
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
                    cache.keep_names(&ID, "/x", &[(svma, named(&svma.to_string()))]);
                    let names = frames(&cache, &ID).expect("an entry stays whole");
                    for (svma, frames) in names {
                        assert_eq!(frames, named(&svma.to_string()));
                    }
                }
            });
        }
    });
    let left = std::fs::read_dir(cache.names_folder()).unwrap();
    assert_eq!(left.count(), 1, "no writer's own file is left");
}

#[test]
fn a_writer_that_fails_leaves_nothing() {
    let scratch = Scratch::new();
    let failed = write_whole(&scratch.0, "x", |_, _| Err(std::io::Error::other("no")));
    assert!(failed.is_err());
    assert_eq!(std::fs::read_dir(&scratch.0).unwrap().count(), 0);
    // A folder that cannot be made: names are not kept, nothing else.
    let cache = SymbolCache::at(PathBuf::from("/proc/self/status/x"));
    cache.keep_names(&ID, "/x", &[(1, named("f"))]);
    assert_eq!(frames(&cache, &ID), None);
}

proptest! {
    /// Whatever happened to an entry, it gives what was written, or nothing.
    #[test]
    fn a_damaged_entry_is_none(
        cut in 0.0..1.1f64,
        flips in prop::collection::vec((any::<prop::sample::Index>(), 1..=255u8), 0..4),
        tail in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let scratch = Scratch::new();
        let cache = SymbolCache::at(scratch.0.clone());
        let names: Vec<_> = (0..50).map(|at| (at, named(&format!("function {at}")))).collect();
        cache.keep_names(&ID, "/x", &names);
        let path = cache.names_folder().join(hex(&ID));
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
        // And the next run makes it good again.
        cache.keep_names(&ID, "/x", &names);
        prop_assert_eq!(frames(&cache, &ID), Some(names));
    }
}
