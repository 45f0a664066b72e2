//! Colours: the theme that the system prefers, contrast, and colour blindness.

use super::*;
use serde_json::json;

type Matrix = [[f64; 3]; 3];

/// Matrices from linear red, green and blue to perceived colours: normally, and with protanopia,
/// deuteranopia and tritanopia (Machado, Oliveira and Fernandes 2009, "A Physiologically-based
/// Model for Simulation of Color Vision Deficiency", severity 1).
const VISIONS: [(&str, Matrix); 4] = [
    (
        "normal",
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    ),
    (
        "protanopia",
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
    ),
    (
        "deuteranopia",
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
    ),
    (
        "tritanopia",
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ],
    ),
];

/// Difference below which adjacent areas begin to look alike (CIE 1976, where about 2.3 is just
/// noticeable).
const LEAST_DIFFERENCE: f64 = 12.0;

fn linear(color: &str) -> [f64; 3] {
    let channel = |at: usize| {
        let value = u8::from_str_radix(&color[at..at + 2], 16).expect("hexadecimal");
        let value = f64::from(value) / 255.0;
        if value <= 0.04045 {
            value / 12.92
        } else {
            ((value + 0.055) / 1.055).powf(2.4)
        }
    };
    [channel(1), channel(3), channel(5)]
}

fn times(matrix: &Matrix, color: [f64; 3]) -> [f64; 3] {
    matrix.map(|row| row.iter().zip(color).map(|(a, b)| a * b).sum())
}

fn lab(color: [f64; 3]) -> [f64; 3] {
    let to_xyz = [
        [0.4124, 0.3576, 0.1805],
        [0.2126, 0.7152, 0.0722],
        [0.0193, 0.1192, 0.9505],
    ];
    let [x, y, z] = times(&to_xyz, color.map(|c| c.clamp(0.0, 1.0)));
    let f = |t: f64| {
        if t > 0.008856 {
            t.cbrt()
        } else {
            7.787 * t + 16.0 / 116.0
        }
    };
    let [x, y, z] = [f(x / 0.95047), f(y), f(z / 1.08883)];
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

/// Returns the contrast as defined by WCAG 2.
fn contrast(a: &str, b: &str) -> f64 {
    let luminance = |color: &str| {
        let [r, g, b] = linear(color);
        0.2126 * r + 0.7152 * g + 0.0722 * b
    };
    let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
    a.max(b) / a.min(b)
}

#[test]
fn colours_differ_for_everybody_and_text_can_be_read() {
    let page = Page::of(&run(), "colors");
    let mut browser = Browser::open(&page.0, 1400, 900, READY);
    for theme in ["light", "dark"] {
        let features = json!([{ "name": "prefers-color-scheme", "value": theme }]);
        browser.call(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
        browser.wait(&format!(
            "document.documentElement.dataset.theme === '{theme}'"
        ));
        browser.settle();
        browser.picture(&format!("theme-{theme}"));
        let mut color = |name: &str| browser.text_of(&format!("css('--{name}')"));
        for kind in ["module", "series"] {
            let count = if kind == "module" { 6 } else { 7 };
            let numbers = (0..count)
                .map(|n| n.to_string())
                .chain(["other".to_owned()]);
            let colors: Vec<String> = numbers.map(|n| color(&format!("{kind}-{n}"))).collect();
            for (vision, matrix) in &VISIONS {
                let seen: Vec<_> = colors
                    .iter()
                    .map(|c| lab(times(matrix, linear(c))))
                    .collect();
                for (i, a) in seen.iter().enumerate() {
                    for (j, b) in seen.iter().enumerate().skip(i + 1) {
                        let squares = a.iter().zip(b).map(|(a, b)| (a - b).powi(2));
                        let difference = squares.sum::<f64>().sqrt();
                        assert!(
                            difference > LEAST_DIFFERENCE,
                            "{theme} {kind}, {vision}: {} {} {difference}",
                            colors[i],
                            colors[j]
                        );
                    }
                }
            }
            if kind == "module" {
                let text = color("text");
                for under in colors {
                    assert!(contrast(&text, &under) >= 4.5, "{theme}: text on {under}");
                }
            }
        }
        // Lightness shows the severity, so that all readers see its order and text is readable on
        // every step.
        let steps: Vec<String> = (0..12).map(|n| color(&format!("severity-{n}"))).collect();
        for (vision, matrix) in &VISIONS {
            let seen = steps.iter().map(|c| lab(times(matrix, linear(c)))[0]);
            let seen: Vec<f64> = seen.collect();
            let order = seen.windows(2).map(|pair| pair[1] - pair[0]);
            let sign = if theme == "light" { -1.0 } else { 1.0 };
            let differences: Vec<f64> = order.map(|by| sign * by).collect();
            assert!(
                differences.iter().all(|by| *by > 0.4),
                "{theme}, {vision}: {differences:?}"
            );
        }
        let text = color("text");
        for under in steps {
            assert!(contrast(&text, &under) >= 4.5, "{theme}: text on {under}");
        }
        let (card, soft) = (color("card"), color("accent-soft"));
        for name in [
            "text", "faint", "accent", "up", "down", "hit", "bad", "pick",
        ] {
            let color = color(name);
            assert!(contrast(&color, &card) >= 4.5, "{theme}: {name} {color}");
        }
        assert!(
            contrast(&color("accent"), &soft) >= 4.5,
            "{theme}: a pressed button"
        );
    }
    assert_eq!(browser.complaints, Vec::<String>::new());
}
