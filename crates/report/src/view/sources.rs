//! Source lines around the frames of a page, from files below the directories that the user named.
//!
//! Pages are made to be shared. The files whose lines they show are named by debug information,
//! which may be untrusted and could name any of the user's files. So only source code is included,
//! and only from these directories.

use crate::{Profile, SourceLines};
use memhook_foreign::open_below;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    ffi::OsStr,
    io::Read,
    path::{Component, Path, PathBuf},
};

/// Number of lines before and after a frame's own.
const AROUND: u32 = 5;
/// Maximum number of lines of a page. The largest sites come first.
const MOST_LINES: usize = 40_000;
/// Length at which lines are cut. Longer lines are generated code.
const LONGEST_LINE: usize = 300;
/// Maximum size of a file. Larger files are not source code that people wrote.
const LARGEST_FILE: u64 = 8 << 20;
/// File name endings of source code.
const ENDINGS: &[&str] = &[
    "c", "cc", "cp", "cpp", "cxx", "c++", "h", "hh", "hp", "hpp", "hxx", "h++", "inl", "inc",
    "ipp", "ixx", "cppm", "tcc", "tpp", "txx", "def", "m", "mm", "cu", "cuh", "s", "asm", "rs",
    "go", "d", "f", "f90", "f95", "zig", "swift", "pas", "adb", "ads", "y", "yy", "l", "ll", "re",
    "nim",
];

/// Returns true if any frame has a file and a line.
pub fn are_sources_named(profile: &Profile) -> bool {
    places(profile).next().is_some()
}

/// Returns the lines around every frame's line.
pub fn source_lines(profile: &Profile, directories: &[PathBuf]) -> Vec<SourceLines> {
    let mut files: HashMap<&str, Option<Vec<String>>> = HashMap::new();
    let mut wanted: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    let mut lines = 0;
    for (file, line) in places(profile) {
        if lines >= MOST_LINES {
            break;
        }
        let text = files.entry(file).or_insert_with(|| read(file, directories));
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

/// Iterates over files and lines of the frames. Sites with the most bytes come first.
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

/// Of the files below a directory, reads the one whose path shares the longest suffix with this
/// path.
fn read(file: &str, directories: &[PathBuf]) -> Option<Vec<String>> {
    let path = plain(Path::new(file));
    let ending = Path::new(path.last()?).extension()?.to_str()?;
    let mut known = ENDINGS.iter();
    known.find(|known| known.eq_ignore_ascii_case(ending))?;
    let mut candidates = directories.iter().flat_map(|directory| {
        let ends = (0..path.len()).map(|n| path[n..].iter().collect::<PathBuf>());
        ends.map(move |end| (directory, end))
    });
    let text = candidates.find_map(|(directory, end)| {
        // This follows no link out of the directory.
        let file = open_below(directory, &end).ok()?;
        let mut text = Vec::new();
        let read = file.take(LARGEST_FILE + 1).read_to_end(&mut text).ok()?;
        (read as u64 <= LARGEST_FILE).then_some(text)
    })?;
    let text = String::from_utf8_lossy(&text);
    let cut = |line: &str| line.chars().take(LONGEST_LINE).collect();
    Some(text.lines().map(cut).collect())
}

/// Returns the names in a path, without `.` and `..`.
fn plain(path: &Path) -> Vec<&OsStr> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::ParentDir => drop(names.pop()),
            _ => {}
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ProfileFrame, ProfileSite, StackFrame};

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
        let directory =
            std::env::temp_dir().join(format!("memhook-sources-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("src")).expect("a directory");
        let text: String = (1..=40).map(|n| format!("line {n}\n")).collect();
        std::fs::write(directory.join("src/a.cc"), text).expect("a file");
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
        let found = source_lines(&profile, std::slice::from_ref(&directory));
        let ranges: Vec<_> = found.iter().map(|s| (s.first, s.lines.len())).collect();
        assert_eq!(ranges, [(1, 14), (33, 8)]);
        assert_eq!(found[1].lines[0], "line 33");
        profile.sites[0].stack = 7;
        assert!(source_lines(&profile, std::slice::from_ref(&directory)).is_empty());
        std::fs::remove_dir_all(directory).expect("there");
    }

    /// Pages are shared, so they contain nothing from outside the directory, and only source code.
    #[test]
    fn only_source_code_below_the_directory() {
        let scratch = std::env::temp_dir().join(format!("memhook-secrets-{}", std::process::id()));
        let directory = scratch.join("project");
        std::fs::create_dir_all(directory.join("src")).expect("a directory");
        let secret = scratch.join("secret.cc");
        for file in [
            &secret,
            &directory.join("key.pem"),
            &directory.join("src/a.cc"),
        ] {
            std::fs::write(file, "text\n".repeat(9)).expect("a file");
        }
        std::os::unix::fs::symlink(&secret, directory.join("link.cc")).expect("a link");
        std::os::unix::fs::symlink("../secret.cc", directory.join("up.cc")).expect("a link");
        let pipe = directory.join("pipe.cc");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.expect("mkfifo").success());
        let large = std::fs::File::create(directory.join("large.cc")).expect("a file");
        large.set_len(LARGEST_FILE + 1).expect("a length");
        let given = std::slice::from_ref(&directory);
        for name in [
            secret.to_str().expect("text"),
            "/etc/passwd",
            "/etc/shadow",
            "../secret.cc",
            "src/../../secret.cc",
            "key.pem",
            "link.cc",
            "up.cc",
            "pipe.cc",
            "large.cc",
            "src",
            "..",
            "",
        ] {
            assert_eq!(read(name, given), None, "{name}");
        }
        for name in [
            "src/a.cc",
            "/build/obj/../src/a.cc",
            "./src/./a.cc",
            "a/../../src/a.cc",
        ] {
            assert_eq!(
                read(name, given).map(|lines| lines.len()),
                Some(9),
                "{name}"
            );
            assert_eq!(read(name, &[]), None, "{name}");
        }
        std::fs::remove_dir_all(scratch).expect("there");
    }
}
