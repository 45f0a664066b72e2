//! Plans and refusals for the bytes of functions.

use super::*;
use crate::{AreaFunction, AreaHeader, AreaPlan, CountsLayout, Pad, Role};

const TEXT: u64 = 0x40_1000;

/// Plans the jump for a function that is the whole text.
fn planned(bytes: &[u8]) -> Result<Plan, Refusal> {
    let text = [(TEXT, bytes)];
    let range = TEXT..TEXT + bytes.len() as u64;
    let code = Code::new(&text, &[], std::slice::from_ref(&range), &[]);
    plan(&code, &range)
}

fn layout(probes: usize) -> CountsLayout {
    CountsLayout {
        probes,
        ..CountsLayout::default()
    }
}

fn counting(plan: &Plan, bias: u64, probe: usize) -> AreaFunction<'_> {
    AreaFunction {
        plan,
        bias,
        probe,
        role: Role::Counts,
    }
}

/// Creates the pad at this distance from the code.
fn pad_at(plan: &Plan, distance: i64) -> Result<Pad, Refusal> {
    let area = AreaPlan::new(vec![counting(plan, 0, 3)], &[]);
    let at = TEXT.wrapping_add_signed(distance);
    let layout = layout(4);
    let mut built = area.build(at, AreaHeader::default(), &layout)?;
    built.pads.remove(0)
}

#[test]
fn whole_instructions_are_displaced() {
    let prologue = planned(b"\x55\x48\x89\xe5\x48\x83\xec\x10\xc3").expect("movable");
    assert_eq!((prologue.at, prologue.displaced_bytes), (TEXT, 8));
    assert_eq!(
        prologue.assembly(),
        ["push rbp", "mov rbp, rsp", "sub rsp, 0x10"]
    );
    let marked = planned(b"\xf3\x0f\x1e\xfa\xb8\x01\0\0\0\xc3").expect("movable");
    assert_eq!((marked.at, marked.displaced_bytes), (TEXT + 4, 5));
    let padded = planned(b"\x90\x90\x90\x90\x90\x31\xc0\xc3").expect("padding");
    assert_eq!((padded.displaced_bytes, padded.assembly().len()), (5, 0));
    let padded = planned(b"\x0f\x1f\x44\0\0\x31\xc0\xc3").expect("padding");
    assert_eq!((padded.displaced_bytes, padded.assembly().len()), (5, 0));
}

#[test]
fn what_cannot_be_moved_is_refused() {
    let refused = |bytes: &[u8]| planned(bytes).expect_err("refused");
    assert_eq!(refused(b"\x31\xc0\xc3"), Refusal::TooShort { bytes: 3 });
    assert_eq!(
        refused(b"\xf3\x0f\x1e\xfa\xc3"),
        Refusal::TooShort { bytes: 1 }
    );
    assert_eq!(
        refused(b"\x31\xc0\xc3\x90\x90\x90"),
        Refusal::LeavesTooEarly { bytes: 3 }
    );
    for immovable in [
        &b"\xe2\x10\x90\x90\x90\x90\xc3"[..], // loop
        b"\xe3\x10\x90\x90\x90\x90\xc3",      // jrcxz
        b"\x0f\x05\x90\x90\x90\xc3",          // syscall
        b"\xcc\x90\x90\x90\x90\xc3",          // int3
        b"\x0f\x0b\x90\x90\x90\xc3",          // ud2
        b"\xff\x54\x24\x08\x90\xc3",          // call [rsp + 8]
        b"\x90\xf3\x0f\x1e\xfa\xc3",          // endbr64 behind the entry
        b"\xf4\x90\x90\x90\x90\xc3",          // hlt
        b"\xc7\xf8\0\0\0\0\xc3",              // xbegin
    ] {
        assert!(
            matches!(refused(immovable), Refusal::Immovable { .. }),
            "{immovable:x?}"
        );
    }
    // call rax; xor eax, eax; inc eax
    assert!(matches!(
        refused(b"\xff\xd0\x31\xc0\xff\xc0\xc3"),
        Refusal::ReturnsIntoJump { .. }
    ));
    // xor eax, eax; inc eax; dec edi; jnz to the inc
    let middle = b"\x31\xc0\xff\xc0\xff\xcf\x75\xfa\xc3";
    assert_eq!(refused(middle), Refusal::BranchTarget { from: TEXT + 6 });
    // mov eax, 7; dec edi; jnz to the entry
    assert_eq!(
        refused(b"\xb8\x07\0\0\0\xff\xcf\x75\xf7\xc3"),
        Refusal::LoopsToEntry
    );
    assert_eq!(
        refused(b"\xb8\x07\0\0\0\x06\xc3"),
        Refusal::Undecodable { at: TEXT + 5 }
    );
}

/// A recursive call counts as a call.
#[test]
fn recursion_is_no_loop() {
    assert!(planned(b"\xb8\x07\0\0\0\xe8\xf6\xff\xff\xff\xc3").is_ok());
}

#[test]
fn a_jump_never_crosses_a_page() {
    let mut bytes = vec![0x90; 4096];
    bytes.extend([0x90; 16]);
    let text = [(0x1000, &bytes[..])];
    let whole = 0x1000..0x1000 + bytes.len() as u64;
    let code = Code::new(&text, &[], &[whole], &[]);
    for start in 0x1ff0..0x2000u64 {
        let crosses = start + 4 >= 0x2000;
        let planned = plan(&code, &(start..start + 8));
        assert_eq!(
            planned.err() == Some(Refusal::CrossesPage),
            crosses,
            "{start:#x}"
        );
    }
}

/// Jump tables (of offsets or of addresses) and pointers contain jump targets.
#[test]
fn tables_and_pointers_are_targets() {
    // xor eax, eax; inc eax; lea rdx, [rip + 0x100]; ret
    let bytes = b"\x31\xc0\xff\xc0\x48\x8d\x15\x00\x01\0\0\xc3";
    let text = [(TEXT, &bytes[..])];
    let range = TEXT..TEXT + bytes.len() as u64;
    let table = TEXT + 11 + 0x100;
    let offsets = ((TEXT + 2).wrapping_sub(table) as u32).to_le_bytes();
    let absolute = (TEXT + 2).to_le_bytes();
    let elsewhere = (TEXT + 11).to_le_bytes();
    for (constants, pointers, is_target) in [
        (&offsets[..], &[][..], true),
        (&absolute[..], &[], true),
        (&elsewhere[..], &[], false),
        (&[], &[TEXT + 2][..], true),
        (&[], &[TEXT, TEXT + 11], false),
    ] {
        let constants = [(table, constants)];
        let code = Code::new(&text, &constants, std::slice::from_ref(&range), pointers);
        let refused = matches!(plan(&code, &range), Err(Refusal::BranchTarget { .. }));
        assert_eq!(refused, is_target, "{constants:x?} {pointers:x?}");
    }
}

/// The offsets in a table that follows another one are relative to the table's own beginning.
#[test]
fn a_table_ends_where_the_next_one_begins() {
    // xor eax, eax; inc eax; lea rdx, [rip + 0x100]; lea rsi, [rip + 0xfd]; ret
    let bytes = b"\x31\xc0\xff\xc0\x48\x8d\x15\x00\x01\0\0\x48\x8d\x35\xfd\0\0\0\xc3";
    let text = [(TEXT, &bytes[..])];
    let range = TEXT..TEXT + bytes.len() as u64;
    let first = TEXT + 11 + 0x100;
    let second = first + 4;
    for (to, is_target) in [(TEXT + 2, true), (TEXT + 11, false)] {
        let mut tables = ((TEXT + 11).wrapping_sub(first) as u32)
            .to_le_bytes()
            .to_vec();
        // An offset that leads to 11 from the second table would lead to 7 from the first.
        tables.extend((to.wrapping_sub(second) as u32).to_le_bytes());
        let constants = [(first, &tables[..])];
        let code = Code::new(&text, &constants, std::slice::from_ref(&range), &[]);
        let refused = matches!(plan(&code, &range), Err(Refusal::BranchTarget { .. }));
        assert_eq!(refused, is_target, "{to:#x}");
    }
}

#[test]
fn relocated_instructions_address_what_they_did() {
    for (bytes, text) in [
        // mov rax, [rip + 0x2000]
        (&b"\x48\x8b\x05\x00\x20\0\0\xc3"[..], "mov rax, [0x403007]"),
        // test edi, edi; je +2; xor eax, eax
        (b"\x85\xff\x74\x02\x31\xc0\xc3", "je 0x401006"),
        // call [rip + 0x10]
        (b"\xff\x15\x10\0\0\0\xc3", "jmp [0x401016]"),
        // call +0x10
        (b"\xe8\x10\0\0\0\xc3", "jmp 0x401015"),
    ] {
        let plan = planned(bytes).expect("movable");
        for distance in [-0x10_0000, 0x10_0000, 0x7000_0000] {
            let pad = pad_at(&plan, distance).expect("within reach");
            let lines = pad.assembly();
            assert!(
                lines
                    .iter()
                    .any(|line| line.replace("qword ptr ", "") == text),
                "{text}: {lines:#?}"
            );
        }
        assert_eq!(pad_at(&plan, 0x9000_0000).err(), Some(Refusal::OutOfReach));
    }
}

/// The journal of an area matches the area.
#[test]
fn journals_are_read_back() {
    let plan = planned(b"\x55\x48\x89\xe5\x48\x83\xec\x10\xc3").expect("movable");
    let header = AreaHeader {
        attacher: 77,
        table_at: 0x1234_5000,
        ..AreaHeader::default()
    };
    let area = AreaPlan::new(vec![counting(&plan, 0x1000, 0)], &[]);
    let built = area.build(TEXT, header, &layout(1)).expect("near");
    let read = AreaHeader::read(&built.bytes).expect("ours");
    assert_eq!(
        (read.attacher, read.table_at, read.entries),
        (77, 0x1234_5000, 1)
    );
    let journal = &built.bytes[AreaHeader::BYTES..][..read.journal_bytes()];
    assert_eq!(AreaHeader::journal(journal), built.journal);
    assert_eq!(built.journal[0].at, TEXT + 0x1000);
    assert_eq!(built.journal[0].original, *b"\x55\x48\x89\xe5\x48");
    assert!(AreaHeader::read(&[0; 128]).is_none() && AreaHeader::read(b"mhk").is_none());
}

proptest::proptest! {
    /// Arbitrary bytes are either planned or refused, and every plan leads to a pad or a refusal.
    #[test]
    fn never_panics(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..40)) {
        if let Ok(plan) = planned(&bytes) {
            let _ = pad_at(&plan, 0x10_0000);
            let _ = pad_at(&plan, -0x7fff_0000);
        }
    }
}
