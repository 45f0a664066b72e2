//! Actions of keys and the mouse.

use super::rows::Sort;
use ratatui::crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEventKind,
};

/// Keys, in the words of the help.
pub(super) const HELP: [(&str, &str); 18] = [
    (
        "Up Down j k",
        "select a row; PgUp PgDn Home End: further away",
    ),
    ("Enter", "show the call stack of a site, or open a call"),
    ("Left Right", "close or open a call of the tree"),
    ("Esc Backspace", "leave a stack, a filter or the tree"),
    ("t", "tree of calls, or table of sites"),
    ("/", "show only what has this in a function, file or module"),
    ("s", "sort by the next column"),
    (
        "b n g r a u",
        "sort by bytes, blocks, growth, rate, age, --stale",
    ),
    (
        "growth/s allocs/s",
        "averages of the last 10 updates of the screen",
    ),
    (
        "u w b p ?",
        "beside a site: grows, levels off, bounded, peaked, unclear",
    ),
    ("p Space", "pause, and go on"),
    (
        "Tab Shift-Tab",
        "show the next or the previous process or heap",
    ),
    ("v", "open the source line of a site in your editor"),
    ("w", "write a report to a new file in this directory"),
    (
        "m",
        "leave the mouse to the terminal, to select text, or not",
    ),
    (
        "Mouse",
        "wheel, click: select a row; click a title: sort by it",
    ),
    ("? h", "show this help"),
    ("q Ctrl-C", "detach and quit"),
];
/// Number of rows per turn of the wheel.
const WHEEL: i64 = 3;

/// Action of an event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Action {
    Quit,
    Help,
    /// Write a report.
    Write,
    /// Open the source line of the selected row.
    Edit,
    /// Leave the mouse to the terminal, or capture it again.
    Mouse,
    /// Show the stack of the selected row, or, in the tree, the calls below the selected call.
    Enter,
    /// Show or hide the calls below a call.
    Open(bool),
    Back,
    Tree,
    Pause,
    /// Show the process this number of positions further down the list.
    Process(i32),
    SortBy(Sort),
    NextSort,
    /// Move by this number of rows.
    Move(i64),
    First,
    Last,
    /// Begin to type a filter.
    Filter,
    /// Change the filter that is being typed.
    Type(char),
    Rubout,
    EndFilter,
    /// Click at this column and row of the screen.
    Click(u16, u16),
}

/// Returns the action of an event. The action depends on whether the user is typing a filter.
pub(super) fn action(event: &Event, is_typing: bool) -> Option<Action> {
    match event {
        Event::Key(key) if key.kind == KeyEventKind::Release => None,
        Event::Key(_) if is_end(event) => Some(Action::Quit),
        Event::Key(key) if is_typing => typed(key.code),
        Event::Key(key) => pressed(key.code),
        Event::Mouse(mouse) => match mouse.kind {
            MouseEventKind::ScrollDown => Some(Action::Move(WHEEL)),
            MouseEventKind::ScrollUp => Some(Action::Move(-WHEEL)),
            MouseEventKind::Down(MouseButton::Left) => Some(Action::Click(mouse.column, mouse.row)),
            _ => None,
        },
        _ => None,
    }
}

/// Returns true if the key ends the program in every view.
pub(super) fn is_end(event: &Event) -> bool {
    let is_end = |key: &KeyEvent| {
        let is_letter = matches!(key.code, KeyCode::Char('c' | 'd'));
        key.modifiers.contains(KeyModifiers::CONTROL) && is_letter
    };
    matches!(event, Event::Key(key) if is_end(key))
}

fn typed(code: KeyCode) -> Option<Action> {
    Some(match code {
        KeyCode::Char(c) => Action::Type(c),
        KeyCode::Backspace => Action::Rubout,
        KeyCode::Enter => Action::EndFilter,
        KeyCode::Esc => Action::Back,
        KeyCode::Down => Action::Move(1),
        KeyCode::Up => Action::Move(-1),
        _ => return None,
    })
}

fn pressed(code: KeyCode) -> Option<Action> {
    Some(match code {
        KeyCode::Char('q') => Action::Quit,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => Action::Help,
        KeyCode::Char('/') => Action::Filter,
        KeyCode::Char('w') => Action::Write,
        KeyCode::Char('v') => Action::Edit,
        KeyCode::Char('m') => Action::Mouse,
        KeyCode::Char('t') => Action::Tree,
        KeyCode::Char('p' | ' ') => Action::Pause,
        KeyCode::Tab => Action::Process(1),
        KeyCode::BackTab => Action::Process(-1),
        KeyCode::Char('s') => Action::NextSort,
        KeyCode::Char('b') => Action::SortBy(Sort::Bytes),
        KeyCode::Char('n') => Action::SortBy(Sort::Blocks),
        KeyCode::Char('g') => Action::SortBy(Sort::Growth),
        KeyCode::Char('r') => Action::SortBy(Sort::Rate),
        KeyCode::Char('a') => Action::SortBy(Sort::Age),
        KeyCode::Char('u') => Action::SortBy(Sort::Stale),
        KeyCode::Char('j') | KeyCode::Down => Action::Move(1),
        KeyCode::Char('k') | KeyCode::Up => Action::Move(-1),
        KeyCode::PageDown => Action::Move(20),
        KeyCode::PageUp => Action::Move(-20),
        KeyCode::Home => Action::First,
        KeyCode::End => Action::Last,
        KeyCode::Left => Action::Open(false),
        KeyCode::Right => Action::Open(true),
        KeyCode::Enter => Action::Enter,
        KeyCode::Esc | KeyCode::Backspace => Action::Back,
        _ => return None,
    })
}
