//! Finds the constructor that the code after an allocator call runs on the result. The
//! constructor's name gives the class of the block.
//!
//! The instructions after the call are followed in order, with the registers and stack slots that
//! contain the result, until a function is called with the result as its first argument (System V
//! psABI, "Parameter Passing"). A constructor receives the object in this argument (Itanium C++
//! ABI, "Constructor Return Values" and the sections around it). Nothing is guessed: if the code
//! jumps away, or calls through a pointer, the class is unknown.

use crate::file::{Elf, image, parse};
use crate::{SearchPath, Symbolizer, demangle, functions};
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess,
    OpKind, Register,
};
use object::{Object, ObjectSegment};
use std::cell::RefCell;
use std::collections::HashMap;

/// Maximum bytes of code that are followed.
const MOST_BYTES: usize = 256;
const MOST_INSTRUCTIONS: usize = 64;

/// Finds the classes of blocks by constructors. Reads modules on demand.
pub struct Constructors<'a> {
    symbols: &'a Symbolizer,
    modules: RefCell<HashMap<usize, Option<ModuleCode>>>,
}

/// The code of one module, and its classes by the address of a constructor (svma).
struct ModuleCode {
    segments: Vec<(u64, Vec<u8>)>,
    classes: HashMap<u64, String>,
}

impl<'a> Constructors<'a> {
    /// Creates a search in the modules of a symbolizer.
    pub fn new(symbols: &'a Symbolizer) -> Self {
        let modules = RefCell::default();
        Constructors { symbols, modules }
    }

    /// Returns the class whose constructor runs on the result of the call that returns to this
    /// address.
    pub fn class(&self, return_address: u64) -> Option<String> {
        let (number, module, before) = self.symbols.module_of(return_address)?;
        let svma = before + 1;
        let mut modules = self.modules.borrow_mut();
        let read = || ModuleCode::read(module, self.symbols.search());
        let code = modules.entry(number).or_insert_with(read).as_ref()?;
        let callee = first_use(code.behind(svma)?, svma)?;
        code.classes.get(&callee).cloned()
    }
}

impl ModuleCode {
    fn read(module: &crate::ModuleFile, search: &SearchPath) -> Option<ModuleCode> {
        let (path, data) = image(module, &search.roots, &mut Vec::new())?;
        let elf = parse(&path, &data).ok()?;
        if elf.architecture() != object::Architecture::X86_64 {
            return None;
        }
        let segments = code_of(&elf, &data);
        let named = functions(module, search).into_iter();
        // In mangled names, constructors of complete objects and of base objects are C1 and C2.
        let may_be = named.filter(|f| f.name.contains("C1") || f.name.contains("C2"));
        let classes =
            may_be.filter_map(|f| Some((f.start, class_of_constructor(&demangle(&f.name))?)));
        Some(ModuleCode {
            classes: classes.collect(),
            segments,
        })
    }

    /// Returns the code from an address on, up to the maximum number of bytes that are followed.
    fn behind(&self, svma: u64) -> Option<&[u8]> {
        self.segments.iter().find_map(|(start, bytes)| {
            let at = usize::try_from(svma.checked_sub(*start)?).ok()?;
            let rest = bytes.get(at..)?;
            Some(&rest[..rest.len().min(MOST_BYTES)])
        })
    }
}

fn code_of(elf: &Elf<'_>, data: &crate::file::Image) -> Vec<(u64, Vec<u8>)> {
    let executable = elf
        .segments()
        .filter(|segment| segment.permissions().executable());
    let read = executable.filter_map(|segment| {
        let (offset, bytes) = segment.file_range();
        Some((segment.address(), data.part(offset, bytes)?.into_owned()))
    });
    read.collect()
}

/// Returns the class of a demangled constructor: `ns::Foo` for `ns::Foo::Foo(int)`.
pub fn class_of_constructor(function: &str) -> Option<String> {
    let mut depth = 0u32;
    let mut separators = Vec::new();
    let mut end = function.len();
    for (at, letter) in function.char_indices() {
        match letter {
            '(' if depth == 0 && !function[at..].starts_with("(anonymous namespace)") => {
                end = at;
                break;
            }
            '<' | '(' | '{' | '[' => depth += 1,
            '>' | ')' | '}' | ']' => depth = depth.saturating_sub(1),
            ':' if depth == 0 && function[at..].starts_with("::") => separators.push(at),
            _ => {}
        }
    }
    let last = separators.pop()?;
    let class = &function[..last];
    let begin = separators.last().map_or(0, |at| at + 2);
    let plain = |name: &str| name.split('<').next().unwrap_or_default().to_owned();
    let (of_class, of_function) = (plain(&class[begin..]), plain(&function[last + 2..end]));
    (of_class == of_function && !of_class.is_empty()).then(|| class.to_owned())
}

/// Places that hold the result of the call.
#[derive(Default)]
struct Holders {
    registers: Vec<Register>,
    /// Stack slots, by base register and displacement.
    slots: Vec<(Register, u64)>,
}

impl Holders {
    fn forget(&mut self, register: Register) {
        let full = register.full_register();
        self.registers.retain(|one| *one != full);
        // The register now has another value, so slots relative to it are gone.
        self.slots.retain(|(base, _)| *base != full);
    }

    fn set(&mut self, register: Register, holds: bool) {
        self.forget(register);
        if holds {
            self.registers.push(register);
        }
    }

    fn set_slot(&mut self, slot: (Register, u64), holds: bool) {
        self.slots.retain(|one| *one != slot);
        if holds {
            self.slots.push(slot);
        }
    }
}

/// Registers that a callee need not preserve (psABI, "Registers").
const CLOBBERED: [Register; 9] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
];

/// Returns the address of the first function that gets the result as its first argument. `code`
/// begins after the allocator call.
fn first_use(code: &[u8], address: u64) -> Option<u64> {
    let mut holders = Holders {
        registers: vec![Register::RAX],
        slots: Vec::new(),
    };
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut facts = InstructionInfoFactory::new();
    for _ in 0..MOST_INSTRUCTIONS {
        if !decoder.can_decode() {
            return None;
        }
        let instruction = decoder.decode();
        match instruction.flow_control() {
            // A conditional jump may skip the code for an existing block.
            FlowControl::Next | FlowControl::ConditionalBranch => {}
            FlowControl::Call | FlowControl::IndirectCall => {
                if holders.registers.contains(&Register::RDI) {
                    return (instruction.code() == Code::Call_rel32_64)
                        .then(|| instruction.near_branch_target());
                }
                CLOBBERED.into_iter().for_each(|r| holders.forget(r));
                continue;
            }
            _ => return None,
        }
        if instruction.is_invalid() {
            return None;
        }
        follow(&instruction, &mut holders, &mut facts);
    }
    None
}

/// Returns the stack slot of an instruction's memory operand.
fn slot(instruction: &Instruction) -> Option<(Register, u64)> {
    let base = instruction.memory_base();
    let is_stack = matches!(base, Register::RSP | Register::RBP);
    (is_stack && instruction.memory_index() == Register::None)
        .then(|| (base, instruction.memory_displacement64()))
}

fn follow(instruction: &Instruction, holders: &mut Holders, facts: &mut InstructionInfoFactory) {
    let is_move = matches!(instruction.code(), Code::Mov_rm64_r64 | Code::Mov_r64_rm64);
    if is_move {
        let from = match instruction.op1_kind() {
            OpKind::Register => holders.registers.contains(&instruction.op1_register()),
            _ => slot(instruction).is_some_and(|slot| holders.slots.contains(&slot)),
        };
        match (instruction.op0_kind(), slot(instruction)) {
            (OpKind::Register, _) => holders.set(instruction.op0_register(), from),
            (_, Some(slot)) => holders.set_slot(slot, from),
            _ => {}
        }
        return;
    }
    for used in facts.info(instruction).used_registers() {
        let writes = !matches!(
            used.access(),
            OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
        );
        if writes {
            holders.forget(used.register());
        }
    }
    if let (OpKind::Memory, Some(slot)) = (instruction.op0_kind(), slot(instruction)) {
        holders.set_slot(slot, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constructors_name_their_class() {
        let class = |function| class_of_constructor(function);
        assert_eq!(class("Foo::Foo(int)").as_deref(), Some("Foo"));
        assert_eq!(
            class("ns::Bar<std::pair<int, ns::Foo> >::Bar(ns::Bar<int> const&)").as_deref(),
            Some("ns::Bar<std::pair<int, ns::Foo> >")
        );
        assert_eq!(
            class("(anonymous namespace)::Hidden::Hidden()").as_deref(),
            Some("(anonymous namespace)::Hidden")
        );
        for other in [
            "main",
            "Foo::make(int)",
            "Foo::~Foo()",
            "f(Foo::Foo)",
            "Foo(int)",
        ] {
            assert_eq!(class(other), None, "{other}");
        }
    }

    #[test]
    fn the_first_call_with_the_block_counts() {
        // mov rbx, rax; mov edi, 5; call 0x2000; mov rdi, rbx; call 0x3000
        let mut code = vec![0x48, 0x89, 0xc3, 0xbf, 5, 0, 0, 0, 0xe8];
        code.extend((0x2000i32 - 0x100d).to_le_bytes());
        code.extend([0x48, 0x89, 0xdf, 0xe8]);
        code.extend((0x3000i32 - 0x1015).to_le_bytes());
        assert_eq!(first_use(&code, 0x1000), Some(0x3000));
        // The result passes through the stack: mov [rbp-8], rax; mov rax, [rbp-8]; mov rdi, rax;
        // call 0x3000
        let mut code = vec![
            0x48, 0x89, 0x45, 0xf8, 0x48, 0x8b, 0x45, 0xf8, 0x48, 0x89, 0xc7, 0xe8,
        ];
        code.extend((0x3000i32 - 0x1010).to_le_bytes());
        assert_eq!(first_use(&code, 0x1000), Some(0x3000));
        // The slot is overwritten before its use: mov [rbp-8], rax; mov qword [rbp-8], 1; ...
        let mut code = vec![
            0x48, 0x89, 0x45, 0xf8, 0x48, 0xc7, 0x45, 0xf8, 1, 0, 0, 0, 0x48, 0x8b, 0x7d, 0xf8,
            0xe8,
        ];
        code.extend((0x3000i32 - 0x1015).to_le_bytes());
        assert_eq!(first_use(&code, 0x1000), None);
        // The result is returned: ret.
        assert_eq!(first_use(&[0xc3], 0x1000), None);
        // The callee is unknown: mov rdi, rax; call [rip]; call 0x3000
        assert_eq!(
            first_use(
                &[0x48, 0x89, 0xc7, 0xff, 0x15, 0, 0, 0, 0, 0xe8, 0, 0, 0, 0],
                0x1000
            ),
            None
        );
    }
}
