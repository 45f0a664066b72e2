//! Keys and what they mean.

use crossbeam_channel::{Receiver, bounded};
use memhook_report::top::{Action, Sort};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::time::Duration;

/// Keys that wait to be acted on.
const BACKLOG: usize = 64;
/// How long one wait for a key takes. Between two, the thread looks whether it is still listened to.
const WAIT: Duration = Duration::from_millis(100);

/// Reads keys on a thread of its own until nobody listens any longer.
pub fn listen() -> Receiver<Action> {
    let (actions, keys) = bounded(BACKLOG);
    std::thread::spawn(move || {
        loop {
            let found = match event::poll(WAIT) {
                Ok(false) => Some(None),
                Ok(true) => event::read().ok().map(|event| action(&event)),
                Err(_) => None,
            };
            let is_over = found.is_none();
            if let Some(action) = found.unwrap_or(Some(Action::TerminalGone))
                && actions.send(action).is_err()
            {
                return;
            }
            if is_over {
                return;
            }
        }
    });
    keys
}

fn action(event: &Event) -> Option<Action> {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => of_key(key),
        Event::Resize(..) => Some(Action::Redraw),
        _ => None,
    }
}

fn of_key(key: &KeyEvent) -> Option<Action> {
    let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c' | 'd') if is_control => Action::Quit,
        KeyCode::Char('q') => Action::Quit,
        KeyCode::Char('p' | ' ') => Action::Pause,
        KeyCode::Char('s') => Action::NextSort,
        KeyCode::Char('b') => Action::SortBy(Sort::Bytes),
        KeyCode::Char('n') => Action::SortBy(Sort::Blocks),
        KeyCode::Char('g') => Action::SortBy(Sort::Growth),
        KeyCode::Char('r') => Action::SortBy(Sort::Rate),
        KeyCode::Char('a') => Action::SortBy(Sort::Age),
        KeyCode::Char('j') | KeyCode::Down => Action::Move(1),
        KeyCode::Char('k') | KeyCode::Up => Action::Move(-1),
        KeyCode::PageDown => Action::Move(20),
        KeyCode::PageUp => Action::Move(-20),
        KeyCode::Home => Action::First,
        KeyCode::End => Action::Last,
        KeyCode::Enter => Action::Drill,
        KeyCode::Esc | KeyCode::Backspace => Action::Back,
        _ => return None,
    })
}
