//! libFuzzer target for all surfaces. MEMHOOK_SURFACE names the surface to run.

#![no_main]

use std::sync::OnceLock;

fn chosen() -> memhook_surfaces::Surface {
    static CHOSEN: OnceLock<memhook_surfaces::Surface> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        let name = std::env::var("MEMHOOK_SURFACE").unwrap_or_default();
        memhook_surfaces::surface(&name).unwrap_or_else(|| {
            eprintln!("no surface {name:?}: run it by cargo xtask fuzz");
            std::process::exit(2);
        })
    })
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| chosen()(bytes));
