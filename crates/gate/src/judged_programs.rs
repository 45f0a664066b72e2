//! Selects which processes of a command are judged: those that run one of the user's own programs.
//!
//! Shells, make, ctest, compilers and interpreters deliberately keep memory until they end, and a
//! leak in them is irrelevant to a user who runs tests with them. User programs are built in
//! directories other than those in which a system or a tool manager installs programs.

use crate::template_matches;

/// Directories where the system, package managers and compiler distributions install programs.
const SYSTEM: [&str; 7] = [
    "/usr/",
    "/bin/",
    "/sbin/",
    "/lib",
    "/opt/",
    "/nix/store/",
    "/snap/",
];
/// Directories of tool managers, below any home directory.
const TOOLS: [&str; 2] = ["/.cargo/", "/.rustup/"];
/// Directory of the system's programs. A start directory that contains it does not count as the
/// user's.
const SYSTEMS_PROGRAMS: &str = "/usr/bin";

/// Decides whether a process is judged, by the program that it runs.
#[derive(Clone, Debug, Default)]
pub struct JudgedPrograms {
    /// True if every process is judged.
    pub all: bool,
    /// Programs, or files run by interpreters, that are judged regardless of their location.
    pub patterns: Vec<String>,
    /// Directory in which the command was started. Everything below it belongs to the user.
    pub directory: String,
}

impl JudgedPrograms {
    /// Returns true if a process with this program and these arguments is judged. The first
    /// argument is the name of the process.
    pub fn judges(&self, program: &str, arguments: &[String]) -> bool {
        self.all || self.is_named(program, arguments) || self.is_users(program)
    }

    fn is_named(&self, program: &str, arguments: &[String]) -> bool {
        let script = arguments.iter().skip(1).find(|word| !word.starts_with('-'));
        let named = [Some(program), arguments.first().map(String::as_str)];
        let named = named.into_iter().chain([script.map(String::as_str)]);
        let is_one = |name: &str| self.patterns.iter().any(|p| template_matches(p, name));
        named.flatten().any(is_one)
    }

    fn is_users(&self, program: &str) -> bool {
        let directory = format!("{}/", self.directory.trim_end_matches('/'));
        let is_of_system = SYSTEMS_PROGRAMS.starts_with(directory.trim_end_matches('/'));
        let is_below = !is_of_system && program.starts_with(&directory);
        let is_installed = SYSTEM.iter().any(|place| program.starts_with(place))
            || TOOLS.iter().any(|place| program.contains(place));
        is_below || !is_installed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judges(chosen: &JudgedPrograms, words: &str) -> bool {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        chosen.judges(&words[0], &words)
    }

    #[test]
    fn the_users_programs_are_judged() {
        let here = |directory: &str| JudgedPrograms {
            directory: directory.into(),
            ..JudgedPrograms::default()
        };
        for directory in ["/home/me/app/build", "/", "/usr", "/usr/bin", ""] {
            let chosen = here(directory);
            for users in [
                "/home/me/app/build/tests",
                "/srv/x",
                "/tmp/a.out",
                "/builds/7/t",
            ] {
                assert!(judges(&chosen, users), "{directory}: {users}");
            }
            for installed in [
                "/usr/bin/dash -c x",
                "/bin/sh",
                "/usr/local/bin/ninja",
                "/lib64/ld-linux-x86-64.so.2",
                "/opt/toolchain/bin/cc",
                "/root/.cargo/bin/cargo",
                "/home/me/.rustup/toolchains/stable/bin/rustc",
                "/usr/bin/python3.11 /home/me/app/test.py",
            ] {
                assert!(!judges(&chosen, installed), "{directory}: {installed}");
            }
        }
        // The directories are checkouts in a container.
        for directory in ["/usr/src/app", "/opt/app"] {
            let chosen = here(directory);
            assert!(judges(&chosen, &format!("{directory}/build/t")));
            assert!(!judges(&chosen, "/usr/bin/make"));
        }
    }

    #[test]
    fn others_are_judged_by_name() {
        let by = |pattern: &str| JudgedPrograms {
            patterns: vec![pattern.into()],
            ..JudgedPrograms::default()
        };
        let python = "/usr/bin/python3.11 -u /home/me/app/test.py";
        assert!(judges(&by("test.py$"), python));
        assert!(judges(&by("python"), python));
        assert!(!judges(&by("other.py"), python));
        assert!(judges(&by("other"), "/home/me/mine"), "the user's, too");
        let all = JudgedPrograms {
            all: true,
            ..JudgedPrograms::default()
        };
        assert!(judges(&all, "/bin/sh"));
    }
}
