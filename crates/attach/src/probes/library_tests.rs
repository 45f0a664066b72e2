//! Every function of large libraries is planned or refused; what is planned has a pad that was checked by decoding it
//! again.

use super::code_of_module::ModuleCode;
use memhook_probe::{AreaHeader, AreaPlan, Code, CountsLayout, plan};
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
        let plans: Vec<_> = ranges
            .iter()
            .filter_map(|range| plan(&code, range).ok())
            .collect();
        let layout = CountsLayout {
            probes: plans.len(),
        };
        let bias = 0x7f00_0000_0000;
        let functions = plans.iter().enumerate().map(|(n, plan)| (plan, bias, n));
        let area = AreaPlan::new(functions.collect(), &[]);
        let at = bias - area.bytes();
        let built = area
            .build(at, AreaHeader::default(), &layout)
            .expect("within reach");
        let pads = built.pads.iter().filter(|pad| pad.is_ok()).count();
        // A change that refuses far more is one to look at.
        assert!(
            pads * 2 > ranges.len(),
            "{name}: {pads} of {}",
            ranges.len()
        );
        assert_eq!(built.journal.len(), pads);
        eprintln!("{name}: {pads} of {} functions can be probed", ranges.len());
    }
}
