//! A real terminal, based on tmux: tests press keys and read the screen.

use crate::programs::installed;
use crate::until;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A terminal that runs a shell command.
pub struct Terminal {
    socket: String,
    tmux: PathBuf,
}

impl Terminal {
    /// Starts a terminal of 140 columns and 40 lines. Different names distinguish the terminals of
    /// one test program.
    pub fn start(name: &str, command: &str) -> Terminal {
        Terminal::of_size(name, command, 140, 40)
    }

    /// Starts a terminal with this number of columns and lines.
    pub fn of_size(name: &str, command: &str, columns: u16, lines: u16) -> Terminal {
        let (columns, lines) = (columns.to_string(), lines.to_string());
        let terminal = Terminal {
            socket: format!("memhook-{name}-{}", std::process::id()),
            tmux: installed("tmux"),
        };
        let output = terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            &columns,
            "-y",
            &lines,
            command,
        ]);
        assert!(output.status.success(), "{output:?}");
        terminal
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut tmux = Command::new(&self.tmux);
        tmux.args(["-L", &self.socket]).args(args);
        tmux
    }

    /// Runs a tmux command.
    pub fn tmux(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("tmux runs")
    }

    /// Returns the contents of the screen.
    pub fn screen(&self) -> String {
        let output = self.tmux(&["capture-pane", "-p"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Presses a key and waits for the effect.
    pub fn press(&self, key: &str, expected: &str) {
        self.tmux(&["send-keys", key]);
        self.wait_for(expected);
    }

    /// Sends these characters, such as the escape codes of a mouse, unchanged, and waits for the
    /// effect.
    pub fn send(&self, text: &str, expected: &str) {
        self.tmux(&["send-keys", "-l", text]);
        self.wait_for(expected);
    }

    /// Returns the screen with colour codes.
    pub fn colors(&self) -> String {
        let output = self.tmux(&["capture-pane", "-p", "-e"]);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until the screen shows this text.
    pub fn wait_for(&self, expected: &str) {
        let mut screen = String::new();
        until(&format!("{expected:?} on the screen"), || {
            screen = self.screen();
            screen.contains(expected)
        });
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.command(&["kill-server"]).output();
    }
}
