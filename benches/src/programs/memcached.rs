//! Loads memcached with sets and gets of 100 bytes.

use super::{Program, find, pump::Pump};
use crate::{Figure, Round, Standing, Subject, Tool, is_test, processors::Placement};
use memhook_tests::{
    Target,
    programs::{Folder, server},
};
use std::{io::Write, time::Duration};

pub(super) const PROGRAM: Program = Program {
    works: &["memcached set", "memcached get"],
    cycles: 20,
    stands: true,
    start,
};

const KEYS: u64 = 50_000;
const VALUE: &str = "0123456789012345678901234567890123456789012345678901234567890123456789\
                     012345678901234567890123456789";

struct Memcached {
    target: Target,
    pump: Pump,
    _folder: Folder,
}

fn start(place: &Placement) -> Result<Box<dyn Subject>, String> {
    let program = find("memcached", "memcached")?;
    let folder = Folder::new("bench-memcached");
    let socket = folder.path("socket");
    let mut command = place.command(&program);
    command.args(["-t", "2", "-m", "256", "-s", &socket]);
    // SAFETY: no arguments, cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        command.args(["-u", "root"]);
    }
    let target = server(&mut command, &socket);
    let mut pump = Pump::connect(&socket, 8, 16)?;
    // Every key is stored before the first get.
    pump.run_count(KEYS, "STORED\r\n".len(), set)?;
    Ok(Box::new(Memcached {
        target,
        pump,
        _folder: folder,
    }))
}

fn set(key: u64, text: &mut Vec<u8>) {
    let length = VALUE.len();
    write!(
        text,
        "set key:{:06} 0 0 {length}\r\n{VALUE}\r\n",
        key % KEYS
    )
    .expect("memory");
}

fn get(key: u64, text: &mut Vec<u8>) {
    write!(text, "get key:{:06}\r\n", key % KEYS).expect("memory");
}

impl Subject for Memcached {
    fn round(&mut self, tool: Option<&dyn Tool>) -> Result<Round, String> {
        let pid = self.target.pid();
        let time = Duration::from_millis(if is_test() { 20 } else { 150 });
        let measure = || {
            let stored = "STORED\r\n".len();
            let found = format!("VALUE key:000000 0 100\r\n{VALUE}\r\nEND\r\n").len();
            Ok(vec![
                Figure::of(pid, || self.pump.run(time, stored, set))?,
                Figure::of(pid, || self.pump.run(time, found, get))?,
            ])
        };
        Standing { pid, measure }.round(tool)
    }
}
