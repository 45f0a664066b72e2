//! Ways in which a trace by the library ends: a panic of the profiler, the exit of the process, an
//! execve.

use super::traced;
use memhook::{Block, Ending, Error, Options, Profiler, Touch};
use memhook_tests::{Attacher, Target, build_target};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(600);

/// Counts allocations.
#[derive(Default)]
struct Count(u64);

impl Profiler for Count {
    type Data = ();

    fn on_alloc(&mut self, _block: &Block) {
        self.0 += 1;
    }
}

/// Panics on an allocation.
struct Panics(u64);

impl Profiler for Panics {
    type Data = ();

    fn on_alloc(&mut self, block: &Block) {
        self.0 += 1;
        assert!(self.0 != 1000, "a block of {} bytes too much", block.size);
    }
}

#[test]
fn a_panic_of_a_callback_leaves_the_process_in_order() {
    let (target, attached) = traced("deterministic", &[], Panics(0));
    let ending = attached.wait(LONG);
    assert!(matches!(ending, Some(Ending::Panicked(_))), "{ending:?}");
    // The library called no method after the panic.
    assert_eq!(attached.with(|heap| heap.profiler().0), 1000);
    let error = attached.detach().err();
    let Some(Error::Panicked(text)) = error else {
        panic!("{error:?}");
    };
    assert!(text.starts_with("a block of "), "{text}");
    assert_eq!(target.status("TracerPid"), "0");
    // No attacher remains active in the process.
    let attacher = Attacher::start(&target, &[]);
    attacher.finish();
    assert!(target.finish().success());
}

#[test]
fn dropping_it_detaches() {
    let (target, attached) = traced("deterministic", &[], Count::default());
    drop(attached);
    assert_eq!(target.status("TracerPid"), "0");
    let attacher = Attacher::start(&target, &[]);
    attacher.finish();
    assert!(target.finish().success());
}

#[test]
fn the_end_of_the_process_ends_the_trace() {
    let (target, attached) = traced("idle_blocks", &[], Count::default());
    attached.catch_up();
    let block = attached.with(|heap| heap.blocks().map(|(block, _)| *block).next());
    let block = block.expect("a block");
    // Without watchpoints, there is less to clean up.
    let _ = attached.watch_block(&block, Touch::Any);
    target.signal(libc::SIGKILL);
    assert_eq!(attached.wait(LONG), Some(Ending::Gone));
    // Past data is still available.
    let backtrace = attached.backtrace(block.backtrace).expect("names");
    assert!(!backtrace.frames.is_empty());
    let error = attached.watch_block(&block, Touch::Any).err();
    assert!(matches!(error, Some(Error::Over { .. })), "{error:?}");
    let error = attached.search_unreachable().err();
    assert!(matches!(error, Some(Error::Over { .. })), "{error:?}");
    assert_eq!(attached.leave(), Ending::Gone);
    assert_eq!(attached.detach().expect("in order").0, 16);
    drop(target);
}

#[test]
fn another_program_ends_the_trace_and_runs() {
    for how in ["exec", "exec_by_thread"] {
        let mut target = Target::start(&build_target("endings", &[]), &[how]);
        let attached = memhook::attach(target.pid() as i32, &Options::new(), Count::default());
        let attached = attached.expect("traced");
        target.go();
        target.expect("ready");
        assert_eq!(attached.wait(LONG), Some(Ending::Gone), "{how}");
        // The process allocates 50 blocks, and memory for starting a thread.
        let count = attached.detach().expect("in order").0;
        assert!((50..60).contains(&count), "{how}: {count}");
        assert!(!target.maps().contains("memhook"), "{how}");
        target.go();
        target.expect("done");
        assert!(target.finish().success(), "{how}");
    }
}

#[test]
fn forked_children_are_not_traced() {
    let (target, attached) = traced("forks", &[], Count::default());
    attached.catch_up();
    let leaks = attached.with(|heap| {
        let sizes = heap.blocks().map(|(block, _)| block.size);
        let sizes: Vec<u64> = sizes.collect();
        [321, 64].map(|size| sizes.iter().filter(|&&of| of == size).count())
    });
    assert_eq!(leaks, [20, 0]);
    assert_eq!(attached.ending(), None);
    attached.detach().expect("in order");
    assert!(target.finish().success());
}

#[test]
fn what_cannot_be_traced_says_why() {
    let error = memhook::attach(i32::MAX, &Options::new(), Count::default()).err();
    assert!(matches!(error, Some(Error::Attach { .. })), "{error:?}");
    let target = Target::start(&build_target("deterministic", &[]), &[]);
    let options = Options::new().depth(1000);
    let error = memhook::attach(target.pid() as i32, &options, Count::default()).err();
    assert!(matches!(error, Some(Error::Options(_))), "{error:?}");
    let (pid, options) = (target.pid() as i32, Options::new());
    let first = memhook::attach(pid, &options, Count::default()).expect("traced");
    let second = memhook::attach(pid, &options, Count::default()).err();
    assert!(matches!(second, Some(Error::Attach { .. })), "{second:?}");
    first.detach().expect("in order");
    assert!(target.finish().success());
}
