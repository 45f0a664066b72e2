//! One module's thread: opens the files at the first request, then answers.
//!
//! The parsed forms borrow from the files' bytes; on a thread's stack both can live side by side for
//! as long as requests may come.

use crate::debug_files::{DebugFile, Places, find, find_by_build_id, find_supplementary};
use crate::file::{Elf, image, parse};
use crate::lookup::{Lookup, Sections, context, has_dwarf, sections};
use crate::symbol_table::SymbolTable;
use crate::{Frame, ModuleFile, ModuleSymbols};
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
    places: &Places,
    requests: &Receiver<Vec<u64>>,
    answers: &Sender<Answer>,
) {
    let mut report = ModuleSymbols {
        path: module.path.clone(),
        ..ModuleSymbols::default()
    };
    let answer = |lookup: &Lookup<'_>, report: ModuleSymbols| {
        answer_all(number, lookup, report, requests, answers);
    };
    let nothing = Lookup {
        dwarf: None,
        symbols: SymbolTable::default(),
    };
    let Some((path, bytes)) = image(module, &mut report.problems) else {
        // The debug file has everything that names need.
        let id = module.build_id.as_deref();
        let file = id.and_then(|id| find_by_build_id(id, places, &mut report.problems));
        return match file {
            Some(file) => debug_file_alone(&file, places, report, answer),
            None => answer(&nothing, report),
        };
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
            places,
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
            supplement(&file.path, elf, places, &mut report),
        ),
        _ => (
            &path,
            sections(&elf),
            supplement(&path, &elf, places, &mut report),
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
    let lookup = Lookup { dwarf, symbols };
    report.source = lookup.source();
    answer(&lookup, report);
}

/// Serves from a debug file without the module that it belongs to.
fn debug_file_alone(
    file: &DebugFile,
    places: &Places,
    mut report: ModuleSymbols,
    answer: impl Fn(&Lookup<'_>, ModuleSymbols),
) {
    report.debug_file = Some(file.path.clone());
    let mut lookup = Lookup {
        dwarf: None,
        symbols: SymbolTable::default(),
    };
    let elf = match parse(&file.path, &file.data) {
        Ok(elf) => elf,
        Err(problem) => {
            report.problems.push(problem);
            return answer(&lookup, report);
        }
    };
    let own = sections(&elf);
    let supplementary = supplement(&file.path, &elf, places, &mut report);
    let supplementary_elf = supplementary
        .as_ref()
        .and_then(|file| parse(&file.path, &file.data).ok());
    let supplementary: Option<Sections<'_>> = supplementary_elf.as_ref().map(sections);
    lookup.symbols.add(&elf);
    lookup.symbols.finish();
    if has_dwarf(&elf) {
        lookup.dwarf = context(&own, supplementary.as_ref());
    }
    report.source = lookup.source();
    answer(&lookup, report);
}

/// Answers until the last sender of `requests` is gone.
fn answer_all(
    number: usize,
    lookup: &Lookup<'_>,
    report: ModuleSymbols,
    requests: &Receiver<Vec<u64>>,
    answers: &Sender<Answer>,
) {
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
}

fn supplement<'d, R: ReadRef<'d>>(
    path: &std::path::Path,
    elf: &Elf<'d, R>,
    places: &Places,
    report: &mut ModuleSymbols,
) -> Option<DebugFile> {
    find_supplementary(path, elf, places, &mut report.problems)
}
