//! heaptrack's own format, version 3, which `heaptrack_print` and `heaptrack_gui` 1.4 read.
//!
//! Each line states one fact. Numbers are hexadecimal; indices count from 1 unless noted: `v VERSION
//! FORMAT`, `X COMMAND`, `I PAGE_SIZE PAGES`, `s LENGTH STRING`, `i ADDRESS MODULE [FUNCTION FILE
//! LINE]...` (inlined functions innermost first), `t INSTRUCTION PARENT`, `a SIZE TRACE` (indices from 0),
//! `c MILLISECONDS`, `+ INDEX` and `- INDEX` (allocation, release).

use super::heaptrack_events::Events;
use super::locations::locations;
use super::{Format, FormatOptions};
use crate::gaps;
use crate::labels::{NO_STACK, one_line};
use crate::{Profile, ProfileFrame};
use std::collections::{HashMap, hash_map::Entry};
use std::io::{Result, Write};

/// Version 1.4.0, the first to write format 3.
const HEAPTRACK_VERSION: u32 = 0x10400;
const FORMAT: u32 = 3;

/// heaptrack's own format.
pub struct Heaptrack;

/// Unit of resident memory.
const PAGE_BYTES: u64 = 4096;

impl Format<Profile> for Heaptrack {
    fn name(&self) -> &'static str {
        "heaptrack"
    }

    fn write(&self, profile: &Profile, _: &FormatOptions, out: &mut dyn Write) -> Result<()> {
        writeln!(out, "v {HEAPTRACK_VERSION:x} {FORMAT:x}")?;
        // heaptrack's reader skips this line, but people who open the file see it.
        if let Some(gaps) = gaps::warning(&profile.gaps, profile.live_bounds().as_ref()) {
            writeln!(out, "# {gaps}")?;
        }
        writeln!(out, "X {}", one_line(profile.target.command()))?;
        let mut traces = Traces {
            out: &mut *out,
            strings: HashMap::new(),
            instructions: HashMap::new(),
            nodes: HashMap::new(),
        };
        let mut of_stack: HashMap<u32, u32> = HashMap::new();
        for site in &profile.sites {
            if let Entry::Vacant(new) = of_stack.entry(site.stack) {
                new.insert(traces.stack(profile, site.stack)?);
            }
        }
        let trace_of = |stack: u32| of_stack.get(&stack).copied().unwrap_or(0);
        Events::new(profile, trace_of).write(out)?;
        let resident = profile.resident.iter();
        let most = resident.map(|p| p.anonymous_bytes + p.file_bytes + p.shared_bytes);
        if let Some(most) = most.max() {
            // The page size, the size of memory (unknown), and the resident pages.
            writeln!(out, "I {PAGE_BYTES:x} 0\nR {:x}", most / PAGE_BYTES)?;
        }
        Ok(())
    }
}

/// Entries that have been written, with their indices.
struct Traces<'a> {
    out: &'a mut dyn Write,
    strings: HashMap<String, u32>,
    instructions: HashMap<Vec<u32>, u32>,
    nodes: HashMap<(u32, u32), u32>,
}

impl Traces<'_> {
    fn string(&mut self, text: &str) -> Result<u32> {
        if text.is_empty() {
            return Ok(0);
        }
        if let Some(&index) = self.strings.get(text) {
            return Ok(index);
        }
        let line = one_line(text.to_owned());
        writeln!(self.out, "s {:x} {line}", line.len())?;
        let index = self.strings.len() as u32 + 1;
        self.strings.insert(text.to_owned(), index);
        Ok(index)
    }

    /// Returns the instruction index for these frames, given innermost first; all but the last are inlined.
    fn instruction(&mut self, profile: &Profile, frames: &[u32]) -> Result<u32> {
        if let Some(&index) = self.instructions.get(frames) {
            return Ok(index);
        }
        let of = |&index: &u32| profile.frames.get(index as usize);
        let known: Vec<&ProfileFrame> = frames.iter().filter_map(of).collect();
        let (mut address, mut module) = (0, 0);
        if let Some(frame) = known.last() {
            let path = frame
                .module
                .and_then(|m| profile.modules.get(m as usize))
                .map_or("", |m| &m.path);
            (address, module) = (frame.address, self.string(path)?);
        }
        let mut line = format!("i {address:x} {module:x}");
        let named = known
            .iter()
            .filter_map(|f| Some((f, f.frame.function.as_deref()?)));
        let mut functions: Vec<(&str, &str, u32)> = named
            .map(|(f, function)| {
                let file = f.frame.file.as_deref().unwrap_or_default();
                (function, file, f.frame.line.unwrap_or(0))
            })
            .collect();
        if known.is_empty() {
            functions.push((NO_STACK, "", 0));
        }
        for (function, file, number) in functions {
            let (function, file) = (self.string(function)?, self.string(file)?);
            line += &format!(" {function:x} {file:x} {number:x}");
        }
        writeln!(self.out, "{line}")?;
        let index = self.instructions.len() as u32 + 1;
        self.instructions.insert(frames.to_vec(), index);
        Ok(index)
    }

    /// Returns the trace index of a stack. Its frames are entered starting with the outermost, each as a child of the
    /// previous one.
    fn stack(&mut self, profile: &Profile, stack: u32) -> Result<u32> {
        let frames = profile.stacks.get(stack as usize);
        let mut instructions = Vec::new();
        for here in locations(profile, frames.map_or(&[][..], Vec::as_slice)) {
            instructions.push(self.instruction(profile, here)?);
        }
        if instructions.is_empty() {
            instructions.push(self.instruction(profile, &[])?);
        }
        let mut parent = 0;
        for instruction in instructions.into_iter().rev() {
            let next = self.nodes.len() as u32 + 1;
            let key = (instruction, parent);
            let node = *self.nodes.entry(key).or_insert(next);
            if node == next {
                writeln!(self.out, "t {instruction:x} {parent:x}")?;
            }
            parent = node;
        }
        Ok(parent)
    }
}
