//! Function names from ELF symbol tables.

use crate::file::Elf;
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};

/// The code of a function.
struct Function<'d> {
    start: u64,
    end: u64,
    name: &'d str,
}

/// Maximum number of functions. The largest programs have a few million functions, and a handful of
/// sections with code.
const MOST_FUNCTIONS: usize = 1 << 24;
const MOST_CODE_SECTIONS: usize = 256;

/// Functions by address (svma).
#[derive(Default)]
pub(crate) struct SymbolTable<'d> {
    functions: Vec<Function<'d>>,
    /// True if a `.symtab` was among the sources.
    pub is_full: bool,
}

impl<'d> SymbolTable<'d> {
    /// Adds the functions of a file.
    pub fn add(&mut self, elf: &Elf<'d>) {
        let code = code_of(elf);
        let full = elf.symbols().filter_map(|symbol| function(&symbol, &code));
        let before = self.functions.len();
        self.functions.extend(full.take(MOST_FUNCTIONS));
        self.is_full |= self.functions.len() > before;
        let dynamic = elf.dynamic_symbols();
        self.functions.extend(
            dynamic
                .filter_map(|symbol| function(&symbol, &code))
                .take(MOST_FUNCTIONS),
        );
    }

    /// Adds the functions of a file that has no code itself. Its sections are the sections of
    /// `own`.
    pub fn add_mini(&mut self, mini: Option<&Elf<'d>>, own: Option<&Elf<'_>>) {
        let (Some(mini), Some(own)) = (mini, own) else {
            return;
        };
        let code = code_of(own);
        let before = self.functions.len();
        let all = mini.symbols().filter_map(|symbol| function(&symbol, &code));
        self.functions.extend(all.take(MOST_FUNCTIONS));
        self.is_full |= self.functions.len() > before;
    }

    /// Sorts the functions. If several names have the same address, the plainest comes first.
    pub fn finish(&mut self) {
        let rank = |name: &str| (name.starts_with('_') && !name.starts_with("_Z"), name.len());
        self.functions
            .sort_by(|a, b| (a.start, rank(a.name), a.name).cmp(&(b.start, rank(b.name), b.name)));
        self.functions.dedup_by_key(|function| function.start);
        // A function without a stated size (hand-written assembly) extends to the next function.
        for i in 0..self.functions.len() {
            let next = self
                .functions
                .get(i + 1)
                .map_or(u64::MAX, |next| next.start);
            let function = &mut self.functions[i];
            if function.end == function.start {
                function.end = next.min(function.start.saturating_add(4096));
            }
        }
    }

    /// Returns true if there are no names.
    pub fn is_empty(&self) -> bool {
        self.functions.is_empty()
    }

    /// Returns the function whose code contains this address. The nearest name below is not enough,
    /// because in a stripped file it is nearly always wrong.
    pub fn function_at(&self, svma: u64) -> Option<&'d str> {
        let after = self
            .functions
            .partition_point(|function| function.start <= svma);
        // A function may lie inside another's range.
        self.functions[..after]
            .iter()
            .rev()
            .take(4)
            .find(|function| svma < function.end)
            .map(|function| function.name)
    }
}

/// Returns the code ranges of a file.
fn code_of(elf: &Elf<'_>) -> Vec<(u64, u64)> {
    let sections = elf.sections();
    let sections = sections.filter(|section| section.kind() == SectionKind::Text);
    let ranges = sections.map(|section| {
        let start = section.address();
        (start, start.saturating_add(section.size()))
    });
    // Each symbol is compared with all ranges.
    ranges.take(MOST_CODE_SECTIONS).collect()
}

fn function<'d>(symbol: &impl ObjectSymbol<'d>, code: &[(u64, u64)]) -> Option<Function<'d>> {
    let start = symbol.address();
    let is_code = || {
        code.iter()
            .any(|(low, high)| (*low..*high).contains(&start))
    };
    let is_function = match symbol.kind() {
        SymbolKind::Text => symbol.is_definition() || is_code(),
        // These are labels in assembly.
        SymbolKind::Unknown | SymbolKind::Label => symbol.is_definition() && is_code(),
        _ => false,
    };
    let name = symbol.name().ok().filter(|name| !name.is_empty())?;
    (is_function && start != 0 && !symbol.is_undefined()).then(|| Function {
        start,
        end: start.saturating_add(symbol.size()),
        name,
    })
}
