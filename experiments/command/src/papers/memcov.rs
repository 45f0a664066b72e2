//! Callanan et al., "Model Predictive Control for Memory Profiling": takes the figures from the benchmark that measures
//! them.

use super::sheet::Sheets;
use std::path::Path;
use std::process::Command;

/// Runs part of a benchmark, and keeps its output and the plots that the output names.
pub fn bench(sheets: &mut Sheets, bench: &str, part: &[&str]) -> Result<(), String> {
    let output = Command::new(env!("CARGO"))
        .args([
            "bench",
            "-q",
            "-p",
            "memhook-measurements",
            "--bench",
            bench,
            "--",
        ])
        .args(part)
        .current_dir(crate::root().join("experiments"))
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("cargo bench ends with {}", output.status));
    }
    for line in text.lines() {
        let path = Path::new(line.trim());
        match path.extension() {
            Some(kind) if kind == "svg" && path.is_file() => {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                let copied = std::fs::copy(path, sheets.file(&name));
                copied.map_err(|error| format!("{}: {error}", path.display()))?;
                sheets.say(&format!("![{name}]({name})"));
            }
            _ => {}
        }
    }
    sheets.quote(&text);
    Ok(())
}

pub fn vim(sheets: &mut Sheets) -> Result<(), String> {
    bench(sheets, "stale", &["figures"])
}

pub fn vim_time(sheets: &mut Sheets) -> Result<(), String> {
    bench(sheets, "stale", &["times"])
}

pub fn pages(sheets: &mut Sheets) -> Result<(), String> {
    bench(sheets, "stale", &["pages"])
}
