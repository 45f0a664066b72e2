//! Runs one test under one tool, and reads the tool's result.

use super::builds::{Builds, directory_of_tests};
use super::projects::Project;
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Tool under which a test runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tool {
    /// No tool.
    None,
    /// `memhook-rs gate`.
    Gate,
    /// LeakSanitizer, linked into the test program.
    Lsan,
    /// `valgrind --leak-check=full`.
    Memcheck,
}

/// Number of the planted blocks, and the size of each. Each block contains a string of eight bytes.
pub const PLANTED: (u64, u64) = (37, 112);
/// Function that leaks the planted blocks.
pub const PLANTED_IN: &str = "planted_leak";
const STRING_BYTES: u64 = 8;

/// Leaked blocks and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaked {
    pub blocks: u64,
    pub bytes: u64,
}

impl Leaked {
    /// Adds the planted leak.
    pub fn with_planted(self) -> Leaked {
        let (blocks, bytes) = PLANTED;
        Leaked {
            blocks: self.blocks + 2 * blocks,
            bytes: self.bytes + blocks * (bytes + STRING_BYTES),
        }
    }
}

/// Result of one run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub time: Duration,
    pub status: ExitStatus,
    /// Leaked blocks, or the reason why they are unknown.
    pub leaked: Result<Leaked, String>,
    /// Functions that the tool names. For the gate, one function per leak.
    pub blamed: Vec<String>,
    /// True if the gate reports a leaked allocation with an unknown caller.
    pub has_unknown_caller: bool,
}

/// Runner of a project's tests.
pub struct Runner<'a> {
    builds: &'a Builds,
    gate: PathBuf,
    plain: PathBuf,
    sanitized: PathBuf,
    tests: &'static str,
}

impl<'a> Runner<'a> {
    pub fn new(
        builds: &'a Builds,
        project: &Project,
        plain: PathBuf,
        sanitized: PathBuf,
    ) -> Result<Runner<'a>, String> {
        let gate = memhook_tests::binary()
            .canonicalize()
            .map_err(|e| e.to_string())?;
        Ok(Runner {
            builds,
            gate,
            plain: directory_of_tests(&plain, project),
            sanitized: directory_of_tests(&sanitized, project),
            tests: project.tests,
        })
    }

    /// Returns the commands of the tests.
    pub fn tests(&self) -> Result<Vec<String>, String> {
        let mut shell = Command::new("sh");
        let output = shell.args(["-c", self.tests]).current_dir(&self.plain);
        let output = output.output().map_err(|e| format!("sh: {e}"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let tests: Vec<String> = text.lines().map(str::to_owned).collect();
        if tests.is_empty() {
            return Err(format!("no tests in {}", self.plain.display()));
        }
        Ok(tests)
    }

    /// Runs a test under a tool.
    pub fn run(&self, test: &str, tool: Tool, with_leak: bool) -> Result<Outcome, String> {
        let log = self.builds.file("report");
        let _ = std::fs::remove_file(&log);
        let shown = log.display();
        let prefix = match tool {
            Tool::None | Tool::Lsan => String::new(),
            // The program's own exit status takes precedence, so the exit status says nothing about
            // the gate's verdict.
            Tool::Gate => format!("{} gate --json={shown} --", self.gate.display()),
            Tool::Memcheck => {
                format!("valgrind --leak-check=full --num-callers=40 --log-file={shown}.%p")
            }
        };
        let directory = if tool == Tool::Lsan {
            &self.sanitized
        } else {
            &self.plain
        };
        let (blocks, bytes) = PLANTED;
        let mut run = Command::new("sh");
        run.args(["-c", &format!("exec {prefix} {test}")])
            .current_dir(directory)
            .env("ASAN_OPTIONS", asan_options(tool, &log))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if with_leak {
            run.env("MEMHOOK_PLANTED", format!("{blocks} {bytes}"));
        }
        let begin = Instant::now();
        let mut child = run.spawn().map_err(|e| format!("sh: {e}"))?;
        // The shell executes the tool in its own process, so the process id is the tool's.
        let of_child = PathBuf::from(format!("{shown}.{}", child.id()));
        let status = child.wait().map_err(|e| e.to_string())?;
        let time = begin.elapsed();
        let said = match tool {
            Tool::None => Said::nothing(),
            Tool::Gate => Said::by_gate(&log, status),
            Tool::Lsan => Said::by_lsan(&of_child),
            Tool::Memcheck => Said::by_memcheck(&of_child),
        };
        remove_reports(&log);
        Ok(Outcome {
            time,
            status,
            leaked: said.leaked,
            blamed: said.blamed,
            has_unknown_caller: said.has_unknown_caller,
        })
    }
}

fn asan_options(tool: Tool, log: &Path) -> String {
    if tool == Tool::Lsan {
        // Other faults of a test are ignored here.
        format!(
            "detect_leaks=1:exitcode=0:halt_on_error=0:detect_odr_violation=0:alloc_dealloc_mismatch=0:\
             allocator_may_return_null=1:log_path={}",
            log.display()
        )
    } else {
        String::new()
    }
}

/// Also removes the reports of a program's children.
fn remove_reports(log: &Path) {
    let (Some(folder), Some(name)) = (log.parent(), log.file_name()) else {
        return;
    };
    let name = name.to_string_lossy();
    for file in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if file.file_name().to_string_lossy().starts_with(&*name) {
            let _ = std::fs::remove_file(file.path());
        }
    }
}

/// Parsed report of a tool.
struct Said {
    leaked: Result<Leaked, String>,
    blamed: Vec<String>,
    has_unknown_caller: bool,
}

impl Said {
    fn nothing() -> Said {
        Said {
            leaked: Ok(Leaked::default()),
            blamed: Vec::new(),
            has_unknown_caller: false,
        }
    }

    fn unknown(why: String) -> Said {
        Said {
            leaked: Err(why),
            ..Said::nothing()
        }
    }

    fn by_gate(log: &Path, status: ExitStatus) -> Said {
        let document = File::open(log)
            .map_err(|e| e.to_string())
            .and_then(|file| serde_json::from_reader(file).map_err(|e| e.to_string()));
        let document: Value = match document {
            Ok(document) => document,
            Err(error) => return Said::unknown(format!("no report ({status}): {error}")),
        };
        if document["outcome"] == "unsound" {
            return Said::unknown(document["headline"].as_str().unwrap_or_default().to_owned());
        }
        let number = |name: &str| document["leaked"][name].as_u64().unwrap_or_default();
        let sites = &document["evidence"]["sites"];
        let mut groups = Vec::new();
        let mut said = Said {
            leaked: Ok(Leaked {
                blocks: number("blocks"),
                bytes: number("bytes"),
            }),
            ..Said::nothing()
        };
        for finding in document["findings"].as_array().into_iter().flatten() {
            if groups.contains(&&finding["group"]) {
                continue;
            }
            groups.push(&finding["group"]);
            let site = finding["leak"]["site"].as_u64().unwrap_or_default();
            let stack = sites[site as usize]["stack"].as_array();
            let mut frames = stack.into_iter().flatten();
            let frame = frames.find(|frame| frame["wrapper"] != true);
            match frame.and_then(|frame| frame["function"].as_str()) {
                Some(function) => said.blamed.push(function.to_owned()),
                None => said.has_unknown_caller = true,
            }
        }
        said
    }

    fn by_lsan(log: &Path) -> Said {
        let Ok(text) = std::fs::read(log) else {
            return Said::nothing();
        };
        let text = String::from_utf8_lossy(&text);
        // "SUMMARY: AddressSanitizer: 48 byte(s) leaked in 2 allocation(s)."
        let summary = text
            .lines()
            .rev()
            .find(|line| line.starts_with("SUMMARY: "));
        let numbers = summary
            .filter(|line| line.contains("byte(s) leaked in"))
            .map(|line| {
                line.split(' ')
                    .filter_map(|word| word.parse().ok())
                    .collect()
            });
        let numbers: Vec<u64> = match numbers {
            Some(numbers) => numbers,
            None => return Said::unknown(summary.unwrap_or("no summary").to_owned()),
        };
        let [bytes, blocks] = numbers[..] else {
            return Said::unknown("a summary without numbers".to_owned());
        };
        let blamed = text.lines().filter_map(|line| {
            // "    #1 0x55d0 in planted_leak /tmp/planted.c:15"
            let (_, rest) = line.trim_start().strip_prefix('#')?.split_once(" in ")?;
            Some(
                rest.rsplit_once(' ')
                    .map_or(rest, |(name, _)| name)
                    .to_owned(),
            )
        });
        Said {
            leaked: Ok(Leaked { blocks, bytes }),
            blamed: blamed.collect(),
            has_unknown_caller: false,
        }
    }

    fn by_memcheck(log: &Path) -> Said {
        let text = match std::fs::read(log) {
            Ok(text) => String::from_utf8_lossy(&text).into_owned(),
            Err(error) => return Said::unknown(format!("no report: {error}")),
        };
        let mut leaked = Leaked::default();
        let mut ends = text.contains("no leaks are possible");
        let mut blamed = Vec::new();
        let mut is_record = false;
        for line in text.lines() {
            // "==17== Memory check", preceded by the process.
            let line = line.splitn(3, "==").last().unwrap_or_default().trim();
            for class in ["definitely lost: ", "indirectly lost: "] {
                if let Some(amounts) = line.strip_prefix(class) {
                    let mut amounts = amounts.split(' ').filter_map(|word| {
                        let digits: String = word.chars().filter(|c| *c != ',').collect();
                        digits.parse::<u64>().ok()
                    });
                    ends = true;
                    leaked.bytes += amounts.next().unwrap_or_default();
                    leaked.blocks += amounts.next().unwrap_or_default();
                }
            }
            if line.contains(" lost in loss record ") {
                is_record = line.contains("definitely") || line.contains("indirectly");
            } else if is_record
                && let Some((_, frame)) = line.split_once(": ")
                && (line.starts_with("at 0x") || line.starts_with("by 0x"))
            {
                let function = frame.rsplit_once(" (").map_or(frame, |(name, _)| name);
                blamed.push(function.to_owned());
            }
        }
        if !ends {
            return Said::unknown("it did not come to its end".to_owned());
        }
        Said {
            leaked: Ok(leaked),
            blamed,
            has_unknown_caller: false,
        }
    }
}
