//! Pads for functions of allocators that the user has described.

use super::planned::{PadPlan, PlannedPad};
use crate::error::Error;
use crate::probes::{FunctionCode, find_function, plan_functions};
use crate::survey::process::Surveyed;
use memhook_abi::{DescribedFunction, DescribedRole, FIRST_DESCRIBED};
use memhook_heap::module_file;
use memhook_probe::{Allocator, may_take_stack_arguments, original_of};
use memhook_process::{ModuleImage, TargetRoot};
use memhook_symbols::{FunctionSymbol, SearchPath, demangle, functions};

/// Described heap that is traced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TracedHeap {
    /// Name given by the user.
    pub name: String,
    /// Ids and names of its functions.
    pub functions: Vec<(u8, String)>,
    /// True if one of the functions releases single blocks.
    pub releases: bool,
}

/// Function that was found.
struct Found {
    module: usize,
    symbol: FunctionSymbol,
    /// Name as the user wrote it.
    text: String,
    does: DescribedFunction,
}

const ON_STACK: &str =
    "it reads arguments from the stack, where it would not find them if the hook called it";
/// Libraries of programs that throw: the C++ runtimes and the unwinders.
const UNWINDING: [&str; 5] = [
    "libstdc++.so",
    "libc++.so",
    "libc++abi.so",
    "libgcc_s.so",
    "libunwind.so",
];
const CANNOT_THROW: &str = "the program can throw exceptions, and they cannot pass through a hook that is mapped without the loader";

/// Adds the functions of these allocators to a plan, or reports which of them cannot have a pad. A described allocator
/// is traced completely or not at all, because tracing only some of its functions would lead to false leaks, or to no
/// events.
pub(crate) fn plan_described(
    survey: &Surveyed,
    allocators: &[Allocator],
    planned: &mut PadPlan,
) -> Result<(), Error> {
    let (pid, maps, modules) = (survey.pid, &survey.maps, &survey.modules);
    if allocators.is_empty() {
        return Ok(());
    }
    let search = SearchPath::from(TargetRoot::of(pid).search_order());
    let all = || allocators.iter().flat_map(|a| &a.functions);
    let symbols: Vec<Vec<FunctionSymbol>> = modules
        .iter()
        .map(|module| {
            if all().any(|function| function.selector.is_in(module.name())) {
                functions(&module_file(module), &search)
            } else {
                Vec::new()
            }
        })
        .collect();
    let mut found: Vec<Found> = Vec::new();
    for (heap, allocator) in (0..).zip(allocators) {
        for function in &allocator.functions {
            let text = function.selector.text.clone();
            let one = find_function(pid, &function.selector, modules, &symbols, &search)?;
            let (module, symbol) = only_one(&text, one, modules)?;
            let is_same = |f: &&Found| (f.module, f.symbol.start) == (module, symbol.start);
            if let Some(same) = found.iter().find(is_same) {
                return Err(refused(
                    &text,
                    &format!("it is the same function as {}", same.text),
                ));
            }
            let does = DescribedFunction {
                heap,
                ..function.does
            };
            found.push(Found {
                module,
                symbol,
                text,
                does,
            });
        }
    }
    let program_throws = modules.iter().any(may_throw_or_catch);
    for (number, module) in modules.iter().enumerate() {
        let of_module: Vec<(usize, &Found)> = found
            .iter()
            .enumerate()
            .filter(|(_, f)| f.module == number)
            .collect();
        if of_module.is_empty() {
            continue;
        }
        if module.is_loader && !module.is_libc {
            let why = "it is a part of the loader, which runs before and while modules are loaded";
            return Err(refused(&of_module[0].1.text, why));
        }
        let throws = program_throws || symbols[number].iter().any(|s| s.name == "__cxa_throw");
        let check = |of: &FunctionCode<'_>, n: usize| {
            let (_, found) = of_module[n];
            if found.does.role == DescribedRole::Releases {
                return Ok(()); // it is gone on with by a jump
            }
            // No unwinder knows a mapped hook.
            if throws && survey.object.is_mapped {
                return Err(CANNOT_THROW.to_owned());
            }
            let is_fine = !may_take_stack_arguments(of.code, of.function);
            is_fine.then_some(()).ok_or_else(|| ON_STACK.to_owned())
        };
        let wanted: Vec<&FunctionSymbol> = of_module.iter().map(|(_, f)| &f.symbol).collect();
        let plans = plan_functions(pid, maps, module, &symbols[number], &wanted, false, &check);
        for ((id, found), plan) in of_module.into_iter().zip(plans) {
            let (_, plan, _) = plan.map_err(|why| refused(&found.text, &why))?;
            let address = module.base.wrapping_add(found.symbol.start);
            if let Some(own) = planned.pads.iter().find(|pad| pad.address == address) {
                let why = format!("it is traced already, as {}", own.name);
                return Err(refused(&found.text, &why));
            }
            planned.may_be_thrown_through |= throws && found.does.role != DescribedRole::Releases;
            planned.pads.push(PlannedPad {
                name: plain(&found.symbol.name),
                function: FIRST_DESCRIBED + id,
                does: Some(found.does),
                address,
                plan,
                bias: module.base,
                inner: None,
                module: module.name().to_owned(),
                range: module.start..module.end,
            });
        }
    }
    Ok(())
}

/// Returns true if the linked libraries show that a module's code may throw or catch exceptions, or unwind in another
/// way. Returns false for an allocator's own library, which defines the C++ operators and throws from them.
fn may_throw_or_catch(module: &ModuleImage) -> bool {
    let is_one = |name: &str| UNWINDING.iter().any(|library| name.starts_with(library));
    let is_allocator = !module.is_main && module.facts.exported("malloc").is_some();
    !is_one(module.name()) && !is_allocator && module.facts.needs(is_one)
}

/// Function that the user has described, and its reach.
#[derive(Clone, Debug)]
pub struct DescribedReach {
    /// Name of the heap.
    pub heap: String,
    /// Name of the function as the user wrote it.
    pub function: String,
    /// File name of the module and address of the function (avma), or the reason why it cannot be traced.
    pub found: Result<(String, u64), String>,
}

/// Reports for each function of these allocators whether it can have a pad.
pub(crate) fn reach_of_described(
    survey: &Surveyed,
    allocators: &[Allocator],
    planned: &PadPlan,
) -> Vec<DescribedReach> {
    let mut reach = Vec::new();
    for allocator in allocators {
        for function in &allocator.functions {
            let alone = Allocator {
                name: allocator.name.clone(),
                functions: vec![function.clone()],
            };
            let text = function.selector.text.clone();
            let mut with_it = planned.clone();
            let placed = plan_described(survey, &[alone], &mut with_it);
            let found = match (placed, with_it.pads.pop()) {
                (Ok(()), Some(pad)) => Ok((pad.module, pad.address)),
                (Ok(()), None) => Err("it was not found".to_owned()),
                (Err(error), _) => {
                    // The function has a separate column.
                    let why = error.to_string();
                    let known = refused(&text, "").to_string();
                    Err(why.strip_prefix(&known).unwrap_or(&why).to_owned())
                }
            };
            reach.push(DescribedReach {
                heap: allocator.name.clone(),
                function: text,
                found,
            });
        }
    }
    for at in 1..reach.len() {
        let (before, rest) = reach.split_at_mut(at);
        let place = rest[0].found.as_ref().ok();
        let same = before
            .iter()
            .find(|r| r.found.as_ref().ok() == place && place.is_some());
        if let Some(same) = same {
            rest[0].found = Err(format!("it is the same function as {}", same.function));
        }
    }
    reach
}

/// Returns the function, unless the compiler has made variants of it, which take other arguments.
fn only_one(
    text: &str,
    (module, mut symbols): (usize, Vec<FunctionSymbol>),
    modules: &[ModuleImage],
) -> Result<(usize, FunctionSymbol), Error> {
    let is_itself = |s: &FunctionSymbol| original_of(&s.name) == s.name || text.ends_with(&s.name);
    if let Some(copy) = symbols.iter().find(|s| !is_itself(s)) {
        let why = format!(
            "the compiler has also made the variant {} of it in {}, which takes other arguments: describe each of the two",
            copy.name,
            modules[module].name()
        );
        return Err(refused(text, &why));
    }
    Ok((module, symbols.remove(0)))
}

/// Returns the function's name as users write it.
fn plain(symbol: &str) -> String {
    let full = demangle(symbol);
    full.split('(').next().unwrap_or(&full).to_owned()
}

fn refused(text: &str, why: &str) -> Error {
    Error::Refused(format!(
        "{text} cannot be traced as a function of an allocator: {why}"
    ))
}
