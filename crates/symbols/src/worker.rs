//! One module's thread: opens the files at the first request, then answers.
//!
//! The parsed forms borrow from the files' bytes; on a thread's stack both can live side by side for
//! as long as requests may come.

use crate::debug_files::{find, find_supplementary};
use crate::file::{Elf, image, parse};
use crate::lookup::{Lookup, Sections, context, has_dwarf, sections};
use crate::symbol_table::SymbolTable;
use crate::{Frame, ModuleFile, ModuleSymbols, Source};
use object::ReadRef;
use std::{
    path::PathBuf,
    sync::mpsc::{Receiver, Sender},
};

/// What a module's thread says.
pub(crate) enum Answer {
    /// To one request.
    Frames {
        /// The symbolizer's number of the module.
        module: usize,
        /// By svma.
        frames: Vec<(u64, Vec<Frame>)>,
        /// How the module was read; with the first answer only.
        symbols: Option<ModuleSymbols>,
    },
    /// There will be no more answers.
    Died {
        /// The symbolizer's number of the module.
        module: usize,
    },
}

/// Serves until the last sender of `requests` is gone.
pub(crate) fn serve(
    number: usize,
    module: &ModuleFile,
    roots: &[PathBuf],
    requests: &Receiver<Vec<u64>>,
    answers: &Sender<Answer>,
) {
    let mut report = ModuleSymbols {
        path: module.path.clone(),
        ..ModuleSymbols::default()
    };
    let answer = |lookup: &Lookup<'_>, report: ModuleSymbols| {
        let mut symbols = Some(report);
        for svmas in requests {
            let frames = svmas.iter().map(|&svma| (svma, lookup.frames(svma)));
            let answer = Answer::Frames {
                module: number,
                frames: frames.collect(),
                symbols: symbols.take(),
            };
            if answers.send(answer).is_err() {
                return;
            }
        }
    };
    let nothing = Lookup {
        dwarf: None,
        symbols: SymbolTable::default(),
    };
    let Some((path, bytes)) = image(module, &mut report.problems) else {
        return answer(&nothing, report);
    };
    let elf = match parse(&path, &bytes[..]) {
        Ok(elf) => elf,
        Err(problem) => {
            report.problems.push(problem);
            return answer(&nothing, report);
        }
    };
    let own_dwarf = has_dwarf(&elf);
    let separate = match own_dwarf {
        true => None,
        false => find(
            PathBuf::from(&module.path).as_path(),
            &elf,
            roots,
            &mut report.problems,
        ),
    };
    let separate_elf = separate
        .as_ref()
        .and_then(|file| parse(&file.path, &file.data).ok());
    report.debug_file = separate.as_ref().map(|file| file.path.clone());
    // The two files have different types: a name for the one with the DWARF, and its parts.
    let (dwarf_path, dwarf, supplementary) = match (&separate, &separate_elf) {
        (Some(file), Some(elf)) => (
            &file.path,
            sections(elf),
            supplement(&file.path, elf, roots, &mut report),
        ),
        _ => (
            &path,
            sections(&elf),
            supplement(&path, &elf, roots, &mut report),
        ),
    };
    let supplementary_elf = supplementary
        .as_ref()
        .and_then(|file| parse(&file.path, &file.data).ok());
    let supplementary_sections: Option<Sections<'_>> = supplementary_elf.as_ref().map(sections);
    let mut symbols = SymbolTable::default();
    symbols.add(&elf);
    if let Some(separate) = &separate_elf {
        symbols.add(separate);
    }
    symbols.finish();
    let has_dwarf = own_dwarf || separate_elf.as_ref().is_some_and(has_dwarf);
    let dwarf = match has_dwarf {
        true => context(&dwarf, supplementary_sections.as_ref()),
        false => None,
    };
    if has_dwarf && dwarf.is_none() {
        let problem = crate::file::format_error(dwarf_path, "its debug information is damaged");
        report.problems.push(problem);
    }
    report.source = match (&dwarf, symbols.is_full, symbols.is_empty()) {
        (Some(_), _, _) => Source::DebugInfo,
        (None, true, _) => Source::Symbols,
        (None, false, false) => Source::DynamicSymbols,
        (None, false, true) => Source::Nothing,
    };
    answer(&Lookup { dwarf, symbols }, report);
}

fn supplement<'d, R: ReadRef<'d>>(
    path: &std::path::Path,
    elf: &Elf<'d, R>,
    roots: &[PathBuf],
    report: &mut ModuleSymbols,
) -> Option<crate::debug_files::DebugFile> {
    find_supplementary(path, elf, roots, &mut report.problems)
}
