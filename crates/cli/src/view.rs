//! `view`: a recording as one HTML page, written to a file or served.

use crate::output::say;
use crate::report::{self, BlockArgs, WindowArgs, open, sources as symbols};
use crate::{scores, signals};
use anyhow::Context;
use memhook_foreign::check_output;
use memhook_recording::Recording;
use memhook_report::FormatOptions;
use memhook_report::formats::{Html, write};
use memhook_report::recorded::{Contents, Window, add_types};
use memhook_report::view::{self, Editor, Server};
use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// Time between two checks for Ctrl-C.
const TURN: Duration = Duration::from_millis(200);

/// Options of `view`.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// The recording (attach -o FILE.mhk); - is standard input
    file: PathBuf,
    /// Write the page to this file [default: NAME.html]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Overwrite the output file if it exists
    #[arg(long)]
    force: bool,
    /// Serve the page at this port until Ctrl-C
    ///
    /// No file is written. Without an address, only this machine (127.0.0.1) can reach the page.
    #[arg(long, value_name = "[ADDRESS:]PORT", value_parser = view::address, conflicts_with_all = ["output", "force"])]
    serve: Option<SocketAddr>,
    /// Show source lines of files in this directory
    ///
    /// Without it the page has no source lines, because debug information may name any file.
    #[arg(long, value_name = "DIR")]
    source_dir: Vec<PathBuf>,
    /// Open source lines of a call stack in this editor
    ///
    /// vscode, vscodium, zed or idea, or the address of another one, with {file} and {line} in it. The paths are those
    /// of the debug information.
    #[arg(long, value_name = "EDITOR")]
    editor: Option<Editor>,
    /// Compare with this older recording
    ///
    /// The graph then shows both runs: red is more than in the older run, blue is less.
    #[arg(long, value_name = "OLD", conflicts_with = "from")]
    diff: Option<PathBuf>,
    #[command(flatten)]
    scores: scores::Args,
    #[command(flatten)]
    shown: BlockArgs,
    #[command(flatten)]
    window: WindowArgs,
    #[command(flatten)]
    symbols: symbols::Args,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = &args.file;
    let named = || named_after(file);
    let path = args.output.clone().unwrap_or_else(named);
    let inputs = std::iter::once(file).chain(&args.diff);
    check_output(Some(&path), args.force || args.serve.is_some(), inputs)?;
    let recording = open(file)?;
    check_scores(args, &recording)?;
    symbols::check_directories(args.source_dir.iter())?;
    let window = args.window.window(&recording)?;
    // The port is bound before the work starts, so that a port in use is reported at once.
    let server = args.serve.map(bind).transpose()?;
    let wanted = contents(args, &recording);
    let (mut profile, names) = report::read(&recording, file, &args.symbols, window, wanted)?;
    let mut code = report::code_of(&recording);
    args.scores.add_to(&mut profile)?;
    add_types(&mut profile, &names);
    let mut has_focus = args.shown.apply(&mut profile, &names);
    if let Some(older) = &args.diff {
        let recording = open(older)?;
        check_scores(args, &recording)?;
        // The page shows the addresses of the new run.
        let contents = Contents {
            addresses: false,
            ..contents(args, &recording)
        };
        let whole = Window::default();
        let (mut old, names) = report::read(&recording, older, &args.symbols, whole, contents)?;
        let added = args.scores.add_to(&mut old);
        added.with_context(|| older.display().to_string())?;
        add_types(&mut old, &names);
        has_focus |= args.shown.apply(&mut old, &names);
        code = code.max(report::code_of(&recording));
        profile = view::beside(profile, old);
    }
    if !has_focus {
        return Err(args.shown.refuse(file));
    }
    profile.sources = view::source_lines(&profile, &args.source_dir);
    let lacks_sources = args.source_dir.is_empty() && view::are_sources_named(&profile);
    let tell = || {
        if lacks_sources {
            eprintln!("memhook-rs: the page has no source lines: for those add --source-dir DIR");
        }
    };
    let mut page = Vec::new();
    let options = FormatOptions {
        editor: args.editor.clone(),
        ..FormatOptions::default()
    };
    write(&Html, &profile, &options, &mut page)?;
    if let Some(server) = server {
        tell();
        return serve(server, page);
    }
    report::write(Some(&path), args.force, &page)?;
    tell();
    say!("{}", path.display());
    Ok(ExitCode::from(code))
}

/// Refuses scores that were requested but that the recording cannot have.
fn check_scores(args: &Args, recording: &Recording) -> anyhow::Result<()> {
    if args.scores.formulas()?.is_empty() {
        return Ok(());
    }
    recording.check_scores().context("--scores")
}

/// Returns the contents of the page other than the sites. Sites are scored as requested, if
/// possible.
fn contents(args: &Args, recording: &Recording) -> Contents {
    let mut contents = report::page_contents(&Html, recording);
    if let (Some(scores), Some(group)) = (&mut contents.scores, args.scores.group()) {
        scores.group = group;
    }
    contents
}

fn bind(address: SocketAddr) -> anyhow::Result<Server> {
    let own_name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    Server::bind(address, own_name.trim()).with_context(|| format!("cannot serve at {address}"))
}

/// Serves the page until Ctrl-C.
fn serve(server: Server, page: Vec<u8>) -> anyhow::Result<ExitCode> {
    signals::catch_stops();
    if server.is_public()? {
        eprintln!(
            "memhook-rs: anyone who reaches this address and knows the token can read the page"
        );
    }
    println!("{}", server.url()?);
    server.start(page)?;
    while !signals::stop_requested() {
        std::thread::sleep(TURN);
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the default name of the page, in the current directory, because the recording's
/// directory may be read-only.
fn named_after(recording: &Path) -> PathBuf {
    let name = recording.file_name().unwrap_or(recording.as_os_str());
    Path::new(name).with_extension("html")
}
