//! ELF files, read for patching and for unwinding.

use memhook_process::{ElfView, code_places};
use memhook_unwind::{TableModule, compile, reference, walk};
use std::sync::Arc;

/// Reads symbols, slots, notes and segments.
pub fn view(bytes: &[u8]) {
    code_places(bytes);
    let Ok(elf) = ElfView::parse(bytes) else {
        return;
    };
    elf.lowest_load();
    elf.build_id();
    elf.exported("malloc");
    let slots = elf.slots(&|_| true);
    assert!(slots.windows(2).all(|pair| pair[0].svma < pair[1].svma));
    elf.canonical_plt(&|_| true);
    elf.is_symbolic();
    elf.has_section(".symtab");
    let code: usize = elf.code().map(|(_, code)| code.len()).sum();
    assert!(code <= bytes.len().saturating_mul(bytes.len()));
}

/// Unlimited memory in which every word points back into the module.
fn word(address: u64) -> Option<u64> {
    match address % 5 {
        0 => None,
        1 => Some(address),
        _ => Some(0x1000 + address.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 0x8000),
    }
}

/// Compiles the unwind table, and unwinds with and without the table.
pub fn unwinding(bytes: &[u8]) {
    const BASE: u64 = 0x1000;
    const DEPTH: usize = 64;
    let Ok(table) = compile(bytes) else {
        return;
    };
    assert!(table.offsets.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(table.offsets.len(), table.row_rules.len());
    let known = |&number: &u16| usize::from(number) < table.rules.len();
    assert!(table.row_rules.iter().all(known));
    let places: Vec<u64> = table
        .offsets
        .iter()
        .step_by(7)
        .take(8)
        .map(|&o| o.into())
        .collect();
    let modules = [TableModule {
        base: BASE,
        start: 0,
        end: u64::MAX,
        table: Arc::new(table),
    }];
    let mut slow = reference::Unwinder::default();
    slow.add_module(BASE, 0..u64::MAX, bytes);
    for place in places {
        let pc = BASE.wrapping_add(place);
        for (sp, rbp) in [(0x7000, 0x7100), (u64::MAX - 7, u64::MAX)] {
            let (frames, _) = walk(&modules, (pc, sp, rbp), &word, DEPTH);
            assert!(frames.len() <= DEPTH);
            let found = slow.backtrace(reference::at(pc, sp, rbp), &word, DEPTH);
            assert!(found.frames.len() <= DEPTH);
        }
    }
}
