//! Sizes as people read them.

/// Bytes in binary units: `96 B`, `4.1 KiB`.
pub fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    // What would be printed as 1024.0 is 1.0 of the next unit.
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_unit_that_keeps_them_short() {
        assert_eq!(size_text(1023), "1023 B");
        assert_eq!(size_text(4198), "4.1 KiB");
        assert_eq!(size_text(1 << 20), "1.0 MiB");
        // Just below each unit: never 1024.0 of the smaller one.
        for (power, unit) in [(20, "MiB"), (30, "GiB"), (40, "TiB"), (50, "PiB")] {
            assert_eq!(size_text((1 << power) - 1), format!("1.0 {unit}"));
        }
        // 1023.95 KiB is 1,048,524.8 bytes.
        assert_eq!(size_text(1_048_524), "1023.9 KiB");
        assert_eq!(size_text(1_048_525), "1.0 MiB");
        assert_eq!(size_text(u64::MAX), "16384.0 PiB");
    }
}
