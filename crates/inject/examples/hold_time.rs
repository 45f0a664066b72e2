//! Prints how long each step of a hold takes: `hold_time PID DLOPEN_ADDRESS OBJECT [ROUNDS]`. Each round leaves one
//! object and one region behind in the target.

use std::time::{Duration, Instant};

use memhook_inject::{Dlopen, HoldOptions, create_region, hold, load_object};
use memhook_process::RemoteAddress;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let [_, pid, dlopen, object, rest @ ..] = args.as_slice() else {
        return Err("usage: hold_time PID DLOPEN_ADDRESS OBJECT [ROUNDS]".into());
    };
    let pid = pid.parse()?;
    let dlopen = Dlopen {
        address: RemoteAddress(u64::from_str_radix(dlopen.trim_start_matches("0x"), 16)?),
        internal_mode: false,
    };
    let object = std::fs::read(object)?;
    let rounds = rest.first().map_or(Ok(10), |rounds| rounds.parse())?;
    let options = HoldOptions::anywhere(Duration::from_secs(5));
    println!("before  getpid  again   call-1  load    region  release  held (µs)");
    for _ in 0..rounds {
        let mut last = Instant::now();
        let mut step = || {
            let took = last.elapsed();
            last = Instant::now();
            took.as_micros()
        };
        let mut held = hold(pid, &options)?;
        let before = step();
        held.syscall(libc::SYS_getpid, [0; 6])?;
        let first = step();
        held.syscall(libc::SYS_getpid, [0; 6])?;
        let again = step();
        // dlopen(NULL) returns the main program, which is cheap.
        held.call(dlopen.address, &[0, libc::RTLD_NOW as u64])?;
        let call = step();
        load_object(&mut held, dlopen, &object)?;
        let load = step();
        create_region(&mut held, c"memhook-region", 64 << 20)?;
        let region = step();
        let total = held.release()?.as_micros();
        println!(
            "{before:<7} {first:<7} {again:<7} {call:<7} {load:<7} {region:<7} {:<8} {total}",
            step()
        );
    }
    Ok(())
}
