use super::*;
use proptest::prelude::*;

/// Contents of a core to be built.
struct Built {
    bytes: Vec<u8>,
}

fn note(kind: u32, contents: &[u8]) -> Vec<u8> {
    let mut note = Vec::new();
    for word in [5, contents.len() as u32, kind] {
        note.extend(word.to_le_bytes());
    }
    note.extend(b"CORE\0\0\0\0");
    note.extend(contents);
    note.resize(note.len().next_multiple_of(4), 0);
    note
}

/// Builds a core with one thread, a stack and a mapping of /bin/true.
fn built() -> Built {
    let mut status = vec![0; 336];
    status[32..36].copy_from_slice(&77u32.to_le_bytes());
    let rsp = 112 + 19 * 8;
    status[rsp..rsp + 8].copy_from_slice(&0x7ffe_0000_1000u64.to_le_bytes());
    let mut info = vec![0; 136];
    info[24..28].copy_from_slice(&77u32.to_le_bytes());
    let words = |words: &[u64]| {
        words
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let mut files = words(&[1, 4096, 0x40_0000, 0x40_2000, 0]);
    files.extend(b"/bin/true\0");
    let notes = [
        note(1, &status),
        note(3, &info),
        note(6, &words(&[25, 0x7ffe_0000_1800, 3, 0x40_0040])),
        note(0x4649_4c45, &files),
    ]
    .concat();
    let mut bytes = vec![0; 64];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[16..20].copy_from_slice(&[4, 0, 62, 0]);
    bytes[0x20] = 64;
    bytes[0x38] = 3;
    let data = (64 + 3 * 56 + notes.len() as u64).next_multiple_of(4096);
    let load = |address, offset, stored, size, flags: u32| {
        let mut header = Vec::new();
        header.extend(1u32.to_le_bytes());
        header.extend(flags.to_le_bytes());
        header.extend(words(&[offset, address, 0, stored, size, 4096]));
        header
    };
    let mut header = load(0, 64 + 3 * 56, notes.len() as u64, 0, 0);
    header[0] = 4;
    bytes.extend(header);
    bytes.extend(load(0x40_0000, data, 0, 0x2000, 5));
    bytes.extend(load(0x7ffe_0000_0000, data, 0x2000, 0x3000, 6));
    bytes.extend(notes);
    bytes.resize(data as usize, 0);
    bytes.resize(data as usize + 0x2000, 7);
    Built { bytes }
}

fn open(bytes: &[u8]) -> Result<CoreFile, CoreError> {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("memhook-core-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, bytes).unwrap();
    let opened = CoreFile::open(&path);
    std::fs::remove_file(&path).unwrap();
    opened
}

#[test]
fn a_small_core() {
    let core = open(&built().bytes).unwrap();
    assert_eq!((core.pid, core.threads.len()), (77, 1));
    assert_eq!(core.threads[0].registers[19], 0x7ffe_0000_1000);
    let paths: Vec<&str> = core
        .segments
        .iter()
        .map(|s| s.mapping.path.as_str())
        .collect();
    assert_eq!(paths, ["/bin/true", "[stack]"]);
    let mut word = [0; 8];
    assert!(core.read(0x7ffe_0000_1000, &mut word));
    assert_eq!(word, [7; 8]);
    assert!(!core.read(0x7ffe_0000_1ffc, &mut word), "it is not stored");
    assert!(!core.read(0x50_0000, &mut word), "nothing is there");
    let stored = core.stored(&core.segments[1]);
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0], 0x7ffe_0000_0000..0x7ffe_0000_2000);
    assert_eq!(core.stored(&core.segments[0]), []);
    let modules = core.modules();
    assert_eq!(modules.images.len(), 1, "{:?}", modules.missing);
    assert!(modules.images[0].is_main);
}

/// gdb's gcore makes no segments for code and constants that are identical to their file.
#[test]
fn what_is_not_saved_is_in_the_list_of_files() {
    let mut bytes = built().bytes;
    let second = 64 + 2 * 56 - 56;
    // The segment of /bin/true contains only its second page, or is an empty segment at another
    // address.
    for (start, length, expected) in [
        (
            0x40_1000u64,
            0x1000u64,
            vec![0x40_0000u64..0x40_1000, 0x40_1000..0x40_2000],
        ),
        (
            0x40_0000,
            0x1000,
            vec![0x40_0000..0x40_1000, 0x40_1000..0x40_2000],
        ),
        (
            0x50_0000,
            0x1000,
            vec![0x40_0000..0x40_2000, 0x50_0000..0x50_1000],
        ),
    ] {
        bytes[second + 16..][..8].copy_from_slice(&start.to_le_bytes());
        bytes[second + 40..][..8].copy_from_slice(&length.to_le_bytes());
        let core = open(&bytes).unwrap();
        let found: Vec<_> = core
            .segments
            .iter()
            .map(|s| s.mapping.start..s.mapping.end)
            .collect();
        assert_eq!(found[..2], expected);
        assert_eq!(core.segments[0].mapping.path, "/bin/true");
        assert!(core.segments[0].mapping.exec && core.segments[0].dumped().is_empty());
        let modules = core.modules();
        assert_eq!(modules.images.len(), 1, "{:?}", modules.missing);
    }
}

#[test]
fn what_is_no_core_is_said() {
    let whole = built().bytes;
    let of = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        bytes
    };
    for (bytes, word) in [
        (Vec::new(), "not a core dump"),
        (b"memory".to_vec(), "not a core dump"),
        (b"\x7fELF".to_vec(), "truncated"),
        (b"\x28\xb5\x2f\xfd1234".to_vec(), "unzstd"),
        (of(16, 3), "a program"),
        (of(4, 1), "32-bit"),
        (of(18, 183), "another architecture"),
        (whole[..whole.len() - 1].to_vec(), "truncated"),
        (whole[..100].to_vec(), "truncated"),
        // The status of its threads is a note of another kind.
        (of(64 + 3 * 56 + 8, 99), "no threads"),
    ] {
        let error = open(&bytes).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// A core dump is not trusted: any contents are either read or refused.
    #[test]
    fn damage_is_an_error(changes in prop::collection::vec((0usize..1200, any::<u8>()), 1..6), cut in 0usize..14_000) {
        let mut bytes = built().bytes;
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(cut.max(1200));
        if let Ok(core) = open(&bytes) {
            let mut last = 0;
            for segment in &core.segments {
                prop_assert!(segment.mapping.start >= last);
                last = segment.mapping.end;
                for run in core.stored(segment) {
                    prop_assert!(run.start >= segment.mapping.start && run.end <= last);
                }
            }
            core.modules();
        }
    }
}
