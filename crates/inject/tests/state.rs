//! Registers, errno, signals and interrupted calls survive remote work.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::{LONG, Program, anywhere, patiently, send, wait_until_blocked, with_held};
use memhook_inject::{Error, hold};
use memhook_process::{RemoteAddress, read_word};

#[test]
fn registers_survive_200_remote_calls() {
    let mut program = Program::start("canary", &[]);
    let at = program.addresses();
    let pid = program.pid();
    for round in 0..200u64 {
        with_held(pid, &anywhere(), |held| {
            let own = held.syscall(libc::SYS_getpid, [0; 6])?;
            assert_eq!(own, i64::from(pid));
            let own = held.call(RemoteAddress(at["getpid"]), &[])?;
            assert_eq!(own, pid as u64);
            let sum = held.call(RemoteAddress(at["spoil"]), &[round, 1, 2, 3, 4, 5])?;
            assert_eq!(sum, round + 2 + 6 + 12 + 20 + 30);
            Ok(())
        });
    }
    send(pid, libc::SIGTERM);
    program.ends_well();
}

#[test]
fn nothing_stays_mapped() {
    let mut program = Program::start("canary", &[]);
    let at = program.addresses();
    let pid = program.pid();
    let maps = || std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let before = maps();
    for _ in 0..20 {
        with_held(pid, &anywhere(), |held| {
            held.call(RemoteAddress(at["getpid"]), &[])
        });
        assert_eq!(maps(), before);
    }
    send(pid, libc::SIGTERM);
    program.ends_well();
}

#[test]
fn a_fault_is_reported_and_survived() {
    let mut program = Program::start("canary", &[]);
    let at = program.addresses();
    let pid = program.pid();
    patiently(|| {
        let mut held = hold(pid, &anywhere())?;
        match held.call(RemoteAddress(at["crash"]), &[]) {
            Err(Error::RemoteFault {
                address: 0x1234,
                signal: libc::SIGSEGV,
                ..
            }) => {}
            other => panic!("{:?}", other?),
        }
        match held.call(RemoteAddress(at["aborts"]), &[]) {
            Err(Error::RemoteFault {
                signal: libc::SIGABRT,
                ..
            }) => {}
            other => panic!("{:?}", other?),
        }
        let own = held.call(RemoteAddress(at["getpid"]), &[])?;
        assert_eq!(own, pid as u64);
        drop(held);
        Ok(())
    });
    // The program continues to run, so that a failure of the hold would show.
    std::thread::sleep(Duration::from_millis(20));
    send(program.pid(), libc::SIGTERM);
    program.ends_well();
}

#[test]
fn an_ignored_sigtrap_stays_ignored() {
    let path = common::build("canary", &[]);
    let mut child = Command::new(&path)
        .env("IGNORE_TRAP", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id() as i32;
    let ignored = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("SigIgn:"))
            .unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap() & (1 << (libc::SIGTRAP - 1)) != 0
    };
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = output.lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "ready"));
    assert!(ignored());
    // Any call will do. The test knows the address of no function, so it calls a bad address.
    with_held(pid, &anywhere(), |held| {
        match held.call(RemoteAddress(0x10), &[]) {
            Err(Error::RemoteFault { .. }) => Ok(()),
            other => panic!("{:?}", other?),
        }
    });
    let still = ignored();
    send(pid, libc::SIGTERM);
    let status = child.wait().unwrap();
    let _ = std::fs::remove_file(path);
    assert!(still && status.success(), "{still} {status}");
}

/// Shortest wait of the program `blocked`.
const SHORTEST_WAIT: Duration = Duration::from_millis(400);

/// Holds the program several times while it is blocked, with and without remote work, and then lets it end. The program
/// itself checks that it does not end early. `timeouts.rs` tests that it ends at all despite the holds.
fn disturb(how: &str) {
    let path = common::build("blocked", &["-DLATE_IS_FINE"]);
    let begin = Instant::now();
    let mut child = Command::new(&path)
        .arg(how)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id() as i32;
    // A wait without a limit lasts until we end it. A wait with a limit may be over before this thread is scheduled.
    let is_endless = how == "read" || how == "epoll_infinite";
    let may_be_over = || !is_endless && begin.elapsed() >= SHORTEST_WAIT;
    wait_until_blocked(pid);
    for _ in 0..3 {
        patiently(|| {
            let is_over = |error: Error| match error {
                Error::TargetGone { .. } if may_be_over() => Ok(()),
                error => Err(error),
            };
            let once = || {
                let mut held = hold(pid, &anywhere())?;
                let own = held.syscall(libc::SYS_getpid, [0; 6])?;
                assert_eq!(own, i64::from(pid));
                held.release()?;
                // A stop without remote work also disturbs the program.
                hold(pid, &anywhere())?.release().map(drop)
            };
            once().or_else(is_over)
        });
        // The next hold falls on a different moment of its call.
        std::thread::sleep(Duration::from_millis(20));
    }
    // The program may have to wait for a processor before it is back in its call.
    let until = Instant::now() + LONG;
    while common::state(pid, pid) != 'S' {
        if common::state(pid, pid) == 'Z' && may_be_over() {
            break;
        }
        assert_ne!(common::state(pid, pid), 'Z', "{how} ended early");
        assert!(Instant::now() < until, "{how} does not go on");
        std::thread::sleep(Duration::from_millis(1));
    }
    let written = child.stdin.take().unwrap().write_all(b"x");
    assert!(written.is_ok() || may_be_over(), "{how}: {written:?}");
    let status = child.wait().unwrap();
    let _ = std::fs::remove_file(path);
    assert!(status.success(), "{how}: {status}");
}

macro_rules! undisturbed {
    ($($name:ident)*) => { $(
        #[test]
        fn $name() {
            disturb(stringify!($name));
        }
    )* };
}

undisturbed! {
    nanosleep clock_nanosleep poll ppoll select futex read
    epoll_infinite epoll_finite epoll_pwait2 sigtimedwait recv_timeout semop
}

/// A handler that runs because of a real signal must still end epoll_wait with EINTR.
#[test]
fn a_real_signal_still_gives_eintr() {
    let path = common::build("blocked", &[]);
    let mut child = Command::new(&path)
        .args(["epoll_infinite", "handler"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid = child.id() as i32;
    wait_until_blocked(pid);
    let released = patiently(|| {
        let mut held = hold(pid, &anywhere())?;
        held.syscall(libc::SYS_getpid, [0; 6])?;
        send(pid, libc::SIGUSR1);
        Ok(held.release())
    });
    let until = Instant::now() + LONG;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() >= until {
            let _ = child.kill();
            panic!("it is not woken");
        }
        // A thread that was released early may have missed the signal.
        if released.is_err() {
            memhook_inject::let_late_threads_go();
            send(pid, libc::SIGUSR1);
        }
        // Pause between two checks.
        std::thread::sleep(Duration::from_millis(5));
    };
    let _ = std::fs::remove_file(path);
    assert!(status.success(), "{status}");
}

/// A program that waits for a flag set by its handler must wake up, even if the signal arrives after the thread has
/// been released and before it has repeated its call. A few signals may be lost, because the kernel may run another
/// thread between its decision to restart the call and the call itself, as after any stop by any tracer.
#[test]
fn a_signal_right_after_the_release_still_gives_eintr() {
    let mut program = Program::start("waits", &["signals"]);
    let at = program.addresses();
    let pid = program.pid();
    let rounds = || read_word(pid, RemoteAddress(at["rounds"])).unwrap();
    let mut lost = 0;
    for round in 0..200 {
        wait_until_blocked(pid);
        with_held(pid, &anywhere(), |held| match round % 2 {
            0 => held.syscall(libc::SYS_getpid, [0; 6]).map(drop),
            _ => Ok(()),
        });
        send(pid, libc::SIGUSR1);
        let until = Instant::now() + LONG;
        loop {
            // A signal wakes the program immediately. If it sleeps now, the handler has run, and the call was made
            // after it.
            let sleeps = common::state(pid, pid) == 'S';
            if rounds() != round {
                break;
            }
            if sleeps {
                lost += 1;
                send(pid, libc::SIGUSR1);
            }
            assert!(Instant::now() < until, "it is not woken");
            // Pause between two checks.
            std::thread::sleep(Duration::from_micros(50));
        }
        assert_eq!(rounds(), round + 1);
    }
    println!("{lost} of 200 signals did not wake the program");
    // The busier the machine is, the more often another thread runs between the kernel's decision to restart the call
    // and the call itself.
    assert!(lost <= 40, "{lost} of 200 signals did not wake the program");
    send(pid, libc::SIGTERM);
    program.ends_well();
}

/// Repeatedly holds a program that adds up the numbers of signals, and meanwhile queues signals with numbers to it. At
/// most `queue_limit` of them may be queued (RLIMIT_SIGPENDING).
fn queue_signals_while_held(queue_limit: Option<u64>) {
    let mut program = Program::start("signals", &[]);
    let at = program.addresses();
    let pid = program.pid();
    if let Some(limit) = queue_limit {
        common::limit_queued_signals(pid, limit);
    }
    // Signals are sent as long as holds are made. On a loaded machine, one hold takes longer than sending many signals.
    let is_held = Arc::new(AtomicBool::new(true));
    let goes_on = Arc::clone(&is_held);
    let sender = std::thread::spawn(move || {
        let mut sent = (0i64, 0i64);
        while goes_on.load(Relaxed) {
            let value = libc::sigval {
                sival_ptr: sent.0 as usize as *mut libc::c_void,
            };
            // SAFETY: the value is never used as a pointer.
            while unsafe { libc::sigqueue(pid, libc::SIGRTMIN(), value) } != 0 {
                // The program's queue is full for now.
                std::thread::sleep(Duration::from_micros(100));
            }
            sent = (sent.0 + 1, sent.1 + sent.0);
            if sent.0 % 16 == 0 {
                // Without pauses, the program would only handle signals.
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        sent
    });
    for _ in 0..100 {
        with_held(pid, &anywhere(), |held| {
            for _ in 0..3 {
                let own = held.call(RemoteAddress(at["getpid"]), &[])?;
                assert_eq!(own, pid as u64);
            }
            Ok(())
        });
    }
    is_held.store(false, Relaxed);
    let (count, sum) = sender.join().unwrap();
    // The kernel delivers all queued signals before the program checks its flag again.
    send(pid, libc::SIGTERM);
    assert_eq!(program.line(), format!("{count} {sum}"));
    program.ends_well();
}

/// Queued signals that arrive before, during and after remote calls all reach the handler with their values.
#[test]
fn no_queued_signal_is_lost() {
    queue_signals_while_held(None);
}

#[test]
fn no_queued_signal_is_lost_where_few_may_wait() {
    queue_signals_while_held(Some(4));
}

#[test]
fn one_function_is_called_with_each_argument_once() {
    // Each attempt uses a new program, because after an error the number of calls is unknown.
    patiently(call_each_once);
}

fn call_each_once() -> Result<(), Error> {
    let mut program = Program::start("canary", &[]);
    let at = program.addresses();
    let pid = program.pid();
    let word = |address| read_word(pid, RemoteAddress(address)).unwrap();
    let release = RemoteAddress(at["release"]);
    let mut held = hold(pid, &anywhere())?;
    let table = held.call(RemoteAddress(at["plant"]), &[])?;
    let blocks: Vec<u64> = (0..600).map(|i| word(table + i * 8)).collect();
    assert_eq!(held.call_each(release, &[], Instant::now())?, 0);
    // One call is made although the time is already over.
    assert_eq!(held.call_each(release, &blocks, Instant::now())?, 1);
    let most = held.call_each(release, &blocks[1..], Instant::now() + LONG)?;
    assert_eq!(most, memhook_inject::Held::MAX_CALLS);
    held.release()?;
    let mut held = hold(pid, &anywhere())?;
    let rest = &blocks[1 + most..];
    let made = held.call_each(release, rest, Instant::now() + LONG)?;
    assert_eq!(made, rest.len());
    held.release()?;
    assert_eq!(word(at["released"]), 600);
    send(pid, libc::SIGTERM);
    program.ends_well();
    Ok(())
}
