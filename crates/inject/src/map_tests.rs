//! Maps objects without a loader, and checks the remains after their creator was killed.

use std::os::unix::fs::MetadataExt;

use memhook_process::{RemoteAddress, mappings, read_memory, read_word, unfinished_copies};

use crate::common::{self, Program, anywhere, patiently, with_held};
use crate::descriptor::open_here;
use crate::kill_tests::{Target, done};
use crate::region::{MemfdFor, memfd};
use crate::scratch::word;
use crate::{Error, Held, ObjectImage, hold, map_object, unmap_unfinished};

const PAGE: u64 = 4096;
/// Word that the object's data contains after its own address.
const ANSWER: u64 = 0x1234_5678_9abc;

/// Returns four pages: a header, code that returns the first word of the data, the data, and zeros.
fn contents(base: u64) -> Vec<u8> {
    let mut bytes = vec![0; 3 * PAGE as usize];
    bytes[..5].copy_from_slice(b"\x7fELF\x02");
    // Elf64_Ehdr: e_phoff at 32, e_phnum at 56; one Elf64_Phdr, PT_LOAD, with p_memsz at 40.
    bytes[32] = 64;
    bytes[56] = 1;
    bytes[64] = 1;
    bytes[64 + 40..64 + 48].copy_from_slice(&(4 * PAGE).to_le_bytes());
    // `mov 0xff9(%rip), %rax; ret`
    let code = [0x48, 0x8b, 0x05, 0xf9, 0x0f, 0, 0, 0xc3];
    bytes[PAGE as usize..][..8].copy_from_slice(&code);
    bytes[2 * PAGE as usize..][..8].copy_from_slice(&base.to_le_bytes());
    bytes[2 * PAGE as usize + 8..][..8].copy_from_slice(&ANSWER.to_le_bytes());
    bytes
}

/// Maps the object and calls it.
pub(crate) fn map_and_call(held: &mut Held) -> Result<(), Error> {
    let object = ObjectImage {
        name: crate::load::NAME,
        bytes: 4 * PAGE,
        code: PAGE..2 * PAGE,
        data: 2 * PAGE..3 * PAGE,
        cleared: 0..0,
        zeros: 3 * PAGE..4 * PAGE,
        contents: &contents,
    };
    let base = map_object(held, &object)?;
    let answer = held.call(RemoteAddress(base + PAGE), &[])?;
    assert_eq!(answer, base);
    Ok(())
}

/// Returns our mappings, as start, end and protection.
fn ours(pid: i32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let ours = maps.lines().filter(|line| line.contains("memfd:memhook"));
    ours.map(str::to_owned).collect()
}

#[test]
fn a_mapped_object_is_whole_and_nothing_of_it_is_writable_code() {
    // Each attempt uses a new program, because an object may be left unfinished.
    patiently(objects_are_whole);
}

fn objects_are_whole() -> Result<(), Error> {
    let mut program = Program::start("busy", &[]);
    program.addresses();
    let pid = program.pid();
    for _ in 0..3 {
        let mut held = hold(pid, &anywhere())?;
        map_and_call(&mut held)?;
        held.release()?;
    }
    let maps = mappings(pid).unwrap();
    assert!(unfinished_copies(pid, &maps).is_empty());
    let copies = maps
        .iter()
        .filter(|m| m.path == "/memfd:memhook-hook" && m.offset == 0);
    let mut count = 0;
    for first in copies {
        count += 1;
        let part = |at: u64| maps.iter().find(|m| m.contains(at)).unwrap();
        let protection = |at: u64| {
            let m = part(first.start + at);
            (m.read, m.write, m.exec)
        };
        assert_eq!(protection(0), (true, false, false));
        assert_eq!(protection(PAGE), (true, false, true));
        assert_eq!(protection(2 * PAGE), (true, true, false));
        assert_eq!(protection(3 * PAGE), (true, true, false));
        // The last page must be anonymous, because only anonymous memory can be wiped in forked children (madvise(2)).
        assert_eq!(part(first.start + 3 * PAGE).file_id.2, 0);
        let data = RemoteAddress(first.start + 2 * PAGE);
        assert_eq!(read_word(pid, data + 8), Some(ANSWER));
        let mut zeros = [1; PAGE as usize];
        read_memory(pid, data + PAGE, &mut zeros).unwrap();
        assert!(zeros.iter().all(|&byte| byte == 0));
    }
    assert_eq!(count, 3);
    common::send(pid, libc::SIGTERM);
    program.ends_well();
    Ok(())
}

#[test]
fn an_object_that_cannot_be_mapped_leaves_nothing() {
    let mut program = Program::start("busy", &[]);
    program.addresses();
    let pid = program.pid();
    let object = ObjectImage {
        name: crate::load::NAME,
        bytes: 4 * PAGE,
        code: PAGE..2 * PAGE,
        data: 2 * PAGE..3 * PAGE,
        // Beyond the end of all addresses.
        zeros: 3 * PAGE..1 << 62,
        cleared: 0..0,
        contents: &contents,
    };
    with_held(pid, &anywhere(), |held| match map_object(held, &object) {
        Err(Error::RemoteSyscall { name: "mmap", .. }) => Ok(()),
        other => panic!("{:?}", other?),
    });
    assert_eq!(ours(pid), Vec::<String>::new());
    common::send(pid, libc::SIGTERM);
    program.ends_well();
}

/// A delayed thread has resumed its own work and closed the descriptor, whose number may now refer to a file of the
/// target.
#[test]
fn a_descriptor_that_was_closed_on_the_way_home_is_not_used() {
    let mut program = Program::start("canary", &[]);
    program.addresses();
    with_held(program.pid(), &anywhere(), |held| {
        let number = memfd(held, c"memhook-region", MemfdFor::Data)?;
        // The way home does this before it closes the descriptor.
        let opened = held.scratch()?.words() + word::OPENED;
        held.write(opened, &[0; 8])?;
        let is_refused = |result| matches!(result, Err(Error::WentHome { .. }));
        assert!(is_refused(open_here(held, number).map(drop)));
        let resized = held.checked_syscall("ftruncate", libc::SYS_ftruncate, &[number, 1]);
        assert!(is_refused(resized.map(drop)));
        assert!(is_refused(held.close_opened()));
        Ok(())
    });
    common::send(program.pid(), libc::SIGTERM);
    program.ends_well();
}

/// Makes the target open a descriptor for us. Then, as another thread might do, makes it close that descriptor and open
/// a file, which gets the same number.
fn replaced_descriptor(held: &mut Held) -> Result<u64, Error> {
    let number = memfd(held, c"memhook-region", MemfdFor::Data)?;
    held.checked_syscall("close", libc::SYS_close, &[number])?;
    let path = held.scratch()?.data();
    held.write(path, b"/dev/full\0")?;
    let read_only = [libc::AT_FDCWD as u64, path.0, 0];
    let opened = held.checked_syscall("openat", libc::SYS_openat, &read_only)?;
    assert_eq!(opened, number);
    Ok(number)
}

/// Returns the file behind a descriptor of the target.
fn leads_to(pid: i32, number: u64) -> Option<std::path::PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()
}

#[test]
fn a_file_that_has_the_number_of_a_descriptor_of_ours_stays_open() {
    let mut program = Program::start("canary", &[]);
    program.addresses();
    let pid = program.pid();
    with_held(pid, &anywhere(), |held| {
        let number = replaced_descriptor(held)?;
        let file = Some("/dev/full".into());
        held.close_opened()?;
        assert_eq!(leads_to(pid, number), file);
        // A descriptor that an earlier attacher has left.
        held.close_if(number, (1, 2))?;
        assert_eq!(leads_to(pid, number), file);
        let found = std::fs::metadata(format!("/proc/{pid}/fd/{number}")).unwrap();
        held.close_if(number, (found.dev(), found.ino()))?;
        assert_eq!(leads_to(pid, number), None);
        Ok(())
    });
    common::send(pid, libc::SIGTERM);
    program.ends_well();
}

/// Attacher that the next test runs in a separate process, with the target's ids.
#[test]
#[ignore = "the process to be killed, started by another test"]
fn replacer() {
    let Some(pid) = crate::kill_tests::target_of_attacher() else {
        return;
    };
    let mut held = crate::kill_tests::hold(pid);
    done(replaced_descriptor(&mut held));
    common::send(std::process::id() as i32, libc::SIGKILL);
}

/// A thread that resumes its own work without us also leaves the file open.
#[test]
fn a_killed_attacher_has_no_file_closed() {
    let target = Target::start("canary", &[]);
    let pid = target.program.pid();
    assert!(!target.run("map_tests::replacer", u64::MAX, None));
    target.works("replaced");
    let numbers = (0..64).map(|number| leads_to(pid, number));
    let files = numbers.filter(|file| *file == Some("/dev/full".into()));
    // An attacher that had to start over leaves another object.
    assert_ne!(files.count(), 0);
    common::send(pid, libc::SIGTERM);
}

/// Attacher that the next test runs in a separate process, with the target's ids.
#[test]
#[ignore = "the process to be killed, started by another test"]
fn mapper() {
    let Some(pid) = crate::kill_tests::target_of_attacher() else {
        return;
    };
    let mut held = crate::kill_tests::hold(pid);
    done(map_and_call(&mut held));
    done(held.release());
}

/// Remains of an attacher that was killed at any step are found and can be removed, and there is space for the next
/// attacher.
#[test]
fn what_a_killed_attacher_leaves_of_an_object_can_be_taken_away() {
    let target = Target::start("canary", &[]);
    let pid = target.program.pid();
    // The first call may make the main thread's stack grow.
    with_held(pid, &anywhere(), |held| {
        held.syscall(libc::SYS_getpid, [0; 6])
    });
    target.works("undisturbed");
    let before = target.mappings();
    let (mut step, mut unfinished, mut whole) = (1, 0, 0);
    while !target.run("map_tests::mapper", step, None) {
        target.works(&format!("killed at step {step}"));
        target.has_no_file_of_ours(&format!("killed at step {step}"));
        with_held(pid, &anywhere(), |held| {
            let maps = mappings(pid).unwrap();
            for place in unfinished_copies(pid, &maps) {
                unfinished += 1;
                unmap_unfinished(held, place)?;
            }
            // The next attacher would keep complete objects, but here they must not exist.
            let maps = mappings(pid).unwrap();
            let first =
                |m: &&memhook_process::Mapping| m.path == "/memfd:memhook-hook" && m.offset == 0;
            for m in maps.iter().filter(first) {
                whole += 1;
                unmap_unfinished(held, m.start..m.start + 4 * PAGE)?;
            }
            Ok(())
        });
        target.has_only(&before, &format!("killed at step {step}"));
        step += 1;
    }
    assert!(step > 40, "only {step} steps");
    assert!(
        unfinished > 5 && whole > 5,
        "{unfinished} unfinished, {whole} whole"
    );
    target.works("at the end");
    target.ends_well();
}
