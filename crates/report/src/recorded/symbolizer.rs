//! Sources of names for a recording's addresses.

use super::ordered_modules;
use memhook_recording::{NamedFrame, Recording};
use memhook_stream::is_python;
use memhook_symbols::{
    Bundle, Debuginfod, Location, ModuleFile, NamedCode, SearchPath, SymbolCache, Symbolizer,
    made_frame, made_module, python_frame, python_module,
};
use rustc_hash::FxHashMap;
use std::{path::PathBuf, sync::Arc};

/// Sources of names in addition to the files of this machine.
#[derive(Default)]
pub struct NameSources {
    /// Roots of the target's file system, or copies of it, in place of our own root.
    pub sysroots: Vec<PathBuf>,
    /// Further directories with debug files.
    pub debug_directories: Vec<PathBuf>,
    /// Names from earlier lookups.
    pub bundles: Vec<Bundle>,
}

/// Returns a symbolizer for a recording's modules. It finds their files by build-id.
pub fn symbolizer(recording: &Recording, sources: NameSources) -> Symbolizer {
    let (mut symbols, roots) = symbolizer_of(sources);
    symbols.set_modules(module_files(recording, &roots.0, roots.1));
    symbols
}

/// Returns a symbolizer without modules, and the roots that it searches. The flag is true if the
/// roots belong to the modules' machine and are not our own.
pub(crate) fn symbolizer_of(sources: NameSources) -> (Symbolizer, (Vec<PathBuf>, bool)) {
    let has_sysroot = !sources.sysroots.is_empty();
    let roots = if has_sysroot {
        sources.sysroots
    } else {
        // The modules may be from this machine. Their build-ids show whether they are.
        vec![PathBuf::from("/")]
    };
    let cache = SymbolCache::of_user();
    let mut symbols = Symbolizer::new(SearchPath {
        roots: roots.clone(),
        debug_directories: sources.debug_directories,
        debuginfod: cache.as_ref().and_then(Debuginfod::from_environment),
        cache,
        ..SearchPath::default()
    });
    for bundle in sources.bundles {
        symbols.add_bundle(bundle);
    }
    (symbols, (roots, has_sysroot))
}

/// Returns the paths at which a module's file may be.
pub(crate) fn candidates(
    path: &str,
    build_id: Option<&[u8]>,
    (roots, are_of_target): (&[PathBuf], bool),
) -> Vec<PathBuf> {
    // Without a build-id, a file of this machine may be a different file. A file in a sysroot was
    // put there deliberately.
    let is_known = build_id.is_some() || are_of_target;
    let inside = path.trim_start_matches('/');
    let roots = roots.iter().filter(|_| is_known);
    roots.map(|root| root.join(inside)).collect()
}

/// Returns the modules of a recording, and the source of names for its addresses outside the
/// modules. `has_sysroot` is true if the roots belong to the machine of the recording.
pub fn module_files(
    recording: &Recording,
    roots: &[PathBuf],
    has_sysroot: bool,
) -> Vec<ModuleFile> {
    let modules = ordered_modules(recording).into_iter().map(|module| {
        let build_id = Some(module.build_id.clone()).filter(|id| !id.is_empty());
        ModuleFile {
            path: module.path.clone(),
            image: None,
            opened: None,
            candidates: candidates(&module.path, build_id.as_deref(), (roots, has_sysroot)),
            build_id,
            base: module.base,
            start: module.start,
            end: module.end,
            named_by: None,
        }
    });
    let named = Arc::new(NamedFrames(recording.named_frames().clone()));
    let others = [python_module(named.clone()), made_module(named)];
    modules.chain(others).collect()
}

/// Names stored in the recording itself.
struct NamedFrames(Arc<FxHashMap<u64, NamedFrame>>);

impl NamedCode for NamedFrames {
    fn location(&self, return_address: u64) -> Option<Location> {
        let found = self.0.get(&return_address)?.clone();
        Some(if is_python(return_address) {
            python_frame(found.function, found.file, found.line)
        } else {
            made_frame(&found.function)
        })
    }
}
