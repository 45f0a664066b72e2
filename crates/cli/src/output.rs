//! Where reports go, and in which form.

use crate::options::Color;
use anyhow::{Context, bail};
use memhook_report::{ReportModel, Style};
use std::{
    fs::{File, OpenOptions},
    io::{IsTerminal, Write},
    path::Path,
};

/// Standard output or a file; text or JSON.
pub struct Output {
    to: Box<dyn Write>,
    json: bool,
    style: Style,
}

impl Output {
    /// Opens the output; an existing file is kept unless `force`.
    pub fn open(
        path: Option<&Path>,
        force: bool,
        json: bool,
        color: Color,
    ) -> anyhow::Result<Output> {
        let to: Box<dyn Write> = match path {
            None => Box::new(std::io::stdout()),
            Some(path) => Box::new(create(path, force)?),
        };
        let terminal = path.is_none()
            && std::io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        let color = color == Color::Always || (color == Color::Auto && terminal);
        Ok(Output {
            to,
            json,
            style: Style { color },
        })
    }

    /// Writes one report. A reader that went away, or a full disk, must not keep the attacher from
    /// detaching: the first failure is told once, by `false`.
    pub fn write(&mut self, report: &ReportModel) -> bool {
        let text = if self.json {
            memhook_report::json(report)
        } else {
            memhook_report::text(report, self.style)
        };
        writeln!(self.to, "{text}")
            .and_then(|()| self.to.flush())
            .is_ok()
    }
}

fn create(path: &Path, force: bool) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    match options.open(path) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            bail!(
                "{} exists already: choose another name or add --force",
                path.display()
            )
        }
        opened => opened.with_context(|| format!("cannot write {}", path.display())),
    }
}
