//! Slow but general unwinder that handles every register and every expression, working directly from the sections.

use crate::arch::Frames;
use crate::arch::native::{Code, REGISTERS};
use crate::descriptions::each_description;
use crate::{Error, Sections};
use gimli::{
    BaseAddresses, CfaRule, EhFrame, EvaluationResult, LittleEndian, Location, Reader,
    RegisterRule, UnwindContext, UnwindSection, Value,
};
use std::ops::Range;

const SP: usize = Code::STACK_POINTER;
const PC: usize = Code::PC;

/// Registers of a frame, by DWARF number (x86-64 psABI, figure 3.36; AArch64 DWARF ABI, 4.1), followed by the program
/// counter if it has no such number. `None` if unknown.
pub type Registers = [Option<u64>; REGISTERS];

/// Reads a word of the unwound memory at an address (avma).
pub type ReadWord<'a> = &'a dyn Fn(u64) -> Option<u64>;

/// Reason why an unwinding ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The thread's outermost frame was reached.
    Bottom,
    /// The requested depth was reached.
    Depth,
    /// There was no module, no call frame information, or unreadable memory.
    Lost,
}

/// Program counters, innermost first. All are return addresses, except the first one and those that follow a signal
/// frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backtrace {
    /// Program counters (avma).
    pub frames: Vec<u64>,
    /// Reason why there are no more frames.
    pub end: End,
}

/// Outermost frame of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Address at which the outermost function continues (avma).
    pub pc: u64,
    /// Code of that function (avma).
    pub function: Range<u64>,
    /// Lowest stack pointer of all frames. It may differ from that of the innermost frame: a signal handler may run on
    /// a separate stack that is above the interrupted stack.
    pub lowest: u64,
}

/// A module.
struct Module {
    base: u64,
    range: Range<u64>,
    /// `None` if the file has no readable call frame information.
    index: Option<Index>,
}

/// Index of a module's sections.
struct Index {
    eh_frame: Vec<u8>,
    bases: BaseAddresses,
    /// Code range (svma) of each FDE and the FDE's offset, in order.
    fdes: Vec<(Range<u64>, usize)>,
    /// Signal trampolines (svma) that no FDE describes.
    trampolines: Vec<Range<u64>>,
}

/// Modules of a process.
#[derive(Default)]
pub struct Unwinder {
    modules: Vec<Module>,
    signature: u64,
}

impl Index {
    fn of(elf: &[u8]) -> Result<Index, Error> {
        let trampolines = Code::trampolines(elf);
        let sections = match Sections::of(elf) {
            Err(Error::NoFrames) if !trampolines.is_empty() => Sections::empty(),
            sections => sections?,
        };
        let mut frames = EhFrame::new(&sections.eh_frame, LittleEndian);
        frames.set_address_size(8);
        frames.set_vendor(Code::VENDOR);
        let mut fdes = Vec::new();
        each_description(&frames, &sections.bases, |fde| {
            let start = fde.initial_address();
            fdes.push((start..start.saturating_add(fde.len()), fde.offset()));
            true
        });
        fdes.sort_unstable_by_key(|(range, offset)| (range.start, range.end, *offset));
        Ok(Index {
            bases: sections.bases.clone(),
            eh_frame: sections.eh_frame.into_owned(),
            fdes,
            trampolines,
        })
    }
}

impl Unwinder {
    /// Adds a module: its load bias, its mapped range (avma) and its file. Only the section headers and `.eh_frame` of
    /// the file are read.
    pub fn add_module(&mut self, base: u64, range: Range<u64>, elf: &[u8]) {
        self.modules.push(Module {
            base,
            range,
            index: Index::of(elf).ok(),
        });
    }

    /// Returns an unwinder for threads whose return addresses have a signature in these bits.
    pub fn with_signature(signature: u64) -> Unwinder {
        Unwinder {
            signature,
            ..Unwinder::default()
        }
    }

    /// Unwinds from `registers`.
    pub fn backtrace(&self, registers: Registers, read: ReadWord, depth: usize) -> Backtrace {
        let mut frames = Vec::new();
        let end = self.follow(registers, read, depth, &mut frames);
        Backtrace { frames, end }
    }

    /// Returns the registers of the innermost caller whose code is not within `range`. Returns `None` if it cannot be
    /// reached, or not within `depth` frames.
    pub fn caller_outside(
        &self,
        mut registers: Registers,
        range: &Range<u64>,
        read: ReadWord,
        depth: usize,
    ) -> Option<Registers> {
        let mut exact = true;
        for _ in 0..depth {
            let pc = registers[PC]?.checked_sub(u64::from(!exact))?;
            if !range.contains(&pc) {
                return Some(registers);
            }
            match self.step(&registers, pc, read)? {
                Step::Caller(caller, false) if is_further_out(&caller, &registers, exact) => {
                    registers = *caller
                }
                _ => return None,
            }
            exact = false;
        }
        None
    }

    /// Follows the frames of a thread to the outermost frame. The error is the code where the unwinding failed; `None`
    /// if there were more than `depth` frames, or a frame with unknown code.
    pub fn to_the_start(
        &self,
        mut registers: Registers,
        read: ReadWord,
        depth: usize,
    ) -> Result<Start, Option<u64>> {
        let mut exact = true;
        let mut lowest = registers[SP].ok_or(None)?;
        for _ in 0..depth {
            let pc = registers[PC].filter(|&pc| pc != 0).ok_or(None)?;
            let lookup = pc - u64::from(!exact);
            match self.step(&registers, lookup, read) {
                Some(Step::Caller(caller, is_signal))
                    if is_signal || is_further_out(&caller, &registers, exact) =>
                {
                    registers = *caller;
                    exact = is_signal;
                    lowest = lowest.min(registers[SP].ok_or(None)?);
                }
                Some(Step::Caller(..)) | None => return Err(Some(lookup)),
                Some(Step::Bottom(function)) => {
                    return Ok(Start {
                        pc,
                        function,
                        lowest,
                    });
                }
            }
        }
        Err(None)
    }

    fn follow(
        &self,
        mut registers: Registers,
        read: ReadWord,
        depth: usize,
        frames: &mut Vec<u64>,
    ) -> End {
        let mut exact = true;
        loop {
            let Some(pc) = registers[PC].filter(|&pc| pc != 0) else {
                return End::Bottom;
            };
            frames.push(pc);
            if frames.len() >= depth {
                return End::Depth;
            }
            match self.step(&registers, pc - u64::from(!exact), read) {
                Some(Step::Caller(caller, is_signal))
                    if is_signal || is_further_out(&caller, &registers, exact) =>
                {
                    registers = *caller;
                    exact = is_signal;
                }
                Some(Step::Bottom(_)) => return End::Bottom,
                Some(Step::Caller(..)) | None => return End::Lost,
            }
        }
    }

    fn step(&self, registers: &Registers, lookup: u64, read: ReadWord) -> Option<Step> {
        let module = self.modules.iter().find(|m| m.range.contains(&lookup))?;
        let index = module.index.as_ref()?;
        let pc = registers[PC]?.wrapping_sub(module.base);
        if index.trampolines.iter().any(|code| code.contains(&pc)) {
            let interrupted = interrupted(registers[SP]?, read);
            return Some(Step::Caller(Box::new(interrupted), true));
        }
        let svma = lookup.wrapping_sub(module.base);
        let after = index.fdes.partition_point(|(range, _)| range.start <= svma);
        let (range, offset) = &index.fdes[after.checked_sub(1)?];
        if svma >= range.end {
            return None;
        }
        let mut frames = EhFrame::new(&index.eh_frame, LittleEndian);
        frames.set_address_size(8);
        frames.set_vendor(Code::VENDOR);
        let fde = frames
            .fde_from_offset(
                &index.bases,
                gimli::EhFrameOffset(*offset),
                EhFrame::cie_from_offset,
            )
            .ok()?;
        let mut context = UnwindContext::new();
        let row = fde
            .unwind_info_for_address(&frames, &index.bases, &mut context, svma)
            .ok()?;
        let encoding = fde.cie().encoding();
        let evaluate = |expression: &gimli::UnwindExpression<usize>, start: Option<u64>| {
            let expression = expression.get(&frames).ok()?;
            evaluate(expression, encoding, start, registers, module.base, read)
        };
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => registers
                .get(usize::from(register.0))
                .copied()??
                .wrapping_add_signed(*offset),
            CfaRule::Expression(expression) => evaluate(expression, None)?,
        };
        let mut caller = *registers;
        caller[SP] = Some(cfa);
        for (number, slot) in caller.iter_mut().enumerate() {
            let register = gimli::Register(number as u16);
            let value = match row.register(register) {
                None if number == Code::RETURN_ADDRESS && Code::CALLS_PUSH => return None,
                None | Some(RegisterRule::SameValue) => continue,
                Some(RegisterRule::Undefined) if number == Code::RETURN_ADDRESS => {
                    let avma = |svma: u64| svma.wrapping_add(module.base);
                    return Some(Step::Bottom(avma(range.start)..avma(range.end)));
                }
                Some(RegisterRule::Undefined) => None,
                Some(RegisterRule::Offset(offset)) => read(cfa.wrapping_add_signed(offset)),
                Some(RegisterRule::ValOffset(offset)) => Some(cfa.wrapping_add_signed(offset)),
                Some(RegisterRule::Register(other)) => {
                    registers.get(usize::from(other.0)).copied().flatten()
                }
                Some(RegisterRule::Expression(expression)) => {
                    evaluate(&expression, Some(cfa)).and_then(read)
                }
                Some(RegisterRule::ValExpression(expression)) => evaluate(&expression, Some(cfa)),
                Some(_) => return None,
            };
            *slot = value;
        }
        let is_signal = fde.cie().is_signal_trampoline();
        // Unreadable memory is not the end.
        let return_address = caller[Code::RETURN_ADDRESS]?;
        // The return address of this frame is the caller's program counter. The caller's own return address is unknown.
        caller[Code::RETURN_ADDRESS] = None;
        caller[PC] = Some(return_address & !self.signature);
        Some(Step::Caller(Box::new(caller), is_signal))
    }
}

/// Returns the registers that the kernel has saved in a signal frame at the stack pointer.
fn interrupted(sp: u64, read: ReadWord) -> Registers {
    std::array::from_fn(|number| read(sp.wrapping_add(Code::SAVED[number])))
}

enum Step {
    Caller(Box<Registers>, bool),
    /// The outermost frame, with its function's code (avma).
    Bottom(Range<u64>),
}

fn evaluate<R: Reader<Offset = usize>>(
    expression: gimli::Expression<R>,
    encoding: gimli::Encoding,
    start: Option<u64>,
    registers: &Registers,
    base: u64,
    read: ReadWord,
) -> Option<u64> {
    let mut evaluation = expression.evaluation(encoding);
    evaluation.set_max_iterations(1000);
    if let Some(start) = start {
        evaluation.set_initial_value(start);
    }
    let mut result = evaluation.evaluate().ok()?;
    loop {
        result = match result {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresMemory { address, size, .. } => {
                let word = read(address)?;
                let bits = u32::from(size.min(8)) * 8;
                let value = if bits < 64 {
                    word & ((1 << bits) - 1)
                } else {
                    word
                };
                evaluation.resume_with_memory(Value::Generic(value)).ok()?
            }
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = registers.get(usize::from(register.0)).copied()??;
                evaluation
                    .resume_with_register(Value::Generic(value))
                    .ok()?
            }
            EvaluationResult::RequiresRelocatedAddress(svma) => evaluation
                .resume_with_relocated_address(svma.wrapping_add(base))
                .ok()?,
            _ => return None,
        };
    }
    match evaluation.result().first()?.location {
        Location::Address { address } => Some(address),
        Location::Register { register } => registers.get(usize::from(register.0)).copied()?,
        _ => None,
    }
}

/// Returns the stack pointer in a set of registers.
pub fn stack_pointer(registers: &Registers) -> Option<u64> {
    registers[SP]
}

/// Returns the registers that unwinding needs for a thread inside a function.
pub fn at(pc: u64, sp: u64, frame_pointer: u64) -> Registers {
    let mut registers = [None; REGISTERS];
    registers[PC] = Some(pc);
    registers[SP] = Some(sp);
    registers[Code::FRAME_POINTER] = Some(frame_pointer);
    registers
}

/// Returns true if the caller's frame lies further out. Every caller's frame does, with one exception: where calls push
/// nothing, a leaf function may have no frame.
fn is_further_out(caller: &Registers, registers: &Registers, is_innermost: bool) -> bool {
    match Code::CALLS_PUSH || !is_innermost {
        true => caller[SP] > registers[SP],
        false => caller[SP] >= registers[SP],
    }
}
