//! Choice of the functions that get a pad.

use crate::hook::loading::leaves_alone;
use crate::probes::{FunctionCode, plan_functions};
use crate::survey::process::Surveyed;
use memhook_abi::{DescribedFunction, HOOKED_FUNCTIONS, Role};
use memhook_heap::module_file;
use memhook_probe::{Plan, calls_unknown_code};
use memhook_process::{ModuleImage, TargetRoot, own_allocator_functions};
use memhook_symbols::{FunctionSymbol, SearchPath, functions};
use std::ops::Range;

/// Function that can have a pad.
#[derive(Clone, Debug)]
pub(crate) struct PlannedPad {
    /// Its symbol.
    pub name: String,
    /// Id of the hooked function that this function implements, or of a described function.
    pub function: usize,
    /// Effect of a described function.
    pub does: Option<DescribedFunction>,
    /// Address of the function (avma).
    pub address: u64,
    /// Code that the jump displaces.
    pub plan: Plan,
    /// Load bias of its module.
    pub bias: u64,
    /// Range of the allocator's own code (svma), whose calls are not the program's.
    pub inner: Option<Range<u64>>,
    /// The module's file name.
    pub module: String,
    /// Address range of the module (avma).
    pub range: Range<u64>,
}

/// Function that cannot have a pad.
#[derive(Clone, Debug)]
pub(crate) struct RefusedPad {
    /// Its symbol.
    pub name: String,
    /// The id of the hooked function.
    pub function: usize,
    /// Address of the function (avma).
    pub address: u64,
    /// The module's file name.
    pub module: String,
    /// Reason.
    pub why: String,
}

/// Function to hook.
struct Wanted {
    /// Id of the hooked function that it implements.
    function: usize,
    /// True if its callers are in other files.
    is_of_known_library: bool,
    symbol: FunctionSymbol,
}

const COUNTED_ON_REGISTERS: &str = "the compiler knew all the code that it calls, so its callers may rely on registers that the ABI lets it change";

/// Plan for the functions of allocators that are part of a process's modules.
#[derive(Clone, Debug, Default)]
pub(crate) struct PadPlan {
    /// Functions that can have a pad.
    pub pads: Vec<PlannedPad>,
    /// Functions that cannot have a pad.
    pub refused: Vec<RefusedPad>,
    /// True if an exception may pass through calls of a function, which needs a hook that the loader knows.
    pub may_be_thrown_through: bool,
}

/// Functions of glibc that free a thread's cache and the blocks in it, which the program has already released
/// (malloc/arena.c). The function that frees the cache has contained the calls that free these blocks since 2.26.
pub(super) const INNER_CALLERS: [&str; 2] =
    ["__malloc_arena_thread_freeres", "arena_thread_freeres"];

/// Plans the pads for the allocator functions in all modules. Only reads the process.
pub(crate) fn plan_pads(survey: &Surveyed) -> PadPlan {
    let mut planned = PadPlan::default();
    for module in survey.modules.iter().filter(|m| !m.is_libc && !m.is_loader) {
        let found = own_allocator_functions(module).into_iter();
        let wanted: Vec<Wanted> = found
            .filter_map(|found| Some((found.hooked?, found)))
            .filter(|(id, _)| {
                let role = HOOKED_FUNCTIONS[*id].role;
                !matches!(role, Role::Modules | Role::Forks) && !leaves_alone(survey.object, *id)
            })
            .map(|(id, found)| {
                let symbol = FunctionSymbol {
                    name: found.name,
                    start: found.svma,
                    bytes: found.size,
                    is_indirect: false,
                };
                Wanted {
                    function: id,
                    is_of_known_library: found.allocator.is_some_and(|a| a != "C++"),
                    symbol,
                }
            })
            .collect();
        if !wanted.is_empty() {
            planned.add(survey, module, &wanted);
        }
    }
    planned
}

impl PadPlan {
    fn add(&mut self, survey: &Surveyed, module: &ModuleImage, wanted: &[Wanted]) {
        let (pid, maps) = (survey.pid, &survey.maps);
        let search = SearchPath::from(TargetRoot::of(pid).search_order());
        let symbols = functions(&module_file(module), &search);
        let ones: Vec<&FunctionSymbol> = wanted.iter().map(|one| &one.symbol).collect();
        let keeps_to_abi = |of: &FunctionCode<'_>, number: usize| {
            let is_fine = wanted[number].is_of_known_library
                || calls_unknown_code(of.code, of.function, of.functions);
            is_fine
                .then_some(())
                .ok_or_else(|| COUNTED_ON_REGISTERS.to_owned())
        };
        let plans = plan_functions(pid, maps, module, &symbols, &ones, false, &keeps_to_abi);
        let of_allocator = symbols
            .iter()
            .find(|s| INNER_CALLERS.contains(&s.name.as_str()));
        let inner = of_allocator.map(|s| s.start..s.start.saturating_add(s.bytes));
        let (mut pads, mut refused) = (Vec::new(), Vec::new());
        for (one, plan) in wanted.iter().zip(plans) {
            let (symbol, function) = (&one.symbol, one.function);
            let name = symbol.name.clone();
            let (address, of_module) = (
                module.base.wrapping_add(symbol.start),
                module.name().to_owned(),
            );
            match plan {
                Ok((_, plan, _)) => pads.push(PlannedPad {
                    name,
                    function,
                    does: None,
                    address,
                    plan,
                    bias: module.base,
                    inner: inner.clone(),
                    module: of_module,
                    range: module.start..module.end,
                }),
                Err(why) => refused.push(RefusedPad {
                    name,
                    function,
                    address,
                    module: of_module,
                    why,
                }),
            }
        }
        // Blocks with unseen releases would look like leaks.
        let unseen = refused.iter().find(|r| releases(r.function));
        if let Some(unseen) = unseen.map(|unseen| unseen.name.clone()) {
            let why = format!("{unseen} of the same allocator cannot be traced");
            refused.extend(pads.drain(..).map(|pad| RefusedPad {
                name: pad.name,
                function: pad.function,
                address: pad.address,
                module: pad.module,
                why: why.clone(),
            }));
            // The cause is first in the list.
            refused.sort_by_key(|refused| refused.why == why);
        }
        self.pads.extend(pads);
        self.refused.extend(refused);
    }
}

pub(super) fn releases(function: usize) -> bool {
    let hooked = HOOKED_FUNCTIONS.get(function);
    hooked.is_some_and(|f| matches!(f.role, Role::Releases | Role::Reallocates))
}
