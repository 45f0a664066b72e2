//! The table of rows other than sites: functions, modules, threads, sizes.

use crate::names::{readable, without_parameters};
use crate::places::place_of;
use crate::stacks::{SHORTEST_NAME, name_of, shortened};
use crate::text::{is_live, more, nothing};
use crate::units::{bytes, change, count, duration, error_text, milliseconds, percent};
use crate::wrap::columns;
use crate::{GroupRow, ReportModel, Style};
use memhook_foreign::visible;
use std::fmt::{Result, Write};

/// Width below which a table omits its least important columns.
const WIDE_ENOUGH: usize = 100;
/// Width in characters that a narrow table gives to a function's name before it adds other columns.
const ENOUGH_FOR_NAMES: usize = 40;

pub(crate) fn groups(out: &mut String, model: &ReportModel, style: Style) -> Result {
    if model.by == "site" {
        return Ok(());
    }
    if model.groups.is_empty() {
        return writeln!(out, "\n{}", nothing(model));
    }
    let (groups, more_rows) = match &model.folded {
        Some(folded) => (&folded.groups, folded.more_rows),
        None => (&model.groups, model.more_rows),
    };
    let inclusive = matches!(model.by, "frame" | "function");
    let released = groups.iter().any(|g| g.released_blocks > 0);
    let is_estimate = groups.iter().any(|g| g.error_bytes.is_some());
    // Names matter more on a narrow terminal.
    let is_narrow = style.width.is_some_and(|width| width < WIDE_ENOUGH);
    let has_past = is_live(model) && !is_narrow;
    let mut header = format!("\n{:>10} ", "bytes");
    if is_estimate {
        header += &format!("{:>13} ", "± error");
    }
    // The column has the same heading on the page.
    let share = format!("% of {}", model.measured.measure);
    let share_columns = share.len().max(7);
    header += &format!("{share:>share_columns$} ");
    // The number of blocks is dropped last.
    let names = groups.iter().map(|group| {
        let name = group.frame.as_ref().map(|frame| name_of(frame, style));
        let name = name.unwrap_or_else(|| readable(&group.name));
        columns(without_parameters(&name))
    });
    let wanted = names.max().unwrap_or(0).min(ENOUGH_FOR_NAMES);
    let fits = |header: &String, more: usize| {
        let taken = columns(header) + more + 1;
        style.width.is_none_or(|width| width >= taken + wanted)
    };
    let has_itself = inclusive && fits(&header, 12 + 11);
    if has_itself {
        header += &format!("{:>11} ", "itself");
    }
    let has_blocks = has_past || released || fits(&header, 11);
    if has_blocks {
        header += &format!("{:>11}", "blocks");
    }
    if has_past {
        header += &format!(" {:>11} {:>12}", "growth", "oldest");
    }
    let unreachable = groups
        .iter()
        .any(|g| g.unreachable_bytes.is_some_and(|bytes| bytes > 0));
    let has_unreachable = unreachable && fits(&header, 12);
    if has_unreachable {
        header += &format!(" {:>11}", "unreachable");
    }
    let is_timed = groups.iter().any(|g| g.allocator_time.is_some());
    let has_time = is_timed && fits(&header, 24);
    if has_time {
        header += &format!(" {:>11} {:>11}", "allocator", "± error");
    }
    if released {
        header += &format!(" {:>11} {:>11}", "released", "blocks");
    }
    writeln!(out, "{}", style.faint(&format!("{header}  {}", model.by)))?;
    // The header follows the line break of the previous line, and is followed by two spaces.
    let room = style
        .width
        .map(|width| width.saturating_sub(header.len() + 1));
    for g in groups {
        let total = style.number(&format!("{:>10}", bytes(g.bytes)));
        let share = percent(g.bytes, model.bytes_of_heap(g.heap.as_deref()));
        write!(out, "{total} ")?;
        if is_estimate {
            let error = g
                .error_bytes
                .map_or(String::new(), |error| error_text(g.bytes, error));
            write!(out, "{error:>13} ")?;
        }
        write!(out, "{:>share_columns$} ", format!("{share:.1}%"))?;
        if has_itself {
            write!(out, "{:>11} ", bytes(g.self_bytes))?;
        }
        let (growth, oldest) = (change(g.growth_bytes), milliseconds(g.oldest_ms));
        if has_blocks {
            write!(out, "{:>11}", count(g.blocks))?;
        }
        if has_past {
            write!(out, " {growth:>11} {oldest:>12}")?;
        }
        if has_unreachable {
            write!(out, " {:>11}", bytes(g.unreachable_bytes.unwrap_or(0)))?;
        }
        if has_time {
            let time = |ns: u64| duration(ns as f64 / 1e9);
            let (time, error) = g.allocator_time.map_or_else(Default::default, |taken| {
                (time(taken.ns), time(taken.error_ns))
            });
            write!(out, " {time:>11} {error:>11}")?;
        }
        if released {
            let (total, blocks) = (bytes(g.released_bytes), count(g.released_blocks));
            write!(out, " {total:>11} {blocks:>11}")?;
        }
        writeln!(out, "  {}", group_name(g, room, style))?;
    }
    if inclusive {
        let note = "a block counts in each row that its stack contains, so the rows add up to more than 100 %";
        writeln!(out, "{}", style.faint(note))?;
    }
    more(out, more_rows, "row")
}

/// Returns the name of a group, in at most `room` columns if there is a limit.
fn group_name(group: &GroupRow, room: Option<usize>, style: Style) -> String {
    let cut = |name: String| match room {
        Some(room) if !style.verbose => shortened(name, room.max(SHORTEST_NAME)),
        _ => name,
    };
    let Some(frame) = &group.frame else {
        let name = readable(&group.name);
        return style.name(&visible(&cut(name)));
    };
    let mut name = style.name(&cut(name_of(frame, style)));
    if room.is_some_and(|room| room < WIDE_ENOUGH / 2) {
        return name;
    }
    let place = place_of(frame, style);
    if !place.is_empty() {
        name += &style.faint(&format!(" at {place}"));
    }
    if let (Some(_), Some(module)) = (&frame.function, &frame.module) {
        // Without line numbers, two calls in one function look alike.
        let offset = match (&frame.file, &frame.offset) {
            (None, Some(offset)) => format!("+{offset}"),
            _ => String::new(),
        };
        name += &style.faint(&visible(&format!(" ({module}{offset})")));
    }
    name
}
