//! Calls in AArch64 code (Arm Architecture Reference Manual, C6.2).

use std::collections::HashSet;

/// `br` and `blr`, with the register in bits 5 to 9.
const BR: u32 = 0xd61f_0000;
const BLR: u32 = 0xd63f_0000;

/// Returns the instructions of a piece of code, as addresses and instruction words.
fn instructions(svma: u64, code: &[u8]) -> impl Iterator<Item = (u64, u32)> {
    let words = code.as_chunks::<4>().0.iter();
    words
        .enumerate()
        .map(move |(index, word)| (svma + 4 * index as u64, u32::from_le_bytes(*word)))
}

/// Returns the address from which `adrp` followed by `ldr Xt, [Xn, #offset]` loads, and the register Xt.
fn loaded(place: u64, adrp: u32, ldr: u32) -> Option<(u64, u32)> {
    if adrp & 0x9f00_0000 != 0x9000_0000 || ldr & 0xffc0_0000 != 0xf940_0000 {
        return None;
    }
    if ldr >> 5 & 31 != adrp & 31 {
        return None;
    }
    let pages = (adrp >> 5 & 0x7_ffff) << 2 | adrp >> 29 & 3;
    let pages = i64::from((pages << 11).cast_signed() >> 11);
    let page = (place & !0xfff).wrapping_add_signed(pages << 12);
    Some((
        page.wrapping_add(u64::from(ldr >> 10 & 0xfff) * 8),
        ldr & 31,
    ))
}

/// Finds calls through slots. `blr` of a value loaded from a slot is a call. `br` of such a value is a PLT entry, and
/// calls of that entry count too. Between the load and the jump, a PLT entry has an addition (`add x16, x16, #offset`),
/// and code that calls without a PLT may set up arguments.
pub(crate) fn slot_jumps(
    svma: u64,
    code: &[u8],
    slots: &HashSet<u64>,
    stubs: &mut HashSet<u64>,
) -> u64 {
    const MOST_BETWEEN: usize = 6;
    let code: Vec<(u64, u32)> = instructions(svma, code).collect();
    let mut calls = 0;
    for (at, pair) in code.windows(2).enumerate() {
        let Some((slot, register)) = loaded(pair[0].0, pair[0].1, pair[1].1) else {
            continue;
        };
        if !slots.contains(&slot) {
            continue;
        }
        let after = code[at + 2..].iter().take(MOST_BETWEEN);
        let jump = after
            .map(|(_, word)| *word)
            .find(|word| *word == BR | register << 5 || *word == BLR | register << 5);
        match jump {
            Some(jump) if jump & BLR == BLR => calls += 1,
            Some(_) => {
                // An entry may begin with `bti c`.
                stubs.extend([pair[0].0, pair[0].0.wrapping_sub(4)]);
            }
            None => {}
        }
    }
    calls
}

/// Passes every `bl` and `b` to `found`, as source and target.
pub(crate) fn relative_calls(svma: u64, code: &[u8], mut found: impl FnMut(u64, u64)) {
    for (from, word) in instructions(svma, code) {
        if word & 0x7c00_0000 == 0x1400_0000 {
            let words = i64::from((word << 6).cast_signed() >> 6);
            found(from, from.wrapping_add_signed(words * 4));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn calls_and_jumps() {
        // bl +8; b -4; nop
        let code = bytes(&[0x9400_0002, 0x17ff_ffff, 0xd503_201f]);
        let mut seen = Vec::new();
        relative_calls(0x1000, &code, |from, to| seen.push((from, to)));
        assert_eq!(seen, [(0x1000, 0x1008), (0x1004, 0x1000)]);
    }

    #[test]
    fn entries_of_the_plt_and_calls_without_it() {
        // bti c; adrp x16, +0x1f000; ldr x17, [x16, #0xfa8]; add x16, x16, #0xfa8; br x17
        let entry = [
            0xd503_245f,
            0xf000_00f0,
            0xf947_d611,
            0x913e_a210,
            0xd61f_0220,
        ];
        // adrp x1, +0x1f000; ldr x1, [x1, #0xfa8]; mov x0, x19; blr x1
        let call = [0xf000_00e1, 0xf947_d421, 0xaa13_03e0, 0xd63f_0020];
        let slots = HashSet::from([0x1ffa8]);
        let mut stubs = HashSet::new();
        assert_eq!(slot_jumps(0x590, &bytes(&entry), &slots, &mut stubs), 0);
        assert!(stubs.contains(&0x590) && stubs.contains(&0x594));
        assert_eq!(slot_jumps(0x640, &bytes(&call), &slots, &mut stubs), 1);
        assert_eq!(
            slot_jumps(0x640, &bytes(&call), &HashSet::new(), &mut stubs),
            0
        );
    }
}
