//! Output of `memhook-rs scan --list` for a process.

use crate::{Target, patience::TRIES, run};
use std::collections::BTreeMap;

/// Blocks by address, and all other lines.
pub struct List {
    /// Address to (leaked, usable bytes).
    pub blocks: BTreeMap<u64, (bool, u64)>,
    /// Lines about arenas, mappings and damage.
    pub rest: Vec<String>,
}

impl List {
    /// Parses lines such as `leak 0x55d0c0ffee00 24`.
    pub fn parse(text: &str) -> List {
        let mut list = List {
            blocks: BTreeMap::new(),
            rest: Vec::new(),
        };
        for line in text.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            match fields[..] {
                ["leak" | "live", address, bytes] => {
                    let address = u64::from_str_radix(address.trim_start_matches("0x"), 16);
                    let block = (fields[0] == "leak", bytes.parse().expect("a number"));
                    list.blocks.insert(address.expect("an address"), block);
                }
                _ => list.rest.push(line.to_owned()),
            }
        }
        list
    }

    /// Returns the sum of the numbers after `word` in all lines that begin with `kind`.
    pub fn sum(&self, kind: &str, word: &str) -> u64 {
        let of = |line: &String| {
            let mut fields = line.split(' ').skip_while(|f| *f != word);
            fields.nth(1).and_then(|n| n.parse::<u64>().ok())
        };
        let lines = self.rest.iter().filter(|l| l.starts_with(kind));
        lines.filter_map(of).sum()
    }
}

/// Runs `memhook-rs scan`, which must succeed, and returns its output. Retries a scan that would
/// hold the threads for too long, because they or the machine are busy.
pub fn scan(pid: u32, options: &[&str]) -> String {
    let pid = pid.to_string();
    let mut args = vec!["scan", &pid];
    args.extend(options);
    let mut ended = run(&args);
    for _ in 1..TRIES {
        if ended.0 != 2 || !ended.2.contains("would be held for longer than") {
            break;
        }
        ended = run(&args);
    }
    let (code, out, err) = ended;
    // Exit code 3: a part of the heap could not be searched; the output says so.
    assert!(code == 0 || code == 3, "{code}: {out}{err}");
    out
}

/// Returns the blocks that the target planted, and the fields of its mallinfo2 by name.
pub fn planted(target: &mut Target) -> (List, BTreeMap<String, u64>) {
    target.go();
    let mut text = String::new();
    loop {
        let line = target.expect("");
        if line.starts_with("done") {
            break;
        }
        text += &line;
    }
    let list = List::parse(&text);
    let line = list
        .rest
        .iter()
        .find(|l| l.starts_with("mallinfo"))
        .unwrap();
    let pairs = line.split(' ').filter_map(|f| f.split_once('='));
    let counts = pairs
        .map(|(k, v)| (k.to_owned(), v.parse().unwrap()))
        .collect();
    (list, counts)
}
