//! The binary of a release: built the same way everywhere, with separate debug information.

use super::output;
use anyhow::Context;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Builds the command from these sources, without any path of this machine in the binary.
pub fn build(sources: &Path, epoch: u64) -> anyhow::Result<PathBuf> {
    let home = env::var("HOME").context("HOME is not set")?;
    let cargo_home = env::var("CARGO_HOME").unwrap_or_else(|_| format!("{home}/.cargo"));
    let renamed = [
        (
            sources
                .to_str()
                .context("the path of the sources is not text")?,
            "/memhook-rs",
        ),
        (&cargo_home, "/cargo"),
    ];
    let rust_flags: Vec<String> = ["-Ctarget-feature=+crt-static".to_owned()]
        .into_iter()
        .chain(renamed.map(|(from, to)| format!("--remap-path-prefix={from}={to}")))
        .collect();
    let c_flags = renamed
        .map(|(from, to)| format!("-ffile-prefix-map={from}={to}"))
        .join(" ");
    let target_directory = sources.join("target");
    let status = Command::new(env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()))
        .args([
            "build",
            "--locked",
            "--profile",
            "dist",
            "-p",
            "memhook-cli",
            "--target",
            TARGET,
        ])
        .env("CARGO_TARGET_DIR", &target_directory)
        .env("CARGO_ENCODED_RUSTFLAGS", rust_flags.join("\x1f"))
        .env("CFLAGS", &c_flags)
        .env("CXXFLAGS", &c_flags)
        .env("SOURCE_DATE_EPOCH", epoch.to_string())
        .current_dir(sources)
        .status()
        .context("cannot run cargo")?;
    anyhow::ensure!(status.success(), "memhook-rs does not build");
    Ok(target_directory.join(TARGET).join("dist/memhook-rs"))
}

/// Binary in two parts.
pub struct Split {
    /// Part that is installed.
    pub stripped: Vec<u8>,
    /// Part that debuggers and profilers look up by the build-id.
    pub debug: Vec<u8>,
    /// Build-id in hexadecimal digits.
    pub build_id: String,
}

/// Splits a binary. Intermediate files are in `work`.
pub fn split(built: &Path, work: &Path) -> anyhow::Result<Split> {
    let [stripped, debug] = ["memhook-rs", "memhook-rs.debug"].map(|name| work.join(name));
    objcopy(&["--only-keep-debug"], built, &debug)?;
    objcopy(&["--strip-all"], built, &stripped)?;
    let build_id = build_id(&stripped)?;
    let read_and_remove = |path: &Path| -> anyhow::Result<Vec<u8>> {
        let bytes = fs::read(path)?;
        fs::remove_file(path)?;
        Ok(bytes)
    };
    Ok(Split {
        stripped: read_and_remove(&stripped)?,
        debug: read_and_remove(&debug)?,
        build_id,
    })
}

fn objcopy(options: &[&str], from: &Path, to: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("objcopy");
    command.args(options).arg(from).arg(to);
    output(&mut command).context("objcopy belongs to binutils")?;
    Ok(())
}

fn build_id(file: &Path) -> anyhow::Result<String> {
    let notes = output(Command::new("readelf").arg("--notes").arg(file))?;
    let id = notes
        .lines()
        .find_map(|line| line.trim().strip_prefix("Build ID: "));
    Ok(id
        .context("the linker gave the binary no build-id")?
        .to_owned())
}
