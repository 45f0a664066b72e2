//! `cargo xtask dist`: builds a release.
//!
//! All packages contain the same list of files. The build is reproducible: times are taken from SOURCE_DATE_EPOCH or
//! the last commit, all files are owned by root, and entries are sorted.

mod archive;
mod binary;
mod contents;
mod deb;
mod dependencies;
mod licences;
mod oci;
mod rpm;
mod sbom;

use anyhow::Context;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{env, fs};

#[derive(clap::Args)]
pub struct Args {
    /// Pack this binary instead of building one
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Build the sources in this directory instead of this program's sources
    #[arg(long, conflicts_with = "binary")]
    sources: Option<PathBuf>,
    /// Output directory
    #[arg(long, default_value = "target/dist")]
    to: PathBuf,
}

/// Facts about the release for the packers, in addition to the files.
struct Release {
    version: String,
    /// Modification time of all contents, in seconds since 1970.
    epoch: u64,
}

impl Release {
    /// Returns the beginning of the archives' names.
    fn stem(&self) -> String {
        format!("memhook-rs-{}-x86_64-linux", self.version)
    }
}

pub fn run(args: &Args) -> ExitCode {
    match make(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn make(args: &Args) -> anyhow::Result<()> {
    let release = Release {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        epoch: epoch()?,
    };
    let built = match &args.binary {
        Some(path) => path.clone(),
        None => {
            let sources = args.sources.as_deref().unwrap_or(root());
            binary::build(&sources.canonicalize()?, release.epoch)?
        }
    };
    let to = &args.to;
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;

    let binary = binary::split(&built, to)?;
    let dependencies = dependencies::of_the_command()?;
    let files = contents::files(&binary.stripped, &dependencies)?;
    let debug = contents::debug_file(&binary);

    let stem = release.stem();
    let mut outputs = vec![
        (
            format!("{stem}.tar.gz"),
            archive::gzip(&archive::tar(
                &contents::renamed(&files, "usr", &stem),
                release.epoch,
            )?)?,
        ),
        (
            format!("{stem}-debug.tar.gz"),
            archive::gzip(&archive::tar(&[debug], release.epoch)?)?,
        ),
        (
            format!("memhook-rs_{}_amd64.deb", release.version),
            deb::package(&release, &files)?,
        ),
        (
            format!("memhook-rs-{}-1.x86_64.rpm", release.version),
            rpm::package(&release, &files)?,
        ),
        (
            format!("{stem}.oci.tar"),
            oci::image(&release, &binary.stripped)?,
        ),
        (
            format!("memhook-rs-{}.cdx.json", release.version),
            sbom::cyclonedx(&release, &dependencies)?,
        ),
    ];
    outputs.sort();
    let sums = outputs
        .iter()
        .map(|(name, bytes)| format!("{}  {name}\n", archive::sha256(bytes)))
        .collect::<String>();
    outputs.push(("SHA256SUMS".to_owned(), sums.into_bytes()));
    for (name, bytes) in &outputs {
        let path = to.join(name);
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Returns the modification time of all contents: <https://reproducible-builds.org/specs/source-date-epoch/>
fn epoch() -> anyhow::Result<u64> {
    let text = match env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => output(
            Command::new("git")
                .args(["log", "-1", "--format=%ct"])
                .current_dir(root()),
        )
        .context("SOURCE_DATE_EPOCH is not set, and git cannot tell the time of the last commit")?,
    };
    text.trim()
        .parse()
        .with_context(|| format!("SOURCE_DATE_EPOCH is not a number of seconds: {text}"))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask is below the root")
}

/// Returns the standard output of a command, which must succeed.
fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", command.get_program().display()))?;
    anyhow::ensure!(output.status.success(), "{command:?}: {}", output.status);
    String::from_utf8(output.stdout).with_context(|| format!("{command:?} does not print text"))
}
