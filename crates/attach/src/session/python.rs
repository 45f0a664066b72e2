//! Python functions of a process that contains a CPython interpreter.

use memhook_abi::python_state;
use memhook_process::{CLibraryKind, Interpreter, ModuleImage, PythonError, Verdict, avoids_pools};
use memhook_stream::{PythonConfig, Region};

/// Number of attempts to verify the layout at the attach. If none succeeds, the hook has to check the frames more
/// carefully. The process keeps running, so a frame that ends between two reads spoils an attempt.
const LOOKS_AT_ATTACH: usize = 8;
/// Number of consecutive wrong results after which the layout is considered unsuitable for this interpreter.
const WRONG_LOOKS: usize = 50;

/// Facts about the interpreter.
#[derive(Default)]
pub(super) struct Python {
    interpreter: Option<Interpreter>,
    is_settled: bool,
    wrong_looks: usize,
    /// True if each object of the interpreter is a malloc block; `None` if this was not examined.
    avoids_pools: Option<bool>,
    /// Message that was not shown to the user yet.
    notice: Option<String>,
}

impl Python {
    /// Examines a process before it is touched.
    pub fn of(pid: i32, modules: &[ModuleImage], c_library: Option<CLibraryKind>) -> Python {
        let mut python = Python {
            avoids_pools: Some(avoids_pools(pid)),
            ..Python::default()
        };
        match Interpreter::of(pid, modules, c_library) {
            Some(Ok(mut interpreter)) => {
                let looks = (0..LOOKS_AT_ATTACH).map(|_| interpreter.verify(pid));
                let mut looks = looks.take_while(|&look| look != Verdict::Unknown);
                if interpreter.is_permanent && looks.any(|look| look == Verdict::Right) {
                    interpreter.layout.state = python_state::DIRECT;
                    python.is_settled = true;
                }
                python.interpreter = Some(interpreter);
            }
            Some(Err(error)) => python.notice = Some(notice(pid, &error)),
            None => {}
        }
        python
    }

    /// Returns true if the interpreter's small objects are known to be parts of larger blocks.
    pub fn uses_pools(&self) -> bool {
        self.avoids_pools == Some(false)
    }

    /// Returns the configuration for the hook.
    pub fn config(&self) -> Option<PythonConfig> {
        self.interpreter.as_ref().map(|interpreter| PythonConfig {
            layout: interpreter.layout.clone(),
            evaluation: interpreter.evaluation.clone(),
        })
    }

    /// Checks the layout against the process's current state, as long as the interpreter's version is the only evidence
    /// for it.
    pub fn look(&mut self, pid: i32, region: &Region) {
        let Some(interpreter) = self.interpreter.as_ref().filter(|_| !self.is_settled) else {
            return;
        };
        match interpreter.verify(pid) {
            Verdict::Unknown => self.wrong_looks = 0,
            Verdict::Right => {
                self.is_settled = true;
                if interpreter.is_permanent {
                    region.set_python_state(python_state::DIRECT);
                }
            }
            Verdict::Wrong => {
                self.wrong_looks += 1;
                if self.wrong_looks >= WRONG_LOOKS {
                    self.is_settled = true;
                    region.set_python_state(python_state::OFF);
                    let version = interpreter.version.clone();
                    self.notice = Some(notice(pid, &PythonError::OtherLayout(version)));
                }
            }
        }
    }

    /// Returns a message for the user, once.
    pub fn take_notice(&mut self) -> Option<String> {
        self.notice.take()
    }
}

fn notice(pid: i32, error: &PythonError) -> String {
    format!("process {pid}: Python functions are not shown, only the interpreter's own: {error}")
}
