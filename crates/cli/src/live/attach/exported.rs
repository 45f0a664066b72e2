//! Exports a trace directly to formats of other programs. The trace is recorded to an unnamed file,
//! so no file is left behind, whatever happens.

use crate::report::{open, page_contents, presentable, write};
use anyhow::{Context, bail};
use memhook_attach::Session;
use memhook_foreign::{OutputFile, own_name, unnamed_file_in};
use memhook_report::recorded::{Window, profile};
use memhook_report::{Format, FormatChoice, FormatOptions, Nature, Profile, Style};
use memhook_symbols::Symbolizer;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Export of a trace.
pub struct Export {
    format: &'static dyn Format<Profile>,
    to: Option<OutputFile>,
    is_packed: bool,
    /// Path of the recording among this process's file descriptors.
    pub recording: PathBuf,
    _unnamed: File,
}

impl Export {
    /// Creates an export; `None` if the requested format is a report. `to` is the output, unless
    /// the output is a recording.
    pub fn new(
        format: FormatChoice,
        to: Option<&Path>,
        is_recorded: bool,
        force: bool,
    ) -> anyhow::Result<Option<Export>> {
        let FormatChoice::Export(format) = format else {
            return Ok(None);
        };
        if is_recorded {
            bail!(
                "-f {}: the output is a recording; leave -f out, and make it with: memhook-rs report FILE.mhk -f {0}",
                format.name()
            );
        }
        let is_binary = format.nature() == Nature::Binary;
        if is_binary && to.is_none() && std::io::stdout().is_terminal() {
            bail!("this format is not for a terminal: add -o FILE");
        }
        // The file is created in the output's directory, where there should be enough space for it.
        let directory = to
            .and_then(Path::parent)
            .filter(|d| !d.as_os_str().is_empty());
        let directory = match (directory, to) {
            (Some(directory), _) => directory.to_owned(),
            (None, Some(_)) => PathBuf::from("."),
            (None, None) => std::env::temp_dir(),
        };
        let unnamed = unnamed_file_in(&directory)?;
        Ok(Some(Export {
            format,
            // The output is created before the target is touched, so that an error here does not
            // affect the target.
            to: to.map(|path| OutputFile::create(path, force)).transpose()?,
            is_packed: to.is_some_and(|path| path.extension().is_some_and(|e| e == "gz")),
            recording: own_name(&unnamed),
            _unnamed: unnamed,
        }))
    }

    /// Writes the trace of this session, whose recording is finished.
    pub fn write(mut self, session: &Session) -> anyhow::Result<()> {
        let recording = open(&self.recording).context("nothing was recorded")?;
        let mut symbols = Symbolizer::new(session.root().search_order());
        symbols.set_modules(session.module_files());
        let contents = page_contents(self.format, &recording);
        let window = Window::default();
        let profile = profile(&recording, &mut symbols, window, contents)?;
        let options = FormatOptions {
            gzip: self.is_packed,
            ..FormatOptions::default()
        };
        let mut bytes = Vec::new();
        memhook_report::formats::write(self.format, &profile, &options, &mut bytes)?;
        let shown = presentable(&bytes, self.format.nature(), Style::default());
        let Some(output) = self.to.take() else {
            return write(None, false, &shown);
        };
        let mut file = output.file();
        let written = file.write_all(&shown).and_then(|()| output.keep());
        written.map(drop).context("the output cannot be written")
    }
}
