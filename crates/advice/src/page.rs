//! Advice as a page.

use crate::{Advice, Finding};
use memhook_report::{Curve, ResidentPoint, StaticPage, bytes, change};

pub fn page(advice: &Advice) -> String {
    let title = format!("{} ({})", advice.name, advice.pid);
    let mut page = StaticPage::new(&title);
    let resident = advice
        .rss_bytes
        .map_or(String::new(), |rss| format!(", {} resident", bytes(rss)));
    for (at, line) in advice.lines_of_answer().iter().enumerate() {
        page.text(if at == 0 { "h1" } else { "p" }, line);
    }
    page.text("p", &format!("{title}, {}{resident}", advice.time()));
    for (at, finding) in advice.findings.iter().enumerate() {
        add(&mut page, at + 1, finding);
    }
    page.text("h2", "Where the memory is");
    let rows: Vec<Vec<String>> = advice
        .lines
        .iter()
        .map(|line| {
            let rate = line.growth_an_hour().map(change).unwrap_or_default();
            let more = line
                .bytes_before
                .map(|before| change(line.bytes as i64 - before as i64));
            vec![
                line.what.to_owned(),
                bytes(line.bytes),
                more.unwrap_or_default(),
                rate,
                line.certainty.to_owned(),
                line.evidence.clone(),
            ]
        })
        .collect();
    page.table(
        &[
            "",
            "bytes",
            "since the start",
            "an hour, at this rate",
            "certainty",
            "shown by",
        ],
        &rows,
        false,
    );
    draw_resident(&mut page, advice);
    draw_sites(&mut page, advice);
    if !advice.notes.is_empty() {
        page.text("h2", "Notes");
    }
    for note in &advice.notes {
        page.text("p", note);
    }
    page.finish()
}

/// Draws the resident memory over time.
fn draw_resident(page: &mut StaticPage, advice: &Advice) {
    let curve = |name: &str, of: fn(&ResidentPoint) -> u64| Curve {
        name: name.to_owned(),
        points: advice
            .resident
            .iter()
            .map(|point| (point.time_ms.saturating_mul(1_000_000), of(point)))
            .collect(),
    };
    let all = [
        curve("anonymous memory", |point| point.anonymous_bytes),
        curve("files", |point| point.file_bytes),
        curve("shared memory", |point| point.shared_bytes),
        curve("in swap", |point| point.swap_bytes),
    ];
    let is_something = |curve: &Curve| curve.points.iter().any(|point| point.1 > 0);
    let curves: Vec<Curve> = all.into_iter().filter(is_something).collect();
    if curves.iter().all(|curve| curve.points.len() < 2) {
        return;
    }
    let rows = curves.iter().map(|curve| {
        let ends = [curve.points.first(), curve.points.last()];
        let [first, last] = ends.map(|point| point.map_or(0, |point| point.1));
        vec![
            curve.name.clone(),
            bytes(last),
            change(last as i64 - first as i64),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    page.text("h2", "Resident memory over time")
        .curves("Resident memory over time", &curves)
        .table(&["", "bytes", "since the start"], &rows, true);
}

/// Draws the live bytes of each site over time, with its class.
fn draw_sites(page: &mut StaticPage, advice: &Advice) {
    let last = advice.sites.iter().map(|site| site.live_over_time.len());
    let parts = last.max().unwrap_or(0).saturating_sub(1);
    if parts == 0 {
        return;
    }
    let moment = |at: usize| (advice.seconds * 1e9 * at as f64 / parts as f64) as u64;
    let curves = advice.sites.iter().map(|site| {
        let points = site.live_over_time.iter().enumerate();
        Curve {
            name: site.site.clone(),
            points: points.map(|(at, &bytes)| (moment(at), bytes)).collect(),
        }
    });
    let curves: Vec<Curve> = curves.collect();
    let rows = advice.sites.iter().map(|site| {
        vec![
            site.site.clone(),
            site.class.name().to_owned(),
            bytes(site.live_bytes),
            site.seen.clone(),
            site.certainty.to_owned(),
        ]
    });
    let rows: Vec<Vec<String>> = rows.collect();
    page.text("h2", "Blocks allocated since the attach, by site")
        .curves("Live bytes of each site over time", &curves)
        .table(
            &["site", "class", "bytes", "seen", "certainty"],
            &rows,
            true,
        );
}

fn add(page: &mut StaticPage, number: usize, finding: &Finding) {
    page.text("h2", &finding.heading(number))
        .text("p", &finding.found)
        .terms([
            ("Do", finding.remedy.as_str()),
            ("Cost", finding.cost),
            ("See", &finding.evidence),
            ("Certainty", finding.certainty),
        ]);
}
