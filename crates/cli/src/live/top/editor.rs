//! Selects the editor that opens a source line, and the form of its command.
//!
//! The debug information of the process, which is untrusted, provides the file name. So the name is
//! always a whole argument, and never part of a text that a shell interprets.

use memhook_report::top::SourceLine;
use std::ffi::OsString;
use std::str::FromStr;

/// Editors whose names the page of `view` also knows, and their commands.
const KNOWN: [(&str, &str); 4] = [
    ("vscode", "code"),
    ("vscodium", "codium"),
    ("zed", "zed"),
    ("idea", "idea"),
];

/// Programs that take a line number in a form other than `+LINE FILE`.
const FORMS: [(&[&str], Form); 3] = [
    (
        &["code", "code-insiders", "code-oss", "codium", "cursor"],
        Form::Goto,
    ),
    (
        &[
            "hx",
            "helix",
            "zed",
            "zeditor",
            "zedit",
            "subl",
            "sublime_text",
        ],
        Form::Colon,
    ),
    (
        &["idea", "clion", "pycharm", "rustrover", "kate"],
        Form::Option,
    ),
];

/// Way to pass a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// For `+LINE FILE`: vi, vim, nvim, nano, emacs, emacsclient, micro, kak, and most others.
    Plus,
    /// `--goto FILE:LINE`
    Goto,
    /// `FILE:LINE`
    Colon,
    /// `--line LINE FILE`
    Option,
}

/// An editor: a command as typed in a shell, possibly with options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Editor(String);

impl FromStr for Editor {
    type Err = String;

    fn from_str(text: &str) -> Result<Editor, String> {
        if let Some((_, command)) = KNOWN.iter().find(|(name, _)| *name == text) {
            return Ok(Editor((*command).to_owned()));
        }
        if text.contains("://") {
            return Err("an address is for the page of view: expected a command, like vim or 'emacsclient -nw'".into());
        }
        match text.trim() {
            "" => Err("expected a command, like vim or 'emacsclient -nw'".into()),
            command => Ok(Editor(command.to_owned())),
        }
    }
}

impl Editor {
    /// Returns the editor that the user has chosen for all programs (`environ(7)`).
    pub fn of_user() -> Option<Editor> {
        let chosen = ["VISUAL", "EDITOR"].into_iter();
        let mut chosen = chosen.filter_map(|name| std::env::var(name).ok());
        chosen.find_map(|text| match text.trim() {
            "" => None,
            command => Some(Editor(command.to_owned())),
        })
    }

    /// Returns the editor's name, for messages.
    pub fn name(&self) -> &str {
        self.0.split_whitespace().next().unwrap_or(&self.0)
    }

    /// Returns the program and its arguments for a line of a file. The path is absolute, so it is
    /// never mistaken for an option.
    pub fn words(&self, place: &SourceLine) -> Vec<OsString> {
        let line = place.line.filter(|&line| line > 0);
        if self.0.contains("{file}") {
            let line = line.unwrap_or(1).to_string();
            let filled = |word: &str| {
                let word = word.replace("{line}", &line);
                OsString::from(word.replace("{file}", &place.file))
            };
            return self.0.split_whitespace().map(filled).collect();
        }
        let arguments = match (self.form(), line) {
            (Form::Goto, Some(line)) => vec!["--goto".into(), format!("{}:{line}", place.file)],
            (Form::Colon, Some(line)) => vec![format!("{}:{line}", place.file)],
            (Form::Option, Some(line)) => {
                vec!["--line".into(), line.to_string(), place.file.clone()]
            }
            (Form::Plus, Some(line)) => vec![format!("+{line}"), place.file.clone()],
            (_, None) => vec![place.file.clone()],
        };
        let command = if self.is_for_a_shell() {
            // As in git, a shell interprets the user's command, and gets the other arguments as
            // they are.
            let script = format!("{} \"$@\"", self.0);
            vec!["sh".into(), "-c".into(), script, self.0.clone()]
        } else {
            vec![self.0.clone()]
        };
        let all = command.into_iter().chain(arguments);
        all.map(OsString::from).collect()
    }

    fn form(&self) -> Form {
        let program = self.name().rsplit('/').next().unwrap_or_default();
        let form = FORMS.iter().find(|(names, _)| names.contains(&program));
        form.map_or(Form::Plus, |(_, form)| *form)
    }

    /// Returns true if the command is more than the name of a program, by the same rule as git
    /// (`prepare_shell_cmd` in run-command.c).
    fn is_for_a_shell(&self) -> bool {
        self.0
            .contains(|c: char| "|&;<>()$`\\\"' \t\n*?[#~=%".contains(c))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(editor: &str, file: &str, line: Option<u32>) -> Vec<String> {
        let editor: Editor = editor.parse().expect(editor);
        let place = SourceLine {
            file: file.into(),
            line,
        };
        let words = editor.words(&place).into_iter();
        words
            .map(|word| word.into_string().expect("text"))
            .collect()
    }

    #[test]
    fn each_editor_gets_the_line_in_its_way() {
        for (editor, expected) in [
            ("vim", &["vim", "+7", "/a.c"][..]),
            ("/usr/bin/nano", &["/usr/bin/nano", "+7", "/a.c"]),
            ("unheard-of", &["unheard-of", "+7", "/a.c"]),
            ("code", &["code", "--goto", "/a.c:7"]),
            ("vscode", &["code", "--goto", "/a.c:7"]),
            ("vscodium", &["codium", "--goto", "/a.c:7"]),
            ("hx", &["hx", "/a.c:7"]),
            ("zed", &["zed", "/a.c:7"]),
            ("subl", &["subl", "/a.c:7"]),
            ("idea", &["idea", "--line", "7", "/a.c"]),
            (
                "emacsclient -nw",
                &[
                    "sh",
                    "-c",
                    "emacsclient -nw \"$@\"",
                    "emacsclient -nw",
                    "+7",
                    "/a.c",
                ],
            ),
            (
                "code --wait",
                &[
                    "sh",
                    "-c",
                    "code --wait \"$@\"",
                    "code --wait",
                    "--goto",
                    "/a.c:7",
                ],
            ),
            (
                "mine --at {line} --of={file}",
                &["mine", "--at", "7", "--of=/a.c"],
            ),
        ] {
            assert_eq!(words(editor, "/a.c", Some(7)), expected, "{editor}");
        }
        assert_eq!(words("vim", "/a.c", None), ["vim", "/a.c"]);
        assert_eq!(words("code", "/a.c", Some(0)), ["code", "/a.c"]);
        assert_eq!(words("at {file}:{line}", "/a.c", None), ["at", "/a.c:1"]);
    }

    #[test]
    fn names_of_files_are_arguments() {
        let hostile = "/x/$(touch y);`z` '\"{line} -c !sh\n+9.c";
        for (editor, at) in [
            ("vim", 2),
            ("vim -R", 5),
            ("code", 2),
            ("hx", 1),
            ("e {line} {file}", 2),
        ] {
            let words = words(editor, hostile, Some(3));
            assert!(words[at].starts_with(hostile), "{words:?}");
            let others = words.iter().enumerate().filter(|(number, _)| *number != at);
            for (_, word) in others {
                assert!(!word.contains("touch"), "{word}");
            }
        }
    }

    #[test]
    fn addresses_and_nothing_are_refused() {
        for text in ["", " ", "vscode://file{file}:{line}"] {
            assert!(text.parse::<Editor>().is_err(), "{text}");
        }
    }
}
