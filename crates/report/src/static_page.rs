//! A page without a script: text, tables and curves, for documents that are read once and sent on.

use crate::labels::one_line;
use crate::units::bytes;
use std::fmt::Write;

const COLORS: &str = include_str!("view/colors.css");
const STYLE: &str = include_str!("static_page.css");
/// Width and height of a picture, in its own units.
const SIZE: (f64, f64) = (1060.0, 380.0);
const MARGINS: (f64, f64) = (80.0, 34.0);
/// Number of colours of curves. Further curves are dashed.
const COLOR_COUNT: usize = 7;

/// A line over time.
pub struct Curve {
    /// Name of the curve.
    pub name: String,
    /// Nanoseconds and bytes, in chronological order.
    pub points: Vec<(u64, u64)>,
}

/// A page that is built from top to bottom.
pub struct StaticPage {
    title: String,
    body: String,
}

impl StaticPage {
    /// Creates an empty page.
    pub fn new(title: &str) -> StaticPage {
        StaticPage {
            title: title.to_owned(),
            body: String::new(),
        }
    }

    /// Adds an element with text.
    pub fn text(&mut self, element: &'static str, text: &str) -> &mut Self {
        self.add(format_args!("<{element}>{}</{element}>\n", escaped(text)))
    }

    /// Adds a list of names with their meanings.
    pub fn terms<'a>(
        &mut self,
        terms: impl IntoIterator<Item = (&'static str, &'a str)>,
    ) -> &mut Self {
        self.add(format_args!("<dl>\n"));
        for (name, text) in terms {
            self.add(format_args!("<dt>{name}</dt><dd>{}</dd>\n", escaped(text)));
        }
        self.add(format_args!("</dl>\n"))
    }

    /// Adds a table. The first column is text, and the other columns are numbers. With `keys`, each
    /// row has the colour of a curve.
    pub fn table(&mut self, heads: &[&str], rows: &[Vec<String>], keys: bool) -> &mut Self {
        self.add(format_args!("<table>\n<thead><tr>"));
        for head in heads {
            self.add(format_args!("<th scope=\"col\">{}</th>", escaped(head)));
        }
        self.add(format_args!("</tr></thead>\n<tbody>\n"));
        for (at, row) in rows.iter().enumerate() {
            self.add(format_args!("<tr>"));
            for (column, cell) in row.iter().enumerate() {
                let key = match keys && column == 0 {
                    true => key(at),
                    false => String::new(),
                };
                self.add(format_args!("<td>{key}{}</td>", escaped(cell)));
            }
            self.add(format_args!("</tr>\n"));
        }
        self.add(format_args!("</tbody>\n</table>\n"))
    }

    /// Adds a picture of several curves. `about` is a description for readers who cannot see it.
    pub fn curves(&mut self, about: &str, curves: &[Curve]) -> &mut Self {
        let points = || curves.iter().flat_map(|curve| &curve.points);
        let (Some(first), Some(last)) = (
            points().map(|point| point.0).min(),
            points().map(|point| point.0).max(),
        ) else {
            return self;
        };
        let most = points().map(|point| point.1).max().unwrap_or(0);
        let time_step = step(
            last.saturating_sub(first) as f64 / 1e9,
            10.0,
            &[1.0, 2.0, 5.0],
        );
        // The step is a power of two, so that the labels are round.
        let bytes_step = (most.max(4096) / 4).next_power_of_two();
        let top = most.max(1).next_multiple_of(bytes_step);
        let (width, height) = (SIZE.0 - MARGINS.0, SIZE.1 - MARGINS.1);
        let x = |time: u64| {
            let span = last.saturating_sub(first).max(1) as f64;
            MARGINS.0 + (time.saturating_sub(first)) as f64 / span * (width - 10.0)
        };
        let y = |bytes: u64| 8.0 + (1.0 - bytes as f64 / top as f64) * (height - 8.0);
        self.add(format_args!(
            "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n",
            SIZE.0,
            SIZE.1,
            escaped(about)
        ));
        for mark in (0..=top).step_by(bytes_step.max(1) as usize) {
            let y = y(mark);
            self.add(format_args!(
                "<path class=\"rule\" d=\"M{:.1} {y:.1}H{:.1}\"/><text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
                MARGINS.0,
                SIZE.0 - 10.0,
                MARGINS.0 - 8.0,
                y + 4.0,
                bytes(mark)
            ));
        }
        let mut second = 0.0;
        while second <= last.saturating_sub(first) as f64 / 1e9 {
            let x = x(first + (second * 1e9) as u64);
            self.add(format_args!(
                "<text class=\"time\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>\n",
                SIZE.1 - 12.0,
                seconds(second)
            ));
            second += time_step;
        }
        for (at, curve) in curves.iter().enumerate().rev() {
            let mut path = String::new();
            for (i, &(time, bytes)) in curve.points.iter().enumerate() {
                let letter = if i == 0 { 'M' } else { 'L' };
                // Writing to a string does not fail.
                let _ = write!(path, "{letter}{:.1} {:.1}", x(time), y(bytes));
            }
            self.add(format_args!(
                "<path class=\"{}\" d=\"{path}\"><title>{}</title></path>\n",
                stroke(at),
                escaped(&curve.name)
            ));
        }
        self.add(format_args!("</svg>\n"))
    }

    /// Returns the whole page.
    pub fn finish(&self) -> String {
        // The page has no button for the theme, so the reader's system chooses.
        let dark = COLORS.replace(
            ":root[data-theme=\"dark\"] {",
            "@media (prefers-color-scheme: dark) { :root {",
        );
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
             img-src data:; base-uri 'none'; form-action 'none'\">\n<link rel=\"icon\" href=\"data:,\">\n\
             <title>{} - memhook-rs</title>\n<style>\n{dark}}}\n{STYLE}</style>\n</head>\n<body>\n<main>\n{}</main>\n\
             </body>\n</html>\n",
            escaped(&self.title),
            self.body
        )
    }

    fn add(&mut self, text: std::fmt::Arguments<'_>) -> &mut Self {
        // Writing to a string does not fail.
        let _ = self.body.write_fmt(text);
        self
    }
}

/// Returns the style classes of a curve.
fn stroke(at: usize) -> String {
    let dashes = match at / COLOR_COUNT {
        0 => "",
        1 => " dashed",
        _ => " dotted",
    };
    format!("curve color-{}{dashes}", at % COLOR_COUNT)
}

fn key(at: usize) -> String {
    format!(
        "<svg class=\"key\" viewBox=\"0 0 28 10\" aria-hidden=\"true\"><path class=\"{}\" d=\"M0 5H28\"/></svg>",
        stroke(at)
    )
}

/// Returns a round step that fits at most `count` times into a length.
fn step(length: f64, count: f64, round: &[f64]) -> f64 {
    let least = (length / count).max(1e-3);
    let power = 10f64.powf(least.log10().floor());
    let found = round
        .iter()
        .map(|factor| factor * power)
        .find(|step| *step >= least);
    found.unwrap_or(10.0 * power)
}

fn seconds(time: f64) -> String {
    let text = format!("{time:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} s")
}

/// Escapes foreign text for markup.
pub(crate) fn escaped(text: &str) -> String {
    let text = one_line(text.to_owned());
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_is_no_markup() {
        let mut page = StaticPage::new("<b>");
        page.text("h1", "a <script> & more")
            .table(&["\"x\""], &[vec!["<td>".into()]], true)
            .curves(
                "<svg>",
                &[Curve {
                    name: "<g>".into(),
                    points: vec![(0, 1), (5, 3)],
                }],
            );
        let text = page.finish();
        for markup in ["<script>", "<b>", "<g>", "<td><td>", "<svg>"] {
            assert!(!text.contains(markup), "{markup} in {text}");
        }
        assert!(text.contains("a &lt;script&gt; &amp; more"));
    }

    #[test]
    fn odd_curves_are_drawn() {
        let curve = |points: &[(u64, u64)]| Curve {
            name: String::new(),
            points: points.to_vec(),
        };
        let mut page = StaticPage::new("");
        page.curves("", &[])
            .curves("", &[curve(&[])])
            .curves("", &[curve(&[(7, 0)])])
            .curves("", &[curve(&[(9, u64::MAX / 4), (3, 1)])]);
        assert!(!page.finish().contains("NaN"));
    }

    #[test]
    fn steps_are_round() {
        assert_eq!(step(9.0, 10.0, &[1.0, 2.0, 5.0]), 1.0);
        assert!((step(0.9, 10.0, &[1.0, 2.0, 5.0]) - 0.1).abs() < 1e-9);
        assert_eq!(step(61.0, 10.0, &[1.0, 2.0, 5.0]), 10.0);
        assert_eq!(seconds(2.50), "2.5 s");
        assert_eq!(seconds(10.0), "10 s");
    }
}
