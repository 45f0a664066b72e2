//! What the process lives in: namespaces, system call filters, and what is left of an earlier attach.

use super::Check;
use super::access::Status;
use crate::Mapping;
use std::fs;

pub(super) fn namespaces(pid: i32) -> Vec<Check> {
    let other = |kind: &&str| {
        let of = |who: &str| fs::read_link(format!("/proc/{who}/ns/{kind}")).ok();
        let (ours, its) = (of("self"), of(&pid.to_string()));
        its.is_some() && ours != its
    };
    let others: Vec<&str> = ["pid", "mnt", "user", "time"]
        .into_iter()
        .filter(other)
        .collect();
    let mut checks = vec![match others.is_empty() {
        true => Check::good("namespaces", "the same as ours"),
        false => Check::good("namespaces", format!("its own: {}", others.join(", "))),
    }];
    if others.contains(&"time") {
        checks.push(Check::note(
            "clock",
            "its CLOCK_MONOTONIC has another origin than ours",
            "leave --clock at coarse",
        ));
    }
    checks
}

/// Mode 1 kills at any system call but four (seccomp(2)): the first of ours would be the target's end.
pub(super) fn seccomp(pid: i32, status: &Status) -> Result<Check, Check> {
    match status.field("Seccomp") {
        "1" => Err(Check::bad(
            "seccomp",
            format!(
                "process {pid} ({}) is in seccomp strict mode: a system call made in it would kill it",
                status.name
            ),
            "it cannot be traced",
        )),
        "0" | "" => Ok(Check::good("seccomp", "no filter")),
        _ => Ok(Check::note(
            "seccomp",
            "a filter is active",
            "it must allow mmap, mprotect and memfd_create: a filter that kills instead of refusing would end the process",
        )),
    }
}

/// What an attach leaves mapped: the next one uses it again.
pub(super) fn residue(maps: &[Mapping]) -> Option<Check> {
    maps.iter()
        .any(|m| m.path == "/memfd:memhook-hook")
        .then(|| {
            Check::good(
                "earlier attach",
                "its hook is still loaded and is used again",
            )
        })
}
