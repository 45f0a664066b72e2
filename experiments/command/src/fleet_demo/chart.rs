//! Plots Prometheus's data like the dashboard in fleet/grafana.

use super::servers::Servers;
use crate::line_chart::{Chart, Line, draw_panel};
use anyhow::{Result, anyhow, ensure};
use plotters::prelude::*;
use std::path::Path;

/// Title, query, label of the series, unit factor and name.
const PANELS: [(&str, &str, &str, f64, &str); 6] = [
    (
        "Live bytes",
        "sum by (instance, service) (memhook_target_live_bytes)",
        "service",
        1e6,
        "MB",
    ),
    (
        "Growth a minute",
        "sum by (instance, service) (memhook_target_growth_bytes_per_minute)",
        "service",
        1e6,
        "MB",
    ),
    (
        "Allocated bytes a second",
        "sum by (instance, service) (rate(memhook_target_allocated_bytes_total[10s]))",
        "service",
        1e6,
        "MB",
    ),
    (
        "Resident memory",
        "sum by (instance, service) (memhook_target_resident_bytes)",
        "service",
        1e6,
        "MB",
    ),
    (
        "Processors that the agent uses",
        "rate(memhook_agent_cpu_seconds_total[10s])",
        "",
        1.0,
        "",
    ),
    (
        "Memory of the agent",
        "memhook_agent_resident_bytes",
        "",
        1e6,
        "MB",
    ),
];
fn lines(
    servers: &Servers,
    query: &str,
    by: &str,
    unit: f64,
    span: (f64, f64),
) -> Result<Vec<Line>> {
    let parameters = [
        format!("query={query}"),
        format!("start={}", span.0),
        format!("end={}", span.1),
        "step=1".to_owned(),
    ];
    let parameters = parameters.each_ref().map(String::as_str);
    let answer = servers.get("/api/v1/query_range", &parameters)?;
    let series = answer["result"].as_array().cloned().unwrap_or_default();
    ensure!(!series.is_empty(), "Prometheus has nothing for {query}");
    let lines = series.iter().map(|series| {
        let label = |name: &str| {
            series["metric"][name]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let name = format!("{} {}", label("instance"), label(by));
        let values = series["values"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|point| {
                let value: f64 = point[1]
                    .as_str()
                    .and_then(|text| text.parse().ok())
                    .unwrap_or(0.0);
                (point[0].as_f64().unwrap_or(0.0) - span.0, value / unit)
            });
        (name.trim().to_owned(), values.collect())
    });
    Ok(lines.collect())
}

/// Draws all panels.
pub fn draw(servers: &Servers, span: (f64, f64), to: &Path) -> Result<()> {
    let area = SVGBackend::new(to, (1200, 1200)).into_drawing_area();
    area.fill(&WHITE)?;
    for (panel, (title, query, by, unit, unit_name)) in area.split_evenly((3, 2)).iter().zip(PANELS)
    {
        let lines = lines(servers, query, by, unit, span)?;
        let title = if unit_name.is_empty() {
            title.to_owned()
        } else {
            format!("{title} ({unit_name})")
        };
        let chart = Chart {
            title,
            x: "seconds",
            ..Chart::default()
        };
        draw_panel(panel, &chart, &lines).map_err(|error| anyhow!("{error}"))?;
    }
    area.present()?;
    Ok(())
}
