//! Snapshots made by hand, for tests.

use crate::Error;
use crate::ranges::Runs;
use crate::snapshot::{Area, AreaKind, CopiedRegion, Meta, Method, Snapshot};
use memhook_inject::Error as Hold;
use std::time::{Duration, Instant};

/// Returns a snapshot with this memory. All of it is anonymous.
pub fn snapshot(memory: Vec<(u64, Vec<u8>)>) -> Snapshot {
    let areas = memory.iter().map(|(start, bytes)| Area {
        start: *start,
        end: start + bytes.len() as u64,
        kind: AreaKind::Anonymous,
        name: String::new(),
    });
    Snapshot {
        meta: Meta {
            pid: 1,
            processor: std::env::consts::ARCH.to_owned(),
            identity: None,
            method: Method::Stop,
            held_ms: 0.0,
            prepare_held_ms: 0.0,
            taken_ms: 0.0,
            held_bytes: 0,
            in_malloc: 0,
            notes: Vec::new(),
            threads: Vec::new(),
            areas: areas.collect(),
            modules: Vec::new(),
            kernel_words: Vec::new(),
            changed: Runs::new(),
            changed_words: Vec::new(),
            unsearched: Vec::new(),
            classes: Default::default(),
            variables: Vec::new(),
            earlier: None,
            unmoved: 0,
            emulated: None,
        },
        regions: memory
            .into_iter()
            .map(|(start, bytes)| CopiedRegion {
                start,
                runs: vec![start..start + bytes.len() as u64],
                bytes: bytes.into(),
            })
            .collect(),
    }
}

/// Returns a copy of a shell with a few thousand blocks, allocated by the system's allocator or by
/// a library.
pub fn shell_on(library: Option<&str>) -> Snapshot {
    use memhook_tests::programs::installed_library;
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let script = "for i in {1..3000}; do a[$i]=value-$i; done; echo ready; read line";
    let mut shell = Command::new("bash")
        .args(["-c", script])
        .env(
            "LD_PRELOAD",
            library.map(installed_library).unwrap_or_default(),
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash starts");
    let mut line = String::new();
    let output = shell.stdout.take().expect("a pipe");
    BufReader::new(output)
        .read_line(&mut line)
        .expect("it says so");
    assert_eq!(line, "ready\n");
    // The shell prints its output before it has released the memory for the output.
    let reads = || {
        let call = std::fs::read_to_string(format!("/proc/{}/syscall", shell.id()));
        call.is_ok_and(|call| call.starts_with("0 0x0 "))
    };
    let until = Instant::now() + LONG;
    while !reads() {
        assert!(Instant::now() < until, "it does not wait for a line");
        std::thread::sleep(Duration::from_millis(1));
    }
    let captured = captured(shell.id() as i32, crate::Request::to_search());
    shell.kill().and_then(|()| shell.wait()).expect("it ends");
    captured.snapshot
}

/// Longest time that a test waits for an event that a busy machine may delay.
const LONG: Duration = Duration::from_secs(60);

/// Copies the memory of a process. Retries, because on a busy machine, the threads may not stop in
/// time, or the hold may end before the copy is complete.
pub fn captured(pid: i32, request: crate::Request) -> crate::Captured {
    let until = Instant::now() + LONG;
    loop {
        match crate::capture(pid, request) {
            Err(
                Error::TooLong { .. }
                | Error::Inject(
                    Hold::Starved { .. }
                    | Hold::DoesNotStop { .. }
                    | Hold::StopsTooLate { .. }
                    | Hold::WentHome { .. },
                ),
            ) if Instant::now() < until => {
                memhook_inject::let_late_threads_go();
                std::thread::sleep(Duration::from_millis(10));
            }
            captured => return captured.expect("its memory is copied"),
        }
    }
}

/// Changes a word of a snapshot.
pub fn put(snapshot: &mut Snapshot, place: u64, word: u64) {
    let regions = &mut snapshot.regions;
    let after = regions.partition_point(|region| region.start <= place);
    let region = &mut regions[after - 1];
    let at = (place - region.start) as usize;
    region.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// A change of a word: the place of the word, the kind of change, and a random operand.
pub type Change = (proptest::sample::Index, u64, u64);

/// Returns a strategy for some changes of words.
pub fn changes() -> impl proptest::strategy::Strategy<Value = Vec<Change>> {
    use proptest::prelude::*;
    prop::collection::vec((any::<prop::sample::Index>(), 0u64..6, any::<u64>()), 1..6)
}

/// Calls a function with a snapshot in which words at some of these places have been changed.
pub fn while_changed<T>(
    snapshot: &mut Snapshot,
    places: &[u64],
    changes: Vec<Change>,
    look: impl FnOnce(&Snapshot) -> T,
) -> T {
    let mut before = Vec::new();
    for (index, how, random) in changes {
        let place = *index.get(places);
        let was = snapshot.word(place).expect("it was copied");
        let other = snapshot.word(places[random as usize % places.len()]);
        let now = match how {
            0 => was ^ 1 << (random % 64),
            1 => was.wrapping_add(random % 0x10000),
            2 => was.wrapping_sub(random % 0x10000),
            3 => other.unwrap_or(0),
            4 => 0,
            _ => random,
        };
        before.push((place, was));
        put(snapshot, place, now);
    }
    let seen = look(snapshot);
    for (place, was) in before.into_iter().rev() {
        put(snapshot, place, was);
    }
    seen
}
