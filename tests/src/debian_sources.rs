//! Sources of Debian packages, for tests on third-party projects.

use crate::{binary, not_run_here};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Returns the unpacked source of a Debian source package. apt fetches it once, into a folder next
/// to the binary. Returns `None` if apt cannot fetch sources (no network, another system), and
/// prints the reason on standard error.
pub fn debian_source(package: &str) -> Option<PathBuf> {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    let folder = binary().parent().expect("a folder").join("debian-sources");
    let kept = folder.join(package);
    if !kept.exists()
        && let Err(why) = fetch(&folder, package, &kept)
    {
        not_run_here(&format!("the source of {package} cannot be fetched: {why}"));
        return None;
    }
    Some(kept)
}

fn fetch(folder: &Path, package: &str, kept: &Path) -> Result<(), String> {
    let work = folder.join(format!("{package}.{}", std::process::id()));
    std::fs::create_dir_all(work.join("lists/partial")).expect("a folder");
    let list = "/etc/apt/sources.list.d/debian.sources";
    let binaries = std::fs::read_to_string(list).map_err(|e| format!("{list}: {e}"))?;
    let sources = binaries.replace("Types: deb\n", "Types: deb-src\n");
    std::fs::write(work.join("src.sources"), sources).expect("written");
    let at = work.display();
    let options = [
        format!("Dir::Etc::sourcelist={at}/src.sources"),
        "Dir::Etc::sourceparts=/dev/null".to_owned(),
        format!("Dir::State::lists={at}/lists"),
    ];
    // Fetches only the archive. A package list may name a Debian revision that its mirror no longer
    // has, but all revisions share the upstream archive.
    for words in [vec!["update"], vec!["source", "--tar-only", package]] {
        let mut apt = Command::new("apt-get");
        apt.arg("-qq").current_dir(&work);
        for option in &options {
            apt.args(["-o", option]);
        }
        let output = apt.args(&words).output().map_err(|e| e.to_string())?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if !output.status.success() {
            return Err(format!("apt-get {words:?}: {text}"));
        }
    }
    let files = std::fs::read_dir(&work).expect("readable");
    let archive = files
        .filter_map(|file| Some(file.ok()?.path()))
        .find(|path| path.to_string_lossy().contains(".orig.tar"))
        .expect("the upstream archive");
    let unpacked = work.join("unpacked");
    std::fs::create_dir(&unpacked).expect("a folder");
    let tar = Command::new("tar")
        .arg("xf")
        .arg(&archive)
        .args(["--strip-components=1", "-C"])
        .arg(&unpacked)
        .status();
    assert!(tar.expect("tar runs").success());
    std::fs::rename(&unpacked, kept).expect("moved");
    let _ = std::fs::remove_dir_all(&work);
    Ok(())
}
