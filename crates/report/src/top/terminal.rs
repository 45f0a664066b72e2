//! The user's terminal, from the first drawn frame to the last.

use super::{Board, Reaction, draw};
use crate::charset::{put_in_ascii, terminal_has_utf8};
use crossbeam_channel::{Receiver, bounded};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, DisableMouseCapture, EnableMouseCapture, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, enable_raw_mode};
use std::io::{Result, stdout};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Maximum number of events that wait to be handled.
const BACKLOG: usize = 64;
/// Longest wait for an event.
const WAIT: Duration = Duration::from_millis(100);

/// The terminal, set up for drawing. Dropping this value restores the terminal's previous state.
pub struct Screen {
    terminal: DefaultTerminal,
    events: Receiver<Option<Event>>,
    keyboard: Arc<Keyboard>,
    has_mouse: bool,
    has_utf8: bool,
    /// True while the terminal is lent to another program, in its previous state.
    is_lent: bool,
}

impl Screen {
    /// Takes control of the terminal.
    ///
    /// # Errors
    /// Fails if the terminal cannot be used.
    pub fn open() -> Result<Screen> {
        let terminal = ratatui::try_init()?;
        let keyboard = Arc::new(Keyboard::default());
        let mut screen = Screen {
            terminal,
            events: listen(Arc::clone(&keyboard)),
            keyboard,
            has_mouse: false,
            has_utf8: terminal_has_utf8(),
            is_lent: false,
        };
        screen.switch_mouse();
        Ok(screen)
    }

    /// Captures the mouse, or returns it to the terminal, which then uses it to select text.
    fn switch_mouse(&mut self) {
        self.has_mouse = !self.has_mouse;
        self.set_mouse(self.has_mouse);
    }

    /// Switches the capture of the mouse. A terminal without a mouse ignores it.
    fn set_mouse(&self, is_ours: bool) {
        let _ = if is_ours {
            execute!(stdout(), EnableMouseCapture)
        } else {
            execute!(stdout(), DisableMouseCapture)
        };
    }

    /// Passes an event to the board, and handles the parts that concern the terminal.
    pub fn react(&mut self, board: &mut Board, event: &Event) -> Option<Reaction> {
        let reaction = board.react(event);
        if reaction != Some(Reaction::Mouse) {
            return reaction;
        }
        self.switch_mouse();
        board.message = (!self.has_mouse)
            .then(|| "The mouse selects text in the terminal; m brings it back".to_owned());
        Some(Reaction::Redraw)
    }

    /// Returns the channel of key presses, mouse events and resizes. A `None` means that the
    /// terminal is gone.
    pub fn events(&self) -> &Receiver<Option<Event>> {
        &self.events
    }

    /// Lends the terminal, in its previous state, to another program. Returns true once that
    /// program may begin: the thread that reads keys must first end its current wait. Until then,
    /// call this function again, and keep receiving events.
    pub fn lend(&mut self) -> bool {
        if self.keyboard.is_left() && !self.is_lent {
            self.set_mouse(false);
            let _ = ratatui::try_restore();
            self.is_lent = true;
        }
        self.is_lent
    }

    /// Takes the terminal back after the other program has ended.
    ///
    /// # Errors
    /// Fails if the terminal cannot be used.
    pub fn take_back(&mut self) -> Result<()> {
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen)?;
        self.set_mouse(self.has_mouse);
        self.is_lent = false;
        // Nothing of the last picture may remain.
        self.terminal.clear()?;
        self.keyboard.take();
        Ok(())
    }

    /// Draws the board, unless the terminal is lent.
    ///
    /// # Errors
    /// Fails if writing to the terminal fails.
    pub fn draw(&mut self, board: &mut Board) -> Result<()> {
        if self.is_lent {
            return Ok(());
        }
        let drawn = self.terminal.draw(|frame| {
            draw(frame, board);
            if !self.has_utf8 {
                put_in_ascii(frame.buffer_mut());
            }
        });
        drawn.map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // While the terminal is lent, it is already in the state that the other program needs, and
        // the caller waits for that program's end.
        if !self.is_lent {
            self.set_mouse(false);
            let _ = ratatui::try_restore();
        }
    }
}

/// Program that reads the keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reader {
    /// Our thread reads the keys.
    #[default]
    Ours,
    /// Our thread reads the keyboard, and has been asked to release it.
    Leaving,
    /// Another program reads the keys.
    Other,
}

/// The keyboard, which our thread releases to another program on request.
#[derive(Default)]
struct Keyboard {
    reader: Mutex<Reader>,
    is_taken: Condvar,
}

impl Keyboard {
    fn reader(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Asks our thread to release the keyboard. Returns true once it has done so.
    fn is_left(&self) -> bool {
        let mut reader = self.reader();
        if *reader == Reader::Ours {
            *reader = Reader::Leaving;
        }
        *reader == Reader::Other
    }

    fn take(&self) {
        *self.reader() = Reader::Ours;
        self.is_taken.notify_all();
    }

    /// Releases the keyboard if asked to, and returns when it is ours again.
    fn leave_if_asked(&self) {
        let mut reader = self.reader();
        if *reader == Reader::Leaving {
            *reader = Reader::Other;
        }
        while *reader == Reader::Other {
            let taken = self.is_taken.wait(reader);
            reader = taken.unwrap_or_else(|e| e.into_inner());
        }
    }
}

/// Reads events in a separate thread for as long as there is a receiver.
fn listen(keyboard: Arc<Keyboard>) -> Receiver<Option<Event>> {
    let (sender, events) = bounded(BACKLOG);
    std::thread::spawn(move || {
        loop {
            keyboard.leave_if_asked();
            let event = match event::poll(WAIT) {
                Ok(false) => continue,
                Ok(true) => event::read().ok(),
                Err(_) => None,
            };
            let is_over = event.is_none();
            if sender.send(event).is_err() || is_over {
                return;
            }
        }
    });
    events
}
