//! Source lines of the frames that a page shows, from files that are found on this machine.

use memhook_report::{Profile, SourceLines};
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
};

/// Lines before and after a frame's.
const AROUND: u32 = 5;
/// A page carries so many lines at most: those of the largest sites.
const MOST_LINES: usize = 40_000;
/// Longer lines are cut: generated code.
const LONGEST_LINE: usize = 300;
/// Larger files are not source code that people wrote.
const LARGEST_FILE: u64 = 8 << 20;

/// The lines around every line of a frame.
pub fn around(profile: &Profile, folders: &[PathBuf], sysroots: &[PathBuf]) -> Vec<SourceLines> {
    let mut files: HashMap<&str, Option<Vec<String>>> = HashMap::new();
    let mut wanted: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    let mut lines = 0;
    for (file, line) in places(profile) {
        if lines >= MOST_LINES {
            break;
        }
        let text = files
            .entry(file)
            .or_insert_with(|| read(file, folders, sysroots));
        let Some(text) = text else { continue };
        let first = line.saturating_sub(AROUND).max(1);
        let last = (line + AROUND).min(text.len() as u32);
        let of_file = wanted.entry(file).or_default();
        let before = of_file.len();
        of_file.extend(first..=last);
        lines += of_file.len() - before;
    }
    let mut found = Vec::new();
    for (file, numbers) in wanted {
        let Some(Some(text)) = files.get(file) else {
            continue;
        };
        let mut runs: Vec<SourceLines> = Vec::new();
        for number in numbers {
            let line = text[number as usize - 1].clone();
            match runs.last_mut() {
                Some(run) if run.first + run.lines.len() as u32 == number => run.lines.push(line),
                _ => runs.push(SourceLines {
                    file: file.to_owned(),
                    first: number,
                    lines: vec![line],
                }),
            }
        }
        found.extend(runs);
    }
    found
}

/// Files and lines of the frames, those of the sites with the most bytes first.
fn places(profile: &Profile) -> impl Iterator<Item = (&str, u32)> {
    let mut sites: Vec<_> = profile.sites.iter().collect();
    sites.sort_by_key(|site| Reverse(site.measures.live.bytes.max(site.measures.peak.bytes)));
    let stacks = sites
        .into_iter()
        .filter_map(|site| profile.stacks.get(site.stack as usize));
    let frames = stacks
        .flatten()
        .filter_map(|&frame| profile.frames.get(frame as usize));
    frames.filter_map(|frame| Some((frame.frame.file.as_deref()?, frame.frame.line?)))
}

/// The file at its own path, or, below a given folder, at as much of the end of its path as is there.
fn read(file: &str, folders: &[PathBuf], sysroots: &[PathBuf]) -> Option<Vec<String>> {
    let relative = Path::new(file.trim_start_matches('/'));
    let in_sysroots = sysroots.iter().map(|root| root.join(relative));
    let in_folders = folders.iter().flat_map(|folder| {
        let parts: Vec<_> = relative.components().collect();
        let ends = (0..parts.len()).map(move |n| parts[n..].iter().collect::<PathBuf>());
        ends.map(|end| folder.join(end)).collect::<Vec<_>>()
    });
    let own = Path::new(file);
    let own = own.is_absolute().then(|| own.to_owned());
    let mut candidates = in_folders.chain(in_sysroots).chain(own);
    let text = candidates.find_map(|path| {
        let metadata = std::fs::metadata(&path).ok()?;
        let fits = metadata.is_file() && metadata.len() <= LARGEST_FILE;
        fits.then(|| std::fs::read(&path).ok())?
    })?;
    let text = String::from_utf8_lossy(&text);
    let cut = |line: &str| line.chars().take(LONGEST_LINE).collect();
    Some(text.lines().map(cut).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use memhook_report::{ProfileFrame, ProfileSite, StackFrame};

    fn frame(file: &str, line: u32) -> ProfileFrame {
        ProfileFrame {
            address: 0,
            module: None,
            frame: StackFrame {
                address: String::new(),
                module: None,
                offset: None,
                function: None,
                file: Some(file.into()),
                line: Some(line),
                inlined: false,
            },
        }
    }

    #[test]
    fn lines_around_frames_from_the_end_of_the_path() {
        let folder = std::env::temp_dir().join(format!("memhook-sources-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("src")).expect("a folder");
        let text: String = (1..=40).map(|n| format!("line {n}\n")).collect();
        std::fs::write(folder.join("src/a.cc"), text).expect("a file");
        let mut profile = Profile {
            frames: vec![
                frame("/build/x/src/a.cc", 3),
                frame("/build/x/src/a.cc", 9),
                frame("/build/x/src/a.cc", 38),
                frame("/nowhere/b.cc", 1),
                frame("/build/x/src/a.cc", 4_000_000_000),
            ],
            stacks: vec![vec![0, 1, 2, 3, 4]],
            sites: vec![ProfileSite::default()],
            ..Profile::default()
        };
        let found = around(&profile, std::slice::from_ref(&folder), &[]);
        let ranges: Vec<_> = found.iter().map(|s| (s.first, s.lines.len())).collect();
        assert_eq!(ranges, [(1, 14), (33, 8)]);
        assert_eq!(found[1].lines[0], "line 33");
        profile.sites[0].stack = 7;
        assert!(around(&profile, std::slice::from_ref(&folder), &[]).is_empty());
        std::fs::remove_dir_all(folder).expect("there");
    }
}
