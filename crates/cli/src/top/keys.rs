//! Keys and the mouse, read on a thread of its own.

use crossbeam_channel::{Receiver, bounded};
use ratatui::crossterm::event::{self, Event};
use std::time::Duration;

/// Events that wait to be acted on.
const BACKLOG: usize = 64;
/// How long one wait for an event takes.
const WAIT: Duration = Duration::from_millis(100);

/// Reads events until nobody listens any longer. `None`: the terminal has gone away.
pub fn listen() -> Receiver<Option<Event>> {
    let (events, keys) = bounded(BACKLOG);
    std::thread::spawn(move || {
        loop {
            let event = match event::poll(WAIT) {
                Ok(false) => continue,
                Ok(true) => event::read().ok(),
                Err(_) => None,
            };
            let is_over = event.is_none();
            if events.send(event).is_err() || is_over {
                return;
            }
        }
    });
    keys
}
