//! Function names from ELF symbol tables.

use crate::file::{Elf, Image, LONGEST_STRING};
use object::elf::FileHeader64;
use object::read::elf::{ElfSymbol, SectionHeader, Sym, SymbolTable as ElfSymbols};
use object::{Endianness, Object, ObjectSection, ObjectSymbol, ReadRef, SectionKind, SymbolKind};
use std::ffi::CStr;

type Header = FileHeader64<Endianness>;

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
        self.is_full |= self.add_all(elf, elf.elf_symbol_table(), elf.symbols(), &code);
        let dynamic = elf.elf_dynamic_symbol_table();
        self.add_all(elf, dynamic, elf.dynamic_symbols(), &code);
    }

    /// Adds the functions of a file that has no code itself. Its sections are the sections of
    /// `own`.
    pub fn add_mini(&mut self, mini: Option<&Elf<'d>>, own: Option<&Elf<'_>>) {
        let (Some(mini), Some(own)) = (mini, own) else {
            return;
        };
        let (table, code) = (mini.elf_symbol_table(), code_of(own));
        self.is_full |= self.add_all(mini, table, mini.symbols(), &code);
    }

    /// Adds the functions of one table. Returns true if there are any.
    fn add_all<'f>(
        &mut self,
        elf: &Elf<'d>,
        table: &ElfSymbols<'d, Header, &'d Image>,
        symbols: impl Iterator<Item = ElfSymbol<'d, 'f, Header, &'d Image>>,
        code: &[(u64, u64)],
    ) -> bool
    where
        'd: 'f,
    {
        let Some(names) = names_of(elf, table) else {
            return false;
        };
        let before = self.functions.len();
        let functions = symbols.filter_map(|symbol| function(&symbol, names, code));
        self.functions.extend(functions.take(MOST_FUNCTIONS));
        self.functions.len() > before
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

/// Returns the names of a table's symbols in one piece, because a file that is read in parts would
/// be read twice for each name.
fn names_of<'d>(elf: &Elf<'d>, table: &ElfSymbols<'d, Header, &'d Image>) -> Option<&'d [u8]> {
    let sections = elf.elf_section_table();
    let section = sections.section(table.string_section()).ok()?;
    let (offset, size) = section.file_range(elf.endian())?;
    elf.data().read_bytes_at(offset, size).ok()
}

fn function<'d>(
    symbol: &ElfSymbol<'d, '_, Header, &'d Image>,
    names: &'d [u8],
    code: &[(u64, u64)],
) -> Option<Function<'d>> {
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
    if !is_function || start == 0 || symbol.is_undefined() {
        return None;
    }
    let name = names.get(symbol.elf_symbol().st_name(symbol.endian()) as usize..)?;
    let name = &name[..name.len().min(LONGEST_STRING as usize)];
    let name = CStr::from_bytes_until_nul(name).ok()?.to_str().ok()?;
    (!name.is_empty()).then(|| Function {
        start,
        end: start.saturating_add(symbol.size()),
        name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::parse;
    use std::path::Path;

    /// The C library has thousands of functions. Their names are read in one piece.
    #[test]
    fn names_take_few_reads() {
        let path = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
        let image = Image::open(path, &[]).expect("it opens");
        let elf = parse(path, &image).expect("it is an ELF file");
        // Number of system calls of this thread that read (proc_pid_io(5)).
        let reads = || {
            let io = std::fs::read_to_string("/proc/thread-self/io").expect("our own");
            let line = io.lines().find_map(|line| line.strip_prefix("syscr: "));
            line.and_then(|count| count.parse::<u64>().ok())
                .expect("a number")
        };
        let before = reads();
        let mut table = SymbolTable::default();
        table.add(&elf);
        let done = reads() - before;
        table.finish();
        let start = |name: &str| {
            let mut functions = table.functions.iter();
            functions
                .find(|function| function.name == name)
                .map(|function| function.start)
        };
        assert!(table.functions.len() > 1000);
        let malloc = start("malloc").expect("it is exported");
        assert_eq!(table.function_at(malloc + 1), Some("malloc"));
        assert!(done < 100, "{done} reads");
    }
}
