//! The terminal of the user, from the first picture to the last.

use super::{Board, Reaction, draw};
use crossbeam_channel::{Receiver, bounded};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, DisableMouseCapture, EnableMouseCapture, Event};
use ratatui::crossterm::execute;
use std::io::{Result, stdout};
use std::time::Duration;

/// Events that wait to be acted on.
const BACKLOG: usize = 64;
/// How long one wait for an event takes.
const WAIT: Duration = Duration::from_millis(100);

/// The terminal, in a state where programs draw. Dropping it puts it back.
pub struct Screen {
    terminal: DefaultTerminal,
    events: Receiver<Option<Event>>,
    has_mouse: bool,
}

impl Screen {
    /// Takes the terminal.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn open() -> Result<Screen> {
        let terminal = ratatui::try_init()?;
        let mut screen = Screen {
            terminal,
            events: listen(),
            has_mouse: false,
        };
        screen.switch_mouse();
        Ok(screen)
    }

    /// Takes the mouse, or gives it back to the terminal, which then selects text with it. A terminal without a mouse
    /// takes no notice.
    fn switch_mouse(&mut self) {
        self.has_mouse = !self.has_mouse;
        let _ = if self.has_mouse {
            execute!(stdout(), EnableMouseCapture)
        } else {
            execute!(stdout(), DisableMouseCapture)
        };
    }

    /// Has the board react to an event, and does itself what concerns the terminal.
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

    /// Keys, the mouse and changes of the size. `None`: the terminal has gone away.
    pub fn events(&self) -> &Receiver<Option<Event>> {
        &self.events
    }

    /// Draws the board.
    ///
    /// # Errors
    /// When the terminal cannot be written.
    pub fn draw(&mut self, board: &mut Board) -> Result<()> {
        self.terminal.draw(|frame| draw(frame, board)).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = execute!(stdout(), DisableMouseCapture);
        let _ = ratatui::try_restore();
    }
}

/// Reads events on a thread of its own until nobody listens any longer.
fn listen() -> Receiver<Option<Event>> {
    let (sender, events) = bounded(BACKLOG);
    std::thread::spawn(move || {
        loop {
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
