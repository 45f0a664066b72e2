//! Names of functions: symbol tables, DWARF, separate debug files, demangling.

use crate::Input;
use crate::scratch_file::with_file;
use memhook_symbols::{ModuleFile, SearchPath, Symbolizer};
use std::sync::Arc;

/// Limit that exceeds any name that a user would read.
const LONGEST_NAME: usize = 1 << 20;

/// Demangles a name from a symbol table.
pub fn demangle(bytes: &[u8]) {
    let name = memhook_symbols::demangle(&String::from_utf8_lossy(bytes));
    assert!(name.len() <= LONGEST_NAME.max(bytes.len() * 3));
}

fn resolve(symbols: &mut Symbolizer, file: ModuleFile, addresses: impl Iterator<Item = u64>) {
    symbols.set_modules(vec![file]);
    symbols.request(addresses);
    while !symbols.is_ready(std::time::Duration::from_secs(3600)) {}
}

/// Looks up names in an ELF file with symbols and DWARF.
pub fn look_up(bytes: &[u8]) {
    let mut symbols = Symbolizer::new(SearchPath::default());
    let file = ModuleFile {
        path: "/p".into(),
        image: Some(Arc::new(bytes.to_vec())),
        base: 0,
        start: 0,
        end: u64::MAX,
        ..ModuleFile::default()
    };
    let near_code = (0..96).map(|i| 0x1001 + i * 5);
    resolve(&mut symbols, file, near_code.chain([1, u64::MAX - 1]));
    for at in [0x1001, 0x1010] {
        symbols.location(at);
    }
    symbols.to_bundle();
}

/// Reads a module with a debug link, and the file to which the link refers.
pub fn debug_link(bytes: &[u8]) {
    let mut input = Input(bytes);
    let module = input.part();
    with_file(input.0, |path| {
        let directory = std::env::temp_dir().join(format!("memhook-fuzz-{}", std::process::id()));
        let link = directory.join("d.debug");
        // There is only one thread, and the link stays valid until the process exits.
        if !link.exists() {
            std::fs::create_dir_all(&directory).expect("a directory");
            let _ = std::fs::remove_file(&link);
            std::os::unix::fs::symlink(&path, &link).expect("a link");
        }
        let mut symbols = Symbolizer::new(SearchPath {
            debug_directories: vec![directory],
            ..SearchPath::default()
        });
        let file = ModuleFile {
            path: path.to_string_lossy().into_owned(),
            image: (!module.is_empty()).then(|| Arc::new(module.to_vec())),
            opened: None,
            candidates: vec![path],
            build_id: None,
            base: 0,
            start: 0,
            end: u64::MAX,
            named_by: None,
        };
        resolve(&mut symbols, file, [0x1001, 0x1010].into_iter());
        assert!(symbols.sources().count() <= 1);
    });
}
