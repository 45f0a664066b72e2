//! Model of a target with many threads that allocate concurrently. Computes the attacher's maximum rate, the needs of
//! rings and a recording below this rate, and the behaviour above it.
//!
//! ```text
//! cargo run --release --manifest-path experiments/Cargo.toml --example many_cores -- [THREADS [MILLION_EVENTS_A_SECOND]]
//! ```
//!
//! The costs are parameters. The cost of an event was measured with the examples `recorded_stream` and
//! `several_drains`, for programs whose live blocks fit into the caches. The modelled machine has a core for every
//! thread. No such machine was available, so the result is not verified by a measurement. The simulation proceeds in
//! steps of 20 µs. It covers the rings and the threads that wait for room in them, passes and their pauses
//! (`crates/attach/src/drain/pacing.rs`), the time that a thread waits before it samples, its return to recording
//! everything (`hook-cxx/ring.hpp`, `adapting.hpp`), and the threads' rates, which change at random. Several drains
//! share the rings and the shards of the ledger evenly, and each event costs an additional hand-over
//! (`docs/several-drains.md`).

/// Costs in nanoseconds of the attacher's processor time.
#[derive(Clone, Copy)]
struct Costs {
    /// Reading and decoding an event whose cache line was written by another core.
    take: f64,
    /// Applying an event to the ledger.
    apply: f64,
    /// Writing an event for a shard and reading it there. Only with several drains.
    hand_over: f64,
    /// Encoding an event for a recording, on the drain's thread.
    encode: f64,
    /// Fixed cost of a pass: wake-up, locks, clocks.
    pass: f64,
    /// Cost per ring in a pass.
    ring: f64,
}

const COSTS: Costs = Costs {
    take: 2.2,
    apply: 10.5,
    hand_over: 8.0,
    encode: 15.0,
    pass: 5_000.0,
    ring: 60.0,
};
const STEP_S: f64 = 20e-6;
const SECONDS: f64 = 2.0;
const EVENT_BYTES: f64 = 16.0;
/// Bytes per event in a recording, as in recordings of servers.
const RECORDED_BYTES: f64 = 0.7;
/// Mean size of a block in bytes, and mean sampling distance of a thread whose ring is full.
const BLOCK_BYTES: f64 = 128.0;
const SAMPLE_BYTES: f64 = 65_536.0;
/// Wait budget of a thread, as in the hook: the budget, the rate at which it is refilled, and its maximum.
const WAIT_BUDGET_S: f64 = 0.020;
const WAIT_SHARE: f64 = 0.05;
const MOST_WAITED_S: f64 = 3.0 * WAIT_BUDGET_S;
const NEARLY_FULL: f64 = 0.75;
/// Limits of the minimum sampling time. The minimum doubles each time the ring soon becomes full again.
const SAMPLING_S: (f64, f64) = (0.020, 0.640);
/// Pacing of the drain: shortest and longest pause in seconds, and target fill level of a ring.
const PAUSES_S: (f64, f64) = (100e-6, 1e-3);
const GOAL: f64 = 0.15;

#[derive(Clone, Copy, PartialEq)]
enum OnFull {
    Wait,
    Adapt,
}

#[derive(Clone)]
struct Thread {
    /// Current rate, relative to the mean.
    activity: f64,
    in_ring: f64,
    samples: bool,
    waited_s: f64,
    wait_under_way_s: f64,
    /// Duration and end of the current sampling.
    sampling_s: f64,
    sampling_until_s: f64,
    /// Releases of recorded blocks that are still to come, in events.
    owed: f64,
}

#[derive(Default)]
struct Outcome {
    /// Total time of the threads, and the part spent waiting.
    time_s: f64,
    waited_s: f64,
    longest_wait_s: f64,
    /// Number of all events, of recorded events, and of events that happened while the thread recorded everything.
    events: f64,
    recorded: f64,
    exact: f64,
    busy_s: f64,
    drains: f64,
    fullest: f64,
    elapsed_s: f64,
}

struct Setup {
    threads: usize,
    /// Events per second of each thread without tracing.
    rate: f64,
    drains: usize,
    ring_bytes: f64,
    on_full: OnFull,
    is_recorded: bool,
}

fn simulate(setup: &Setup, costs: Costs) -> Outcome {
    let places = setup.ring_bytes / EVENT_BYTES;
    let mut random = fastrand::Rng::with_seed(1);
    let mut threads = vec![
        Thread {
            activity: 1.0,
            in_ring: 0.0,
            samples: false,
            waited_s: 0.0,
            wait_under_way_s: 0.0,
            sampling_s: 0.0,
            sampling_until_s: 0.0,
            owed: 0.0,
        };
        setup.threads
    ];
    let per_event = costs.take
        + costs.apply
        + if setup.drains > 1 {
            costs.hand_over
        } else {
            0.0
        }
        + if setup.is_recorded { costs.encode } else { 0.0 };
    let drains = setup.drains as f64;
    let mut outcome = Outcome {
        drains,
        ..Outcome::default()
    };
    let mut pause_s = PAUSES_S.1;
    // All drains begin a pass together, as required for the order of events, so they are modelled as one faster drain.
    let mut next_pass_s = 0.0;
    let mut now_s = 0.0;
    while now_s < SECONDS {
        for thread in &mut threads {
            if random.f64() < 0.01 {
                // The rate varies between two thirds and four thirds of the mean.
                thread.activity = (2.0 + 2.0 * random.f64()) / 3.0;
            }
            let wanted = setup.rate * thread.activity * STEP_S;
            // Half of the events are releases. Recorded blocks are released at the same pace whether or not new blocks
            // are recorded.
            let released = (wanted / 2.0).min(thread.owed) * 0.2;
            let allocated = wanted / 2.0;
            let chosen = 1.0 - (-BLOCK_BYTES / SAMPLE_BYTES).exp();
            let recorded = if thread.samples {
                allocated * chosen + released
            } else {
                wanted
            };
            let room = (places - thread.in_ring).max(0.0);
            let done = if recorded > room {
                room / recorded
            } else {
                1.0
            };
            outcome.events += wanted * done;
            outcome.recorded += recorded * done;
            if thread.samples {
                thread.owed = (thread.owed - released * done).max(0.0) + allocated * chosen * done;
            } else {
                outcome.exact += wanted * done;
                thread.owed = (thread.owed + allocated * done).min(20_000.0);
            }
            thread.in_ring += recorded * done;
            let waited_s = STEP_S * (1.0 - done);
            outcome.time_s += STEP_S;
            outcome.waited_s += waited_s;
            thread.waited_s =
                (thread.waited_s + waited_s - STEP_S * WAIT_SHARE).clamp(0.0, MOST_WAITED_S);
            thread.wait_under_way_s = if done < 1.0 {
                thread.wait_under_way_s + waited_s
            } else {
                0.0
            };
            outcome.longest_wait_s = outcome.longest_wait_s.max(thread.wait_under_way_s);
            let is_full = thread.in_ring > NEARLY_FULL * places;
            let has_waited_enough = thread.waited_s >= WAIT_BUDGET_S;
            if thread.samples {
                if thread.in_ring * 8.0 < places && now_s >= thread.sampling_until_s {
                    thread.samples = false;
                    thread.sampling_until_s = now_s;
                }
            } else if setup.on_full == OnFull::Adapt && is_full && has_waited_enough {
                let soon = thread.sampling_s > 0.0
                    && now_s < thread.sampling_until_s + 4.0 * thread.sampling_s;
                thread.sampling_s = if soon {
                    (2.0 * thread.sampling_s).min(SAMPLING_S.1)
                } else {
                    SAMPLING_S.0
                };
                thread.sampling_until_s = now_s + thread.sampling_s;
                thread.samples = true;
            }
            outcome.fullest = outcome.fullest.max(thread.in_ring / places);
        }
        now_s += STEP_S;
        if now_s >= next_pass_s {
            let waiting: f64 = threads.iter().map(|thread| thread.in_ring).sum();
            let fullest = threads.iter().map(|thread| thread.in_ring / places);
            let fullest = fullest.fold(0.0, f64::max);
            let rings_ns = costs.ring * setup.threads as f64;
            let took_s = (costs.pass + (rings_ns + per_event * waiting) / drains) * 1e-9;
            threads.iter_mut().for_each(|thread| thread.in_ring = 0.0);
            outcome.busy_s += took_s * drains;
            pause_s = (pause_s * GOAL / fullest.max(GOAL / 2.0)).clamp(PAUSES_S.0, PAUSES_S.1);
            next_pass_s = now_s + took_s + pause_s;
        }
    }
    outcome.elapsed_s = now_s;
    outcome
}

fn main() -> Result<(), std::num::ParseFloatError> {
    let mut arguments = std::env::args().skip(1);
    let threads = arguments.next().map_or(Ok(64.0), |text| text.parse())? as usize;
    let millions: f64 = arguments.next().map_or(Ok(8.0), |text| text.parse())?;
    let rate = millions * 1e6;
    let all = rate * threads as f64;
    println!(
        "{threads} threads, {millions} million events a second each, {:.0} million in all: {:.1} GB of ring lines a second",
        all / 1e6,
        all * EVENT_BYTES / 1e9
    );
    let one = COSTS.take + COSTS.apply;
    println!(
        "maximum of one drain: {:.0} million events a second, {:.0} with a recording; of each of several drains: {:.0} and {:.0}",
        1e3 / one,
        1e3 / (one + COSTS.encode),
        1e3 / (one + COSTS.hand_over),
        1e3 / (one + COSTS.hand_over + COSTS.encode),
    );
    println!();
    println!(
        "drains  at a full ring  recorded  rings MiB  drains busy  waited  longest wait  recorded/s  counted exactly  file MB/s"
    );
    for is_recorded in [false, true] {
        for on_full in [OnFull::Wait, OnFull::Adapt] {
            for drains in [1, 2, 4, 8, 16] {
                let ring_bytes = match on_full {
                    OnFull::Wait => 1024.0 * 1024.0,
                    OnFull::Adapt => 256.0 * 1024.0,
                };
                let setup = Setup {
                    threads,
                    rate,
                    drains,
                    ring_bytes,
                    on_full,
                    is_recorded,
                };
                let outcome = simulate(&setup, COSTS);
                let recorded = outcome.recorded / outcome.elapsed_s;
                println!(
                    "{drains:6}  {:14}  {:8}  {:9.0}  {:10.0}%  {:5.1}%  {:9.2} ms  {:8.1} M  {:14.1}%  {:9.1}",
                    if on_full == OnFull::Wait {
                        "wait"
                    } else {
                        "adapt"
                    },
                    if is_recorded { "yes" } else { "no" },
                    ring_bytes * threads as f64 / (1024.0 * 1024.0),
                    100.0 * outcome.busy_s / (outcome.elapsed_s * outcome.drains),
                    100.0 * outcome.waited_s / outcome.time_s,
                    outcome.longest_wait_s * 1e3,
                    recorded / 1e6,
                    100.0 * outcome.exact / outcome.events,
                    if is_recorded {
                        recorded * RECORDED_BYTES / 1e6
                    } else {
                        0.0
                    },
                );
            }
        }
    }
    Ok(())
}
