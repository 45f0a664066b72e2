//! The latest advice on each process, stored in the state directory. The advice outlives the agent,
//! as the processes do.

use crate::advice_files::remove_oldest;
use crate::moment::Moment;
use memhook_foreign::OwnDirectory;
use memhook_heap::ProcessIdentity;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Result};

/// Name of the directory below that of the state.
const DIRECTORY: &str = "advice";
/// Suffix of the files' names, after the process id.
const END: &str = ".json";
/// Maximum number of files. No agent has more targets.
const MOST_FILES: usize = 1000;
/// Maximum size of a file.
const MOST_BYTES: usize = 256 << 10;

/// Stored advice about one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    process: ProcessIdentity,
    /// Path of the process's executable.
    executable: Option<String>,
    /// Start of the latest examination, regardless of its result.
    pub examined: Moment,
    /// The last advice; `None` if no examination has led to advice.
    pub given: Option<Given>,
}

/// Advice on a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Given {
    /// Time of the advice.
    pub made: Moment,
    /// The advice in one line; `None` if there was nothing to do.
    pub answer: Option<String>,
    /// Bytes that could be returned and hourly growth in bytes that could be avoided, by kind of
    /// finding.
    pub gains: BTreeMap<String, (u64, u64)>,
    /// A document of memhook-rs/advice/1; `None` if it was too long to be stored.
    pub document: Option<String>,
}

/// The directory of stored advice.
#[derive(Debug)]
pub struct KeptAdvice(OwnDirectory);

impl Kept {
    /// Returns the state at the start of an examination, without advice; `None` if the process has
    /// ended.
    pub fn begins(pid: i32, executable: Option<&str>) -> Option<Kept> {
        Some(Kept {
            process: ProcessIdentity::of(pid)?,
            executable: executable.map(str::to_owned),
            examined: Moment::now(),
            given: None,
        })
    }

    /// Replaces the advice.
    pub fn with(self, given: &Given) -> Kept {
        Kept {
            given: Some(given.clone()),
            ..self
        }
    }

    /// Returns the contents of a file.
    fn bytes(&self) -> Option<Vec<u8>> {
        let bytes = serde_json::to_vec(self).ok();
        bytes.filter(|bytes| bytes.len() <= MOST_BYTES)
    }

    /// Returns true if the advice is about the process that currently has this process id.
    fn is_of_now(&self) -> bool {
        ProcessIdentity::of(self.process.pid).as_ref() == Some(&self.process)
    }
}

impl KeptAdvice {
    /// Opens the directory of advice below the state directory, and removes advice about processes
    /// that have ended.
    ///
    /// # Errors
    /// Errors of [`OwnDirectory::below`] and opendir(3).
    pub fn open(state: &OwnDirectory) -> Result<KeptAdvice> {
        let kept = KeptAdvice(state.below(DIRECTORY)?);
        for entry in kept.0.entries()? {
            let name = entry.file_name().to_string_lossy().into_owned();
            let pid = pid_of(&name);
            let is_left_over = match pid {
                Some(pid) => !kept.read(pid).is_some_and(|found| found.is_of_now()),
                // The writer of this file was killed.
                None => OwnDirectory::is_part(&name),
            };
            if is_left_over {
                kept.0.remove(&name)?;
            }
        }
        Ok(kept)
    }

    /// Returns the advice on a process with this executable.
    pub fn of(&self, pid: i32, executable: Option<&str>) -> Option<Kept> {
        let found = self.read(pid)?;
        let is_meant = found.executable.as_deref() == executable && found.is_of_now();
        is_meant.then_some(found)
    }

    /// Reads a file, which may contain anything.
    fn read(&self, pid: i32) -> Option<Kept> {
        let mut bytes = Vec::new();
        let file = self.0.read(&name_of(pid)).ok()?;
        let longest = MOST_BYTES as u64;
        file.take(longest + 1).read_to_end(&mut bytes).ok()?;
        let found: Kept = serde_json::from_slice(&bytes).ok()?;
        (bytes.len() as u64 <= longest && found.process.pid == pid).then_some(found)
    }

    /// Stores this advice in place of the previous one, without its document if that is too long.
    ///
    /// # Errors
    /// Errors of [`OwnDirectory::write_whole`].
    pub fn keep(&self, kept: &Kept) -> Result<()> {
        let shortened = || {
            let mut kept = kept.clone();
            kept.given.as_mut()?.document = None;
            kept.bytes()
        };
        let Some(bytes) = kept.bytes().or_else(shortened) else {
            return Ok(());
        };
        self.0.write_whole(&name_of(kept.process.pid), &bytes)?;
        remove_oldest(&self.0, |name| pid_of(name).is_some(), MOST_FILES)
    }

    /// Forgets a process that has ended or has executed another program.
    pub fn forget(&self, pid: i32) {
        // Usually there is no file.
        let _ = self.0.remove(&name_of(pid));
    }
}

fn name_of(pid: i32) -> String {
    format!("{pid}{END}")
}

fn pid_of(name: &str) -> Option<i32> {
    let pid = name.strip_suffix(END)?.parse().ok()?;
    (name == name_of(pid)).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let name = format!("memhook-kept-{name}-{}", std::process::id());
            Scratch(std::env::temp_dir().join(name))
        }

        fn open(&self) -> KeptAdvice {
            let state = OwnDirectory::make(&self.0).expect("made");
            KeptAdvice::open(&state).expect("made")
        }

        fn file(&self, name: &str) -> PathBuf {
            self.0.join(DIRECTORY).join(name)
        }

        fn count(&self) -> usize {
            let files = std::fs::read_dir(self.0.join(DIRECTORY));
            files.expect("a directory").count()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn own() -> i32 {
        std::process::id() as i32
    }

    fn given(document: String) -> Given {
        Given {
            made: Moment::now(),
            answer: Some("A leak".into()),
            gains: BTreeMap::from([("leak".into(), (5, 50))]),
            document: Some(document),
        }
    }

    fn begun() -> Kept {
        Kept::begins(own(), Some("/bin/x")).expect("it lives")
    }

    #[test]
    fn the_next_agent_finds_what_was_kept() {
        let scratch = Scratch::new("found");
        let kept = scratch.open();
        let name = name_of(own());
        kept.keep(&begun()).expect("written");
        let advised = begun().with(&given("{}".into()));
        kept.keep(&advised).expect("written");
        let mode = std::fs::metadata(scratch.file(&name)).expect("there");
        assert_eq!(mode.permissions().mode() & 0o777, 0o600);
        let next = scratch.open();
        assert_eq!(next.of(own(), Some("/bin/x")), Some(advised.clone()));
        // The process now executes another program, so the advice is about the previous one.
        assert_eq!(next.of(own(), Some("/bin/y")), None);
        next.forget(own());
        assert_eq!((next.of(own(), Some("/bin/x")), scratch.count()), (None, 0));
        // Keeping the time of the examination is more important than keeping the document.
        let long = begun().with(&given("x".repeat(MOST_BYTES)));
        next.keep(&long).expect("written");
        let found = next.of(own(), Some("/bin/x")).expect("kept");
        assert_eq!(found.examined, long.examined);
        let given = found.given.expect("advice");
        assert_eq!(
            (given.document, given.answer),
            (None, Some("A leak".into()))
        );
    }

    #[test]
    fn what_is_no_advice_on_a_living_process_is_removed() {
        let scratch = Scratch::new("garbage");
        let kept = scratch.open();
        let right = serde_json::to_string(&begun()).expect("JSON");
        let long = format!("{right}{}", " ".repeat(MOST_BYTES));
        let another_boot = right.replace("\"boot\":\"", "\"boot\":\"0");
        for bytes in [
            "",
            "{",
            "\0\u{fffd}",
            "[1]",
            &right[1..],
            &long,
            &another_boot,
        ] {
            std::fs::write(scratch.file(&name_of(own())), bytes).expect("written");
            assert_eq!(scratch.open().of(own(), Some("/bin/x")), None, "{bytes:?}");
            assert_eq!(scratch.count(), 0, "{bytes:?}");
        }
        // The files contain advice on another process, advice on a process that has ended, and data
        // from a writer that was killed.
        for name in ["1.json", "2147483647.json", "7.json.part"] {
            std::fs::write(scratch.file(name), &right).expect("written");
        }
        // Other files are left alone.
        for name in ["notes", "x.json", "007.json", "-.json"] {
            std::fs::write(scratch.file(name), &right).expect("written");
        }
        kept.keep(&begun()).expect("written");
        assert!(scratch.open().of(own(), Some("/bin/x")).is_some());
        assert_eq!(scratch.count(), 5);
    }

    #[test]
    fn links_are_not_followed_and_files_are_few() {
        let scratch = Scratch::new("bounded");
        let kept = scratch.open();
        let theirs = scratch.0.join("theirs");
        let right = serde_json::to_string(&begun()).expect("JSON");
        std::fs::write(&theirs, &right).expect("written");
        symlink(&theirs, scratch.file(&name_of(own()))).expect("linked");
        assert_eq!(kept.of(own(), Some("/bin/x")), None);
        kept.keep(&begun()).expect("written");
        assert!(!scratch.file(&name_of(own())).is_symlink());
        for pid in 0..MOST_FILES as i32 {
            let file = std::fs::File::create(scratch.file(&name_of(i32::MAX - pid)));
            // The resolution of file times is a tick of the kernel.
            let old = file.and_then(|file| file.set_modified(std::time::UNIX_EPOCH));
            old.expect("made");
        }
        kept.keep(&begun()).expect("written");
        assert_eq!(scratch.count(), MOST_FILES);
        assert!(kept.of(own(), Some("/bin/x")).is_some(), "the newest stays");
        assert_eq!(std::fs::read_to_string(&theirs).expect("there"), right);
        std::fs::remove_dir_all(scratch.0.join(DIRECTORY)).expect("removed");
        let elsewhere = scratch.0.join("elsewhere");
        std::fs::create_dir(&elsewhere).expect("made");
        symlink(&elsewhere, scratch.0.join(DIRECTORY)).expect("linked");
        let state = OwnDirectory::make(&scratch.0).expect("made");
        let error = KeptAdvice::open(&state).expect_err("a link");
        assert!(error.to_string().contains("symbolic link"), "{error}");
    }
}
