//! Probes combined with other tools that change or trace the process: a debugger, kernel probes, a
//! breakpoint.

use memhook_tests::{Prober, Target, build_target, calls, changed_code, not_run, run, until};
use std::ffi::CString;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// Checks for a refusal in one line with this reason.
fn check_refused(pid: &str, reason: &str) {
    check_function_refused(pid, "relative", reason);
}

fn check_function_refused(pid: &str, function: &str, reason: &str) {
    let (code, out, errors) = run(&["probe", pid, "--func", function]);
    assert_eq!((code, out.as_str()), (2, ""), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains(reason), "{errors}");
}

/// Returns the address of the function in the file.
fn svma(program: &Path) -> u64 {
    let output = Command::new("nm").arg(program).output().expect("nm runs");
    let symbols = String::from_utf8(output.stdout).expect("text");
    let line = symbols.lines().find(|line| line.ends_with(" relative"));
    let address = line.and_then(|line| line.split(' ').next());
    u64::from_str_radix(address.expect("the symbol"), 16).expect("a number")
}

/// Sets a counting kernel probe on a function of one process; `None` if that is not permitted.
pub(crate) fn kernel_probe(pid: u32, program: &Path, offset: u64) -> Option<OwnedFd> {
    let kind = std::fs::read_to_string("/sys/bus/event_source/devices/uprobe/type").ok()?;
    let path = CString::new(program.to_str().expect("UTF-8")).expect("no zero byte");
    // struct perf_event_attr (include/uapi/linux/perf_event.h): type, size, then config1 and config2 at 56 and 64.
    const BYTES: usize = 112;
    const PERF_FLAG_FD_CLOEXEC: u64 = 1 << 3;
    let mut attributes = [0u64; BYTES / 8];
    let kind: u64 = kind.trim().parse().ok()?;
    attributes[0] = kind | (BYTES as u64) << 32;
    attributes[7] = path.as_ptr() as u64;
    attributes[8] = offset;
    // SAFETY: the kernel reads the attributes and the path, which are valid until the call returns.
    let file = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attributes.as_ptr(),
            pid as i32,
            -1,
            -1,
            // Processes that other tests start at this moment must not keep the probe alive
            // (perf_event_open(2)).
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    // SAFETY: a new file descriptor without another owner.
    (file >= 0).then(|| unsafe { OwnedFd::from_raw_fd(file as i32) })
}

#[test]
fn others_are_refused_or_get_along() {
    let program = build_target("probed", &["-O2"]);
    let target = Target::start(&program, &["1", "1000"]);
    let (id, pid) = (target.pid(), target.pid().to_string());

    // While a debugger traces the process, memhook-rs touches nothing.
    let native = id as i32;
    // SAFETY: ptrace(2) with these requests takes plain numbers; the process is our child.
    let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, native, 0, 0) };
    assert_eq!(seized, 0, "{}", std::io::Error::last_os_error());
    check_refused(&pid, "already traced by");
    let mut status = 0;
    // SAFETY: as above; `status` outlives the call.
    unsafe {
        assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, native, 0, 0), 0);
        assert_eq!(libc::waitpid(native, &mut status, libc::__WALL), native);
        assert_eq!(libc::ptrace(libc::PTRACE_DETACH, native, 0, 0), 0);
    }
    assert_eq!(changed_code(id), Vec::<String>::new());

    // The function contains a breakpoint like a debugger's.
    let svma = svma(&program);
    let maps = target.maps();
    let first = maps.lines().find(|line| line.contains("probed"));
    let base = first.and_then(|line| line.split('-').next());
    let base = u64::from_str_radix(base.expect("a mapping"), 16).expect("a number");
    let memory = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(format!("/proc/{pid}/mem"))
        .expect("a child's memory");
    let mut byte = [0];
    memory.read_exact_at(&mut byte, base + svma).expect("code");
    memory.write_all_at(&[0xcc], base + svma).expect("written");
    check_refused(&pid, "a breakpoint");
    memory.write_all_at(&byte, base + svma).expect("written");

    // The function has a kernel probe.
    match kernel_probe(id, &program, svma) {
        Some(event) => {
            check_refused(&pid, "a kernel probe");
            drop(event);
            // A child that another test has just forked inherits the descriptor until it executes
            // its program.
            until("the kernel's probe goes", || changed_code(id).is_empty());
        }
        None => not_run("the kernel permits no uprobes"),
    }

    // Without other tools, every call counts, even while a debugger traces the process.
    let mut target = target;
    let prober = Prober::start(&target, "relative", &[]);
    // SAFETY: as above.
    unsafe {
        assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, native, 0, 0), 0);
        assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, native, 0, 0), 0);
        assert_eq!(libc::waitpid(native, &mut status, libc::__WALL), native);
        assert_eq!(libc::ptrace(libc::PTRACE_DETACH, native, 0, 0), 0);
    }
    target.go();
    target.expect("done");
    let report = prober.finish();
    assert_eq!(calls(&report)["relative"], 2000, "{report}");
    assert_eq!(changed_code(id), Vec::<String>::new());
    assert!(target.finish().success());
}

/// Checks that memhook-rs refuses to probe code that a program generates or changes, and can probe
/// the rest of such a program.
#[test]
fn code_that_changes_is_refused() {
    let program = build_target("own_code", &["-O2"]);
    let mut target = Target::start(&program, &[]);
    let pid = target.pid().to_string();
    let before = changed_code(target.pid());
    for (function, reason) in [
        ("opened", "not in private, read-only memory of its file"),
        ("written_over", "its code in memory differs from its file"),
    ] {
        check_function_refused(&pid, function, reason);
    }
    assert_eq!(changed_code(target.pid()), before);
    let prober = Prober::start(&target, "untouched", &[]);
    target.go();
    target.expect("done");
    let report = prober.finish();
    assert_eq!(calls(&report)["untouched"], 1000, "{report}");
    assert_eq!(changed_code(target.pid()), before);
    assert!(target.finish().success());
}
