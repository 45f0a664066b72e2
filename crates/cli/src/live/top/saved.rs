//! Reports that a key of `top` writes.

use crate::live::model::Reporter;
use crate::options::View;
use crate::remedies;
use memhook_attach::Trace;
use memhook_foreign::{OutputError, OutputFile, visible_lines};
use memhook_process::resident_counters;
use memhook_report::{ReportModel, RowsBy, SortBy, Style, document};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Number of rows of a report: the same as the default of `attach`.
pub const ROWS: usize = 10;

/// Writes reports about one traced process.
pub struct ReportKey {
    pid: i32,
    depth: u32,
    reporter: Option<Reporter>,
    /// True if a report waits for its names.
    is_waiting: bool,
}

impl ReportKey {
    pub fn new(pid: i32, depth: u32) -> ReportKey {
        ReportKey {
            pid,
            depth,
            reporter: None,
            is_waiting: false,
        }
    }

    /// Takes the current numbers.
    pub fn press(&mut self, trace: &Trace) {
        let view = View {
            top: ROWS,
            older: None,
            sort: SortBy::Bytes,
            by: RowsBy::Site,
        };
        // Each report is written like a first report, without changes since an earlier one.
        let mut reporter = Reporter::new(self.pid, view, self.depth);
        reporter.begin(trace.session(), trace.consumer(), true);
        self.reporter = Some(reporter);
        self.is_waiting = true;
    }

    /// Writes the report once its names are known, and then returns the name of the file.
    pub fn turn(&mut self, trace: &Trace) -> Option<anyhow::Result<PathBuf>> {
        let reporter = self.reporter.as_mut().filter(|_| self.is_waiting)?;
        let mut report = reporter.poll(trace.session(), Duration::ZERO)?;
        self.is_waiting = false;
        report.rss_bytes = resident_counters(self.pid).map(|found| found.resident());
        let name = report.target.name.clone();
        Some(save(&report, &name, self.pid))
    }
}

/// Returns the message for the screen and, if the report was written, the message that follows when
/// the terminal is restored.
pub fn told(saved: anyhow::Result<PathBuf>) -> (String, Option<String>) {
    match saved {
        Ok(path) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let message = format!("Report written to {name}");
            (message, Some(format!("Report: {}", path.display())))
        }
        Err(error) => (
            format!("No report: {}", remedies::in_words(error.as_ref())),
            None,
        ),
    }
}

/// Writes a report to a new file in the current directory, readable only by its owner.
pub fn save(report: &ReportModel, name: &str, pid: i32) -> anyhow::Result<PathBuf> {
    let text = document(report, false, Style::default())?;
    let directory = std::env::current_dir()?;
    let mut number = 1;
    loop {
        let path = directory.join(file_name(name, pid, number));
        let made = OutputFile::create(&path, false);
        match made {
            Ok(output) => {
                let mut file = output.file();
                file.write_all(visible_lines(&text).as_bytes())?;
                match output.keep() {
                    Ok(_) => return Ok(path),
                    Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(
                OutputError::Exists { .. } | OutputError::Link { .. } | OutputError::NotOurs { .. },
            ) => {}
            Err(error) => return Err(error.into()),
        }
        number += 1;
    }
}

/// Returns a name such as `heap-redis-server-1234-1.txt`. The name of the process is untrusted.
fn file_name(name: &str, pid: i32, number: u32) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = name.chars().take(32).map(plain).collect();
    let name = name.trim_matches('-');
    let dash = if name.is_empty() { "" } else { "-" };
    Path::new(&format!("heap-{name}{dash}{pid}-{number}.txt")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_plain() {
        let of = |name| file_name(name, 7, 2).display().to_string();
        assert_eq!(of("redis-server"), "heap-redis-server-7-2.txt");
        assert_eq!(of("../a b\u{202e}/"), "heap-a-b-7-2.txt");
        assert_eq!(of(""), "heap-7-2.txt");
    }
}
