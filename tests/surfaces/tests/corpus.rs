//! Runs the stored inputs, and a few thousand mutations of them that are the same in every run.

use fastrand::Rng;
use memhook_surfaces::{SURFACES, Surface, surface};
use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Number of mutated inputs for each surface.
const CHANGES: usize = 2000;
/// Maximum length of a mutated input.
const LONGEST: usize = 1 << 14;

/// Applies one of libFuzzer's mutations.
fn change(bytes: &mut Vec<u8>, other: &[u8], random: &mut Rng) {
    const VALUES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xff, 0x40, 8, 16];
    let at = random.usize(..bytes.len().max(1));
    match random.usize(..7) {
        0 if !bytes.is_empty() => bytes[at] ^= 1 << random.usize(..8),
        1 if !bytes.is_empty() => bytes[at] = VALUES[random.usize(..VALUES.len())],
        2 if !bytes.is_empty() => {
            bytes[at] = bytes[at]
                .wrapping_add(random.usize(..7) as u8)
                .wrapping_sub(3)
        }
        3 => {
            let end = (at + random.usize(..16)).min(bytes.len());
            bytes.drain(at..end);
        }
        4 => bytes.insert(at, random.u8(..)),
        5 => {
            let from = random.usize(..other.len().max(1));
            let part = &other[from..(from + random.usize(..32)).min(other.len())];
            bytes.splice(at..at, part.iter().copied());
        }
        _ => {
            let end = (at + 8).min(bytes.len());
            let word = [0, 1, u64::MAX, 1 << 63, 1 << 32, random.u64(..)][random.usize(..6)];
            bytes[at..end].copy_from_slice(&word.to_le_bytes()[..end - at]);
        }
    }
    bytes.truncate(LONGEST);
}

static PANICS: AtomicU64 = AtomicU64::new(0);

/// Counts panics, including those of threads that the tested code starts and survives.
fn count_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Relaxed);
            tell(panic);
        }));
    });
}

fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/corpus")
        .join(name)
}

fn kept(name: &str) -> Vec<Vec<u8>> {
    let directory = directory(name);
    let entries =
        std::fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    files
        .iter()
        .map(|file| std::fs::read(file).expect("readable"))
        .collect()
}

/// Runs one input. Writes a failing input to a file that the message names.
fn try_input(name: &str, run: Surface, input: &[u8]) {
    let before = PANICS.load(Relaxed);
    let outcome = std::panic::catch_unwind(|| run(input));
    if outcome.is_err() || PANICS.load(Relaxed) != before {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.input"));
        std::fs::write(&file, input).expect("written");
        panic!("{name} fails with the input in {}", file.display());
    }
}

fn run_all(name: &str) {
    count_panics();
    let run = surface(name).expect("a surface");
    let inputs = kept(name);
    assert!(!inputs.is_empty(), "no inputs for {name}");
    for input in &inputs {
        try_input(name, run, input);
    }
    let mut random = Rng::with_seed(1);
    for _ in 0..CHANGES {
        let mut input = inputs[random.usize(..inputs.len())].clone();
        let other = &inputs[random.usize(..inputs.len())];
        for _ in 0..=random.usize(..4) {
            change(&mut input, other, &mut random);
        }
        try_input(name, run, &input);
    }
}

/// One test runs all surfaces, so that a panic in any thread is due to the current input.
#[test]
fn no_kept_or_changed_input_does_harm() {
    for (name, _) in SURFACES {
        run_all(name);
    }
}

#[test]
fn each_directory_of_inputs_has_a_surface() {
    for entry in std::fs::read_dir(directory("")).expect("fuzz/corpus") {
        let name = entry.expect("a directory").file_name();
        let name = name.to_str().expect("text");
        assert!(surface(name).is_some(), "fuzz/corpus/{name}");
    }
}
