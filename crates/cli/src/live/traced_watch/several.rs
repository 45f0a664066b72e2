//! `watch --cgroup`: all current and future processes of a control group.

use super::job::Watch;
use crate::live::signals;
use crate::live::watching::Args;
use crate::live::watching::watched::Watched;
use crate::{exit_code, remedies};
use memhook_attach::{Assigner, Error, Followed, TraceConfig, Work, follow};
use memhook_process::Selector;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The watch ends when the group has had no process for this long. While a service restarts, its
/// group is empty for a moment.
const DESERTED: Duration = Duration::from_secs(2);

/// Watches the processes until the group is empty, or the user requests the end.
pub(super) fn run(args: &Args, selector: Selector) -> anyhow::Result<ExitCode> {
    let found = selector.look();
    if found.is_empty() {
        selector.choose(&found)?;
    }
    let config = args.config();
    let watched = Watched::new(args, found.len())?;
    signals::catch_stops();
    let mut several = Several {
        args,
        config: &config,
        watched: &watched,
        selector: selector.clone(),
        deserted: None,
        has_refused: false,
    };
    let followed = Followed::Matching(selector);
    let followed = follow(followed, &config, args.duration, &mut several);
    let has_refused = several.has_refused;
    let mut code = watched.finish();
    let count = followed?;
    if count.missed > 0 {
        eprintln!(
            "memhook-rs: not watched because they ended too soon: {}",
            count.missed
        );
    }
    if count.traced == 0 {
        eprintln!("memhook-rs: no process was watched");
    }
    if has_refused || count.traced == 0 {
        code = code.max(exit_code::BAD_INPUT);
    }
    Ok(ExitCode::from(code))
}

struct Several<'a> {
    args: &'a Args,
    config: &'a TraceConfig,
    watched: &'a Arc<Watched>,
    selector: Selector,
    /// Time since which the group has had no process.
    deserted: Option<Instant>,
    has_refused: bool,
}

impl Assigner for Several<'_> {
    fn work(&mut self, pid: i32, _: u32) -> Result<Work, Error> {
        let job = Watch::new(pid, self.watched, &self.args.view, self.config.depth);
        Ok(Work {
            job: Box::new(job),
            recording: None,
        })
    }

    fn is_over(&mut self) -> bool {
        if !self.watched.crowd().is_deserted() || !self.selector.look().is_empty() {
            self.deserted = None;
            return false;
        }
        self.deserted.get_or_insert_with(Instant::now).elapsed() >= DESERTED
    }

    fn is_not_traced(&mut self, pid: i32, why: &Error) {
        self.has_refused = true;
        let why = remedies::in_words(why);
        eprintln!("memhook-rs: process {pid} is not watched: {why}");
    }
}
