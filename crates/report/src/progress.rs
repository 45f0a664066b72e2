//! Progress display for long work.

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use memhook_recording::Meter;
use std::{
    io::IsTerminal,
    sync::Mutex,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread::JoinHandle,
    time::Duration,
};

/// Time before progress is shown.
const PATIENCE: Duration = Duration::from_secs(1);
/// Lock that allows only one progress line.
static SHOWN: Mutex<()> = Mutex::new(());
/// True if the user wants no progress display.
static IS_HIDDEN: AtomicBool = AtomicBool::new(false);
/// Time between two updates.
const TICK: Duration = Duration::from_millis(100);

/// A line that appears on the terminal if work takes longer than a second. Dropping this value
/// removes the line.
pub struct Progress {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Suppresses progress from now on.
    pub fn hide() {
        IS_HIDDEN.store(true, Relaxed);
    }

    /// Starts a line. Shows nothing unless standard error is a terminal.
    pub fn start(what: &'static str) -> Progress {
        Progress::show(move |bar| bar.set_message(what))
    }

    /// Shows the progress of reading a recording, and of waiting for its names.
    pub fn of_reading(meter: Meter) -> Progress {
        let reading = "{spinner} {msg} {wide_bar} {bytes}/{total_bytes} {elapsed}";
        let reading = ProgressStyle::with_template(reading).unwrap_or_else(|_| spinner());
        Progress::show(move |bar| match meter.position() {
            Some((position, bytes)) => {
                bar.set_style(reading.clone());
                bar.set_message("reading the recording");
                bar.set_length(bytes);
                bar.set_position(position);
            }
            None => {
                bar.set_style(spinner());
                bar.set_message("looking up names");
            }
        })
    }

    /// Shows a line during `work`.
    pub fn during<T>(what: &'static str, work: impl FnOnce() -> T) -> T {
        let _progress = Progress::start(what);
        work()
    }

    fn show(update: impl Fn(&ProgressBar) + Send + 'static) -> Progress {
        let (stop, stopped) = bounded::<()>(0);
        let show = move || {
            let wait = |time| stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout);
            if !wait(PATIENCE) {
                return;
            }
            // The processes of a program may end at the same time; one line is enough for all.
            let Ok(_only) = SHOWN.try_lock() else {
                return;
            };
            let bar = bar_on(ProgressDrawTarget::stderr());
            loop {
                update(&bar);
                bar.tick();
                if !wait(TICK) {
                    break;
                }
            }
            bar.finish_and_clear();
        };
        let thread = if std::io::stderr().is_terminal() && !IS_HIDDEN.load(Relaxed) {
            std::thread::Builder::new().spawn(show).ok()
        } else {
            None
        };
        Progress {
            stop: Some(stop),
            thread,
        }
    }
}

/// Returns the style of a line for work of unknown length.
fn spinner() -> ProgressStyle {
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
    style.unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// Creates a progress line that shows its message. The default style of a progress bar does not
/// show messages.
fn bar_on(target: ProgressDrawTarget) -> ProgressBar {
    ProgressBar::with_draw_target(None, target)
        .with_style(spinner())
        .with_elapsed(PATIENCE)
}

/// Removes the line.
impl Drop for Progress {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::TermLike;
    use std::io::Result;
    use std::sync::Arc;

    /// A terminal that keeps its contents.
    #[derive(Clone, Debug, Default)]
    struct Kept(Arc<Mutex<String>>);

    impl TermLike for Kept {
        fn width(&self) -> u16 {
            80
        }
        fn move_cursor_up(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> Result<()> {
            Ok(())
        }
        fn flush(&self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_shows_what_is_waited_for() {
        let terminal = Kept::default();
        let bar = bar_on(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        bar.set_message("looking up names");
        bar.tick();
        let shown = terminal.0.lock().unwrap().clone();
        assert!(shown.contains("looking up names "), "{shown:?}");
        assert!(!shown.contains('\u{2591}'), "{shown:?}");
    }
}
