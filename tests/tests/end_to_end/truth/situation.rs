//! A situation described by its `truth.toml`; see `tests/truth/README.md`.

use memhook_tests::programs::{Folder, installed};
use memhook_tests::releases::Release;
use memhook_tests::{build_service, leave_unless_linkable};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One folder of `tests/truth`.
pub struct Situation {
    folder: PathBuf,
    truth: Value,
    /// Allocations between "ready" and "done".
    pub site: Vec<Site>,
    /// Options of the traces.
    pub options: Vec<String>,
    /// Upper bound on the number of blocks that a search may report.
    pub leaked_at_most: Option<u64>,
}

/// Blocks that a function, or its callees, allocate.
pub struct Site {
    pub function: String,
    pub blocks: u64,
    pub size: u64,
    /// True if a trace can see these blocks.
    pub seen: bool,
}

/// One build of the program.
pub struct Built {
    pub flags: Vec<String>,
    /// The program, or the program that starts it.
    pub program: PathBuf,
    pub arguments: Vec<String>,
}

impl Built {
    /// Returns the command line.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("truth")
}

fn texts(value: &Value) -> Vec<String> {
    let list = value.as_array().into_iter().flatten();
    list.map(|text| text.as_str().expect("a text").to_owned())
        .collect()
}

fn compile(from: &Path, flags: &[String], more: &[&str], to: &str) {
    let mut command = Command::new("cc");
    command
        .args(["-std=gnu11", "-g", "-O2"])
        .args(more)
        .arg(from);
    let words: Vec<&str> = flags.iter().map(String::as_str).collect();
    leave_unless_linkable("cc", &words);
    let status = command.args(flags).args(["-o", to]).status().expect("cc");
    assert!(status.success(), "{}: {flags:?}", from.display());
}

impl Situation {
    /// Returns the names of all folders.
    pub fn folders() -> Vec<String> {
        let entries = std::fs::read_dir(root()).expect("tests/truth");
        let folders = entries.map(|entry| entry.expect("an entry").path());
        let mut names: Vec<String> = folders
            .filter(|path| path.is_dir())
            .map(|path| path.file_name().expect("a name").to_string_lossy().into())
            .collect();
        names.sort_unstable();
        names
    }

    pub fn read(name: &str) -> Situation {
        let folder = root().join(name);
        let text = std::fs::read_to_string(folder.join("truth.toml")).expect("a truth");
        let truth: Value = toml::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
        let sites = truth["site"].as_array().expect("sites").iter();
        let site = sites.map(|site| Site {
            function: site["function"].as_str().expect("a function").to_owned(),
            blocks: site["blocks"].as_u64().expect("a number of blocks"),
            size: site["size"].as_u64().expect("a size"),
            seen: site["seen"].as_bool().unwrap_or(true),
        });
        Situation {
            folder,
            site: site.collect(),
            options: texts(&truth["options"]),
            leaked_at_most: truth["leaked_at_most"].as_u64(),
            truth,
        }
    }

    /// Builds the program for the matrix. Returns `None` if the linker or a library is missing.
    pub fn build_by(&self, flags: &[&str], to: &str) -> Option<Built> {
        let source = self.truth["program"].as_str().expect("a program");
        let mut command = Command::new("cc");
        command.args(["-std=gnu11", "-g", "-O2"]);
        command.arg(self.folder.join(source)).args(flags);
        let output = command.args(["-o", to]).output().expect("cc");
        output.status.success().then(|| Built {
            flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            program: to.into(),
            arguments: Vec::new(),
        })
    }

    /// Builds the program in every way that its `truth.toml` lists.
    pub fn build(&self, folder: &Folder) -> Vec<Built> {
        if let Some(service) = self.truth["service"].as_str() {
            let allocator = service.rsplit('_').next().expect("an allocator");
            let program = build_service(allocator, &format!("service_{service}"));
            let built = program.map(|program| Built {
                flags: Vec::new(),
                program,
                arguments: Vec::new(),
            });
            return built.into_iter().collect();
        }
        for program in texts(&self.truth["needs"]) {
            installed(&program);
        }
        let listed = self.truth["builds"].as_array().expect("builds").iter();
        let mut builds: Vec<Vec<String>> = listed.map(texts).collect();
        if self.truth["releases"] == true {
            // These builds use the C library of another release instead of the system's C library.
            builds.extend(Release::all().iter().map(Release::flags));
        }
        let builds = builds.into_iter().enumerate();
        builds
            .map(|(n, flags)| self.build_one(flags, &|file| folder.path(&format!("{n}-{file}"))))
            .collect()
    }

    fn build_one(&self, flags: Vec<String>, to: &dyn Fn(&str) -> String) -> Built {
        let source = self.truth["program"].as_str().expect("a program");
        let name = Path::new(source).file_name().expect("a name");
        let program = to(&format!("{}.bin", name.display()));
        let path = self.folder.join(source);
        if source.ends_with(".java") {
            let mut compiler = Command::new(installed("javac"));
            let status = compiler.args(["-d", &program]).arg(path).status();
            assert!(status.expect("javac").success(), "{source}");
        } else {
            compile(&path, &flags, &[], &program);
        }
        let libraries = texts(&self.truth["libraries"]).into_iter().map(|library| {
            let to = to(&format!("{library}.so"));
            let more = ["-shared", "-fPIC"];
            compile(&self.folder.join(&library), &flags, &more, &to);
            (library, to)
        });
        let libraries: Vec<(String, String)> = libraries.collect();
        let command = texts(&self.truth["command"]);
        let Some((first, rest)) = command.split_first() else {
            let arguments = libraries.into_iter().map(|(_, path)| path).collect();
            return Built {
                flags,
                program: program.into(),
                arguments,
            };
        };
        let filled = |word: &String| {
            let mut word = word.replace("{program}", &program);
            word = word.replace("{folder}", &self.folder.display().to_string());
            for (library, path) in &libraries {
                word = word.replace(&format!("{{{library}}}"), path);
            }
            word
        };
        Built {
            flags,
            program: installed(first),
            arguments: rest.iter().map(filled).collect(),
        }
    }

    /// Returns true if the test runs a command on the program.
    pub fn is_for(&self, command: &str) -> bool {
        let commands = texts(&self.truth["commands"]);
        commands.is_empty() || commands.iter().any(|one| one == command)
    }

    /// Checks the exit code of a command, if the situation specifies one.
    pub fn check_exit(&self, command: &str, what: &str, code: i32, said: &str) {
        if let Some(expected) = self.truth["exit"][command].as_i64() {
            assert_eq!(i64::from(code), expected, "{what}: {command}: {said}");
        }
    }

    /// Checks the output of a command.
    pub fn check(&self, command: &str, what: &str, text: &str) {
        let sentences = &self.truth["sentences"];
        for of in [command, "all"] {
            for sentence in texts(&sentences[of]["must"]) {
                assert!(
                    text.contains(&sentence),
                    "{what}: {command}: no {sentence:?}: {text}"
                );
            }
            for sentence in texts(&sentences[of]["never"]) {
                assert!(
                    !text.contains(&sentence),
                    "{what}: {command}: {sentence:?}: {text}"
                );
            }
        }
    }
}
