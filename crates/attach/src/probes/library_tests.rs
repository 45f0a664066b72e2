//! Every function of large libraries is planned or refused; each planned function's pad was checked by decoding it
//! again.

use super::code_of_module::ModuleCode;
use memhook_probe::{
    AreaFunction, AreaHeader, AreaPlan, Code, CountsLayout, Plan, Role, plan, plan_exits,
};
use std::ops::Range;

fn file(name: &str) -> Vec<u8> {
    let path = format!("/usr/lib/x86_64-linux-gnu/{name}");
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn every_function_of_a_library_is_planned_or_refused() {
    for name in ["libc.so.6", "libstdc++.so.6", "libcrypto.so.3"] {
        let file = file(name);
        let module = ModuleCode::of(&file).expect("an ELF file");
        let ranges: Vec<Range<u64>> = module.ranges.iter().map(|r| r.range.clone()).collect();
        let code = Code::new(&module.text, &module.loaded, &ranges, &module.pointers);
        let plans: Vec<(Plan, Option<Vec<Plan>>)> = ranges
            .iter()
            .filter_map(|range| {
                let entry = plan(&code, range).ok()?;
                let exits = plan_exits(&code, range, &entry).ok();
                Some((entry, exits))
            })
            .collect();
        let layout = CountsLayout {
            probes: plans.len(),
            has_latency: true,
            ..CountsLayout::default()
        };
        let bias = 0x7f00_0000_0000;
        let mut functions = Vec::new();
        for (probe, (entry, exits)) in plans.iter().enumerate() {
            let exits = exits.iter().flatten().map(|exit| (exit, Role::Ends));
            functions.extend(exits.chain([(entry, Role::Begins)]).map(|(plan, role)| {
                AreaFunction {
                    plan,
                    bias,
                    probe,
                    role,
                }
            }));
        }
        let measured = plans.iter().filter(|(_, exits)| exits.is_some()).count();
        let area = AreaPlan::new(functions, &[]);
        let at = bias - area.bytes();
        let built = area
            .build(at, AreaHeader::default(), &layout)
            .expect("within reach");
        assert_eq!(
            built.journal.len(),
            built.pads.iter().filter(|pad| pad.is_ok()).count()
        );
        let pads = plans.len();
        // A change that makes many more functions refused needs a review.
        assert!(
            pads * 2 > ranges.len(),
            "{name}: {pads} of {}",
            ranges.len()
        );
        assert!(measured * 2 > pads, "{name}: {measured} of {pads}");
        eprintln!(
            "{name}: of {} functions, {pads} can be probed and {measured} measured",
            ranges.len()
        );
    }
}
