//! Pictures of the history, made of block characters.

use ratatui::{layout::Rect, text::Line};

const STEPS: [char; 9] = [
    ' ', '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}',
    '\u{2588}',
];

/// Draws the newest values on the right, scaled to the highest value.
pub(super) fn sparkline(values: &[u64], width: usize) -> String {
    let newest = &values[values.len().saturating_sub(width)..];
    let most = newest.iter().copied().max().unwrap_or(0).max(1);
    let step = |value: &u64| match value {
        0 => STEPS[0],
        _ => STEPS[(u128::from(*value) * 8).div_ceil(u128::from(most)) as usize],
    };
    let drawn: String = newest.iter().map(step).collect();
    format!("{drawn:>width$}")
}

/// Draws a sparkline of several rows.
pub(super) fn chart(values: &[u64], area: Rect) -> Vec<Line<'static>> {
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
        let lines = chart(&[8, 16], Rect::new(0, 0, 5, 2));
        let text: Vec<String> = lines.iter().map(|line| line.to_string()).collect();
        assert_eq!(text, ["    \u{2588}", "   \u{2588}\u{2588}"]);
    }
}
