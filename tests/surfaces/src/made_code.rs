//! Files in which a program lists its JIT-compiled code.

use memhook_symbols::{JitDump, PerfMap};

/// Reads a file for `perf inject --jit`. Adds the header if it is missing, because mutations do not
/// produce one.
pub fn jit_dump(bytes: &[u8]) {
    let mut whole = Vec::new();
    if !bytes.starts_with(b"DTiJ") {
        for word in [0x4a69_5444u32, 1, 40, 62, 0, 1] {
            whole.extend(word.to_le_bytes());
        }
        whole.extend([0; 16]);
    }
    whole.extend(bytes);
    let dump = JitDump::parse(&whole);
    check(dump.names(), whole.len());
}

/// Reads the lines of `perf-PID.map`.
pub fn perf_map(bytes: &[u8]) {
    check(&PerfMap::parse(bytes), bytes.len());
}

fn check(names: &PerfMap, bytes: usize) {
    // Each name takes several bytes.
    assert!(names.len() <= bytes / 4);
    for at in [0, 1, 0x1001, 1 << 47, u64::MAX] {
        let name = names.name(at).unwrap_or_default();
        assert!(name.len() <= 3 * 1024);
    }
}
