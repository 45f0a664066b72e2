//! The key of `top` that opens a source line in the user's editor.
//!
//! Nothing here blocks the calling thread, because the process may need that thread at any time.
//! Separate threads check files, start the editor and wait for it, while events are counted as
//! usual.

use super::editor::Editor;
use crossbeam_channel::{Receiver, TryRecvError, bounded};
use memhook_foreign::visible;
use memhook_inject::LentKeys;
use memhook_report::top::{Screen, SourceLine};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Gid, Pid, Uid, User, geteuid};
use std::fs::File;
use std::io::IsTerminal;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Pause before a program that has stopped itself is resumed.
const PAUSE: Duration = Duration::from_millis(100);

/// Opens source lines, one at a time.
pub struct EditKey {
    /// Editor that the user has chosen for this program, if any.
    chosen: Option<Editor>,
    state: State,
}

enum State {
    Idle,
    /// A thread checks whether the file exists.
    Looking(Receiver<Result<Box<Command>, String>>),
    /// The command waits for the terminal.
    Waiting(Box<Command>, LentKeys),
    /// The editor owns the terminal. The channel reports an error, if any.
    Open(Receiver<Option<String>>, LentKeys),
}

/// Change on the screen.
pub enum Told {
    Nothing,
    /// Draw everything again, with this message if there is one.
    Redraw(Option<String>),
}

impl EditKey {
    pub fn new(chosen: Option<Editor>) -> EditKey {
        EditKey {
            chosen,
            state: State::Idle,
        }
    }

    /// Begins to open a line. The message says why that is not possible.
    pub fn press(&mut self, place: Result<SourceLine, &'static str>) -> Option<String> {
        if !matches!(self.state, State::Idle) {
            return None;
        }
        let place = match place {
            Ok(place) => place,
            Err(why) => return Some(why.to_owned()),
        };
        let Some(editor) = self.chosen.clone().or_else(Editor::of_user) else {
            return Some(
                "No editor: $VISUAL and $EDITOR are not set here; --editor names one".into(),
            );
        };
        let (to, looked) = bounded(1);
        // The check runs in a separate thread, because a file system may not answer.
        std::thread::spawn(move || to.send(command(&editor, place)));
        self.state = State::Looking(looked);
        None
    }

    /// Continues to open the line.
    ///
    /// # Errors
    /// Fails if the terminal cannot be used any more.
    pub fn turn(&mut self, screen: &mut Screen) -> std::io::Result<Told> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Idle => Ok(Told::Nothing),
            State::Looking(looked) => match looked.try_recv() {
                Ok(Ok(command)) => {
                    self.state = State::Waiting(command, LentKeys::new());
                    Ok(Told::Nothing)
                }
                Ok(Err(why)) => Ok(Told::Redraw(Some(why))),
                Err(TryRecvError::Empty) => {
                    self.state = State::Looking(looked);
                    Ok(Told::Nothing)
                }
                Err(TryRecvError::Disconnected) => Ok(Told::Nothing),
            },
            State::Waiting(command, keys) => {
                self.state = if screen.lend() {
                    State::Open(open(*command), keys)
                } else {
                    State::Waiting(command, keys)
                };
                Ok(Told::Nothing)
            }
            State::Open(ended, keys) => match ended.try_recv() {
                Err(TryRecvError::Empty) => {
                    self.state = State::Open(ended, keys);
                    Ok(Told::Nothing)
                }
                done => {
                    screen.take_back()?;
                    Ok(Told::Redraw(done.ok().flatten()))
                }
            },
        }
    }

    /// Ends the work. An open editor keeps the terminal until it exits.
    pub fn finish(&mut self) {
        if let State::Open(ended, _keys) = std::mem::replace(&mut self.state, State::Idle) {
            let _ = ended.recv();
        }
    }
}

/// Returns the command that opens an existing file.
fn command(editor: &Editor, place: SourceLine) -> Result<Box<Command>, String> {
    let named = Path::new(&place.file);
    let shown = visible(&place.file).into_owned();
    if !named.is_absolute() {
        return Err(format!(
            "The path of {shown} is relative, and not known in full"
        ));
    }
    // The path is resolved first, because some editors mistake a path for a URL.
    let found = named.canonicalize();
    let found = found.map_err(|error| format!("Cannot open {shown} here: {error}"))?;
    if !found.is_file() {
        return Err(format!("{shown} is not a file here"));
    }
    let Ok(file) = found.into_os_string().into_string() else {
        return Err(format!("The path of {shown} is not valid UTF-8"));
    };
    let words = editor.words(&SourceLine { file, ..place });
    let Some((program, arguments)) = words.split_first() else {
        return Err("No editor".into());
    };
    let mut command = Command::new(program);
    command.args(arguments);
    become_caller(&mut command)?;
    if !std::io::stdin().is_terminal() {
        // Standard input may be the pipe of a recording.
        let terminal = File::open("/dev/tty");
        command.stdin(terminal.map_err(|error| format!("Cannot open /dev/tty: {error}"))?);
    }
    Ok(Box::new(command))
}

/// Like sudoedit(8), runs the editor as the user who invoked sudo, and not as root. A foreign
/// program provides the file name, and the editor may execute commands in the file (modelines).
fn become_caller(command: &mut Command) -> Result<(), String> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    let (Some(uid), Some(gid)) = (number("SUDO_UID"), number("SUDO_GID")) else {
        return Ok(());
    };
    if !geteuid().is_root() || uid == 0 {
        return Ok(());
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    let caller = User::from_uid(uid).ok().flatten();
    let Some(caller) = caller else {
        return Err(format!(
            "No editor: the user {uid}, who called sudo, is not known here"
        ));
    };
    command.uid(uid.as_raw()).gid(gid.as_raw());
    command.env("HOME", &caller.dir);
    command
        .env("USER", &caller.name)
        .env("LOGNAME", &caller.name);
    Ok(())
}

/// Starts the editor and waits for its end.
fn open(mut command: Command) -> Receiver<Option<String>> {
    let (to, ended) = bounded(1);
    std::thread::spawn(move || to.send(run(&mut command)));
    ended
}

/// Returns the error, if any.
fn run(command: &mut Command) -> Option<String> {
    let name = visible(&command.get_program().to_string_lossy()).into_owned();
    let child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Some(format!("Cannot start the editor {name}: {error}")),
    };
    let pid = Pid::from_raw(child.id() as i32);
    loop {
        match waitpid(pid, Some(WaitPidFlag::WUNTRACED)) {
            // The editor is resumed, and we do not stop with it: no shell would take over the
            // terminal, and nobody could resume us.
            Ok(WaitStatus::Stopped(..)) => {
                std::thread::sleep(PAUSE);
                let _ = kill(Pid::from_raw(0), Signal::SIGCONT);
            }
            Ok(WaitStatus::Exited(_, 0)) => return None,
            Ok(WaitStatus::Exited(_, code)) => {
                return Some(format!("The editor ended with code {code}"));
            }
            Ok(WaitStatus::Signaled(_, signal, _)) => {
                return Some(format!("The editor was ended by {signal}"));
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Some(format!("Cannot wait for the editor: {error}")),
        }
    }
}
