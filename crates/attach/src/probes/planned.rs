//! Resolves the user's selection to functions that can have a probe, and to reasons why the others cannot.

use super::code_of_module::{ModuleCode, file_of};
use super::error::ProbeError;
use super::events::EventOptions;
use crate::error::Error;
use memhook_heap::module_file;
use memhook_probe::{
    Code, Condition, CountsLayout, FunctionSelector, JUMP_BYTES, MOST_EVENTS, MOST_LATENCIES, Plan,
    Wanted, nearest, original_of, plan, plan_exits,
};
use memhook_process::{
    Mapping, ModuleFiles, ModuleImage, RemoteAddress, TargetRoot, mappings, modules, read_memory,
};
use memhook_symbols::{FunctionSymbol, SearchPath, demangle, functions, inlined_at};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Functions whose instructions the C library examines when a thread is cancelled: the part of a cancellable system
/// call in which the thread may be cancelled (sysdeps/unix/sysv/linux/x86_64/syscall_cancel.S in glibc 2.41,
/// src/thread/x86_64/syscall_cp.s in musl).
const COMPARED_CODE: [&str; 3] = ["__syscall_cancel_arch", "__syscall_cp", "__cp_"];
/// Maximum number of places and names in a message.
const MOST_LISTED: usize = 8;
/// Maximum number of suggestions for an unknown name.
const MOST_SUGGESTED: usize = 3;

/// Function that will have a probe.
#[derive(Clone, Debug)]
pub struct PlannedFunction {
    /// Its name.
    pub function: String,
    /// File name of its module.
    pub module: String,
    /// Load bias of the module.
    pub base: u64,
    /// Range of its code (svma).
    pub range: Range<u64>,
    /// Code that the jump displaces.
    pub plan: Plan,
    /// Code displaced by the jumps at its exits, if latency is measured.
    pub exits: Vec<Plan>,
    /// Address range of the module (avma).
    pub(super) module_range: Range<u64>,
}

/// Function that cannot have a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedFunction {
    /// Its name.
    pub function: String,
    /// File name of its module.
    pub module: String,
    /// Reason.
    pub why: String,
}

/// Functions to be probed.
#[derive(Debug)]
pub struct ProbePlan {
    /// The process.
    pub pid: i32,
    /// Functions that can be probed.
    pub functions: Vec<PlannedFunction>,
    /// Functions that cannot be probed.
    pub refused: Vec<RefusedFunction>,
    /// Conditions that a call must meet to count.
    pub conditions: Vec<Condition>,
    /// True if latency is measured.
    pub has_latency: bool,
    /// Further parts of calls to examine.
    pub events: EventOptions,
}

impl ProbePlan {
    /// Returns the layout of the counters.
    pub(super) fn layout(&self) -> CountsLayout {
        CountsLayout {
            probes: self.functions.len(),
            has_latency: self.has_latency,
            arguments: self.events.arguments.len(),
            has_stacks: self.events.depth.is_some(),
        }
    }
}

/// Function that the user selected.
struct Candidate {
    name: String,
    symbol: FunctionSymbol,
}

/// Options of probes apart from counting.
#[derive(Clone, Debug, Default)]
pub struct ProbeOptions {
    /// Conditions that a call must meet to count.
    pub conditions: Vec<Condition>,
    /// True to measure latency.
    pub has_latency: bool,
    /// Further parts of calls to examine.
    pub events: EventOptions,
}

/// Finds the functions and plans a probe for each. Only reads the process.
pub fn plan_probes(
    pid: i32,
    selectors: &[FunctionSelector],
    options: &ProbeOptions,
) -> Result<ProbePlan, Error> {
    if !has_lahf() {
        return Err(ProbeError::NoFlags.into());
    }
    let maps = mappings(pid)?;
    let loaded = modules(pid, &maps, &mut ModuleFiles::in_parts())?;
    let roots = TargetRoot::of(pid).search_order();
    let search = SearchPath::from(roots);
    let symbols: Vec<Vec<FunctionSymbol>> = loaded
        .iter()
        .map(|module| {
            let is_wanted = selectors
                .iter()
                .any(|selector| selector.is_in(module.name()));
            if is_wanted {
                functions(&module_file(module), &search)
            } else {
                Vec::new()
            }
        })
        .collect();
    let mut candidates: Vec<BTreeMap<u64, Candidate>> =
        loaded.iter().map(|_| BTreeMap::new()).collect();
    for selector in selectors {
        choose(pid, selector, &loaded, &symbols, &mut candidates, &search)?;
    }
    let mut planned = ProbePlan {
        pid,
        functions: Vec::new(),
        refused: Vec::new(),
        conditions: options.conditions.clone(),
        has_latency: options.has_latency,
        events: options.events.clone(),
    };
    for ((module, symbols), candidates) in loaded.iter().zip(&symbols).zip(&candidates) {
        if !candidates.is_empty() {
            decide(pid, &maps, module, symbols, candidates, &mut planned);
        }
    }
    if planned.has_latency && planned.functions.len() > MOST_LATENCIES {
        let functions = planned.functions.len();
        return Err(ProbeError::TooManyLatencies { functions }.into());
    }
    if planned.events.is_any() && planned.functions.len() > MOST_EVENTS {
        let functions = planned.functions.len();
        return Err(ProbeError::TooManyEvents { functions }.into());
    }
    Ok(planned)
}

/// Returns true if LAHF and SAHF work in 64-bit mode, which early processors of this architecture lack.
fn has_lahf() -> bool {
    let facts = memhook_process::proc_text("/proc/cpuinfo").unwrap_or_default();
    facts
        .lines()
        .any(|line| line.starts_with("flags") && line.split(' ').any(|flag| flag == "lahf_lm"))
}

/// Finds the only function that matches a selector, and the number of its module. `symbols`: the symbols of each
/// module.
pub(crate) fn find_function(
    pid: i32,
    selector: &FunctionSelector,
    modules: &[ModuleImage],
    symbols: &[Vec<FunctionSymbol>],
    search: &SearchPath,
) -> Result<(usize, Vec<FunctionSymbol>), ProbeError> {
    let mut candidates: Vec<BTreeMap<u64, Candidate>> =
        modules.iter().map(|_| BTreeMap::new()).collect();
    choose(pid, selector, modules, symbols, &mut candidates, search)?;
    let found = candidates.into_iter().enumerate();
    let mut found = found.filter(|(_, of_module)| !of_module.is_empty());
    let (module, of_module) = found.next().expect("choose has found something");
    let symbols = of_module.into_values().map(|candidate| candidate.symbol);
    Ok((module, symbols.collect()))
}

/// Adds the functions that a selector means.
fn choose(
    pid: i32,
    selector: &FunctionSelector,
    modules: &[ModuleImage],
    symbols: &[Vec<FunctionSymbol>],
    candidates: &mut [BTreeMap<u64, Candidate>],
    search: &SearchPath,
) -> Result<(), ProbeError> {
    let inside: Vec<usize> = (0..modules.len())
        .filter(|&n| selector.is_in(modules[n].name()))
        .collect();
    if let (true, Some(module)) = (inside.is_empty(), &selector.module) {
        // The full file name, and a short form such as `libc`.
        let forms = |m| {
            let name: &str = ModuleImage::name(m);
            [name, name.split(".so").next().unwrap_or(name)]
        };
        let names: BTreeSet<&str> = modules.iter().flat_map(forms).collect();
        let near = nearest(module, names.into_iter(), MOST_SUGGESTED);
        return Err(ProbeError::UnknownModule {
            pid,
            module: module.clone(),
            near: near.into_iter().map(str::to_owned).collect(),
        });
    }
    let mut found: Vec<(usize, FunctionSymbol)> = Vec::new();
    for &n in &inside {
        if let Wanted::Offset(start) = selector.wanted {
            let known = symbols[n]
                .iter()
                .find(|symbol| symbol.start == start)
                .cloned();
            let unnamed = || FunctionSymbol {
                name: selector.text.clone(),
                start,
                bytes: 0,
                is_indirect: false,
            };
            found.push((n, known.unwrap_or_else(unnamed)));
            continue;
        }
        found.extend(named(n, &symbols[n], &|s| selector.is_name(s, &demangle)));
    }
    if found.is_empty() {
        for &n in &inside {
            let is_meant = |symbol: &str| selector.is_unscoped_name(symbol, &demangle);
            found.extend(named(n, &symbols[n], &is_meant));
        }
    }
    let is_one = !matches!(selector.wanted, Wanted::Pattern(_));
    if found.is_empty() {
        return Err(unknown(selector, modules, &inside, symbols, search));
    }
    let functions: BTreeSet<(usize, &str)> = found
        .iter()
        .map(|(n, symbol)| (*n, original_of(&symbol.name)))
        .collect();
    if is_one && functions.len() > 1 {
        let places = found.iter().take(MOST_LISTED).map(|(n, symbol)| {
            let module = modules[*n].name();
            let same = found.iter().filter(|(other, _)| other == n).count();
            if same == 1 {
                format!("{module}!{}", symbol.name)
            } else {
                format!("{module}+{:#x} ({})", symbol.start, demangle(&symbol.name))
            }
        });
        return Err(ProbeError::Ambiguous {
            wanted: selector.text.clone(),
            places: places.collect(),
        });
    }
    for (n, symbol) in found {
        let name = demangle(&symbol.name);
        candidates[n]
            .entry(symbol.start)
            .or_insert(Candidate { name, symbol });
    }
    Ok(())
}

/// Returns the selected functions of module number `n`, each once.
fn named<'a>(
    n: usize,
    symbols: &'a [FunctionSymbol],
    is_meant: &'a dyn Fn(&str) -> bool,
) -> impl Iterator<Item = (usize, FunctionSymbol)> + 'a {
    let mut places = BTreeSet::new();
    let matching = symbols.iter().filter(|s| is_meant(&s.name));
    let first_names = matching.filter(move |symbol| places.insert(symbol.start));
    first_names.map(move |symbol| (n, symbol.clone()))
}

fn unknown(
    selector: &FunctionSelector,
    modules: &[ModuleImage],
    inside: &[usize],
    symbols: &[Vec<FunctionSymbol>],
    search: &SearchPath,
) -> ProbeError {
    let wanted = match &selector.wanted {
        Wanted::Name(name) | Wanted::Pattern(name) => name,
        Wanted::Offset(_) => &selector.text,
    };
    if let Wanted::Name(name) = &selector.wanted {
        let inlined = inside.iter().map(|&n| {
            let module = module_file(&modules[n]);
            inlined_at(&module, search, name, MOST_LISTED)
        });
        if let Some(places) = inlined.into_iter().find(|places| !places.is_empty()) {
            let wanted = selector.text.clone();
            return ProbeError::Inlined { wanted, places };
        }
    }
    let names: BTreeSet<String> = inside
        .iter()
        .flat_map(|&n| &symbols[n])
        .map(|symbol| {
            let full = demangle(&symbol.name);
            full.split('(').next().unwrap_or(&full).to_owned()
        })
        .collect();
    let near = nearest(wanted, names.iter().map(String::as_str), MOST_SUGGESTED);
    ProbeError::Unknown {
        wanted: selector.text.clone(),
        near: near.into_iter().map(str::to_owned).collect(),
    }
}

/// Plans the probes of one module.
fn decide(
    pid: i32,
    maps: &[Mapping],
    module: &ModuleImage,
    symbols: &[FunctionSymbol],
    candidates: &BTreeMap<u64, Candidate>,
    planned: &mut ProbePlan,
) {
    let wanted: Vec<&FunctionSymbol> = candidates.values().map(|c| &c.symbol).collect();
    let any = |_: &FunctionCode<'_>, _: usize| Ok(());
    let plans = plan_functions(
        pid,
        maps,
        module,
        symbols,
        &wanted,
        planned.has_latency,
        &any,
    );
    for (candidate, plan) in candidates.values().zip(plans) {
        let (function, name) = (candidate.name.clone(), module.name().to_owned());
        match plan {
            Ok((range, plan, exits)) => planned.functions.push(PlannedFunction {
                function,
                module: name,
                base: module.base,
                range,
                plan,
                exits,
                module_range: module.start..module.end,
            }),
            Err(why) => planned.refused.push(RefusedFunction {
                function,
                module: name,
                why,
            }),
        }
    }
}

/// Code displaced by a jump at the entry of a function, with its range and its exits.
pub(crate) type FunctionPlan = Result<(Range<u64>, Plan, Vec<Plan>), String>;

/// Function with its surrounding code.
pub(crate) struct FunctionCode<'a> {
    pub code: &'a Code<'a>,
    pub function: &'a Range<u64>,
    /// All functions of the module, by address.
    pub functions: &'a [Range<u64>],
}

/// Plans the jumps of some functions of a module, in their order. `symbols` has all known functions of the module. If
/// nothing else prevents a jump, `check` decides. The argument of `check` is the index among the wanted functions.
pub(crate) fn plan_functions(
    pid: i32,
    maps: &[Mapping],
    module: &ModuleImage,
    symbols: &[FunctionSymbol],
    wanted: &[&FunctionSymbol],
    has_latency: bool,
    check: &dyn Fn(&FunctionCode<'_>, usize) -> Result<(), String>,
) -> Vec<FunctionPlan> {
    let file = file_of(module);
    let module_code = ModuleCode::of(&file);
    let Some(of_module) = &module_code else {
        let unreadable = || Err("the file of its module cannot be read".to_owned());
        return wanted.iter().map(|_| unreadable()).collect();
    };
    let mut all: Vec<Range<u64>> = of_module.ranges.iter().map(|r| r.range.clone()).collect();
    let without_frames = symbols
        .iter()
        .filter(|s| s.bytes > 0 && of_module.range_at(s.start).is_none());
    all.extend(without_frames.filter_map(|s| Some(s.start..s.start.checked_add(s.bytes)?)));
    all.sort_by_key(|range| (range.start, range.end));
    all.dedup();
    // A function that begins inside the first bytes of another function may be called from anywhere.
    let mut pointers = of_module.pointers.clone();
    pointers.extend(symbols.iter().map(|symbol| symbol.start));
    pointers.extend(of_module.ranges.iter().map(|found| found.range.start));
    pointers.sort_unstable();
    pointers.dedup();
    let code = Code::new(&of_module.text, &of_module.loaded, &all, &pointers);
    let plan = |(number, symbol): (usize, &&FunctionSymbol)| {
        let planned = one(pid, maps, module, of_module, &code, symbol, has_latency)?;
        let of_function = FunctionCode {
            code: &code,
            function: &planned.0,
            functions: &all,
        };
        check(&of_function, number)?;
        Ok(planned)
    };
    wanted.iter().enumerate().map(plan).collect()
}

fn one(
    pid: i32,
    maps: &[Mapping],
    module: &ModuleImage,
    of_module: &ModuleCode<'_>,
    code: &Code<'_>,
    symbol: &FunctionSymbol,
    has_latency: bool,
) -> Result<(Range<u64>, Plan, Vec<Plan>), String> {
    if symbol.is_indirect {
        return Err("it only selects the real function when the program is loaded (ifunc): name the real one".into());
    }
    if symbol.name.ends_with(".cold") || symbol.name.contains(".cold.") {
        return Err("it is a part of another function, and is not called".into());
    }
    if COMPARED_CODE
        .iter()
        .any(|name| symbol.name.starts_with(name))
    {
        return Err(
            "a signal handler of the C library compares program counters with its code".into(),
        );
    }
    let range = range_of(of_module, symbol)?;
    let entry = module.base.wrapping_add(range.start);
    let mapping = maps.iter().find(|m| m.contains(entry));
    if !mapping.is_some_and(|m| m.exec && !m.write && !m.shared && m.file_id.2 != 0) {
        return Err("its code is not in private, read-only memory of its file".into());
    }
    let plan = plan(code, &range).map_err(|refusal| refusal.to_string())?;
    let exits = if has_latency {
        plan_exits(code, &range, &plan)
    } else {
        Ok(Vec::new())
    };
    let exits = exits.map_err(|refusal| refusal.to_string())?;
    let head = range.start..plan.at + plan.displaced_bytes as u64;
    let tails = exits
        .iter()
        .map(|exit| exit.at..exit.at + JUMP_BYTES as u64);
    for part in tails.chain([head]) {
        let expected = code.bytes(&part).unwrap_or_default();
        let mut now = vec![0; expected.len()];
        let at = RemoteAddress(module.base.wrapping_add(part.start));
        if read_memory(pid, at, &mut now).is_err() || now != expected {
            return Err("its code in memory differs from its file: a breakpoint, a kernel probe or another tracer may have changed it".into());
        }
    }
    Ok((range, plan, exits))
}

/// Returns the range of a function.
fn range_of(of_module: &ModuleCode<'_>, symbol: &FunctionSymbol) -> Result<Range<u64>, String> {
    match of_module.range_at(symbol.start) {
        Some(found) if found.is_signal_frame => {
            Err("it is entered by a return from a signal handler, not by a call".into())
        }
        Some(found) if found.range.start == symbol.start => Ok(found.range.clone()),
        Some(_) => Err("it begins inside another function".into()),
        None if of_module.has_go => {
            Err("it is Go code: a goroutine may be moved away at any point in it".into())
        }
        None if symbol.bytes == 0 => {
            Err("neither a symbol nor call frame information says where the function ends".into())
        }
        None => Ok(symbol.start..symbol.start.saturating_add(symbol.bytes)),
    }
}
