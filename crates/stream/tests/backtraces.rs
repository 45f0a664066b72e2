//! Checks the hook's backtraces, which reuse remembered ones, against complete unwinding, on random stacks. Also tests
//! the stack table that the hook writes, as this crate reads it.

mod hook_program;

use hook_program::{compile, region_file};
use memhook_stream::{Config, Plan, Region};
use std::os::fd::AsRawFd;
use std::process::Command;

const RING_BYTES: usize = 4096;

fn agree(program: &std::path::Path, seed: u64, rounds: u64) {
    let file = region_file(RING_BYTES);
    let region = Region::map(&file).unwrap();
    let config = Config {
        epoch: 5,
        ring_bytes: RING_BYTES as u64,
        depth: 64,
        max_size: u64::MAX,
        plan: Plan {
            first_ring: RING_BYTES as u64,
            ..Plan::default()
        },
        ..Config::default()
    };
    region.initialize(&config).unwrap();
    let output = Command::new(program)
        .args([file.as_raw_fd().to_string(), seed.to_string()])
        .arg(rounds.to_string())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "seed {seed}: {errors}");
    println!("{}", errors.trim());
    let text = String::from_utf8(output.stdout).unwrap();
    for line in text.lines() {
        let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
        let stack = region.stack(numbers[0] as u32).expect("it was interned");
        assert_eq!(u64::from(stack.function), numbers[1]);
        assert_eq!(u64::from(stack.truncated), numbers[2]);
        assert_eq!(stack.frames, numbers[3..], "seed {seed}");
    }
}

#[test]
fn backtraces_are_those_of_an_unwinding_from_scratch() {
    let program = compile("backtraces.cc", "memhook-backtraces", &[]);
    for seed in 0..3 {
        agree(&program, seed, 200_000);
    }
}
