//! Draws the board.

use super::board::Board;
use super::keys::HELP;
use super::layout::{Column, Places, Wanted};
use super::pictures::{chart, sparkline};
use super::rows::{Row, Sort, Subject};
use crate::apart::{KnownSite, Label, labels, least_columns};
use crate::claims::unwatched_libraries;
use crate::stacks::{INDENT, StackLine, fitted_lines, shortened};
use crate::{bytes, count, counted, milliseconds};
use ratatui::{
    Frame,
    style::{Color, Style, Stylize},
    text::{Line, Span},
    widgets::Paragraph,
};
use std::collections::HashMap;

/// Placeholder for names that have not arrived.
const UNKNOWN: &str = "...";

/// Draws everything.
pub fn draw(frame: &mut Frame, board: &mut Board) {
    let area = frame.area();
    let head = header(board, area.width);
    let lines = head.len() as u16;
    let mut wanted = Wanted {
        sort: board.sort,
        has_past: !board.is_tree,
        has_stale: board.has_stale(),
        sites: 0,
    };
    // The layout of the screen decides which rows are visible.
    board.set_places(Places::of(area, lines, wanted));
    let root = board.source_root();
    let style = crate::Style {
        root: &root,
        ..crate::Style::default()
    };
    let least = least_columns(&known_sites(board), style);
    wanted.sites = (least + letter_width(board)).try_into().unwrap_or(u16::MAX);
    board.set_places(Places::of(area, lines, wanted));
    let places = board.places.clone();
    frame.render_widget(Paragraph::new(head), places.head);
    let of_one = board.drilled().and_then(Row::stack);
    let past = of_one.map_or_else(
        || board.past().bytes(),
        |stack| board.past().bytes_of(stack),
    );
    let drawn = chart(&past, places.chart);
    // The help also uses the chart's space, because the help has as many lines as a small terminal.
    let body_at = if board.is_help_shown {
        places.chart.union(places.body)
    } else {
        frame.render_widget(Paragraph::new(drawn).fg(Color::Cyan), places.chart);
        places.body
    };
    let body = match board.drilled() {
        _ if board.is_help_shown => help(),
        Some(row) => stack(board, row, area.width, style),
        None => table(board, &places, style),
    };
    frame.render_widget(Paragraph::new(body), body_at);
    frame.render_widget(Paragraph::new(footer(board, area.width)), places.foot);
    if !board.has_color {
        for cell in &mut frame.buffer_mut().content {
            cell.set_style(Style::new().fg(Color::Reset).bg(Color::Reset));
        }
    }
}

/// Returns the first parts, as many as fit.
fn fitting(parts: Vec<Span<'static>>, width: u16) -> Line<'static> {
    let mut line = Line::default();
    for part in parts {
        if line.width() + part.width() > usize::from(width) && !line.spans.is_empty() {
            break;
        }
        line.push_span(part);
    }
    line
}

fn header(board: &Board, width: u16) -> Vec<Line<'static>> {
    let elapsed = milliseconds(board.elapsed().as_millis() as u64);
    let mut first = vec![Span::from(format!("{} ({})", board.name, board.pid)).bold()];
    if board.is_paused {
        first.push(Span::from("  PAUSED").fg(Color::Yellow).bold());
    }
    if board.has_ended {
        let ended = format!("  ENDED after {elapsed}, q to leave");
        first.push(Span::from(ended).fg(Color::Yellow).bold());
    } else {
        first.push(Span::from(format!("  {elapsed}")));
    }
    let among = board.among.as_ref();
    if let Some(among) = among.filter(|among| among.processes > 1) {
        let live = bytes(among.live_bytes);
        first.push(Span::from(format!(
            "  process {} of {}, {live} live in all",
            among.place, among.processes
        )));
        first.push(Span::from("  Tab next").dim());
    }
    if let Some((place, heaps)) = board.heap {
        first.push(Span::from(format!("  heap {place} of {heaps}")));
        first.push(Span::from("  Tab next").dim());
    }
    let mut lines = vec![fitting(first, width)];
    if let Some(unseen) = board.unseen {
        let before = milliseconds(unseen.as_millis() as u64);
        let what =
            format!("seen from {before} after it began: what it allocated before is not counted");
        lines.push(Line::from(what).dim());
    }
    let bounded = board.latest.bounded.as_ref();
    let is_thinned = bounded.is_some_and(|bounded| bounded.is_thinned);
    let is_estimate = is_thinned || board.latest.is_sampled;
    let about = if is_estimate { "about " } else { "" };
    let (growth, rate) = board.past().changes();
    let t = &board.latest.totals;
    lines.push(fitting(
        vec![
            Span::from(format!("{about}{} live", bytes(t.live_bytes))).bold(),
            Span::from(format!(" in {about}{}", counted(t.live_blocks, "block"))),
            Span::from(", "),
            change(growth, 0),
            Span::from(
                match milliseconds(board.past().averaged().as_millis() as u64) {
                    _ if board.past().averaged().is_zero() => "/s".to_owned(),
                    time => format!("/s over {time}"),
                },
            ),
            Span::from(match t.peak_live_bytes {
                0 if board.latest.is_sampled => String::new(),
                peak => format!(", peak {}", bytes(peak)),
            }),
            Span::from(format!(", {} allocs/s", count(rate.round() as u64))),
        ],
        width,
    ));
    lines.extend(resident(board, width));
    if let Some(overhead) = &board.latest.overhead {
        lines.push(Line::from(overhead.in_words()).dim());
    }
    // Faults of the numbers have separate lines.
    if board.latest.lost_events > 0 {
        let lost = counted(board.latest.lost_events, "event");
        let warning = format!("{lost} lost: numbers are too low");
        lines.push(Line::from(warning).fg(Color::Red).bold());
    }
    if let Some(warning) = unwatched_libraries(board.latest.unwatched_libraries) {
        lines.push(Line::from(warning).fg(Color::Red).bold());
    }
    if let Some(bounded) = bounded {
        let mut what = format!("--max-memory {} reached", bytes(bounded.max_bytes));
        if is_thinned {
            let kept = count(bounded.kept_blocks);
            what += &format!(": live blocks estimated from {kept}");
        }
        if bounded.unattributed_allocations > 0 {
            let others = counted(bounded.unattributed_allocations, "allocation");
            what += &format!(", {others} without stack");
        }
        lines.push(Line::from(what).fg(Color::Red).bold());
    }
    lines
}

/// Describes the resident memory by as many of its largest parts as fit.
fn resident(board: &Board, width: u16) -> Option<Line<'static>> {
    let found = board.latest.resident.as_ref()?;
    let mut parts: Vec<&(String, u64)> = found.parts.iter().filter(|part| part.1 > 0).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.1));
    let mut spans = vec![Span::from(format!("{} resident", bytes(found.rss_bytes)))];
    for (at, (name, amount)) in parts.into_iter().enumerate() {
        let before = if at == 0 { ":" } else { "," };
        spans.push(Span::from(format!("{before} {} {name}", bytes(*amount))).dim());
    }
    Some(fitting(spans, width))
}

fn footer(board: &Board, width: u16) -> Line<'static> {
    let keys: &[&'static str] = if let Some(message) = &board.message {
        return Line::from(message.clone()).bold();
    } else if board.is_typing {
        return Line::from(format!("/{}\u{2588}  Enter keep  Esc clear", board.filter));
    } else if board.is_help_shown {
        &["any key: back"]
    } else if board.is_drilled {
        &[
            "Esc back",
            "  q quit",
            "  Up/Down next site",
            "  p pause",
            "  w write report",
            "  v source",
            "  m mouse",
        ]
    } else if board.is_tree {
        &[
            "? help",
            "  q quit",
            "  Enter open",
            "  t sites",
            "  / filter",
            "  s sort",
            "  p pause",
            "  w write report",
            "  v source",
            "  m mouse",
        ]
    } else {
        &[
            "? help",
            "  q quit",
            "  Enter stack",
            "  t tree",
            "  / filter",
            "  s sort",
            "  p pause",
            "  w write report",
            "  v source",
            "  m mouse",
        ]
    };
    let mut keys = fitting(keys.iter().map(|key| Span::from(*key)).collect(), width);
    if !board.filter.is_empty() {
        keys.spans.insert(
            0,
            Span::from(format!("/{} (Esc clears)  ", board.filter)).bold(),
        );
    }
    keys.dim()
}

/// Draws a change in bytes per second.
fn change(growth: f64, width: usize) -> Span<'static> {
    let text = crate::change(growth.round() as i64);
    let color = match growth.round() as i64 {
        1.. => Color::Red,
        0 => Color::Reset,
        _ => Color::Green,
    };
    Span::from(format!("{text:>width$}")).fg(color)
}

fn help() -> Vec<Line<'static>> {
    let width = HELP.iter().map(|(keys, _)| keys.len()).max().unwrap_or(0);
    let line = |(keys, what): &(&'static str, &'static str)| {
        let keys = Span::from(format!("  {keys:<width$}  ")).bold();
        Line::from(vec![keys, Span::from(*what)])
    };
    let title = Line::from("Keys").bold();
    std::iter::once(title)
        .chain(HELP.iter().map(line))
        .collect()
}

fn table(board: &Board, places: &Places, style: crate::Style) -> Vec<Line<'static>> {
    let mut lines = vec![titles(board, &places.columns)];
    let taken: u16 = places.columns.iter().map(|column| column.width + 1).sum();
    let room = usize::from(places.body.width.saturating_sub(taken));
    let room = room.saturating_sub(letter_width(board));
    let known = known_sites(board);
    let stacks = known.iter().map(|site| site.stack);
    let names = stacks.zip(labels(&known, room, style)).collect();
    let selected = board.selected();
    for (at, row) in board.visible() {
        let line = line(board, row, places, (&names, room));
        lines.push(if Some(at) == selected {
            line.style(Style::new().reversed())
        } else {
            line
        });
    }
    if board.rows().is_empty() {
        let why = if board.is_empty() {
            "No block that was allocated since the attach is live."
        } else if board.filter.is_empty() {
            "The names are being looked up."
        } else {
            "No function, file or module matches the filter."
        };
        lines.push(Line::from(why).dim());
    }
    lines
}

/// Returns the width of the column before a site's name, which shows the letter for its course.
fn letter_width(board: &Board) -> usize {
    match board.past().has_letters() && !board.is_tree {
        true => 2,
        false => 0,
    }
}

fn titles(board: &Board, columns: &[Column]) -> Line<'static> {
    let title = |column: &Column| {
        let width = usize::from(column.width);
        match column.sort {
            None => Span::from(format!("{:<width$} ", column.title)).dim(),
            Some(sort) if sort == board.sort => {
                Span::from(format!("{:>width$} ", format!("\u{25be}{}", column.title))).bold()
            }
            Some(_) => Span::from(format!("{:>width$} ", column.title)).dim(),
        }
    };
    let mut titles: Vec<Span> = columns.iter().map(title).collect();
    let mut title = if board.is_tree { "calls" } else { "site" }.to_owned();
    if let Some(sites) = board.looked_at() {
        title += &format!(" (of the {} largest)", count(sites as u64));
    }
    titles.push(Span::from(" ".repeat(letter_width(board)) + &title).dim());
    Line::from(titles)
}

/// Returns the sites on the screen whose names have arrived.
fn known_sites(board: &Board) -> Vec<KnownSite<'_>> {
    let stacks = board.visible().filter_map(|(_, row)| row.stack());
    let known = |stack| {
        let named = board.named(stack)?;
        Some(KnownSite {
            stack,
            kind: &named.kind,
            frames: &named.frames,
        })
    };
    stacks.filter_map(known).collect()
}

fn line(
    board: &Board,
    row: &Row,
    places: &Places,
    (names, room): (&HashMap<u32, Label>, usize),
) -> Line<'static> {
    let numbers = &row.numbers;
    let mut spans = Vec::new();
    for column in &places.columns {
        let width = usize::from(column.width);
        let text = match column.sort {
            Some(Sort::Bytes) => bytes(numbers.bytes),
            Some(Sort::Stale) => bytes(numbers.stale),
            Some(Sort::Blocks) => count(numbers.blocks),
            Some(Sort::Rate) => count(numbers.rate.round() as u64),
            Some(Sort::Age) => numbers.oldest.map_or(String::new(), |oldest| {
                let age = board.elapsed().saturating_sub(oldest);
                milliseconds(age.as_millis() as u64)
            }),
            Some(Sort::Growth) => {
                spans.push(change(numbers.growth, width));
                spans.push(Span::from(" "));
                continue;
            }
            None => {
                let past = row.stack().map(|stack| board.past().bytes_of(stack));
                let drawn = sparkline(&past.unwrap_or_default(), width);
                spans.push(Span::from(drawn + " ").fg(Color::Cyan));
                continue;
            }
        };
        spans.push(Span::from(format!("{text:>width$} ")));
    }
    if let Some(stack) = row.stack().filter(|_| letter_width(board) > 0) {
        let letter = board.past().letter_of(stack);
        let text = Span::from(format!("{letter} "));
        spans.push(if letter == 'u' {
            text.bold()
        } else {
            text.dim()
        });
    }
    let name = match &row.subject {
        Subject::Site(stack) => match names.get(stack).cloned() {
            Some(label) => {
                spans.push(Span::from(label.name));
                if !label.place.is_empty() {
                    spans.push(Span::from(format!("  {}", label.place)).fg(Color::Cyan));
                }
                spans.push(Span::from(label.callers).dim());
                return Line::from(spans);
            }
            None => UNKNOWN.to_owned(),
        },
        Subject::Call {
            name,
            depth,
            is_open,
        } => {
            let mark = match is_open {
                Some(true) => "\u{25be}",
                Some(false) => "\u{25b8}",
                None => " ",
            };
            let name = shortened(name.clone(), room.saturating_sub(depth + 2));
            format!("{:indent$}{mark} {name}", "", indent = *depth)
        }
    };
    spans.push(Span::from(name));
    Line::from(spans)
}

fn stack(board: &Board, row: &Row, width: u16, style: crate::Style) -> Vec<Line<'static>> {
    let numbers = &row.numbers;
    let named = row.stack().and_then(|stack| board.named(stack));
    let kind = named.map_or(UNKNOWN, |named| &named.kind);
    let mut lines = vec![Line::from(vec![
        Span::from(bytes(numbers.bytes)).bold(),
        Span::from(format!(
            " in {} by {kind}, ",
            counted(numbers.blocks, "block")
        )),
        change(numbers.growth, 0),
        Span::from(format!(
            "/s, {} allocs/s",
            count(numbers.rate.round() as u64)
        )),
    ])];
    let frames = named.map_or(&[][..], |named| &named.frames);
    let style = crate::Style {
        // The lines of a report begin further to the right.
        width: Some(usize::from(width) + INDENT - 2),
        ..style
    };
    lines.extend(fitted_lines(frames, style).into_iter().map(stack_line));
    lines
}

fn stack_line(frame: StackLine) -> Line<'static> {
    let rest = [frame.module, frame.place].into_iter();
    let rest: String = rest
        .filter(|text| !text.is_empty())
        .map(|text| format!("  {text}"))
        .collect();
    let name = Span::from(format!("  {}", frame.name));
    Line::from(vec![
        if frame.is_faint { name.dim() } else { name },
        Span::from(rest + &frame.note).dim(),
    ])
}
