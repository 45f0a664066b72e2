//! Function names from ELF symbol tables.

use crate::file::Elf;
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};

struct Entry<'d> {
    start: u64,
    end: u64,
    name: &'d str,
}

/// The largest programs have some million functions, and a handful of sections with code.
const MOST_ENTRIES: usize = 1 << 24;
const MOST_CODE_SECTIONS: usize = 256;

/// Functions by address (svma).
#[derive(Default)]
pub(crate) struct SymbolTable<'d> {
    entries: Vec<Entry<'d>>,
    /// Whether a `.symtab` was among the sources.
    pub is_full: bool,
}

impl<'d> SymbolTable<'d> {
    /// Adds the functions of a file.
    pub fn add(&mut self, elf: &Elf<'d>) {
        let code: Vec<(u64, u64)> = elf
            .sections()
            .filter(|section| section.kind() == SectionKind::Text)
            .map(|section| {
                let start = section.address();
                (start, start.saturating_add(section.size()))
            })
            // Each symbol is compared with each of them.
            .take(MOST_CODE_SECTIONS)
            .collect();
        let full = elf.symbols().filter_map(|symbol| entry(&symbol, &code));
        let before = self.entries.len();
        self.entries.extend(full.take(MOST_ENTRIES));
        self.is_full |= self.entries.len() > before;
        let dynamic = elf.dynamic_symbols();
        self.entries.extend(
            dynamic
                .filter_map(|symbol| entry(&symbol, &code))
                .take(MOST_ENTRIES),
        );
    }

    /// Sorts what was added; of names with one address the plainest comes first.
    pub fn finish(&mut self) {
        let rank = |name: &str| (name.starts_with('_') && !name.starts_with("_Z"), name.len());
        self.entries
            .sort_by(|a, b| (a.start, rank(a.name), a.name).cmp(&(b.start, rank(b.name), b.name)));
        self.entries.dedup_by_key(|entry| entry.start);
        // Without a stated size (hand-written assembly), up to the next function.
        for i in 0..self.entries.len() {
            let next = self.entries.get(i + 1).map_or(u64::MAX, |next| next.start);
            let entry = &mut self.entries[i];
            if entry.end == entry.start {
                entry.end = next.min(entry.start.saturating_add(4096));
            }
        }
    }

    /// Whether there are no names.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The function whose code holds this address; never just the nearest name below, which in a
    /// stripped file is nearly always wrong.
    pub fn function_at(&self, svma: u64) -> Option<&'d str> {
        let after = self.entries.partition_point(|entry| entry.start <= svma);
        // A function may lie inside another's range.
        self.entries[..after]
            .iter()
            .rev()
            .take(4)
            .find(|entry| svma < entry.end)
            .map(|entry| entry.name)
    }
}

fn entry<'d>(symbol: &impl ObjectSymbol<'d>, code: &[(u64, u64)]) -> Option<Entry<'d>> {
    let start = symbol.address();
    let is_code = || {
        code.iter()
            .any(|(low, high)| (*low..*high).contains(&start))
    };
    let is_function = match symbol.kind() {
        SymbolKind::Text => symbol.is_definition() || is_code(),
        // Labels of assembly.
        SymbolKind::Unknown | SymbolKind::Label => symbol.is_definition() && is_code(),
        _ => false,
    };
    let name = symbol.name().ok().filter(|name| !name.is_empty())?;
    (is_function && start != 0 && !symbol.is_undefined()).then(|| Entry {
        start,
        end: start.saturating_add(symbol.size()),
        name,
    })
}
