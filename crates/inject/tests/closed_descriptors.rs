//! Tests with a target in which other threads close descriptors that they did not open.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use common::{LONG, Program, anywhere, is_for_want_of_a_processor, patiently, send};
use memhook_inject::{
    Dlopen, Error, HoldOptions, Others, create_region, hold, load_object, unmap_region, write_bytes,
};
use memhook_process::{RemoteAddress, read_word};

const BYTES: u64 = 1 << 16;

/// Options for the thread that closes nothing. The other thread keeps running.
fn initial(pid: i32) -> HoldOptions<'static> {
    HoldOptions {
        thread: Some(pid),
        ..anywhere()
    }
}

/// If this thread gets no processor for a while, the held thread is released.
fn is_late_at_most<T>(result: Result<T, Error>) {
    if let Err(error) = result {
        assert!(is_for_want_of_a_processor(&error), "{error:?}");
    }
}

/// The created object is ours, and the target's own file, which may get the number of our descriptor, stays unchanged.
#[test]
fn a_number_that_has_become_a_files_is_not_used() {
    let path = std::env::temp_dir().join(format!("memhook-mine-{}", std::process::id()));
    let mut program = Program::start("closes_all", &[path.to_str().expect("UTF-8")]);
    program.addresses();
    let pid = program.pid();
    let options = initial(pid);
    let (mut made, mut lost) = (0u64, 0);
    for round in 1..=300u64 {
        let mut held = patiently(|| hold(pid, &options));
        match create_region(&mut held, c"memhook-region", BYTES) {
            Ok(region) => {
                let file = File::from(region.fd);
                file.write_all_at(&round.to_le_bytes(), 0)
                    .expect("it is ours");
                assert_eq!(file.metadata().expect("a file").len(), BYTES);
                assert_eq!(read_word(pid, region.address), Some(round));
                is_late_at_most(unmap_region(&mut held, region.address, BYTES));
                made += 1;
            }
            Err(error) => {
                println!("{error}");
                lost += 1;
            }
        }
        is_late_at_most(held.release());
    }
    println!("{made} made, {lost} lost");
    assert_eq!(std::fs::read(&path).expect("its file"), b"mine");
    assert_eq!(read_word(pid, RemoteAddress(8)), None);
    send(pid, libc::SIGTERM);
    program.ends_well();
    let _ = std::fs::remove_file(path);
}

/// The loader reads the object through the descriptor's number, so the descriptor must stay open until the object is
/// loaded.
#[test]
fn objects_load_while_the_others_stand_still() {
    let path = std::env::temp_dir().join(format!("memhook-still-{}", std::process::id()));
    let mut program = Program::start("closes_all", &[path.to_str().expect("UTF-8")]);
    let dlopen = Dlopen {
        address: RemoteAddress(program.addresses()["dlopen"]),
        internal_mode: false,
    };
    let pid = program.pid();
    let flags = ["-shared", "-fPIC", "-nostdlib", "-DNUMBER=1"];
    let object = common::build("object", &flags);
    let bytes = std::fs::read(&object).expect("it is built");
    let (mut loaded, mut awake) = (0, 0);
    let until = Instant::now() + LONG;
    while loaded + awake < 60 || loaded == 0 && Instant::now() < until {
        let others = Others::of(pid);
        let mut held = patiently(|| hold(pid, &initial(pid)));
        // On a busy machine, it may take too long to stop the other thread.
        if !held.stop_others(&others).expect("it lives") {
            awake += 1;
            continue;
        }
        let result = load_object(&mut held, dlopen, &bytes);
        let stood_still = held.others_stand_still();
        is_late_at_most(held.release());
        match result {
            Ok(_) => loaded += 1,
            Err(Error::DescriptorLost { .. }) if !stood_still => awake += 1,
            Err(Error::WentHome { .. }) => awake += 1,
            Err(error) => panic!("{error}"),
        }
    }
    // A thread that stopped too late stays traced until we release it, and its process could not even end before that.
    memhook_inject::wait_for_late_threads(LONG);
    println!("{loaded} loaded, {awake} times the other thread ran");
    assert!(loaded > 0, "{awake} times the other thread ran");
    assert_eq!(std::fs::read(&path).expect("its file"), b"mine");
    send(pid, libc::SIGTERM);
    program.ends_well();
    let _ = (std::fs::remove_file(path), std::fs::remove_file(object));
}

/// Stopped threads resume by themselves when a call takes too long.
#[test]
fn nobody_stands_still_for_a_call_that_waits() {
    // Each attempt uses a new program, because a call that waits cannot be repeated.
    patiently(a_call_waits_while_others_run);
}

fn a_call_waits_while_others_run() -> Result<(), Error> {
    let mut program = Program::start("enters", &[]);
    let at = program.addresses();
    let pid = program.pid();
    let others = Others::of(pid);
    // On a busy machine, it may take too long to stop the other thread.
    let until = Instant::now() + LONG;
    let mut held = loop {
        let mut held = hold(pid, &initial(pid))?;
        if held.stop_others(&others).expect("it lives") {
            break held;
        }
        assert!(Instant::now() < until, "it does not stop");
    };
    let begin = Instant::now();
    let patience = Duration::from_millis(300);
    let enter = RemoteAddress(at["enter"]);
    // The other thread has to unblock the call.
    match held.call_to_its_end(enter, &mut [0; 8], patience, |_| vec![7]) {
        Err(Error::CallGoesOn { .. }) => {}
        other => panic!("{:?}", other?),
    }
    assert!(!held.others_stand_still());
    assert!(begin.elapsed() >= patience);
    is_late_at_most(held.release());
    write_bytes(pid, RemoteAddress(at["is_open"]), &1u32.to_le_bytes()).expect("it is there");
    send(pid, libc::SIGTERM);
    program.ends_well();
    Ok(())
}
