//! Functions of random instructions have the same results with a probe as without it: registers, flags, memory, red
//! zone.
//!
//! The functions are executed in a separate process, because a wrong pad may crash it. The pads call code that changes
//! every register that it may change.
//!
//! A longer run: `cargo test -p memhook-probe --test executed -- --ignored`

use fastrand::Rng;
use memhook_probe::{
    AreaFunction, AreaHeader, AreaPlan, Code, CountsLayout, Plan, Role, plan, plan_exits,
};
use std::ops::Range;
use std::process::Command;

/// Environment variable with the number of functions, for the process that executes them.
const SEQUENCES: &str = "MEMHOOK_PROBE_SEQUENCES";

/// Input and output of a function: rax, rcx, rdx, rbx, rbp, rsi, rdi, r8 to r15, flags.
type State = [u64; 16];
const FLAGS: usize = 15;
/// OF, DF, SF, ZF, PF, CF. AF is undefined after most instructions.
const COMPARED_FLAGS: u64 = 0xcc5;
/// Arithmetic flags.
const RANDOM_FLAGS: u64 = 0x8d5;

std::arch::global_asm!(
    r#"
    .globl memhook_test_run
memhook_test_run:
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    push rdi
    push rsi
    mov ecx, 40
2:  mov qword ptr [rsp + rcx * 8 - 328], 0
    dec ecx
    jnz 2b
    push qword ptr [rdi + 120]
    popfq
    mov rax, [rdi]
    mov rcx, [rdi + 8]
    mov rdx, [rdi + 16]
    mov rbx, [rdi + 24]
    mov rbp, [rdi + 32]
    mov rsi, [rdi + 40]
    mov r8, [rdi + 56]
    mov r9, [rdi + 64]
    mov r10, [rdi + 72]
    mov r11, [rdi + 80]
    mov r12, [rdi + 88]
    mov r13, [rdi + 96]
    mov r14, [rdi + 104]
    mov r15, [rdi + 112]
    mov rdi, [rdi + 48]
    call [rsp]
    xchg rdi, [rsp + 8]
    mov [rdi], rax
    mov [rdi + 8], rcx
    mov [rdi + 16], rdx
    mov [rdi + 24], rbx
    mov [rdi + 32], rbp
    mov [rdi + 40], rsi
    mov [rdi + 56], r8
    mov [rdi + 64], r9
    mov [rdi + 72], r10
    mov [rdi + 80], r11
    mov [rdi + 88], r12
    mov [rdi + 96], r13
    mov [rdi + 104], r14
    mov [rdi + 112], r15
    pushfq
    pop qword ptr [rdi + 120]
    cld
    mov rax, [rsp + 8]
    mov [rdi + 48], rax
    add rsp, 16
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    ret
    .globl memhook_test_hit
memhook_test_hit:
    lea rax, [rip + {seen}]
    mov r10, [rdx]
    mov [rax], r10
    mov r10, [rdx + 8]
    mov [rax + 8], r10
    mov r10, [rdx + 16]
    mov [rax + 16], r10
    mov r10, [rdx + 24]
    mov [rax + 24], r10
    mov r10, [rdx + 32]
    mov [rax + 32], r10
    mov r10, [rdx + 40]
    mov [rax + 40], r10
    mov [rax + 48], rsi
    mov [rax + 56], r8
    mov r10, [rcx]
    mov [rax + 64], r10
    add qword ptr [rax + 72], 1
    mov rax, -1
    mov rcx, rax
    mov rdx, rax
    mov rsi, rax
    mov rdi, rax
    mov r8, rax
    mov r9, rax
    mov r10, rax
    mov r11, rax
    add rax, rax
    ret
"#,
    seen = sym SEEN,
);

/// Values that the code called by pads has seen: six arguments, the number of the probe, rbp, the return address, and
/// the number of calls.
static mut SEEN: [u64; 10] = [0; 10];

unsafe extern "C" {
    fn memhook_test_run(state: *mut State, function: u64);
    fn memhook_test_hit();
}

/// Writable and executable memory, all within reach of a jump.
struct Memory {
    at: u64,
}

const CODE_BYTES: u64 = 4096;
const DATA_BYTES: u64 = 4096;
const TABLE: u64 = CODE_BYTES + DATA_BYTES;
const AREA: u64 = TABLE + CountsLayout::TABLE_BYTES;
const AREA_BYTES: u64 = 64 << 10;
const COUNTS: u64 = AREA + AREA_BYTES;
const COUNTS_BYTES: u64 = 1 << 20;
/// Offset of a function that other code calls, after the code under test.
const HELPER: u64 = 2048;
/// Offset in the data of that function's address.
const HELPER_POINTER: u64 = 2048;
/// Number of the probe, which is not the first.
const PROBE: usize = 2;

impl Memory {
    fn new() -> Memory {
        let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let bytes = (COUNTS + COUNTS_BYTES) as usize;
        // SAFETY: a new anonymous mapping, which touches no other memory.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, all, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let memory = Memory {
            at: at.addr() as u64,
        };
        // lea rax, [rax + rcx + 1]; stc; ret
        memory.write(HELPER, b"\x48\x8d\x44\x08\x01\xf9\xc3");
        memory.write(
            TABLE - DATA_BYTES + HELPER_POINTER,
            &(memory.at + HELPER).to_le_bytes(),
        );
        memory
    }

    #[expect(
        clippy::mut_from_ref,
        reason = "the memory is not that of the structure"
    )]
    fn part(&self, offset: u64, bytes: usize) -> &mut [u8] {
        assert!(offset as usize + bytes <= (COUNTS + COUNTS_BYTES) as usize);
        let start = std::ptr::with_exposed_provenance_mut::<u8>((self.at + offset) as usize);
        // SAFETY: inside the mapping, which nothing else refers to while the slice is in use: tests are sequential, and
        // no slice is kept.
        unsafe { std::slice::from_raw_parts_mut(start, bytes) }
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.part(offset, bytes.len()).copy_from_slice(bytes);
    }

    fn word(&self, offset: u64) -> u64 {
        let bytes = self.part(offset, 8);
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    }

    /// Runs the code from this state with this data; returns both afterwards.
    fn run(&self, state: &State, data: &[u8]) -> (State, Vec<u8>) {
        self.write(CODE_BYTES, data);
        let mut state = *state;
        // SAFETY: the code consists of instructions that touch registers, the data, and the stack below the return
        // address. If something goes wrong nevertheless, only this process is affected, which has no other purpose.
        unsafe { memhook_test_run(&raw mut state, self.at) };
        state[FLAGS] &= COMPARED_FLAGS;
        (state, self.part(CODE_BYTES, data.len()).to_vec())
    }
}

/// Returns a register that computations may use: any except rsp.
fn register(random: &mut Rng) -> u8 {
    match random.u8(..15) {
        4 => 15,
        number => number,
    }
}

/// Maximum number of pushed registers. With more of them, the red zone would begin below the entry's red zone, which a
/// pad may overwrite.
const MOST_PUSHED: usize = 8;

/// Function under construction.
struct Function {
    at: u64,
    code: Vec<u8>,
    /// Forward jumps: position and size of their displacement, and number of instructions that they skip.
    jumps: Vec<(usize, usize, u64)>,
    pushed: usize,
}

impl Function {
    fn put(&mut self, bytes: &[u8]) {
        self.code.extend(bytes);
    }

    /// Emits an instruction on two registers, or on one and a memory operand relative to rip.
    fn put_on(&mut self, random: &mut Rng, opcode: &[u8], relative: bool, immediate: &[u8]) {
        let (a, b) = (register(random), register(random));
        self.put(&[0x48 | (a >> 3) << 2 | if relative { 0 } else { b >> 3 }]);
        self.put(opcode);
        if relative {
            self.put(&[(a & 7) << 3 | 5]);
            let end = self.at + (self.code.len() + 4 + immediate.len()) as u64;
            let target = self.at + CODE_BYTES + random.u64(..200) * 8;
            self.put(&(target.wrapping_sub(end) as u32).to_le_bytes());
        } else {
            self.put(&[0xc0 | (a & 7) << 3 | b & 7]);
        }
        self.put(immediate);
    }

    fn put_call(&mut self) {
        let end = self.at + self.code.len() as u64 + 5;
        let target = self.at + HELPER;
        self.put(b"\xe8");
        self.put(&(target.wrapping_sub(end) as u32).to_le_bytes());
    }

    fn put_one(&mut self, random: &mut Rng) {
        const NOPS: [&[u8]; 5] = [
            b"\x90",
            b"\x66\x90",
            b"\x0f\x1f\x00",
            b"\x0f\x1f\x44\0\0",
            b"\x66\x0f\x1f\x84\0\0\0\0\0",
        ];
        // add, or, adc, sbb, and, sub, xor, cmp; test, mov
        const PLAIN: [u8; 10] = [0x01, 0x09, 0x11, 0x19, 0x21, 0x29, 0x31, 0x39, 0x85, 0x89];
        let byte = random.u8(..);
        match random.u64(..20) {
            0..=3 => self.put_on(random, &[PLAIN[byte as usize % 10]], false, &[]),
            // Loads, stores, read-modify-write.
            4..=6 => self.put_on(random, &[PLAIN[byte as usize % 10]], true, &[]),
            7 => self.put_on(random, b"\x8b", true, &[]),
            // lea
            8 => self.put_on(random, b"\x8d", true, &[]),
            // imul; cmovcc; bt
            9 => self.put_on(random, b"\x0f\xaf", byte & 1 == 0, &[]),
            10 => self.put_on(random, &[0x0f, 0x40 | byte & 15], byte & 16 == 0, &[]),
            11 => self.put_on(random, b"\x0f\xa3", false, &[]),
            // setcc of a byte register: with REX, all byte registers are low bytes.
            12 => {
                let register = register(random);
                self.put(&[
                    0x40 | register >> 3,
                    0x0f,
                    0x90 | byte & 15,
                    0xc0 | register & 7,
                ]);
            }
            // mov r32, imm32
            13 => {
                let register = register(random);
                self.put(&[0x40 | register >> 3, 0xb8 | register & 7]);
                self.put(&random.u32(..).to_le_bytes());
            }
            // shl or shr by a number
            14 => {
                let register = register(random);
                let kind = if byte & 1 == 0 { 0xe0 } else { 0xe8 };
                self.put(&[0x48 | register >> 3, 0xc1, kind | register & 7, byte >> 2]);
            }
            // push, and pop into another one at the end
            15 if self.pushed < MOST_PUSHED => {
                let register = register(random);
                self.put(&[0x40 | register >> 3, 0x50 | register & 7]);
                self.pushed += 1;
            }
            // The red zone: mov [rsp - 24], rdi; mov rdi, [rsp - 24 or - 32]
            16 => {
                let opcode = if byte & 1 == 0 { 0x89 } else { 0x8b };
                self.put(&[0x48, opcode, 0x7c, 0x24, 0xe8]);
            }
            // jcc or jmp over a few instructions, short or near
            17 => {
                match byte & 3 {
                    0 => self.put(&[0x70 | byte >> 4, 0]),
                    1 => self.put(&[0x0f, 0x80 | byte >> 4, 0, 0, 0, 0]),
                    2 => self.put(&[0xeb, 0]),
                    _ => self.put(&[0xe9, 0, 0, 0, 0]),
                }
                let bytes = if byte & 1 == 0 { 1 } else { 4 };
                let skipped = random.u64(..4);
                self.jumps.push((self.code.len() - bytes, bytes, skipped));
            }
            18 if byte & 1 == 0 => self.put_call(),
            18 => {
                // call [rip + helper]
                self.put(b"\xff\x15");
                let end = self.at + self.code.len() as u64 + 4;
                let pointer = self.at + CODE_BYTES + HELPER_POINTER;
                self.put(&(pointer.wrapping_sub(end) as u32).to_le_bytes());
            }
            _ => self.put(NOPS[byte as usize % NOPS.len()]),
        }
    }

    fn new(at: u64, random: &mut Rng) -> Function {
        let mut function = Function {
            at,
            code: Vec::new(),
            jumps: Vec::new(),
            pushed: 0,
        };
        if random.u64(..4) == 0 {
            function.put(b"\xf3\x0f\x1e\xfa"); // endbr64
        }
        let count = 3 + random.u64(..12);
        for left in (0..count).rev() {
            let (first, open, pushed) =
                (function.code.len(), function.jumps.len(), function.pushed);
            function.put_one(random);
            // A push must not be skipped without its pop.
            if open > 0 && function.pushed > pushed {
                function.code.truncate(first);
                function.pushed = pushed;
                function.put(b"\x90");
            }
            let Function { code, jumps, .. } = &mut function;
            let end = code.len();
            jumps.retain_mut(|(at, bytes, skipped)| {
                if *skipped > 0 && left > 0 {
                    *skipped -= 1;
                    return true;
                }
                let distance = (end - *at - *bytes) as u32;
                code[*at..][..*bytes].copy_from_slice(&distance.to_le_bytes()[..*bytes]);
                false
            });
        }
        for _ in 0..function.pushed {
            let register = register(random);
            function.put(&[0x40 | register >> 3, 0x58 | register & 7]);
        }
        function.put(b"\xc3");
        function
    }
}

/// Executes this many functions, each with and without a probe. Returns how many had a probe.
fn execute(sequences: u64, seed: u64) -> u64 {
    let memory = Memory::new();
    let mut random = Rng::with_seed(seed);
    let mut probed = 0;
    for number in 0..sequences {
        let begun = random.get_seed();
        let function = Function::new(memory.at, &mut random);
        memory.part(0, HELPER as usize).fill(0xcc);
        memory.write(0, &function.code);
        let range = memory.at..memory.at + function.code.len() as u64;
        let text = [(memory.at, &function.code[..])];
        let code = Code::new(&text, &[], std::slice::from_ref(&range), &[]);
        let Ok(entry) = plan(&code, &range) else {
            continue;
        };
        probed += 1;
        let mut state: State = std::array::from_fn(|_| random.u64(..));
        state[FLAGS] &= RANDOM_FLAGS;
        let mut data: Vec<u8> = (0..1664 / 8)
            .flat_map(|_| random.u64(..).to_le_bytes())
            .collect();
        data.resize(HELPER_POINTER as usize, 0);
        let expected = memory.run(&state, &data);
        let kind = random.u64(..4);
        let (hits, calls) = probe(&memory, &code, &range, &entry, kind);
        // The first call takes another path than the next one.
        for call in 1..=2 {
            let found = memory.run(&state, &data);
            let context = || {
                format!(
                    "sequence {number}, random state {begun:#x}, kind {kind}: {:02x?}",
                    function.code
                )
            };
            assert_eq!(found.0, expected.0, "{}", context());
            assert!(found.1 == expected.1, "data differ: {}", context());
            assert_eq!(memory.word(calls), call, "{}", context());
            if hits {
                // SAFETY: no other code uses it.
                let seen = unsafe { (&raw const SEEN).read() };
                let register = |n: usize| state[n];
                let arguments = [6, 5, 2, 1, 7, 8].map(register);
                assert_eq!(seen[..6], arguments, "{}", context());
                assert_eq!(seen[6..8], [PROBE as u64, state[4]], "{}", context());
                assert_eq!(seen[9], call, "{}", context());
            }
        }
    }
    probed
}

/// Places the probe. Returns true if its pad calls code, and the address of its counter.
fn probe(
    memory: &Memory,
    code: &Code<'_>,
    range: &Range<u64>,
    entry: &Plan,
    kind: u64,
) -> (bool, u64) {
    let exits = plan_exits(code, range, entry).unwrap_or_default();
    let layout = CountsLayout {
        probes: PROBE + 1,
        has_latency: kind & 1 != 0,
        arguments: (kind >> 1) as usize,
        has_stacks: false,
    };
    let exits: &[Plan] = if layout.has_latency { &exits } else { &[] };
    let at_entry = if exits.is_empty() {
        Role::Counts
    } else {
        Role::Begins
    };
    let places = exits.iter().map(|exit| (exit, Role::Ends));
    let functions = places
        .chain([(entry, at_entry)])
        .map(|(plan, role)| AreaFunction {
            plan,
            bias: 0,
            probe: PROBE,
            role,
        });
    let plan =
        AreaPlan::new(functions.collect(), &[]).calling(memhook_test_hit as *const () as u64);
    assert!(plan.bytes() <= AREA_BYTES);
    let header = AreaHeader {
        table_at: memory.at + TABLE,
        ..AreaHeader::default()
    };
    let area = plan
        .build(memory.at + AREA, header, &layout)
        .expect("within reach");
    memory.write(AREA, &area.bytes);
    memory
        .part(TABLE, CountsLayout::TABLE_BYTES as usize)
        .fill(0);
    memory.write(
        TABLE + CountsLayout::IS_LIVE,
        &CountsLayout::table_words(memory.at + COUNTS),
    );
    let used = layout.block(2);
    assert!(used <= COUNTS_BYTES);
    memory.part(COUNTS, used as usize).fill(0);
    memory.write(COUNTS, &CountsLayout::shared_words());
    // SAFETY: no other code uses it.
    unsafe { (&raw mut SEEN).write([0; 10]) };
    for entry in &area.journal {
        memory.write(entry.at - memory.at, &entry.jump);
    }
    (
        layout.has_events(),
        COUNTS + layout.block(1) + CountsLayout::counter(PROBE),
    )
}

/// Executes functions in a separate process.
fn execute_elsewhere(test: &str, sequences: u64) {
    if let Ok(count) = std::env::var(SEQUENCES) {
        let count: u64 = count.parse().expect("a number");
        let seed = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
        let probed = execute(count, seed);
        eprintln!("{probed} of {count} functions could be probed");
        assert!(probed * 4 > count, "{probed} of {count}");
        return;
    }
    let output = Command::new(std::env::current_exe().expect("a test"))
        .args([test, "--exact", "--include-ignored", "--nocapture"])
        .env(SEQUENCES, sequences.to_string())
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}", output.status);
    eprintln!("{text}");
}

#[test]
fn probed_functions_compute_the_same() {
    execute_elsewhere("probed_functions_compute_the_same", 10_000);
}

#[test]
#[ignore = "takes minutes"]
fn a_million_probed_functions_compute_the_same() {
    execute_elsewhere("a_million_probed_functions_compute_the_same", 2_000_000);
}
