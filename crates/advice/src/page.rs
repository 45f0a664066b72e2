//! Advice as a page.

use crate::{Advice, Finding};
use memhook_report::{StaticPage, bytes, change};

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
            let rate = line.bytes_an_hour.map(change).unwrap_or_default();
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
            "since the begin",
            "an hour, at this rate",
            "certainty",
            "shown by",
        ],
        &rows,
        false,
    );
    if !advice.notes.is_empty() {
        page.text("h2", "Notes");
    }
    for note in &advice.notes {
        page.text("p", note);
    }
    page.finish()
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
