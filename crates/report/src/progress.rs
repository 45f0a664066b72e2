//! What the user sees while something takes its time.

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use memhook_recording::Meter;
use std::{io::IsTerminal, sync::Mutex, thread::JoinHandle, time::Duration};

/// What takes less long shows nothing.
const PATIENCE: Duration = Duration::from_secs(1);
/// Held by whoever shows something.
static SHOWN: Mutex<()> = Mutex::new(());
/// Between two pictures.
const TICK: Duration = Duration::from_millis(100);

/// A line on the terminal while something takes longer than a second. It goes away with this.
pub struct Progress {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Begins. Nothing is shown where standard error is no terminal.
    pub fn start(what: &'static str) -> Progress {
        Progress::show(move |bar| bar.set_message(what))
    }

    /// Follows a recording that is read, and the wait for its names.
    pub fn of_reading(meter: Meter) -> Progress {
        let waiting = ProgressStyle::default_spinner();
        let reading = "{spinner} {msg} {wide_bar} {bytes}/{total_bytes} {elapsed}";
        let reading = ProgressStyle::with_template(reading).unwrap_or_else(|_| waiting.clone());
        Progress::show(move |bar| match meter.position() {
            Some((position, bytes)) => {
                bar.set_style(reading.clone());
                bar.set_message("reading the recording");
                bar.set_length(bytes);
                bar.set_position(position);
            }
            None => {
                bar.set_style(waiting.clone());
                bar.set_message("looking up names");
            }
        })
    }

    /// Shows a line while `work` is done.
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
            // The processes of a program may end together: one line is enough.
            let Ok(_only) = SHOWN.try_lock() else {
                return;
            };
            let target = ProgressDrawTarget::stderr();
            let bar = ProgressBar::with_draw_target(None, target).with_elapsed(PATIENCE);
            loop {
                update(&bar);
                bar.tick();
                if !wait(TICK) {
                    break;
                }
            }
            bar.finish_and_clear();
        };
        let thread = if std::io::stderr().is_terminal() {
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

/// Takes the line away.
impl Drop for Progress {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
