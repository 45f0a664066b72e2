//! Prints the compiled call frame information of files, and how long the compilation takes.

fn main() {
    for path in std::env::args().skip(1) {
        let bytes = std::fs::read(&path).expect("readable");
        let start = std::time::Instant::now();
        match memhook_unwind::compile(&bytes) {
            Ok(table) => println!(
                "{path}: {} rows, {} rules, {} inexpressible, {:.1} ms",
                table.offsets.len(),
                table.rules.len(),
                table.inexpressible,
                start.elapsed().as_secs_f64() * 1e3
            ),
            Err(error) => println!("{path}: {error}"),
        }
    }
}
