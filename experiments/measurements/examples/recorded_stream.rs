//! Measures the time that each stage of the attacher takes for the events of a recording. There is no target, so the
//! figures vary little.
//!
//! ```text
//! cargo run --release --manifest-path experiments/Cargo.toml --example recorded_stream -- FILE.mhk [EVENTS [ROUNDS]]
//! ```
//!
//! A thread on another processor publishes the events in rings, in the passes in which they were drained, so that the
//! rings' cache lines move between processors as with a target. The stages are the drain alone, the drain with the
//! ledger, and the drain with the ledger and the writer of a recording. The figure is the processor time of the
//! draining thread.

use memhook_abi::Event;
use memhook_ledger::{Ledger, LedgerOptions};
use memhook_measurements::{Recorded, ToLedger, timed};
use memhook_recording::{Meta, Options, Writer};
use memhook_stream::{Drain, Region, Sink, Stack};
use std::path::Path;
use std::time::Duration;

/// Number of events that a busy target records between two passes.
const PASS_EVENTS: usize = 8192;

struct Nowhere(u64);

impl Sink for Nowhere {
    fn begin_ring(&mut self, _ring: usize, _tid: u32) {}
    #[inline]
    fn event(&mut self, event: Event, size: u64, _time_ns: u64) {
        self.0 = self.0.wrapping_add(event.address ^ size);
    }
    fn end_pass(&mut self) {}
}

struct ToBoth<'a> {
    ledger: &'a mut Ledger,
    writer: &'a mut Writer,
    now_ns: u64,
}

fn some_stack(id: u32) -> Option<Stack> {
    let frame = |i: u64| 0x5555_0000_0000 + (u64::from(id) >> (i / 2)) * 64 + i * 0x1_0000;
    Some(Stack {
        function: 0,
        truncated: false,
        frames: (0..12).map(frame).collect(),
    })
}

impl Sink for ToBoth<'_> {
    fn begin_ring(&mut self, ring: usize, tid: u32) {
        self.ledger.begin_ring(ring, tid);
        self.writer.begin_ring(ring, tid);
    }
    #[inline(always)]
    fn event(&mut self, event: Event, size: u64, time_ns: u64) {
        self.ledger.event(event, size, time_ns);
        self.writer.event(event, size, time_ns);
    }
    fn end_pass(&mut self) {
        self.ledger.end_pass(self.now_ns);
        self.writer.end_pass(self.now_ns, some_stack);
        if self
            .writer
            .wants_checkpoint(self.ledger.totals().live_blocks)
        {
            self.writer.checkpoint(self.ledger, some_stack);
        }
    }
}

/// Consumer of a pass.
type Pass<'a> = &'a mut dyn FnMut(&mut Drain, &Region, u64);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().ok_or("which recording?")?;
    let most = arguments
        .next()
        .map_or(Ok(10_000_000), |text| text.parse())?;
    let rounds: u32 = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let recorded = Recorded::read(Path::new(&file), most, PASS_EVENTS)?;
    let events = recorded.events.len() as f64;
    println!(
        "{events} events of {} rings in {} passes; nanoseconds an event:",
        recorded.rings,
        recorded.passes.len()
    );
    println!("drain   + ledger   + recording");
    let replay = |pass: Pass<'_>| {
        let mut all = Duration::ZERO;
        recorded.replay(|drain, region, now_ns| all += timed(|| pass(drain, region, now_ns)).0);
        all
    };
    let ns = |time: Duration| time.as_nanos() as f64 / events;
    for _ in 0..rounds {
        let mut nowhere = Nowhere(0);
        let drained = replay(&mut |drain, region, _| {
            drain.last_pass(region, &mut nowhere);
        });
        std::hint::black_box(nowhere.0);
        let mut ledger = Ledger::new(LedgerOptions::default());
        let counted = replay(&mut |drain, region, _| {
            drain.last_pass(region, &mut ToLedger(&mut ledger));
        });
        let live = ledger.totals().live_blocks;
        let path = std::env::temp_dir().join(format!("recorded-{}.mhk", std::process::id()));
        let mut writer = Writer::create(&path, &Meta::default(), &Options::default())?;
        let mut ledger = Ledger::new(LedgerOptions::default());
        let written = replay(&mut |drain, region, now_ns| {
            let mut sink = ToBoth {
                ledger: &mut ledger,
                writer: &mut writer,
                now_ns,
            };
            drain.last_pass(region, &mut sink);
        });
        let end = writer.finish();
        std::fs::remove_file(&path)?;
        println!(
            "{:5.1} {:8.1} {:10.1}   ({live} blocks live at the end; recording: {end})",
            ns(drained),
            ns(counted),
            ns(written),
        );
    }
    Ok(())
}
