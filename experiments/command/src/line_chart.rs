//! Line charts as SVG, used by all experiments.

use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(255, 127, 14),
    RGBColor(44, 160, 44),
    RGBColor(214, 39, 40),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(227, 119, 194),
    RGBColor(127, 127, 127),
];

/// Name of a line, and its points.
pub type Line = (String, Vec<(f64, f64)>);

/// Text and scales of a chart.
#[derive(Default)]
pub struct Chart {
    /// Title above the picture.
    pub title: String,
    /// Label below the horizontal axis.
    pub x: &'static str,
    /// Label beside the vertical axis. May be empty.
    pub y: &'static str,
    /// True for a logarithmic horizontal axis.
    pub log_x: bool,
    /// True for a logarithmic vertical axis. A linear axis begins at 0 or below.
    pub log_y: bool,
}

type Failed = Box<dyn std::error::Error>;

/// Draws one chart to its own file.
pub fn draw(to: &Path, chart: &Chart, lines: &[Line]) -> Result<(), Failed> {
    let area = SVGBackend::new(to, (900, 500)).into_drawing_area();
    area.fill(&WHITE)?;
    draw_panel(&area, chart, lines)?;
    area.present()?;
    Ok(())
}

fn scaled(value: f64, is_log: bool) -> f64 {
    if is_log {
        value.max(1e-9).log10()
    } else {
        value
    }
}

/// Returns a short label for a tick. On a logarithmic scale, the label has two significant digits.
fn label(value: f64, is_log: bool) -> String {
    let value = if is_log {
        let value = 10f64.powf(value);
        let unit = 10f64.powf(value.log10().floor() - 1.0);
        (value / unit).round() * unit
    } else {
        value
    };
    match value.abs() {
        size if size >= 1e6 => format!("{:.1} M", value / 1e6),
        size if size >= 1e4 => format!("{:.0} k", value / 1e3),
        size if size >= 10.0 || size == 0.0 => format!("{value:.0}"),
        size if size >= 1.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}

/// Draws names and colours in a separate column, where they cover no line.
fn legend(column: &DrawingArea<SVGBackend, Shift>, lines: &[Line]) -> Result<(), Failed> {
    for (number, (name, _)) in lines.iter().enumerate() {
        let (colour, y) = (COLOURS[number % COLOURS.len()], 50 + 18 * number as i32);
        let stroke = PathElement::new([(4, y), (22, y)], colour.stroke_width(2));
        column.draw(&stroke)?;
        let text = Text::new(name.as_str(), (27, y - 6), ("sans-serif", 12));
        column.draw(&text)?;
    }
    Ok(())
}

/// Draws one chart as a panel of a picture.
pub fn draw_panel(
    panel: &DrawingArea<SVGBackend, Shift>,
    chart: &Chart,
    lines: &[Line],
) -> Result<(), Failed> {
    // The characters of this font are about six pixels wide.
    let longest = lines.iter().map(|(name, _)| name.chars().count()).max();
    let room = (40 + 6 * longest.unwrap_or(0) as i32).min(280);
    let width = panel.dim_in_pixel().0 as i32;
    let (panel, column) = panel.split_horizontally(width - room);
    legend(&column, lines)?;
    let points = || lines.iter().flat_map(|(_, points)| points);
    let range = |values: &mut dyn Iterator<Item = f64>, is_log: bool| {
        let all: Vec<f64> = values.map(|value| scaled(value, is_log)).collect();
        let start = if is_log { f64::INFINITY } else { 0.0 };
        let least = all.iter().copied().fold(start, f64::min);
        let most = all.iter().copied().fold(-start, f64::max);
        if most > least {
            (least, most)
        } else {
            (least, least + 1.0)
        }
    };
    let (left, right) = range(&mut points().map(|point| point.0), chart.log_x);
    let (least, most) = range(&mut points().map(|point| point.1), chart.log_y);
    let room = (most - least) * 0.05;
    let bottom = if chart.log_y || least < 0.0 {
        least - room
    } else {
        least
    };
    let mut context = ChartBuilder::on(&panel)
        .caption(&chart.title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(35)
        .y_label_area_size(65)
        .build_cartesian_2d(left..right, bottom..most + room)?;
    context
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(chart.x)
        .y_desc(chart.y)
        .x_label_formatter(&|value| label(*value, chart.log_x))
        .y_label_formatter(&|value| label(*value, chart.log_y))
        .draw()?;
    for (number, (_, points)) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points = points
            .iter()
            .map(|&(x, y)| (scaled(x, chart.log_x), scaled(y, chart.log_y)));
        context.draw_series(LineSeries::new(points, colour.stroke_width(2)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_short() {
        let multiplied =
            [25.1, 631.0, 2512.0, 31623.0].map(|value: f64| label(value.log10(), true));
        assert_eq!(multiplied, ["25", "630", "2500", "32 k"]);
        assert_eq!(
            [0.0, 0.25, 2.5, 20_000.0].map(|value| label(value, false)),
            ["0", "0.250", "2.5", "20 k"]
        );
    }
}
