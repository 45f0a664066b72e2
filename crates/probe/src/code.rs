//! Code of a module, and the targets of its branches.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};
use std::ops::Range;

/// Maximum number of examined entries of a jump table.
const MOST_CASES: usize = 4096;

/// Branch with its address and its target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Branch {
    to: u64,
    from: u64,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Jump,
    Call,
    /// Address in data.
    Pointer,
}

/// Code of a module, and the targets of its branches. All addresses are of the same kind, usually svma.
pub struct Code<'a> {
    text: &'a [(u64, &'a [u8])],
    /// Branches sorted by target.
    branches: Vec<Branch>,
    /// Addresses where decoding failed, sorted.
    undecodable: Vec<u64>,
}

impl<'a> Code<'a> {
    /// Decodes everything in `functions` (sorted), and examines jump tables in `constants`. `text` and `constants` are
    /// pieces of the module with their addresses. `pointers` are addresses in the module's data (relocations).
    ///
    /// A jump table is found by the instruction that takes its address, which every function with a jump table
    /// contains. The entries of the table are offsets from its address (or absolute addresses, in a program that is not
    /// position-independent). Constants that only look like a table add targets, and additional targets can only lead
    /// to a refusal.
    pub fn new(
        text: &'a [(u64, &'a [u8])],
        constants: &[(u64, &[u8])],
        functions: &[Range<u64>],
        pointers: &[u64],
    ) -> Code<'a> {
        let mut code = Code {
            text,
            branches: pointers
                .iter()
                .filter(|&&to| part_at(text, to).is_some())
                .map(|&to| Branch {
                    to,
                    from: to,
                    kind: Kind::Pointer,
                })
                .collect(),
            undecodable: Vec::new(),
        };
        let mut tables = Vec::new();
        for function in functions {
            let Some(bytes) = code.bytes(function) else {
                continue;
            };
            let decoder = Decoder::with_ip(64, bytes, function.start, DecoderOptions::NONE);
            for instruction in decoder {
                if instruction.is_invalid() {
                    code.undecodable.push(instruction.ip());
                }
                code.branches.extend(branch(&instruction));
                if let Some(table) = named_address(&instruction)
                    && part_at(constants, table).is_some()
                {
                    tables.push(table);
                }
            }
        }
        tables.sort_unstable();
        tables.dedup();
        // Tables are adjacent, and the offsets in the next table are relative to its own beginning.
        let mut end = u64::MAX;
        for &table in tables.iter().rev() {
            if code.add_cases(constants, table..end) {
                end = table;
            }
        }
        code.branches.sort_unstable();
        code.branches.dedup();
        code.undecodable.sort_unstable();
        code
    }

    /// Adds the targets of the table at the beginning of a range, if they are code. Returns true if its entries are
    /// offsets.
    fn add_cases(&mut self, constants: &[(u64, &[u8])], range: Range<u64>) -> bool {
        let table = range.start;
        let Some(bytes) = part_at(constants, table) else {
            return false;
        };
        let most = usize::try_from(range.end - table).unwrap_or(usize::MAX);
        let within = &bytes[..bytes.len().min(most)];
        let before = self.branches.len();
        let offsets = within.as_chunks::<4>().0.iter().take(MOST_CASES);
        let from_table = offsets.map(|case| {
            let offset = i64::from(i32::from_le_bytes(*case));
            table.wrapping_add_signed(offset)
        });
        self.add_targets(table, from_table);
        let has_offsets = self.branches.len() > before;
        let addresses = bytes.as_chunks::<8>().0.iter().take(MOST_CASES);
        self.add_targets(table, addresses.map(|case| u64::from_le_bytes(*case)));
        has_offsets
    }

    /// Adds targets up to the first one outside the code.
    fn add_targets(&mut self, from: u64, targets: impl Iterator<Item = u64>) {
        let text = self.text;
        let targets = targets.take_while(|&to| part_at(text, to).is_some());
        self.branches.extend(targets.map(|to| Branch {
            to,
            from,
            kind: Kind::Pointer,
        }));
    }

    /// Returns the addresses within a range that are referenced from data, including jump tables.
    pub(crate) fn pointers_into(&self, range: &Range<u64>) -> impl Iterator<Item = u64> + '_ {
        let from = self.branches.partition_point(|b| b.to < range.start);
        let behind = self.branches.partition_point(|b| b.to < range.end);
        let inside = self.branches[from..behind.max(from)].iter();
        inside.filter(|b| b.kind == Kind::Pointer).map(|b| b.to)
    }

    /// Returns the bytes of a range, if the code contains all of them.
    pub fn bytes(&self, range: &Range<u64>) -> Option<&'a [u8]> {
        let bytes = usize::try_from(range.end.checked_sub(range.start)?).ok()?;
        part_at(self.text, range.start)?.get(..bytes)
    }

    /// Returns the address of a branch, actual or possible, into this range.
    pub(crate) fn branch_into(&self, range: Range<u64>) -> Option<u64> {
        let first = self.branches.partition_point(|b| b.to < range.start);
        let found = self.branches.get(first)?;
        (found.to < range.end).then_some(found.from)
    }

    /// Returns true if code in `function` jumps to one of these addresses.
    pub(crate) fn branch_within(&self, function: &Range<u64>, to: Range<u64>) -> bool {
        let first = self.branches.partition_point(|b| b.to < to.start);
        let mut into = self.branches[first..].iter().take_while(|b| b.to < to.end);
        into.any(|branch| branch.kind == Kind::Jump && function.contains(&branch.from))
    }

    /// Returns an address in this range where decoding failed.
    pub(crate) fn undecodable_in(&self, range: &Range<u64>) -> Option<u64> {
        let first = self.undecodable.partition_point(|&at| at < range.start);
        let at = *self.undecodable.get(first)?;
        range.contains(&at).then_some(at)
    }
}

/// Returns the bytes from this address to the end of the part that contains the address.
fn part_at<'p>(parts: &[(u64, &'p [u8])], address: u64) -> Option<&'p [u8]> {
    parts.iter().find_map(|(start, bytes)| {
        let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
        bytes.get(offset..).filter(|rest| !rest.is_empty())
    })
}

/// Returns the target of a direct jump or call. Calls into the middle of a function exist in assembly.
fn branch(instruction: &Instruction) -> Option<Branch> {
    let kind = match instruction.flow_control() {
        FlowControl::ConditionalBranch
        | FlowControl::UnconditionalBranch
        | FlowControl::XbeginXabortXend => Kind::Jump,
        FlowControl::Call => Kind::Call,
        _ => return None,
    };
    let is_near = matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    );
    is_near.then(|| Branch {
        to: instruction.near_branch_target(),
        from: instruction.ip(),
        kind,
    })
}

/// Returns an address named by an instruction: `lea reg, [rip + x]`, `mov reg, imm`, `jmp [x + reg * 8]`.
fn named_address(instruction: &Instruction) -> Option<u64> {
    if instruction.is_ip_rel_memory_operand() {
        return Some(instruction.ip_rel_memory_address());
    }
    let has_memory = (0..instruction.op_count()).any(|n| instruction.op_kind(n) == OpKind::Memory);
    if has_memory && instruction.memory_displ_size() >= 4 {
        return Some(instruction.memory_displacement64());
    }
    let is_immediate = |n: &u32| {
        matches!(
            instruction.op_kind(*n),
            OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64
        )
    };
    (0..instruction.op_count())
        .find(is_immediate)
        .map(|n| instruction.immediate(n))
}
