//! Targets of slots that are not bound yet.

use memhook_process::{SlotKind, find_slots, mappings, modules};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Program that opens the C library in a separate namespace, where it is bound immediately and is at lower addresses
/// than the program's. It prints the addresses of functions in the program's own C library that it has not called yet.
const PROGRAM: &str = r#"
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <unistd.h>
    int main(int argc, char **argv) {
        void *block = 0;
        /* Its slots are bound by their first calls, which never come. */
        if (!dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW)) return 2;
        printf("%lx %lx\n", (long)dlsym(RTLD_DEFAULT, "realloc"),
               (long)dlsym(RTLD_DEFAULT, "posix_memalign"));
        fflush(stdout);
        if (argc > 1) {
            block = realloc(block, 100);
            return posix_memalign(&block, 64, 100);
        }
        pause();
    }"#;

/// A slot bound to the allocator of another namespace crashes the program, because the program's blocks are unknown to
/// that allocator.
#[test]
fn unbound_slots_lead_into_the_namespace_of_the_program() {
    let directory = std::env::temp_dir().join(format!("memhook-unbound-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let (source, program) = (directory.join("program.c"), directory.join("program"));
    std::fs::write(&source, PROGRAM).unwrap();
    let mut cc = Command::new("cc");
    cc.arg("-o").arg(&program).arg(&source);
    cc.args(["-fno-builtin", "-Wl,-z,lazy", "-ldl"]);
    assert!(cc.status().unwrap().success());
    let mut child = Command::new(&program)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let parse = |word| u64::from_str_radix(word, 16).unwrap();
    let own: Vec<u64> = line.split_whitespace().map(parse).collect();

    let pid = child.id() as i32;
    let maps = mappings(pid).unwrap();
    let modules = modules(pid, &maps, &mut Default::default()).unwrap();
    let scan = find_slots(pid, &modules, &maps, &|_| true, &[]).unwrap();
    let targets = |symbol: &str| -> Vec<u64> {
        let slots = scan.slots.iter().filter(|slot| {
            let module = &modules[slot.module];
            let is_of_program = module.is_main || module.is_libc;
            slot.symbol == symbol && slot.kind == SlotKind::JumpSlot && is_of_program
        });
        slots.map(|slot| slot.target).collect()
    };
    let found = [targets("realloc"), targets("posix_memalign")];
    child.kill().unwrap();
    child.wait().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    for (found, own) in found.iter().zip(own) {
        assert!(!found.is_empty());
        assert!(found.iter().all(|&t| t == own), "{found:x?}, not {own:x}");
    }
}
