//! Table 6.2: one run of `realistic.cc` untraced, traced, and under an equivalent of bcc's memleak.

use super::super::sheet::{Sheet, Sheets, effect, number};
use super::super::spawned::bpftrace;
use super::latency::{Boxed, rounds};
use memhook_measurements::{Measured, Memhook, build, placement};

/// The same probes as memleak (bcc, tools/memleak.py). The entry probe keeps the size, the return probe takes the
/// stack, and a release forgets the block. The live blocks are not printed at the end, because that would take longer
/// than the run.
const MEMLEAK: &str = "uprobe:LIBC:malloc { @size[tid] = arg0; } \
    uretprobe:LIBC:malloc /@size[tid]/ { @block[retval] = ustack(10); delete(@size[tid]); } \
    uprobe:LIBC:free /arg0/ { @releases = count(); delete(@block[arg0]); } \
    END { clear(@size); clear(@block); }";
const RUNS: f64 = 10.0;

pub fn run(sheets: &mut Sheets) -> Result<(), String> {
    let mut target = Measured::start(&build("realistic", &[]), &[], &placement().target);
    let fast: [Boxed; 2] = [
        Box::new(Memhook::new("attach, 10 frames", "--depth 10")),
        Box::new(Memhook::new("attach, sample 512 KiB", "--sample 524288")),
    ];
    let slow: [Boxed; 1] = [Box::new(bpftrace(
        "the probes of memleak, by bpftrace",
        MEMLEAK,
    ))];
    let groups = [
        rounds(&mut target, &fast, RUNS, 12),
        rounds(&mut target, &slow, 1.0, 4),
    ];
    let mut sheet = Sheet::new(
        "One run of realistic.cc",
        &["tool", "untraced, ms", "traced, ms", "ratio", "quartiles"],
    );
    for all in &groups {
        for (tool, traced) in all.traced.iter().enumerate() {
            sheet.row(match effect(all, tool, 0) {
                Ok(effect) => vec![
                    traced.tool.clone(),
                    number(effect.untraced / 1e6),
                    number(effect.traced / 1e6),
                    number(effect.ratio.median),
                    format!(
                        "{} to {}",
                        number(effect.ratio.low),
                        number(effect.ratio.high)
                    ),
                ],
                Err(why) => vec![traced.tool.clone(), why, "-".into(), "-".into(), "-".into()],
            });
        }
    }
    sheets.add(&sheet);
    Ok(())
}
