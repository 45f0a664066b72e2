//! The files of a configuration: the named file, and the files that it includes. They are read as
//! one text, in which each byte can be traced to its file.

use super::{ConfigError, Fault, MOST_BYTES, environment};
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// Name of the key with the files to include.
const INCLUDE: &str = "include";
/// Maximum number of included files.
const MOST_FILES: usize = 200;

/// The text of all files, one after the other.
pub struct Sources {
    /// The text.
    pub text: String,
    /// Start of each file in the text, and its path.
    files: Vec<(usize, PathBuf)>,
}

impl Sources {
    /// Reads a configuration with its included files.
    pub fn read(path: &Path) -> Result<Sources, ConfigError> {
        let text = text_of(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        let mut sources = Sources {
            text,
            files: vec![(0, path.to_owned())],
        };
        let included = included(&sources.text, path).map_err(|fault| sources.wrong(fault))?;
        for (span, path) in included {
            let failed = |why: String| (span.clone(), why);
            let text = text_of(&path)
                .map_err(|error| failed(format!("cannot read {}: {error}", path.display())));
            let text = text.map_err(|fault| sources.wrong(fault))?;
            if sources.text.len() as u64 + text.len() as u64 > MOST_BYTES {
                let why = "all files of the configuration together are larger than 1 MiB";
                return Err(sources.wrong(failed(why.into())));
            }
            // The last line of a file must not run into the first line of the next.
            sources.text.push('\n');
            sources.files.push((sources.text.len(), path));
            let begin = sources.text.len();
            sources.text += &text;
            check_included(&text)
                .map_err(|(at, why)| sources.wrong((begin + at..begin + at, why)))?;
        }
        Ok(sources)
    }

    /// Returns a fault with its place.
    pub fn wrong(&self, (span, why): Fault) -> ConfigError {
        let (path, line, column) = self.place(span.start);
        ConfigError::Wrong {
            path: path.to_owned(),
            line,
            column,
            why,
        }
    }

    /// Returns file, line and column of a byte, from 1 on.
    pub fn place(&self, at: usize) -> (&Path, usize, usize) {
        let number = self.files.partition_point(|(begin, _)| *begin <= at).max(1);
        let (begin, path) = &self.files[number - 1];
        let text = self.text.get(*begin..).unwrap_or_default();
        let (line, column) = super::place(text, at.saturating_sub(*begin));
        (path, line, column)
    }
}

fn text_of(path: &Path) -> std::io::Result<String> {
    let bytes = memhook_foreign::read_start(path, MOST_BYTES + 1)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(std::io::Error::other("it is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map_err(|_| std::io::Error::other("it is not UTF-8 text"))
}

/// Lists the files that a configuration includes, with the places that name them. In a directory,
/// these are the files that end in `.toml`, sorted by name.
fn included(text: &str, path: &Path) -> Result<Vec<(std::ops::Range<usize>, PathBuf)>, Fault> {
    // Other mistakes are found when the whole text is read.
    let Ok(mut table) = DeTable::parse(text) else {
        return Ok(Vec::new());
    };
    let table = table.get_mut();
    environment::put_in(text, table, &|name| std::env::var(name))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut found = Vec::new();
    let lists = table
        .iter()
        .filter_map(|(key, value)| match value.get_ref() {
            DeValue::Array(list) if key.get_ref() == INCLUDE => Some(list),
            _ => None,
        });
    for value in lists.flatten() {
        let DeValue::String(name) = value.get_ref() else {
            continue;
        };
        let (span, named) = (value.span(), folder.join(name.as_ref()));
        if named.is_dir() {
            let entries = std::fs::read_dir(&named).map_err(|error| {
                let why = format!("cannot read {}: {error}", named.display());
                (span.clone(), why)
            })?;
            let paths = entries.flatten().map(|entry| entry.path());
            let mut paths: Vec<PathBuf> = paths
                .filter(|path| path.extension().is_some_and(|end| end == "toml"))
                .collect();
            paths.sort_unstable();
            found.extend(paths.into_iter().map(|path| (span.clone(), path)));
        } else {
            found.push((span.clone(), named));
        }
        if found.len() > MOST_FILES {
            let why = format!("more than {MOST_FILES} files are included");
            return Err((span, why));
        }
    }
    Ok(found)
}

/// Checks that an included file is valid by itself, and begins with a table. Otherwise its first
/// keys would belong to the last table of the previous file. Returns the mistake and where it is.
fn check_included(text: &str) -> Result<(), (usize, String)> {
    if let Err(error) = DeTable::parse(text) {
        let at = error.span().map_or(0, |span| span.start);
        return Err((at, error.message().replace('\n', "; ")));
    }
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let content = line.trim_start();
        if content.starts_with('[') {
            return Ok(());
        }
        if !content.trim_end().is_empty() && !content.starts_with('#') {
            let why = "an included file begins with a table, such as [[rule]]";
            return Err((at + line.len() - content.len(), why.into()));
        }
        at += line.len();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::{ConfigError, Experiments, read, read_with_warnings};
    use std::path::PathBuf;

    /// A temporary directory with these files.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str, files: &[(&str, &str)]) -> Files {
            let folder = format!("memhook-include-{name}-{}", std::process::id());
            let folder = std::env::temp_dir().join(folder);
            for (name, text) in files {
                let path = folder.join(name);
                std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
                std::fs::write(path, text).expect("written");
            }
            Files(folder)
        }

        fn fault(&self) -> String {
            let error = read(&self.0.join("agent.toml"), Experiments::default());
            let error = error.expect_err("it is wrong");
            assert!(matches!(error, ConfigError::Wrong { .. }), "{error:?}");
            let folder = format!("{}/", self.0.display());
            error.to_string().replace(&folder, "")
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const MAIN: &str = "include = [\"rules.d\", \"more/stores.toml\"]\n[agent]\nmax_targets = 7\n[[rule]]\nname = \"a\"\nuid = 1\n";

    #[test]
    fn rules_follow_in_the_order_of_the_files() {
        let files = Files::new(
            "order",
            &[
                ("agent.toml", MAIN),
                (
                    "rules.d/20-c.toml",
                    "# last\n\n[[rule]]\nname = \"c\"\nuid = 3",
                ),
                (
                    "rules.d/10-b.toml",
                    "[[rule]]\nname = \"b\"\nuid = 2\nsend = [\"pyroscope\"]",
                ),
                ("rules.d/readme.txt", "nonsense"),
                ("more/stores.toml", "[pyroscope]\nurl = \"http://x\"\n"),
            ],
        );
        let path = files.0.join("agent.toml");
        let (file, warnings) = read_with_warnings(&path, Experiments::default()).expect("right");
        let names = file.rule.iter().map(|rule| rule.get_ref().name.get_ref());
        assert_eq!(names.collect::<Vec<_>>(), ["a", "b", "c"]);
        assert!(file.pyroscope.is_some() && warnings.is_empty());
        assert_eq!(*file.agent.max_targets.get_ref(), 7);
    }

    #[test]
    fn what_is_wrong_is_in_its_file() {
        for (number, (name, text, says)) in [
            (
                "b.toml",
                "[[rule]]\nname = \"b\"\nuid = \"x\"\n",
                "rules.d/b.toml:3:7: ",
            ),
            (
                "b.toml",
                "[[rule]]\nname = \"a\"\nuid = 2\n",
                "rules.d/b.toml:2:8: two rules",
            ),
            (
                "b.toml",
                "# one\n  uid = 3\n[[rule]]\n",
                "rules.d/b.toml:2:3: an included file begins",
            ),
            ("b.toml", "[[rule\n", "rules.d/b.toml:1:"),
            ("b.toml", "[agent]\nmax_targets = 1\n", "rules.d/b.toml:1:"),
            (
                "b.txt",
                "",
                "agent.toml:1:23: cannot read more/stores.toml: ",
            ),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("rules.d/{name}");
            let mut all = vec![("agent.toml", MAIN), (name.as_str(), text)];
            if !text.is_empty() {
                all.push(("more/stores.toml", ""));
            }
            let found = Files::new(&format!("wrong-{number}"), &all).fault();
            assert!(found.starts_with(says), "{says}: {found}");
        }
        let files = Files::new(
            "type",
            &[("agent.toml", "include = \"rules.d\"\n[[rule]]\n")],
        );
        assert!(
            files.fault().starts_with("agent.toml:1:11: "),
            "{}",
            files.fault()
        );
    }
}
