//! Backtraces with names.

use memhook_abi::HOOKED_FUNCTIONS;
use memhook_attach::Session;
use memhook_process::ModuleImage;
use memhook_report::StackFrame;
use memhook_symbols::{ModuleFile, Source, Symbolizer};

/// A word for where names come from.
pub fn source_text(source: Source) -> &'static str {
    match source {
        Source::DebugInfo => "debug info",
        Source::Symbols => "symbols",
        Source::DynamicSymbols => "dynamic symbols",
        Source::Nothing => "nothing",
    }
}

/// The modules that addresses of backtraces may be in.
pub fn module_files(session: &Session) -> Vec<ModuleFile> {
    let modules = session.modules.iter().chain(&session.gone);
    modules.map(module_file).collect()
}

/// Where the names of a module come from.
pub fn module_file(m: &ModuleImage) -> ModuleFile {
    ModuleFile {
        path: m.path.clone(),
        image: Some(m.bytes.clone()),
        candidates: vec![m.file.clone()],
        build_id: m.build_id.clone(),
        base: m.base,
        start: m.start,
        end: m.end,
    }
}

/// Kind and frames of an interned stack.
pub fn stack_of(session: &Session, symbols: &Symbolizer, id: u32) -> (String, Vec<StackFrame>) {
    let Some((function, frames)) = session.stack(id) else {
        return ("unknown".into(), Vec::new());
    };
    let kind = HOOKED_FUNCTIONS
        .get(usize::from(function))
        .map_or("unknown", |f| f.kind);
    let frames = frames.iter();
    (
        kind.to_owned(),
        frames.flat_map(|&a| stack_frames(symbols, a)).collect(),
    )
}

/// The frames at an address: more than one where functions are inlined there.
pub fn stack_frames(symbols: &Symbolizer, address: u64) -> Vec<StackFrame> {
    let location = symbols.location(address);
    let frame = |f: &memhook_symbols::Frame| StackFrame {
        address: format!("{address:#x}"),
        module: location.module.clone(),
        offset: location
            .module
            .as_ref()
            .map(|_| format!("{:#x}", location.svma)),
        function: f.function.clone(),
        file: f.file.clone(),
        line: f.line,
        inlined: f.inlined,
    };
    if location.frames.is_empty() {
        return vec![frame(&memhook_symbols::Frame::default())];
    }
    location.frames.iter().map(frame).collect()
}
