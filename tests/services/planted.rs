//! A Rust service that plants 412 blocks before anyone attaches: leaked and reachable blocks, from
//! running and from exited threads. After that, N threads keep allocating and releasing, and also
//! release each other's blocks.
//!
//! It has the protocol of `targets/planted_heap.c`: it prints "ready" when all blocks are planted,
//! and the list for each byte on standard input. At the end of input it exits, with code 0 if all
//! contents are intact.

use std::cell::RefCell;
use std::hint::black_box;
use std::io::{Read, Write};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

const MOST: usize = 512;
const SLOTS: usize = 256;

/// Returns the usable bytes of a block according to the allocator.
pub type Usable = fn(*const u8) -> usize;

/// Addresses are stored inverted, so that they keep no block alive.
static PLANTED: [(AtomicUsize, AtomicUsize, AtomicBool); MOST] = [const {
    (
        AtomicUsize::new(0),
        AtomicUsize::new(0),
        AtomicBool::new(false),
    )
}; MOST];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static LIVE: OnceLock<Live> = OnceLock::new();
static SHARED: Mutex<Vec<Box<[u8]>>> = Mutex::new(Vec::new());
static ENDS: AtomicBool = AtomicBool::new(false);

struct Live {
    blocks: Vec<Box<[u8]>>,
    list: Option<Box<Node>>,
    zeros: Vec<u8>,
}

struct Node {
    number: u64,
    next: Option<Box<Node>>,
}

/// One of two objects that refer to each other.
struct Half {
    number: u64,
    other: RefCell<Option<Rc<Half>>>,
}

fn note<T: ?Sized>(block: *const T, usable: Usable, is_leaked: bool) {
    let address = block.cast::<u8>();
    let place = &PLANTED[COUNT.fetch_add(1, Ordering::Relaxed)];
    place.0.store(!address.addr(), Ordering::Relaxed);
    place.1.store(usable(address), Ordering::Relaxed);
    place.2.store(is_leaked, Ordering::Relaxed);
}

fn size_of(i: usize) -> usize {
    9 + i * 37 % 2400 + if i.is_multiple_of(10) { 3000 } else { 0 }
}

fn block(i: usize) -> Box<[u8]> {
    black_box(vec![i as u8; size_of(i)].into_boxed_slice())
}

#[inline(never)]
fn leak_boxes(count: usize, usable: Usable) {
    for i in 0..count {
        note(Box::into_raw(block(i)), usable, true);
    }
}

#[inline(never)]
fn list(count: usize, usable: Usable, is_leaked: bool) -> Option<Box<Node>> {
    let mut list = None;
    for number in 0..count as u64 {
        let node = Box::new(Node { number, next: list });
        note(&raw const *node, usable, is_leaked);
        list = Some(node);
    }
    list
}

/// Leaks reference-counted objects that refer to each other.
#[inline(never)]
fn leak_circles(count: u64, usable: Usable) {
    for number in 0..count {
        let half = |other| {
            let half = Rc::new(Half {
                number,
                other: RefCell::new(other),
            });
            // Two reference counts precede the value.
            let block = Rc::as_ptr(&half).cast::<u8>().wrapping_sub(16);
            note(block, usable, true);
            half
        };
        let first = half(None);
        let second = half(Some(Rc::clone(&first)));
        first.other.replace(Some(second));
        black_box(first.number);
    }
}

#[inline(never)]
fn plant(usable: Usable) {
    leak_boxes(60, usable);
    std::mem::forget(list(20, usable, true));
    leak_circles(3, usable);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| leak_boxes(10, usable));
        }
    });
    let blocks: Vec<Box<[u8]>> = (0..120).map(block).collect();
    for block in &blocks {
        note(&raw const **block, usable, false);
    }
    note(blocks.as_ptr(), usable, false);
    let list = list(104, usable, false);
    // No page of this block is resident.
    let zeros = vec![0; 1 << 20];
    note(zeros.as_ptr(), usable, false);
    let live = Live {
        blocks,
        list,
        zeros,
    };
    assert!(LIVE.set(live).is_ok(), "once");
}

/// Allocates and releases blocks until the process exits.
fn work(seed: u64) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut slots: Vec<Option<Box<[u8]>>> = (0..SLOTS).map(|_| None).collect();
    while !ENDS.load(Ordering::Relaxed) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let at = random as usize % SLOTS;
        let size = 1 + (random >> 32) as usize % 2000;
        let old = slots[at].replace(vec![size as u8; size].into_boxed_slice());
        if let Some(old) = old {
            let first = old[0];
            assert!(old.len() as u8 == first && old.iter().all(|&byte| byte == first));
            let mut shared = SHARED.lock().expect("no panic");
            shared.push(old);
            if shared.len() > 64 {
                shared.drain(..32);
            }
        }
        if random.is_multiple_of(64) {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }
}

fn list_planted() {
    let mut out = std::io::stdout().lock();
    for (address, bytes, is_leaked) in &PLANTED[..COUNT.load(Ordering::Relaxed)] {
        let state = match is_leaked.load(Ordering::Relaxed) {
            true => "leak",
            false => "live",
        };
        let address = !address.load(Ordering::Relaxed);
        let bytes = bytes.load(Ordering::Relaxed);
        writeln!(out, "{state} {address:#x} {bytes}").expect("it is read");
    }
    writeln!(out, "done").expect("it is read");
    out.flush().expect("it is read");
}

fn is_as_it_was() -> bool {
    let live = LIVE.get().expect("planted");
    let mut expected = 104;
    let mut node = live.list.as_deref();
    while let Some(found) = node {
        expected -= 1;
        if found.number != expected {
            return false;
        }
        node = found.next.as_deref();
    }
    let mut blocks = live.blocks.iter().enumerate();
    expected == 0
        && blocks.all(|(i, block)| {
            block.len() == size_of(i) && block.iter().all(|&byte| byte == i as u8)
        })
        && live.zeros.iter().all(|&byte| byte == 0)
}

/// Runs the service on an allocator that reports usable bytes.
pub fn serve(usable: Usable) {
    let threads = std::env::args().nth(1).map_or(0, |n| n.parse().expect("N"));
    // The stack used for planting must not keep the leaked blocks alive.
    let planting = std::thread::spawn(move || plant(usable));
    planting.join().expect("no panic");
    let seed = AtomicU64::new(1);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work(seed.fetch_add(1, Ordering::Relaxed)));
        }
        println!("ready");
        // A buffered reader would contain stale memory with pointers.
        let mut input = std::fs::File::open("/dev/stdin").expect("a pipe");
        while input.read(&mut [0]).expect("a pipe") > 0 {
            list_planted();
        }
        ENDS.store(true, Ordering::Relaxed);
    });
    std::process::exit(i32::from(!is_as_it_was()));
}
