//! Tables of AArch64 libraries, compared with gimli's interpretation of the same call frame information, and stacks
//! that are unwound with them. Both tests run on any processor.

use crate::arch::Frames;
use crate::arch::aarch64::Code;
use crate::compile::compile_for;
use crate::walk::{Start, walk_code};
use crate::{Sections, TableModule, UnwindTable};
use gimli::{
    AArch64, CfaRule, CieOrFde, EhFrame, LittleEndian, RegisterRule, UnwindContext, UnwindSection,
    Vendor,
};
use memhook_abi::unwind_rule as rule;
use std::collections::BTreeMap;
use std::sync::Arc;

/// AArch64 libraries of the cross compiler that the port tests use (libc6-arm64-cross and related packages), unless
/// MEMHOOK_AARCH64_LIBRARIES names another directory.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu/lib";

/// Location of the CFA, the caller's x29 and the return address according to a row; `None` if one of them requires a
/// register that tables cannot express.
#[derive(Debug, PartialEq, Eq)]
enum Row {
    End,
    Frame {
        /// From sp, or from x29.
        cfa: (bool, i64),
        /// From the CFA. `None`: in the register still.
        frame_pointer: Option<i64>,
        return_address: Option<i64>,
    },
}

/// Reads a rule back into what it means.
fn meaning(packed: u64) -> Option<Row> {
    let from_sp = match rule::cfa_kind(packed) {
        rule::END => return Some(Row::End),
        rule::RSP => true,
        rule::RBP => false,
        _ => return None,
    };
    let place = rule::rbp_offset(packed);
    let (frame_pointer, return_address) = match rule::rbp_kind(packed) {
        rule::LINK_SAME => (None, None),
        rule::LINK_AT_CFA => (None, Some(place)),
        rule::RECORD_AT_CFA => (Some(place), Some(place + 8)),
        other => panic!("{other} is no rule of this processor"),
    };
    Some(Row::Frame {
        cfa: (from_sp, rule::cfa_offset(packed)),
        frame_pointer,
        return_address,
    })
}

/// The same of a row by gimli.
fn by_gimli(row: &gimli::UnwindTableRow<usize>) -> Option<Row> {
    let place = |register| match row.register(register) {
        None | Some(RegisterRule::SameValue) => Ok(None),
        Some(RegisterRule::Offset(offset)) => Ok(Some(offset)),
        _ => Err(()),
    };
    if matches!(row.register(AArch64::X30), Some(RegisterRule::Undefined)) {
        return Some(Row::End);
    }
    let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else {
        return None;
    };
    let is_known = [AArch64::SP, AArch64::X29].contains(register);
    is_known.then_some(())?;
    Some(Row::Frame {
        cfa: (*register == AArch64::SP, *offset),
        frame_pointer: place(AArch64::X29).ok()?,
        return_address: place(AArch64::X30).ok()?,
    })
}

/// Compares each row of a library with its table at its first and at its last byte. Returns the number of rows, and the
/// number of rows that the table cannot express.
fn compare(name: &str, elf: &[u8]) -> (usize, usize) {
    let table = compile_for::<Code>(elf).expect("call frame information");
    let sections = Sections::of(elf).expect("call frame information");
    let mut frames = EhFrame::new(&sections.eh_frame, LittleEndian);
    frames.set_address_size(8);
    frames.set_vendor(Vendor::AArch64);
    let mut context = UnwindContext::new();
    let mut entries = frames.entries(&sections.bases);
    let (mut rows_seen, mut stops) = (0, 0);
    while let Some(entry) = entries.next().expect("whole") {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let fde = partial.parse(EhFrame::cie_from_offset).expect("whole");
        let mut rows = fde
            .rows(&frames, &sections.bases, &mut context)
            .expect("whole");
        while let Some(row) = rows.next_row().expect("known instructions") {
            if row.start_address() >= row.end_address() {
                continue;
            }
            rows_seen += 1;
            for at in [row.start_address(), row.end_address() - 1] {
                let found = table.rule_at(at);
                if rule::cfa_kind(found) == rule::STOP {
                    stops += 1;
                } else {
                    assert_eq!(meaning(found), by_gimli(row), "{name} at {at:#x}");
                }
            }
        }
    }
    (rows_seen, stops / 2)
}

#[test]
fn every_row_of_the_libraries_is_as_gimli_reads_it() {
    let place = std::env::var("MEMHOOK_AARCH64_LIBRARIES").unwrap_or_else(|_| LIBRARIES.into());
    let Ok(libraries) = std::fs::read_dir(place) else {
        return memhook_tests::not_run("install libc6-arm64-cross");
    };
    let mut seen = BTreeMap::new();
    for library in libraries.map(|library| library.expect("readable").path()) {
        let bytes = std::fs::read(&library).expect("readable");
        // The other files are linker scripts, object files, and the same libraries under other names.
        let is_library = library.to_string_lossy().contains(".so");
        if is_library && bytes.starts_with(b"\x7fELF") && !library.is_symlink() {
            let name = library.to_string_lossy().into_owned();
            seen.insert(name.clone(), compare(&name, &bytes));
        }
    }
    let rows: usize = seen.values().map(|(rows, _)| rows).sum();
    let stops: usize = seen.values().map(|(_, stops)| stops).sum();
    println!(
        "{rows} rows of {} libraries, {stops} not expressed",
        seen.len()
    );
    assert!(rows > 50_000 && stops * 1000 < rows, "{seen:?}");
}

/// An ELF file of one loaded segment with this code.
fn file_of(code: &[u32]) -> Vec<u8> {
    let bytes = code.len() as u64 * 4;
    // The header (gABI, "ELF Header"): a 64-bit little-endian shared object for EM_AARCH64, with one program header at
    // byte 64.
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    for half in [3u16, 183] {
        elf.extend(half.to_le_bytes());
    }
    elf.extend(1u32.to_le_bytes());
    for word in [0u64, 64, 0] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 1, 64, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    // PT_LOAD, PF_R | PF_X.
    for half in [1u32, 5] {
        elf.extend(half.to_le_bytes());
    }
    for word in [
        START_OF_CODE - BASE,
        START_OF_CODE,
        START_OF_CODE,
        bytes,
        bytes,
        4,
    ] {
        elf.extend(word.to_le_bytes());
    }
    assert_eq!(elf.len() as u64, START_OF_CODE - BASE);
    elf.extend(code.iter().flat_map(|word| word.to_le_bytes()));
    elf
}

const BASE: u64 = 0x1000;
const START_OF_CODE: u64 = BASE + 64 + 56;
const NOP: u32 = 0xd503_201f;
/// `mov x8, #139` and `svc #0`.
const SIGRETURN: [u32; 2] = [0xd280_1168, 0xd400_0001];

#[test]
fn a_signal_trampoline_without_call_frame_information_is_found() {
    let elf = file_of(&[NOP, SIGRETURN[0], NOP, SIGRETURN[0], SIGRETURN[1], NOP]);
    let table = compile_for::<Code>(&elf).expect("a trampoline is enough");
    let kind = |at: u64| rule::cfa_kind(table.rule_at(at));
    let trampoline = START_OF_CODE + 12;
    // The handler returns to the trampoline's first instruction. A thread may be stopped at either of its two
    // instructions.
    assert_eq!(
        rule::cfa_kind(table.rule_at_return(trampoline)),
        rule::SIGNAL
    );
    assert_eq!(
        (kind(trampoline), kind(trampoline + 4)),
        (rule::SIGNAL, rule::SIGNAL)
    );
    assert_eq!(
        (kind(trampoline - 4), kind(trampoline + 8)),
        (rule::STOP, rule::STOP)
    );
    assert!(compile_for::<Code>(&file_of(&[NOP])).is_err());
}

/// Bits of a signature with addresses of 48 bits.
const SIGNATURE: u64 = 0x007f << 48;
const SIGNED: u64 = 0x0055 << 48;
const STACK: u64 = 0xffff_0000_1000;

/// Addresses of functions: a leaf function, one with a frame record, one whose frame is found through x29, one that
/// saves only x30, a signal trampoline, and the first function of a thread.
const LEAF: u64 = 0x100;
const PLAIN: u64 = 0x200;
const BY_FRAME_POINTER: u64 = 0x300;
const LINK_ALONE: u64 = 0x400;
const TRAMPOLINE: u64 = 0x500;
const FIRST: u64 = 0x600;

fn functions() -> [TableModule; 1] {
    let table = UnwindTable {
        offsets: [0x100, 0x200, 0x300, 0x400, 0x4ff, 0x508, 0x600, 0x700].to_vec(),
        row_rules: vec![1, 2, 3, 4, 5, 0, 6, 0],
        rules: vec![
            rule::STOP,
            rule::pack(rule::RSP, 0, rule::LINK_SAME, 0),
            rule::pack(rule::RSP, 32, rule::RECORD_AT_CFA, -32),
            rule::pack(rule::RBP, 48, rule::RECORD_AT_CFA, -48),
            rule::pack(rule::RSP, 16, rule::LINK_AT_CFA, -16),
            rule::pack(rule::SIGNAL, 0, rule::RBP_SAME, 0),
            rule::END,
        ],
        inexpressible: 0,
    };
    [TableModule {
        base: 0,
        start: 0,
        end: 0x1000,
        table: Arc::new(table),
    }]
}

fn start(pc: u64, sp: u64, x29: u64, x30: u64) -> Start {
    Start {
        pc,
        sp,
        frame_pointer: x29,
        return_register: Some(x30),
        signature: SIGNATURE,
    }
}

/// A signal handler interrupted a leaf function and has itself called a leaf function. All return addresses are signed.
#[test]
fn a_stack_through_a_signal_and_signed_addresses() {
    let interrupted = STACK + 0x800;
    let record = interrupted + 0x40;
    let saved = |number: usize| STACK + 32 + Code::SAVED[number];
    let memory = BTreeMap::from([
        // The record of the handler.
        (STACK, 0),
        (STACK + 8, TRAMPOLINE | SIGNED),
        // The signal frame: x29, x30, sp, pc.
        (saved(29), record),
        (saved(30), (BY_FRAME_POINTER + 4) | SIGNED),
        (saved(31), interrupted),
        (saved(32), LEAF + 8),
        (record, 0),
        (record + 8, (LINK_ALONE + 4) | SIGNED),
        (record + 48, (FIRST + 4) | SIGNED),
    ]);
    let read = |at: u64| memory.get(&at).copied();
    let begin = start(LEAF + 4, STACK, 0, (PLAIN + 4) | SIGNED);
    let (frames, is_complete) = walk_code::<Code>(&functions(), begin, &read, 20);
    let pcs: Vec<u64> = frames.iter().map(|frame| frame.pc).collect();
    let expected = [
        LEAF + 4,
        PLAIN + 4,
        TRAMPOLINE,
        LEAF + 8,
        BY_FRAME_POINTER + 4,
        LINK_ALONE + 4,
        FIRST + 4,
    ];
    assert_eq!((pcs.as_slice(), is_complete), (&expected[..], true));
    let exact: Vec<usize> = (0..frames.len()).filter(|&i| frames[i].is_exact).collect();
    assert_eq!(exact, [0, 3]);
    // If the bits of the signature are not removed, the first return address is in no module.
    let unsigned = Start {
        signature: 0,
        ..begin
    };
    let (frames, is_complete) = walk_code::<Code>(&functions(), unsigned, &read, 20);
    assert_eq!((frames.len(), is_complete), (2, false));
}

/// A function that has made a call no longer has its own return address in x30.
#[test]
fn a_caller_that_kept_no_return_address_ends_the_walk() {
    let begin = start(LEAF + 4, STACK, 0, LEAF + 8);
    let read = |_| Some(LEAF + 8);
    let (frames, is_complete) = walk_code::<Code>(&functions(), begin, &read, 20);
    assert_eq!((frames.len(), is_complete), (2, false));
}
