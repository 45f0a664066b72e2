//! Compiles `.eh_frame` to rows.

use crate::arch::{Frames, native};
use crate::descriptions::each_description;
use crate::{Error, Sections};
use gimli::{DebugFrame, EhFrame, LittleEndian, Reader, UnwindContext, UnwindSection};
use memhook_abi::unwind_rule as rule;
use std::{collections::HashMap, ops::Range};

/// Unwind table of a module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnwindTable {
    /// Start of each row, in bytes from the module's base (svma), ascending. A row extends to the next one.
    pub offsets: Vec<u32>,
    /// Index of each row's rule in `rules`.
    pub row_rules: Vec<u16>,
    /// Distinct rules, in the form of [`memhook_abi::unwind_rule`]. Number 0 is the stop.
    pub rules: Vec<u64>,
    /// Number of rows that no rule can express, which are therefore stops.
    pub inexpressible: usize,
}

impl UnwindTable {
    /// Returns the rule for the code at `offset` (bytes from the module's base).
    pub fn rule_at(&self, offset: u64) -> u64 {
        let after = self.offsets.partition_point(|&o| u64::from(o) <= offset);
        let row = after.checked_sub(1).and_then(|i| self.row_rules.get(i));
        row.and_then(|&number| self.rules.get(usize::from(number)).copied())
            .unwrap_or(rule::STOP)
    }

    /// Returns the code with this rule, in bytes from the module's base, ascending.
    pub fn rows_of(&self, rule: u64) -> impl Iterator<Item = Range<u64>> {
        let number = self.rules.iter().position(|&known| known == rule);
        let ends = self.offsets.iter().skip(1).map(|&offset| u64::from(offset));
        let rows = self.offsets.iter().zip(&self.row_rules).zip(ends);
        rows.filter(move |((_, row), _)| number == Some(usize::from(**row)))
            .map(|((&start, _), end)| u64::from(start)..end)
    }

    /// Returns the rule for a frame that returns to `offset`, which is the rule of the call before it. If no code
    /// precedes it, but a function begins there, there was no call: makecontext(3) starts a stack in this way (glibc's
    /// `__start_context`, whose own CFI leads into its arguments).
    pub fn rule_at_return(&self, offset: u64) -> u64 {
        let call = self.rule_at(offset.wrapping_sub(1));
        let begins = || self.offsets.binary_search(&(offset as u32)).is_ok();
        if call & 0xff == rule::STOP && begins() {
            return rule::END;
        }
        call
    }
}

/// Rule of signal trampolines.
const SIGNAL: u64 = rule::pack(rule::SIGNAL, 0, rule::RBP_SAME, 0);

/// A row before packing: start and end (svma), and rule.
type Span = (u64, u64, u64);

/// Maximum number of rows in a module. The largest programs have a few million. It is limited because a single byte of
/// a section can produce a row, so a crafted section could exhaust our memory.
const MOST_ROWS: usize = memhook_abi::MAX_ROWS;
/// Maximum size of a CIE in bytes; compilers emit 20 to 60. It is limited because its instructions are executed again
/// for each of its FDEs.
const LONGEST_CIE: usize = 1024;

/// Compiles the call frame information of an ELF file.
///
/// # Errors
/// The file has no such section, or its outermost structure is damaged. A damaged FDE becomes a gap.
pub fn compile(elf: &[u8]) -> Result<UnwindTable, Error> {
    compile_for::<native::Code>(elf)
}

/// Like [`compile`], for a processor that may not be this one.
pub(crate) fn compile_for<P: Frames>(elf: &[u8]) -> Result<UnwindTable, Error> {
    let trampolines = P::trampolines(elf);
    let (mut spans, inexpressible) = match Sections::of(elf) {
        Ok(sections) => rows_of_sections::<P>(&sections),
        Err(Error::NoFrames) if !trampolines.is_empty() => (Vec::new(), 0),
        Err(error) => return Err(error),
    };
    for code in trampolines {
        // The kernel makes a handler return to the first byte of a trampoline, and a return address is looked up by the
        // byte before it.
        let before = code.start.saturating_sub(1);
        cut(&mut spans, before..code.end);
        spans.push((before, code.end, SIGNAL));
    }
    Ok(UnwindTable {
        inexpressible,
        ..pack(spans)
    })
}

/// Removes a piece of code from the rows.
fn cut(spans: &mut Vec<Span>, piece: Range<u64>) {
    let parts = |(start, end, packed): Span| {
        [
            (start, end.min(piece.start), packed),
            (start.max(piece.end), end, packed),
        ]
    };
    let left = spans.drain(..).flat_map(parts);
    *spans = left.filter(|(start, end, _)| start < end).collect();
}

fn rows_of_sections<P: Frames>(sections: &Sections) -> (Vec<Span>, usize) {
    if sections.eh_frame.is_empty() {
        let mut frames = DebugFrame::new(&sections.debug_frame, LittleEndian);
        frames.set_address_size(8);
        frames.set_vendor(P::VENDOR);
        collect::<P, _, _>(&frames, sections, MOST_ROWS)
    } else {
        let mut frames = EhFrame::new(&sections.eh_frame, LittleEndian);
        frames.set_address_size(8);
        frames.set_vendor(P::VENDOR);
        collect::<P, _, _>(&frames, sections, MOST_ROWS)
    }
}

/// Returns the rows of all FDEs, and the number of rows that no rule can express.
fn collect<'a, P, S, R>(frames: &S, sections: &Sections, most_rows: usize) -> (Vec<Span>, usize)
where
    P: Frames,
    R: Reader<Offset = usize> + 'a,
    S: UnwindSection<R>,
    S::Offset: gimli::UnwindOffset<R::Offset>,
{
    let mut spans = Vec::with_capacity(sections.eh_frame.len() / 16);
    let mut inexpressible = 0;
    let mut context = UnwindContext::new();
    each_description(frames, &sections.bases, |fde| {
        if fde.cie().entry_len() > LONGEST_CIE {
            return true;
        }
        let signal = fde.cie().is_signal_trampoline();
        let encoding = fde.cie().encoding();
        let Ok(mut rows) = fde.rows(frames, &sections.bases, &mut context) else {
            return true;
        };
        while spans.len() < most_rows
            && let Ok(Some(row)) = rows.next_row()
        {
            let (begin, end) = (row.start_address(), row.end_address());
            if begin >= end {
                continue;
            }
            let packed = if signal {
                SIGNAL
            } else {
                match P::rule_of(row, frames, encoding) {
                    Some(packed) => packed,
                    None => {
                        inexpressible += 1;
                        rule::STOP
                    }
                }
            };
            spans.push((begin, end, packed));
        }
        spans.len() < most_rows
    });
    (spans, inexpressible)
}

/// Sorts the rows, fills gaps with stops, merges equal rows, and numbers the rules.
fn pack(mut spans: Vec<Span>) -> UnwindTable {
    spans.sort_unstable();
    let mut table = UnwindTable {
        rules: vec![rule::STOP],
        ..UnwindTable::default()
    };
    let mut numbers = HashMap::from([(rule::STOP, 0u16)]);
    let mut last = (u64::MAX, rule::STOP);
    let mut push = |at: u64, packed: u64| {
        if at > u64::from(u32::MAX) || (table.offsets.last().is_some() && last.1 == packed) {
            return;
        }
        let next = table.rules.len();
        let number = match numbers.get(&packed) {
            Some(&number) => number,
            None if next < usize::from(u16::MAX) => {
                numbers.insert(packed, next as u16);
                table.rules.push(packed);
                next as u16
            }
            None => 0,
        };
        if table.offsets.last() == Some(&(at as u32)) {
            // Two FDEs describe the same address. The later one counts, as in the linker's binary search table.
            *table.row_rules.last_mut().expect("as many as offsets") = number;
        } else {
            table.offsets.push(at as u32);
            table.row_rules.push(number);
        }
        last = (at, packed);
    };
    let mut end = 0;
    for (begin, span_end, packed) in spans {
        if begin > end && end != 0 {
            push(end, rule::STOP);
        }
        let begin = begin.max(end.min(span_end));
        if begin >= span_end {
            continue;
        }
        push(begin, packed);
        end = span_end;
    }
    if end != 0 {
        push(end, rule::STOP);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn libc_bytes() -> Vec<u8> {
        std::fs::read("/lib/x86_64-linux-gnu/libc.so.6").expect("glibc")
    }

    #[test]
    fn libc_has_rows_for_its_functions_and_signals() {
        let table = compile(&libc_bytes()).unwrap();
        assert!(table.offsets.len() > 10_000, "{}", table.offsets.len());
        assert!(table.offsets.windows(2).all(|w| w[0] < w[1]));
        assert_eq!(table.offsets.len(), table.row_rules.len());
        assert!(table.inexpressible < 20, "{}", table.inexpressible);
        let has = |kind| table.rules.iter().any(|r| r & 0xff == kind);
        assert!(has(rule::SIGNAL) && has(rule::END) && has(rule::RSP) && has(rule::PLT));
    }

    /// Returns a CIE with FDEs that produce rows of a few bytes each.
    fn frames(cie_bytes: usize, fdes: u32, rows: u32) -> Vec<u8> {
        let entry = |body: &[u8]| {
            let mut body = body.to_vec();
            body.resize(body.len().next_multiple_of(4), 0);
            [&(body.len() as u32).to_le_bytes()[..], &body].concat()
        };
        // Version 1, augmentation "R", alignments 1 and -8, return address in register 16, 4-byte absolute pointers;
        // DW_CFA_def_cfa rsp + 8, and rip at CFA - 8 (DWARF 5, 6.4.1).
        let mut cie = vec![
            0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x03, 12, 7, 8, 0x90, 1,
        ];
        cie.resize(cie.len().max(cie_bytes), 0);
        let mut bytes = entry(&cie);
        for fde in 0..fdes {
            let back = bytes.len() as u32 + 4;
            let mut body = back.to_le_bytes().to_vec();
            body.extend((0x1000 + fde * (rows + 1)).to_le_bytes());
            body.extend((rows + 1).to_le_bytes());
            body.push(0);
            // DW_CFA_advance_loc 1, then DW_CFA_def_cfa_offset with alternating offsets.
            for row in 0..rows {
                body.push(0x41);
                body.extend([0x0e, 8 + (row % 2) as u8 * 8]);
            }
            bytes.extend(entry(&body));
        }
        bytes.extend([0; 4]);
        bytes
    }

    fn rows_of(eh_frame: &[u8], most: usize) -> Vec<Span> {
        let mut frames = EhFrame::new(eh_frame, LittleEndian);
        frames.set_address_size(8);
        let sections = Sections {
            eh_frame: std::borrow::Cow::Borrowed(eh_frame),
            debug_frame: Default::default(),
            bases: gimli::BaseAddresses::default().set_eh_frame(0),
        };
        collect::<native::Code, _, _>(&frames, &sections, most).0
    }

    #[test]
    fn endless_rows_are_cut() {
        assert_eq!(rows_of(&frames(0, 3, 10), MOST_ROWS).len(), 33);
        assert_eq!(rows_of(&frames(0, 3, 10), 20).len(), 20);
        assert_eq!(rows_of(&frames(0, 1, 10_000), 1000).len(), 1000);
        // Each FDE would have to execute the whole CIE.
        assert_eq!(rows_of(&frames(LONGEST_CIE + 8, 3, 10), MOST_ROWS).len(), 0);
    }

    #[test]
    fn gaps_become_stops_and_equal_rows_merge() {
        let table = pack(vec![(0x30, 0x40, 9), (0x10, 0x20, 7), (0x40, 0x50, 9)]);
        assert_eq!(table.offsets, [0x10, 0x20, 0x30, 0x50]);
        assert_eq!(table.rules, [rule::STOP, 7, 9]);
        assert_eq!(table.row_rules, [1, 0, 2, 0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn damaged_files_do_not_panic(at in 0usize..4096, value: u8, cut in 0usize..4096) {
            let mut bytes = std::fs::read("/bin/true").unwrap();
            let place = at * bytes.len() / 4096;
            bytes[place] = value;
            let _ = compile(&bytes);
            bytes.truncate(cut * bytes.len() / 4096);
            let _ = compile(&bytes);
        }

        #[test]
        fn damaged_frames_do_not_panic(damage in proptest::collection::vec((0usize..65536, any::<u8>()), 1..20)) {
            let mut bytes = std::fs::read("/bin/true").unwrap();
            let range = {
                use object::{Object, ObjectSection};
                let file = object::File::parse(&*bytes).unwrap();
                file.section_by_name(".eh_frame").unwrap().file_range().unwrap()
            };
            for (at, value) in damage {
                bytes[range.0 as usize + at % range.1 as usize] = value;
            }
            if let Ok(table) = compile(&bytes) {
                prop_assert!(table.offsets.windows(2).all(|w| w[0] < w[1]));
            }
        }
    }
}
