//! Byma and Larus, "Detailed Heap Profiling": tables 1 to 6 by the benchmark that has them.

use super::memcov::bench;
use super::sheet::Sheets;

pub fn protobuf(sheets: &mut Sheets) -> Result<(), String> {
    bench(sheets, "scores", &["3", "protobuf"])
}

pub fn memcached(sheets: &mut Sheets) -> Result<(), String> {
    bench(sheets, "scores", &["2", "memcached"])
}

pub fn bamtools(sheets: &mut Sheets) -> Result<(), String> {
    bench(sheets, "scores", &["2", "bamtools"])
}
