//! Layout of the screen: the columns that fit, and the row or title under the mouse.

use super::rows::Sort;
use ratatui::layout::{Constraint, Layout, Rect};

/// Height of the graph of the heap's history, if the screen has room for it.
const CHART_HEIGHT: u16 = 4;
/// Number of lines below which a screen has no picture.
const HIGH_ENOUGH: u16 = 16;
/// Columns reserved for the sites, or half of the width if that is less.
const ENOUGH_FOR_SITES: u16 = 60;

/// A column to the left of the site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub title: &'static str,
    pub width: u16,
    /// Sort order that a click on the column selects; `None` for the graph of the history.
    pub sort: Option<Sort>,
    /// Priority for removal if the screen is narrow. Columns with the highest numbers are removed
    /// first.
    goes: u8,
}

const COLUMNS: [Column; 7] = [
    column("live", 10, Some(Sort::Bytes), 0),
    column("stale", 10, Some(Sort::Stale), 1),
    column("blocks", 10, Some(Sort::Blocks), 3),
    column("growth/s", 11, Some(Sort::Growth), 2),
    column("allocs/s", 10, Some(Sort::Rate), 4),
    column("oldest", 12, Some(Sort::Age), 5),
    column("past", 16, None, 6),
];

const fn column(title: &'static str, width: u16, sort: Option<Sort>, goes: u8) -> Column {
    Column {
        title,
        width,
        sort,
        goes,
    }
}

/// Facts that decide which columns are shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub sort: Sort,
    pub has_past: bool,
    pub has_stale: bool,
    /// Fewest columns that the sites on the screen need.
    pub sites: u16,
}

/// Returns the columns that fit, in their order, including the column by which the rows are sorted.
pub(super) fn columns(width: u16, wanted: Wanted) -> Vec<Column> {
    let Wanted {
        sort,
        has_past,
        has_stale,
        sites,
    } = wanted;
    let for_sites = (width / 2).min(ENOUGH_FOR_SITES).max(sites);
    let room = width.saturating_sub(for_sites);
    let mut by_weight = COLUMNS.to_vec();
    by_weight.retain(|column| match column.sort {
        None => has_past,
        Some(Sort::Stale) => has_stale,
        Some(_) => true,
    });
    by_weight.sort_by_key(|column| (column.sort != Some(sort), column.goes));
    let mut taken = 0;
    let mut shown = Vec::new();
    for column in by_weight {
        taken += column.width + 1;
        if taken > room && !shown.is_empty() {
            break;
        }
        shown.push(column);
    }
    COLUMNS
        .into_iter()
        .filter(|column| shown.contains(column))
        .collect()
}

/// Parts of the screen.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    pub head: Rect,
    pub chart: Rect,
    pub body: Rect,
    pub foot: Rect,
    pub columns: Vec<Column>,
}

impl Places {
    /// Lays out a screen with `head_lines` lines at its top.
    pub fn of(area: Rect, head_lines: u16, wanted: Wanted) -> Places {
        let chart_height = if area.height < HIGH_ENOUGH {
            0
        } else {
            CHART_HEIGHT
        };
        let [head, chart, body, foot] = Layout::vertical([
            Constraint::Length(head_lines),
            Constraint::Length(chart_height),
            Constraint::Min(1),
            Constraint::Length(1),
        ])
        .areas(area);
        Places {
            head,
            chart,
            body,
            foot,
            columns: columns(area.width, wanted),
        }
    }

    /// Number of rows that fit below the titles.
    pub fn rows(&self) -> usize {
        usize::from(self.body.height.saturating_sub(1))
    }

    /// Returns the index of the row on this line of the screen.
    pub fn row_at(&self, line: u16) -> Option<usize> {
        let at = line.checked_sub(self.body.y)?.checked_sub(1)?;
        (line < self.body.bottom()).then_some(usize::from(at))
    }

    /// Returns the sort order of the column whose title is at this position.
    pub fn sort_at(&self, column: u16, line: u16) -> Option<Sort> {
        let mut end = 0;
        let at = self.columns.iter().find(|c| {
            end += c.width + 1;
            column < end
        });
        at.filter(|_| line == self.body.y)?.sort
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(sort: Sort) -> Wanted {
        Wanted {
            sort,
            has_past: true,
            has_stale: false,
            sites: 0,
        }
    }

    fn titles(width: u16, sort: Sort) -> Vec<&'static str> {
        let columns = columns(width, wanted(sort));
        columns.iter().map(|column| column.title).collect()
    }

    #[test]
    fn the_site_is_the_last_to_go() {
        assert_eq!(titles(200, Sort::Bytes).len(), 6);
        assert_eq!(titles(80, Sort::Bytes), ["live", "blocks", "growth/s"]);
        assert_eq!(titles(60, Sort::Bytes), ["live", "growth/s"]);
        assert_eq!(titles(60, Sort::Age), ["live", "oldest"]);
        assert_eq!(titles(20, Sort::Rate), ["allocs/s"]);
        let with_stale = Wanted {
            has_stale: true,
            ..wanted(Sort::Bytes)
        };
        let with_stale = columns(80, with_stale);
        let with_stale = with_stale.iter().map(|column| column.title);
        assert!(with_stale.eq(["live", "stale", "growth/s"]));
        for width in 22..300 {
            let taken = columns(width, wanted(Sort::Age));
            let taken: u16 = taken.iter().map(|column| column.width + 1).sum();
            let left = width.saturating_sub(taken);
            assert!(
                left >= (width / 2).min(ENOUGH_FOR_SITES) || taken == 13,
                "{width}"
            );
        }
        // Columns of numbers are dropped before a site loses its line number.
        for (sites, expected) in [(46, 3), (50, 2), (60, 1), (90, 1)] {
            let wanted = Wanted {
                sites,
                ..wanted(Sort::Bytes)
            };
            assert_eq!(columns(80, wanted).len(), expected, "{sites}");
        }
    }

    #[test]
    fn what_is_under_the_mouse() {
        let places = Places::of(Rect::new(0, 0, 80, 24), 2, wanted(Sort::Bytes));
        assert_eq!(places.body.y, 6);
        assert_eq!(places.rows(), 16);
        assert_eq!(places.sort_at(5, 6), Some(Sort::Bytes));
        assert_eq!(places.sort_at(11, 6), Some(Sort::Blocks));
        assert_eq!(places.sort_at(60, 6), None, "the site");
        assert_eq!(places.sort_at(5, 7), None, "a row");
        assert_eq!(places.row_at(7), Some(0));
        assert_eq!(places.row_at(22), Some(15));
        assert_eq!((places.row_at(6), places.row_at(23)), (None, None));
    }
}
