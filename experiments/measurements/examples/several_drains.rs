//! Compares two drains with one drain on the events of a recording: processor time, and elapsed time on two idle
//! processors.
//!
//! ```text
//! cargo run --release --manifest-path experiments/Cargo.toml --example several_drains -- FILE.mhk [EVENTS [ROUNDS]]
//! ```
//!
//! The recording should have many threads. A thread on another processor publishes the events in rings. That processor
//! is idle while the events are drained, so the second drain runs there. Rounds with one and with two drains alternate.

use memhook_abi::Event;
use memhook_attach::{Crew, Distributes};
use memhook_ledger::{Ledger, LedgerOptions, Router};
use memhook_measurements::{Recorded, ToLedger, bind_to, placement, process_cpu_time};
use memhook_stream::Sink;
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of events that threads of a busy target record between two passes.
const PASS_EVENTS: usize = 1 << 16;

struct ToRouter(Router);

impl Distributes for ToRouter {
    fn router(&self) -> &Router {
        &self.0
    }
    fn router_mut(&mut self) -> &mut Router {
        &mut self.0
    }
}

impl Sink for ToRouter {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.0.begin_ring(ring, tid);
    }
    #[inline(always)]
    fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        self.0.event(event, size, time_ns);
    }
    fn end_pass(&mut self) {}
}

/// Processor time and elapsed time.
#[derive(Default)]
struct Taken {
    processor: Duration,
    clock: Duration,
}

impl Taken {
    fn add(&mut self, work: impl FnOnce()) {
        let (processor, clock) = (process_cpu_time(), Instant::now());
        work();
        self.processor += process_cpu_time() - processor;
        self.clock += clock.elapsed();
    }
}

fn median(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("which recording?")?;
    let most = arguments
        .next()
        .map_or(Ok(10_000_000), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(9), |text| text.parse())?;
    let recorded = Recorded::read(Path::new(&file), most, PASS_EVENTS)?;
    let events = recorded.events.len() as f64;
    println!(
        "{events} events of {} rings in {} passes; nanoseconds an event: processor, clock",
        recorded.rings,
        recorded.passes.len()
    );
    let ns = |time: Duration| time.as_nanos() as f64 / events;
    let mut ratios = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let mut one = Taken::default();
        let mut ledger = Ledger::new(LedgerOptions::default());
        recorded.replay(|drain, region, _| {
            one.add(|| {
                drain.last_pass(region, &mut ToLedger(&mut ledger));
            });
        });
        let mut two = Taken::default();
        let mut divided = Ledger::new(LedgerOptions::default());
        // The second thread of the drain runs on the processor where the events were published.
        bind_to(&placement().target);
        let mut crew = Crew::new(2, &mut divided, ToRouter)?.ok_or("not divided")?;
        recorded.replay(|drain, region, now_ns| {
            two.add(|| {
                crew.pass(drain, region, &mut divided, now_ns, true);
            });
        });
        let same = |ledger: &Ledger| {
            let totals = ledger.totals();
            (totals.live_bytes, totals.live_blocks, totals.releases)
        };
        if same(&ledger) != same(&divided) {
            return Err(format!("{:?} and {:?}", ledger.totals(), divided.totals()).into());
        }
        println!(
            "one {:5.1} {:5.1}   two {:5.1} {:5.1}",
            ns(one.processor),
            ns(one.clock),
            ns(two.processor),
            ns(two.clock)
        );
        ratios
            .0
            .push(two.processor.as_secs_f64() / one.processor.as_secs_f64());
        ratios
            .1
            .push(two.clock.as_secs_f64() / one.clock.as_secs_f64());
    }
    println!(
        "two by one, medians: processor {:.2}, clock {:.2}",
        median(ratios.0),
        median(ratios.1)
    );
    Ok(())
}
