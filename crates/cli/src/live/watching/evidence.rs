//! Directory of reports. Each report is completely on disk before its name appears, and only the
//! latest reports are kept.

use anyhow::Context;
use crossbeam_channel::{Sender, unbounded};
use memhook_foreign::{OutputFile, visible, visible_json};
use memhook_report::{Document, Style, WatchReport, document};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

/// Queue of reports to be written. A separate thread writes them, because the disk may be slow.
pub struct Evidence {
    directory: PathBuf,
    count: u32,
    to: Option<Sender<Written>>,
    writer: Option<JoinHandle<bool>>,
}

/// Number that tells reports apart.
#[derive(Clone, Copy)]
pub struct Place(u32);

/// One report.
struct Written {
    pid: i32,
    /// Name of the file without its suffix.
    name: String,
    reason: &'static str,
    text: String,
    json: String,
    /// True if the report was written before, with fewer names.
    is_again: bool,
}

impl Evidence {
    /// Creates the directory if it is missing. `keep` is the number of reports to keep in addition
    /// to the last. `exec` is run after each report.
    pub fn new(directory: &Path, keep: usize, exec: Option<String>) -> anyhow::Result<Evidence> {
        let context = || directory.display().to_string();
        std::fs::create_dir_all(directory).with_context(context)?;
        let probe = directory.join(format!(".memhook-rs.{}", std::process::id()));
        write_whole(&probe, &[]).with_context(context)?;
        std::fs::remove_file(&probe).with_context(context)?;
        let directory = directory.canonicalize().with_context(context)?;
        let (to, reports) = unbounded::<Written>();
        let mut shelf = Shelf {
            directory: directory.clone(),
            keep,
            exec,
            kept: VecDeque::new(),
            running: Vec::new(),
        };
        let writer = std::thread::Builder::new()
            .name("evidence".into())
            .spawn(move || {
                let mut is_whole = true;
                for report in reports {
                    if let Err(error) = shelf.put(&report) {
                        eprintln!(
                            "memhook-rs: a report could not be written: {}",
                            crate::remedies::in_words(error.as_ref())
                        );
                        is_whole = false;
                    }
                }
                for mut child in shelf.running {
                    let _ = child.wait();
                }
                is_whole
            })?;
        Ok(Evidence {
            directory,
            count: 0,
            to: Some(to),
            writer: Some(writer),
        })
    }

    /// Returns the directory of the reports.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Queues a report.
    pub fn keep(&mut self, report: &WatchReport) -> Place {
        self.count += 1;
        let place = Place(self.count);
        self.write(place, report, false);
        place
    }

    /// Queues a report that replaces an earlier one. The earlier report stays until the new one is
    /// written.
    pub fn replace(&mut self, place: Place, report: &WatchReport) {
        self.write(place, report, true);
    }

    fn write(&mut self, Place(number): Place, report: &WatchReport, is_again: bool) {
        let json = document(report, true, Style::default()).unwrap_or_default();
        let written = Written {
            pid: report.pid,
            name: format!("{}-{number:03}-{}", report.pid, report.reason),
            reason: report.reason,
            text: report.text(Style::default()),
            json: visible_json(&json).into_owned(),
            is_again,
        };
        if let Some(to) = &self.to {
            let _ = to.send(written);
        }
    }

    /// Waits until all reports are written and the commands that follow them have ended. Returns
    /// true if every report was written.
    pub fn finish(&mut self) -> bool {
        self.to = None;
        let writer = self.writer.take();
        writer.is_none_or(|writer| writer.join().unwrap_or(false))
    }
}

/// State of the writer.
struct Shelf {
    directory: PathBuf,
    keep: usize,
    exec: Option<String>,
    /// Reports written, the oldest first.
    kept: VecDeque<String>,
    running: Vec<Child>,
}

impl Shelf {
    fn put(&mut self, report: &Written) -> anyhow::Result<()> {
        let directory = self.directory.clone();
        let path = |name: &str, end: &str| directory.join(format!("{name}.{end}"));
        if report.is_again && !self.kept.contains(&report.name) {
            return Ok(()); // newer ones have taken its place
        }
        for (end, contents) in [("json", &report.json), ("txt", &report.text)] {
            let path = path(&report.name, end);
            write_whole(&path, contents.as_bytes()).with_context(|| path.display().to_string())?;
        }
        // Directory entries are synchronized, too.
        File::open(&directory)?.sync_all()?;
        if report.is_again {
            return Ok(());
        }
        let file = path(&report.name, "json");
        eprintln!("memhook-rs: wrote {}", visible(&file.to_string_lossy()));
        if report.reason != "end" {
            self.kept.push_back(report.name.clone());
        }
        while self.kept.len() > self.keep {
            let oldest = self.kept.pop_front().unwrap_or_default();
            for end in ["json", "txt"] {
                let _ = std::fs::remove_file(path(&oldest, end));
            }
        }
        self.running
            .retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_))));
        if let Some(command) = &self.exec {
            let child = Command::new("sh")
                .args(["-c", command])
                .env("MEMHOOK_REPORT", &file)
                .env("MEMHOOK_REASON", report.reason)
                .env("MEMHOOK_PID", report.pid.to_string())
                .stdin(Stdio::null())
                .spawn();
            self.running.push(child.context("sh")?);
        }
        Ok(())
    }
}

/// Writes a file whose name appears only once the file is completely on disk.
fn write_whole(path: &Path, contents: &[u8]) -> anyhow::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let beside = PathBuf::from(beside);
    let output = OutputFile::create(&beside, true)?;
    let mut file = output.keep()?;
    file.write_all(contents)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    Ok(())
}
