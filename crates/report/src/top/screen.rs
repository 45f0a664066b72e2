//! Draws the board.

use super::board::{Board, BoardRow, Sort};
use crate::{StackFrame, bytes, count, counted, frame_name, milliseconds};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Style, Stylize},
    text::{Line, Span},
    widgets::Paragraph,
};

/// Width of the little pictures of the past.
const PAST_WIDTH: usize = 16;
/// Rows of the large one.
const CHART_HEIGHT: u16 = 4;
const STEPS: [char; 9] = [
    ' ', '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}',
    '\u{2588}',
];

/// Columns: title, width, order.
const COLUMNS: [(&str, usize, Sort); 5] = [
    ("live", 10, Sort::Bytes),
    ("blocks", 10, Sort::Blocks),
    ("growth/s", 11, Sort::Growth),
    ("allocs/s", 10, Sort::Rate),
    ("oldest", 12, Sort::Age),
];

/// Draws everything.
pub fn draw(frame: &mut Frame, board: &mut Board) {
    let [head, chart, body, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(CHART_HEIGHT),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    header(frame, board, head);
    let of_one = board.drilled().map(|row| board.past(row.stack));
    let past = of_one.unwrap_or_else(|| board.all_past());
    frame.render_widget(Paragraph::new(picture(&past, chart)).fg(Color::Cyan), chart);
    board.set_height(usize::from(body.height.saturating_sub(1)));
    match board.drilled() {
        Some(row) => stack(frame, board, row, body),
        None => table(frame, board, body),
    }
    footer(frame, board, foot);
}

fn header(frame: &mut Frame, board: &Board, area: Rect) {
    let (growth, rate) = board.all_changes();
    let t = &board.totals;
    let mut first = vec![
        Span::from(format!("{} ({})", board.name, board.pid)).bold(),
        Span::from(format!(
            "  {}",
            milliseconds(board.elapsed().as_millis() as u64)
        )),
    ];
    if board.is_paused {
        first.push(Span::from("  PAUSED").fg(Color::Yellow).bold());
    }
    if board.lost_events > 0 {
        let lost = format!(
            "  {} lost: numbers are too low",
            counted(board.lost_events, "event")
        );
        first.push(Span::from(lost).fg(Color::Red));
    }
    let bounded = board.bounded.as_ref();
    let is_estimate = bounded.is_some_and(|bounded| bounded.is_thinned);
    if let Some(bounded) = bounded {
        let mut what = format!("  --max-memory {} reached", bytes(bounded.max_bytes));
        if is_estimate {
            let kept = count(bounded.kept_blocks);
            what += &format!(": live blocks estimated from {kept}");
        }
        if bounded.unattributed_allocations > 0 {
            let others = counted(bounded.unattributed_allocations, "allocation");
            what += &format!(", {others} without stack");
        }
        first.push(Span::from(what).fg(Color::Red));
    }
    let about = if is_estimate { "about " } else { "" };
    let second = Line::from(vec![
        Span::from(format!("{about}{}", bytes(t.live_bytes))).bold(),
        Span::from(format!(
            " live in {about}{}, peak {}, ",
            counted(t.live_blocks, "block"),
            bytes(t.peak_live_bytes)
        )),
        growth_span(growth, 0),
        Span::from(format!("/s, {} allocs/s", count(rate.round() as u64))),
    ]);
    frame.render_widget(Paragraph::new(vec![Line::from(first), second]), area);
}

fn footer(frame: &mut Frame, board: &Board, area: Rect) {
    let keys = if board.is_drilled {
        "Esc back  p pause  q quit"
    } else {
        "Up/Down select  Enter stack  b n g r a: sort by live, blocks, growth, rate, age  p pause  q quit"
    };
    frame.render_widget(Paragraph::new(keys).dim(), area);
}

fn growth_span(growth: f64, width: usize) -> Span<'static> {
    let text = crate::change(growth.round() as i64);
    let color = match growth.round() as i64 {
        1.. => Color::Red,
        0 => Color::Reset,
        _ => Color::Green,
    };
    Span::from(format!("{text:>width$}")).fg(color)
}

fn table(frame: &mut Frame, board: &Board, area: Rect) {
    let mut titles = Vec::new();
    for (title, width, sort) in COLUMNS {
        let mark = if sort == board.sort { "\u{25be}" } else { "" };
        let title = Span::from(format!("{:>width$} ", format!("{mark}{title}")));
        titles.push(if sort == board.sort {
            title.bold()
        } else {
            title.dim()
        });
    }
    titles.push(Span::from(format!("{:<PAST_WIDTH$} site", "past")).dim());
    let mut lines = vec![Line::from(titles)];
    let selected = board.selected();
    let shown = board
        .rows
        .iter()
        .enumerate()
        .skip(board.first)
        .take(board.height);
    for (at, row) in shown {
        let line = line(board, row);
        lines.push(if Some(at) == selected {
            line.style(Style::new().reversed())
        } else {
            line
        });
    }
    if board.rows.is_empty() {
        lines.push(Line::from("No block that was allocated since the attach is live.").dim());
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn line(board: &Board, row: &BoardRow) -> Line<'static> {
    let [live, blocks, growth, rate, oldest] = COLUMNS.map(|column| column.1);
    let age = row
        .oldest
        .map(|oldest| board.elapsed().saturating_sub(oldest));
    let age = age.map_or(String::new(), |age| milliseconds(age.as_millis() as u64));
    let name = match board.named(row.stack) {
        Some(named) => named.name.clone(),
        None => "...".into(),
    };
    Line::from(vec![
        Span::from(format!(
            "{:>live$} {:>blocks$} ",
            bytes(row.bytes),
            count(row.blocks)
        )),
        growth_span(row.growth, growth),
        Span::from(format!(
            " {:>rate$} {age:>oldest$} ",
            count(row.rate.round() as u64)
        )),
        Span::from(sparkline(&board.past(row.stack), PAST_WIDTH)).fg(Color::Cyan),
        Span::from(format!(" {name}")),
    ])
}

fn stack(frame: &mut Frame, board: &Board, row: &BoardRow, area: Rect) {
    let mut lines = Vec::new();
    let named = board.named(row.stack);
    let kind = named.map_or("...", |named| &named.kind);
    lines.push(Line::from(vec![
        Span::from(bytes(row.bytes)).bold(),
        Span::from(format!(" in {} by {kind}, ", counted(row.blocks, "block"))),
        growth_span(row.growth, 0),
        Span::from(format!("/s, {} allocs/s", count(row.rate.round() as u64))),
    ]));
    for frame in named.map_or(&[][..], |named| &named.frames) {
        lines.push(stack_line(frame));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn stack_line(frame: &StackFrame) -> Line<'static> {
    let place = match (&frame.file, frame.line) {
        (Some(file), Some(line)) => format!("  {file}:{line}"),
        (Some(file), None) => format!("  {file}"),
        _ => String::new(),
    };
    // Without a function, the name shows the module already.
    let module = frame.function.as_ref().and(frame.module.clone());
    let inlined = if frame.inlined { "  [inlined]" } else { "" };
    Line::from(vec![
        Span::from(format!("  {}", frame_name(frame))),
        Span::from(format!("  {}{place}{inlined}", module.unwrap_or_default())).dim(),
    ])
}

/// The newest values at the right, scaled to the highest.
fn sparkline(values: &[u64], width: usize) -> String {
    let newest = &values[values.len().saturating_sub(width)..];
    let most = newest.iter().copied().max().unwrap_or(0).max(1);
    let step = |value: &u64| match value {
        0 => STEPS[0],
        _ => STEPS[(u128::from(*value) * 8).div_ceil(u128::from(most)) as usize],
    };
    let drawn: String = newest.iter().map(step).collect();
    format!("{drawn:>width$}")
}

/// A sparkline that is several rows high.
fn picture(values: &[u64], area: Rect) -> Vec<Line<'static>> {
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let newest = &values[values.len().saturating_sub(width)..];
    let most = newest.iter().copied().max().unwrap_or(0).max(1);
    let levels = (height * 8) as u128;
    let row = |row: usize| {
        let below = ((height - 1 - row) * 8) as u128;
        let step = |value: &u64| {
            let level = (u128::from(*value) * levels).div_ceil(u128::from(most));
            STEPS[level.saturating_sub(below).min(8) as usize]
        };
        let drawn: String = newest.iter().map(step).collect();
        Line::from(format!("{drawn:>width$}"))
    };
    (0..height).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_of_the_past() {
        assert_eq!(sparkline(&[0, 1, 4, 8], 6), "   \u{2581}\u{2584}\u{2588}");
        assert_eq!(sparkline(&[9, 0, 0], 2), "  ");
        assert_eq!(sparkline(&[], 3), "   ");
        let lines = picture(&[8, 16], Rect::new(0, 0, 5, 2));
        let text: Vec<String> = lines.iter().map(|line| line.to_string()).collect();
        assert_eq!(text, ["    \u{2588}", "   \u{2588}\u{2588}"]);
    }
}
