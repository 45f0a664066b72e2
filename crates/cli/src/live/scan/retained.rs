//! `scan --retained`: holders of the heap and the blocks that they retain, as text, JSON or a page.

use super::Args;
use crate::output::say;
use anyhow::{Context, bail};
use memhook_foreign::OutputFile;
use memhook_heap::{Retained, Types, dissect};
use memhook_report::{Progress, RetainedReport, not_searched};
use std::io::{BufWriter, Write};

/// Runs the command. Returns true if all of the heap was searched.
pub fn run(args: &Args, pid: i32) -> anyhow::Result<bool> {
    let is_page = |path: &std::path::Path| path.extension().is_some_and(|end| end == "html");
    if let Some(path) = args.output.as_deref().filter(|path| !is_page(path)) {
        bail!(
            "{}: --output writes a page, so its name must end with .html",
            path.display()
        );
    }
    // The file is opened before the process is touched, so that an error does not affect the
    // process.
    let output = args.output.as_ref();
    let output = output
        .map(|path| OutputFile::create(path, args.force))
        .transpose()?;
    let captured = args.capture(pid)?;
    let snapshot = &captured.snapshot;
    let heap = dissect(snapshot)?;
    let mut types = Types::new(snapshot, &captured.images);
    let memory = args.limits.max_memory;
    let options = args.mark_options();
    let files = args.declared_files(pid, &captured);
    let work = || {
        types.declare(&heap, &files, args.declared_limits());
        let retained = Retained::of(snapshot, &heap, options, &mut types, memory)?;
        let report = RetainedReport::new(snapshot, &heap, &retained, &types, args.top);
        Ok::<_, memhook_heap::Error>(report)
    };
    let report = Progress::during("searching the memory", work)?;
    let is_all = not_searched(snapshot, &heap).is_empty();
    let (Some(output), Some(path)) = (output, &args.output) else {
        return args.json.print(&report).map(|()| is_all);
    };
    let mut file = BufWriter::new(output.file());
    let written = report.write_page(&mut file).and_then(|()| file.flush());
    drop(file);
    written
        .and_then(|()| output.keep().map(drop))
        .with_context(|| path.display().to_string())?;
    say!("{}", path.display());
    Ok(is_all)
}
