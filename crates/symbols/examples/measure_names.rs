//! Measures the time and memory that function lookups take in a large file: `measure_names FILE
//! FUNCTIONS [CACHE-FOLDER]`.

use memhook_symbols::{ModuleFile, SearchPath, Source, SymbolCache, Symbolizer};
use object::{Object, ObjectSymbol, SymbolKind};
use std::{path::PathBuf, time::Duration, time::Instant};

/// Returns a line of /proc/self/status in MB.
fn status_mb(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kb = line.and_then(|line| {
        line.trim_matches([':', '\t', ' '])
            .split(' ')
            .next()?
            .parse::<u64>()
            .ok()
    });
    kb.unwrap_or(0) / 1024
}

fn main() {
    let mut args = std::env::args().skip(1);
    let path = PathBuf::from(args.next().expect("a file"));
    let functions: usize = args.next().expect("a number").parse().expect("a number");
    let cache = args.next().map(|folder| SymbolCache::at(folder.into()));
    let (svmas, build_id) = {
        let file = object::ReadCache::new(std::fs::File::open(&path).expect("it opens"));
        let file = object::File::parse(&file).expect("an ELF file");
        let is_function = |symbol: &object::Symbol<'_, '_, _>| {
            symbol.kind() == SymbolKind::Text && symbol.size() > 8 && symbol.is_definition()
        };
        let functions_of_file = file.symbols().filter(is_function);
        let all: Vec<u64> = functions_of_file
            .map(|symbol| symbol.address() + 5)
            .collect();
        let step = (all.len() / functions.max(1)).max(1);
        let build_id = file.build_id().expect("notes").map(<[u8]>::to_vec);
        (all.into_iter().step_by(step).collect::<Vec<_>>(), build_id)
    };
    println!(
        "{} functions, {} MB so far",
        svmas.len(),
        status_mb("VmHWM")
    );
    let begin = Instant::now();
    let mut symbols = Symbolizer::new(SearchPath {
        cache,
        ..SearchPath::default()
    });
    symbols.set_modules(vec![ModuleFile {
        path: path.display().to_string(),
        candidates: vec![path],
        build_id,
        end: u64::MAX,
        ..ModuleFile::default()
    }]);
    symbols.request(svmas.iter().copied());
    while !symbols.is_ready(Duration::from_secs(1)) {}
    let found = svmas.iter().map(|&svma| symbols.location(svma).frames);
    let (mut lines, mut frames) = (0, 0);
    for of_address in found {
        lines += usize::from(of_address.iter().any(|frame| frame.line.is_some()));
        frames += of_address.len();
    }
    let source = symbols
        .sources()
        .next()
        .map_or(Source::Nothing, |s| s.source);
    println!(
        "{source:?}: {frames} frames, {lines} with lines, {:.2} s, at most {} MB",
        begin.elapsed().as_secs_f64(),
        status_mb("VmHWM")
    );
}
