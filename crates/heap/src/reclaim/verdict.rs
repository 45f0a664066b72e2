//! Verdict that lists the leaked blocks of a snapshot, in a file, so that the search can run on
//! another machine.
//!
//! A verdict replaces the first of the two scans that reclaiming makes. The second scan always
//! examines the process itself: a block is released only if it is still leaked then, at its old
//! address, with its old size and contents. So a verdict that is wrong, old or forged causes no
//! release that reclaiming without a verdict would not make.

use super::choose::refusal;
use crate::graph::twice::{Fingerprint, Fingerprints};
use crate::snapshot::{Meta, ProcessIdentity};
use crate::{Error, Scan, Snapshot};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

/// Name of the schema.
const SCHEMA: &str = "memhook-rs/verdict/1";
/// Maximum length of a verdict. A block takes about 90 bytes.
const MOST_BYTES: u64 = 4 << 30;

/// Leaked blocks of one process.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    schema: String,
    process: ProcessIdentity,
    program: Program,
    leaked: Vec<LeakedBlock>,
}

/// The program that the process executes, and its addresses. The addresses change with every
/// execve, even of the same program.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Program {
    path: String,
    start: u64,
}

impl Program {
    fn of(meta: &Meta) -> Option<Program> {
        let module = meta.modules.first()?;
        Some(Program {
            path: module.path.clone(),
            start: module.start,
        })
    }
}

/// A block that nothing reaches.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeakedBlock {
    address: u64,
    /// Usable bytes.
    bytes: u64,
    /// The first half of the SHA-256 of the contents, in hexadecimal digits.
    contents: String,
}

impl Verdict {
    /// Creates the verdict of a scan, with the blocks that `--reclaim` might release. `file` names
    /// the snapshot in errors.
    pub fn of(file: &str, snapshot: &Snapshot, scan: &Scan) -> Result<Verdict, Error> {
        let none = |reason: String| Error::NoVerdict {
            file: file.to_owned(),
            reason,
        };
        if let Some(why) = refusal(snapshot, &scan.heap) {
            return Err(none(why.to_string()));
        }
        let meta = &snapshot.meta;
        let (Some(process), Some(program)) = (meta.identity.clone(), Program::of(meta)) else {
            return Err(none(
                "the snapshot does not say which process it is from (core dumps and older snapshots do not)".into(),
            ));
        };
        let mut leaked: Vec<LeakedBlock> = scan
            .fingerprints(snapshot)
            .iter()
            .map(|(address, fingerprint)| LeakedBlock {
                address,
                bytes: fingerprint.bytes,
                contents: format!("{:032x}", fingerprint.contents),
            })
            .collect();
        leaked.sort_unstable_by_key(|block| block.address);
        Ok(Verdict {
            schema: SCHEMA.to_owned(),
            process,
            program,
            leaked,
        })
    }

    /// Returns the number of blocks in the verdict.
    pub fn blocks(&self) -> usize {
        self.leaked.len()
    }

    /// Writes the verdict as JSON, one block on each line, so that people can read it and remove
    /// blocks.
    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        let (schema, process) = (&self.schema, serde_json::to_string(&self.process)?);
        let program = serde_json::to_string(&self.program)?;
        write!(
            to,
            "{{\"schema\":\"{schema}\",\"process\":{process},\"program\":{program},\"leaked\":["
        )?;
        for (number, block) in self.leaked.iter().enumerate() {
            let comma = if number > 0 { "," } else { "" };
            write!(to, "{comma}\n{}", serde_json::to_string(block)?)?;
        }
        writeln!(to, "\n]}}")?;
        to.flush()
    }

    /// Reads a verdict, which may come from an untrusted source.
    pub fn read(file: &str, from: impl Read) -> Result<Verdict, Error> {
        let bad = |reason: String| Error::Saved {
            file: file.to_owned(),
            reason,
        };
        let verdict: Verdict = serde_json::from_reader(from.take(MOST_BYTES))
            .map_err(|error| bad(format!("not a verdict on leaked blocks: {error}")))?;
        if verdict.schema != SCHEMA {
            return Err(bad(format!("its schema is not {SCHEMA}")));
        }
        Ok(verdict)
    }

    /// Returns the reason why the verdict does not apply to this process, or `None` if it does.
    pub(crate) fn foreign_to(&self, pid: i32) -> Option<String> {
        let Some(now) = ProcessIdentity::of(pid) else {
            return Some("it has ended".into());
        };
        if now.boot != self.process.boot {
            return Some("the verdict is from another machine or an earlier boot".into());
        }
        (now != self.process).then(|| {
            format!(
                "the verdict is about a process {} that started at another time",
                self.process.pid
            )
        })
    }

    /// Returns true if the verdict belongs to the program that a snapshot of the process shows.
    pub(super) fn is_of_program(&self, meta: &Meta) -> bool {
        Program::of(meta).as_ref() == Some(&self.program)
    }

    /// Returns the fingerprints that reclaiming compares against. Malformed entries are left out,
    /// and a block without a fingerprint is not released.
    pub(crate) fn fingerprints(&self) -> Fingerprints {
        let known = self.leaked.iter().filter_map(|block| {
            let contents = u128::from_str_radix(&block.contents, 16).ok()?;
            let fingerprint = Fingerprint {
                bytes: block.bytes,
                contents,
            };
            Some((block.address, fingerprint))
        });
        known.collect()
    }
}
