//! JSON: one object on one line.

use crate::ReportModel;

/// The report as one line of JSON, without the line end.
pub fn json(model: &ReportModel) -> String {
    serde_json::to_string(model).unwrap_or_default()
}
