//! All functions of a module that have a name.

use crate::file::{Elf, image, parse};
use crate::{ModuleFile, SearchPath, debug_files};
use object::{Object, ObjectSymbol, SymbolFlags, elf::STT_FUNC, elf::STT_GNU_IFUNC};
use std::collections::HashSet;

/// Maximum number of symbols that are examined.
const MOST_SYMBOLS: usize = 1 << 24;

/// A function's symbol.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FunctionSymbol {
    /// Name as in the file.
    pub name: String,
    /// Address of the function (svma).
    pub start: u64,
    /// Bytes of the function's code; 0 if not stated.
    pub bytes: u64,
    /// True if the symbol is not the function itself, but a resolver that chooses the function at
    /// load time (STT_GNU_IFUNC).
    pub is_indirect: bool,
}

/// Returns the functions in the symbol tables of a module, or of its separate debug file. Each
/// function occurs once, and they are sorted by address.
pub fn functions(module: &ModuleFile, search: &SearchPath) -> Vec<FunctionSymbol> {
    let mut problems = Vec::new();
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    let mut add = |elf: &Elf<'_>| {
        let symbols = elf
            .symbols()
            .chain(elf.dynamic_symbols())
            .take(MOST_SYMBOLS);
        found.extend(
            symbols
                .filter_map(|s| function(&s))
                .filter(|s| seen.insert(s.clone())),
        );
    };
    let Some((path, data)) = image(module, &search.roots, &mut problems) else {
        return found;
    };
    let Ok(elf) = parse(&path, &data) else {
        return found;
    };
    add(&elf);
    if elf.symbols().next().is_none()
        && let Some(debug) = debug_files::find(&path, &elf, search, &mut problems)
        && let Ok(elf) = parse(&debug.path, &debug.data)
    {
        add(&elf);
    }
    found.sort_by(|a, b| (a.start, &a.name).cmp(&(b.start, &b.name)));
    found
}

fn function<'d>(symbol: &impl ObjectSymbol<'d>) -> Option<FunctionSymbol> {
    let SymbolFlags::Elf { st_info, .. } = symbol.flags() else {
        return None;
    };
    let is_indirect = st_info.st_type() == STT_GNU_IFUNC;
    let is_function = is_indirect || st_info.st_type() == STT_FUNC;
    let name = symbol.name().ok().filter(|name| !name.is_empty())?;
    (is_function && !symbol.is_undefined() && symbol.address() != 0).then(|| FunctionSymbol {
        name: name.to_owned(),
        start: symbol.address(),
        bytes: symbol.size(),
        is_indirect,
    })
}
