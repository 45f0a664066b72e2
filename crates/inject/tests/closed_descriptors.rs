//! A target whose other threads close descriptors that they have not opened.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;

use common::{Program, anywhere, send};
use memhook_inject::{HoldOptions, create_region, hold, unmap_region};
use memhook_process::{RemoteAddress, read_word};

const BYTES: u64 = 1 << 16;

/// What was made is ours, and the target's own file, which may get the number of our descriptor, stays as it was.
#[test]
fn a_number_that_has_become_a_files_is_not_used() {
    let path = std::env::temp_dir().join(format!("memhook-mine-{}", std::process::id()));
    let mut program = Program::start("closes_all", &[path.to_str().expect("UTF-8")]);
    assert_eq!(program.line(), "ready");
    let pid = program.pid();
    // The other thread goes on.
    let options = HoldOptions {
        thread: Some(pid),
        ..anywhere()
    };
    let (mut made, mut lost) = (0u64, 0);
    for round in 1..=300u64 {
        let mut held = hold(pid, &options).expect("it can be held");
        match create_region(&mut held, c"memhook-region", BYTES) {
            Ok(region) => {
                let file = File::from(region.fd);
                file.write_all_at(&round.to_le_bytes(), 0)
                    .expect("it is ours");
                assert_eq!(file.metadata().expect("a file").len(), BYTES);
                assert_eq!(read_word(pid, region.address), Some(round));
                unmap_region(&mut held, region.address, BYTES).expect("it is there");
                made += 1;
            }
            Err(error) => {
                println!("{error}");
                lost += 1;
            }
        }
        held.release().expect("it goes on");
    }
    println!("{made} made, {lost} lost");
    assert_eq!(std::fs::read(&path).expect("its file"), b"mine");
    assert_eq!(read_word(pid, RemoteAddress(8)), None);
    send(pid, libc::SIGTERM);
    program.ends_well();
    let _ = std::fs::remove_file(path);
}
