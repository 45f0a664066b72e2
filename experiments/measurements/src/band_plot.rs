//! Plots of stacked bands over time, as SVG.

use std::fmt::Write;

/// A named band with its values over time.
pub struct Band {
    /// Name in the legend.
    pub name: String,
    /// One value for each time.
    pub values: Vec<f64>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 80.0;
const BOTTOM: f64 = 50.0;
const LEGEND: f64 = 240.0;
/// Colours from dark to light, distinguishable without colour vision.
const COLORS: [&str; 7] = [
    "#0b3954", "#155e7a", "#2a8c9b", "#5cb8a8", "#a5d6a7", "#dcedc8", "#f6f7e3",
];

/// Returns the plot. The first band is at the bottom. The times are in seconds.
pub fn band_plot(title: &str, unit: &str, times: &[f64], bands: &[Band]) -> String {
    let sum = |at: usize| bands.iter().map(|band| band.values[at]).sum::<f64>();
    let most = (0..times.len()).map(sum).fold(1.0, f64::max);
    let end = times.last().copied().unwrap_or(1.0).max(1e-9);
    let x = |time: f64| LEFT + time / end * WIDTH;
    let y = |value: f64| 30.0 + HEIGHT * (1.0 - value / most);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"18\" font-size=\"14\">{title}</text>\n",
        LEFT + WIDTH + LEGEND,
        30.0 + HEIGHT + BOTTOM
    );
    let mut base = vec![0.0; times.len()];
    for (rank, band) in bands.iter().enumerate() {
        let lower: Vec<(f64, f64)> = times.iter().copied().zip(base.iter().copied()).collect();
        for (base, value) in base.iter_mut().zip(&band.values) {
            *base += value;
        }
        let upper = times.iter().copied().zip(base.iter().copied());
        let outline = lower.into_iter().chain(upper.rev());
        let points: Vec<String> = outline
            .map(|(time, value)| format!("{:.1},{:.1}", x(time), y(value)))
            .collect();
        let color = COLORS[rank % COLORS.len()];
        let at = 40.0 + 18.0 * rank as f64;
        let _ = writeln!(
            svg,
            "<polygon points=\"{}\" fill=\"{color}\" stroke=\"white\" stroke-width=\".5\"/>\n\
             <rect x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{color}\" stroke=\"#888\"/>\n\
             <text x=\"{}\" y=\"{}\">{}</text>",
            points.join(" "),
            LEFT + WIDTH + 14.0,
            at,
            LEFT + WIDTH + 32.0,
            at + 10.0,
            band.name
        );
    }
    for part in 0..=4 {
        let part = f64::from(part) / 4.0;
        let (value, time) = (most * part, end * part);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{value:.0}</text>\n\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{time:.0} s</text>",
            LEFT - 6.0,
            y(value) + 4.0,
            x(time),
            30.0 + HEIGHT + 18.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{LEFT}\" y=\"{}\">{unit}</text>\n</svg>",
        30.0 + HEIGHT + 40.0
    );
    svg
}
