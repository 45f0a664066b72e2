//! Symbol bundles.

use crate::scratch_file::with_file;
use memhook_symbols::{Bundle, ModuleFile, SearchPath, Symbolizer};

/// Reads the bytes as a bundle. If the first byte does not match the magic number, reads the rest
/// as the contents of an intact bundle, because mutations do not survive zstd's checksum.
pub fn bundle(bytes: &[u8]) {
    let whole;
    let file = match bytes.split_first() {
        Some((0, contents)) => {
            let mut packed = b"MHKSYMS1".to_vec();
            packed.extend(zstd::bulk::compress(contents, 1).expect("packed"));
            whole = packed;
            &whole
        }
        _ => bytes,
    };
    let Ok(read) = with_file(file, |path| Bundle::read(&path)) else {
        return;
    };
    let (named, all) = read.counts();
    assert!(named <= all);
    let twice = Bundle::merged([read.clone(), read]);
    assert!(twice.counts().1 <= all);
    let mut symbols = Symbolizer::new(SearchPath::default());
    symbols.add_bundle(twice);
    symbols.set_modules(vec![ModuleFile {
        path: "/p".into(),
        build_id: Some(vec![1]),
        start: 0x1000,
        end: 0x9000,
        base: 0x1000,
        ..ModuleFile::default()
    }]);
    symbols.resolve(0x1101);
    symbols.to_bundle();
}
