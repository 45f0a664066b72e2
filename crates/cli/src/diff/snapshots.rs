//! `diff` of two snapshots: blocks that a process allocated between them, and the holders that
//! retain them.

use super::{Args, DiffBy};
use anyhow::{Context, bail};
use memhook_heap::{Attributed, MarkOptions, Retained, Snapshot, Types, dissect};
use memhook_report::{GrowthReport, Progress};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use std::process::ExitCode;

/// First bytes of a snapshot, which is an LZ4 frame (lz4_Frame_format.md, "Magic Number").
const LZ4: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];

/// Returns true if a file begins like a snapshot.
pub fn is_snapshot(path: &Path) -> bool {
    let is_regular = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    let mut first = [0; LZ4.len()];
    is_regular
        && File::open(path).is_ok_and(|mut file| file.read_exact(&mut first).is_ok())
        && first == LZ4
}

/// Compares the two snapshots.
pub fn compare(args: &Args) -> anyhow::Result<ExitCode> {
    let of_runs = [
        ("--measure", args.measure.is_some()),
        ("--by", args.by != DiffBy::Site),
        ("--fail-on", args.fail_on.is_some()),
        ("--scores", args.scores.are_wanted()),
    ];
    let refused = of_runs.iter().find(|(_, is_given)| *is_given);
    if let Some(option) = refused.map(|(name, _)| *name).or(args.shown.option()) {
        bail!("{option} is for runs, and these are snapshots: leave it out");
    }
    let old = load(&args.old)?;
    let new = load(&args.new)?;
    if let Err(why) = old.same_program(&new) {
        bail!(
            "{} and {} cannot be compared: {why}",
            args.old.display(),
            args.new.display()
        );
    }
    let pid = new.meta.pid;
    let older = attributed(&args.old, old)?;
    let newer = attributed(&args.new, new)?;
    let report = GrowthReport::new(pid, older.growth(&newer, args.top));
    args.output.write_document(&report, args.json.json)?;
    Ok(ExitCode::SUCCESS)
}

fn load(path: &Path) -> anyhow::Result<Snapshot> {
    let name = path.display().to_string();
    let file = File::open(path).with_context(|| format!("cannot open the snapshot {name}"))?;
    let work = || memhook_heap::load(&name, BufReader::new(file), None);
    Ok(Progress::during("reading the snapshot", work)?)
}

/// Returns the blocks of a snapshot, and frees its memory.
fn attributed(path: &Path, snapshot: Snapshot) -> anyhow::Result<Attributed> {
    let work = || {
        let heap = dissect(&snapshot)?;
        let mut types = Types::new(&snapshot, &[]);
        let options = MarkOptions::to_report();
        let retained = Retained::of(&snapshot, &heap, options, &mut types, None)?;
        Ok::<_, memhook_heap::Error>(retained.attributed(heap, &types))
    };
    let found = Progress::during("searching the memory", work);
    found.with_context(|| path.display().to_string())
}
