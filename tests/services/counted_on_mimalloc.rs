//! A Rust service with mimalloc linked in. The number of its allocations after "ready" is known
//! exactly. It prints "ready", waits for a byte, allocates, prints "done", and waits for another
//! byte.

use std::alloc::{Layout, alloc};
use std::hint::black_box;
use std::io::{Read, Write};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[inline(never)]
fn leak_vectors() {
    for _ in 0..200 {
        std::mem::forget(black_box(Vec::<u8>::with_capacity(1000)));
    }
}

#[inline(never)]
fn leak_zeros() {
    for _ in 0..50 {
        std::mem::forget(black_box(vec![0u8; 2000]));
    }
}

#[inline(never)]
fn leak_grown() {
    for _ in 0..20 {
        let mut grown = black_box(Vec::<u8>::with_capacity(100));
        grown.push(1);
        grown.reserve_exact(black_box(4999));
        std::mem::forget(grown);
    }
}

#[inline(never)]
fn leak_aligned() {
    for _ in 0..10 {
        let layout = Layout::from_size_align(640, 128).expect("a layout");
        // SAFETY: the size is not 0.
        black_box(unsafe { alloc(layout) });
    }
}

#[inline(never)]
fn release_all() {
    for size in 1..500 {
        drop(black_box(vec![1u8; size]));
    }
}

fn say(line: &str) {
    let mut output = std::io::stdout();
    writeln!(output, "{line}").expect("somebody reads");
    output.flush().expect("somebody reads");
}

fn main() {
    let mut byte = [0];
    say("ready");
    let _ = std::io::stdin().read(&mut byte);
    leak_vectors();
    leak_zeros();
    leak_grown();
    leak_aligned();
    release_all();
    say("done");
    let _ = std::io::stdin().read(&mut byte);
}
