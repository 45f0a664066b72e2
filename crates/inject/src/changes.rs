//! Everything that changes a process: holds that restore the thread's state afterwards, calls, memory, programs started
//! here, and watchpoints.
//!
//! On processors for which this is implemented, `arch` contains the implementation. On others, `arch` has the same
//! names, and each of them returns an error.

#[path = "end_watch.rs"]
pub(crate) mod end_watch;
#[path = "hold/mod.rs"]
pub(crate) mod hold;
#[path = "launch/mod.rs"]
pub(crate) mod launch;
#[path = "own_memory.rs"]
pub(crate) mod own_memory;
#[path = "ptrace.rs"]
pub(crate) mod ptrace;
#[path = "remote/mod.rs"]
pub(crate) mod remote;
#[path = "watchpoint.rs"]
pub(crate) mod watchpoint;

// Each part has one short path in this crate.
pub(crate) use super::native::{
    clock, gadgets, native_stack, processor, restarted, scratch, signal_frame, syscall_probe,
};
pub(crate) use hold::{
    all_threads, held, idle, late, others, own_answers, resend, safe_point, saved, seccomp, slept,
    stop, survey, synchronous, timing, wait,
};
pub(crate) use remote::{
    access_marks, call_with_data, code_area, code_exchange, descriptor, forced_write, guide,
    kernel_places, load, map, memory, region, remote_call, remote_fork, remote_work, shown_name,
    way_home, write_watch,
};

pub use access_marks::{RangeMarks, clear_access_marks};
pub use all_threads::{AllHeld, InVain, hold_all, hold_all_within};
pub use call_with_data::MAX_CALL_DATA;
pub use clock::Clock as TimeStampClock;
pub use code_area::{CodeArea, map_code_area};
pub use code_exchange::{CodeExchange, CodeExchanges, Exchanged, exchange_code, memory_of_code};
pub use descriptor::duplicate_descriptor;
pub use end_watch::EndWatch;
pub use forced_write::{WordExchange, force_words, force_words_of_held};
pub use guide::{Guide, GuidedRegion, create_guided_region, empty_guide, without_seals};
pub use held::Held;
pub use idle::IdleThreads;
pub use kernel_places::kernel_places;
pub use late::{has_late_threads, let_late_threads_go, wait_for_late_threads};
pub use launch::{
    Child, EndingThread, Event, StartPoint, end_by, forward_signals, launch, wait_for_program,
};
pub use load::{Dlopen, NAME as HOOK_NAME, load_file, load_object};
pub use map::{ObjectImage, map_object, unmap_unfinished};
pub use memory::write_bytes;
pub use others::Others;
pub use own_answers::thread_with_own_answers;
pub use own_memory::{give_memory_back, keep_little_memory};
pub use region::{
    Region, create_region, move_guided_region, move_region, set_inherited, unmap_region,
};
pub use remote_fork::{ForkPlan, FrozenChild};
pub use safe_point::Judge;
pub use stop::{FirstChoice, HoldOptions, first_choice, hold};
pub use watchpoint::{Access, AccessRing, Watchpoint, Width, own_thread};
pub use write_watch::WriteWatch;

/// Does nothing: processes can be changed on this processor.
pub const fn may_change(_: i32) -> Result<(), crate::Error> {
    Ok(())
}

#[doc(hidden)]
#[path = "fuzzing.rs"]
pub mod fuzzing;
