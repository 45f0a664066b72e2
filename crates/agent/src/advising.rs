//! Advice on processes in mode `scan`. Each process is occasionally traced for a minute, as
//! `advise` would do, and then left alone.

use crate::advice_files;
use crate::board::{Advised, Identity, Numbers};
use crate::config::File;
use crate::haste::hastened;
use crate::kept_advice::{Given, Kept};
use crate::moment::Moment;
use crate::said::{chain, warn};
use crate::scanning::{Queue, Searches};
use crate::worker::Ended;
use crossbeam_channel::Receiver;
use memhook_advice::Advice;
use memhook_attach::{Detached, End, Error as AttachError, Session, TraceConfig, already_traced};
use memhook_checkup::{
    Attendant, Examination, ExaminationError, MemoryLooks, advice_of, examine, resident_now,
    usual_tracing,
};
use memhook_heap::{Limits, Request};
use memhook_process::TargetRoot;
use memhook_recording::{Options, Recording};
use memhook_report::duration_in_words;
use memhook_symbols::{SearchPath, Symbolizer};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// Time for which a process is traced.
const TRACED_FOR: Duration = Duration::from_secs(60);
/// Share of a process's time that an examination may take, unless the rule sets one.
const OVERHEAD: f64 = 0.02;
/// Maximum size of a recording, which is read and deleted immediately.
const MOST_RECORDED: u64 = 64 << 20;
/// Maximum time for which an examination waits until the agent is within its budget.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum wait for names.
const NAMES_FOR: Duration = Duration::from_secs(60);

/// Reason why there is no advice: a word for metrics, and a sentence.
type Why = (&'static str, String);

/// Advises on one process.
pub struct Advising {
    every: Duration,
    /// Reasons that were logged.
    told: BTreeSet<&'static str>,
    /// The answer that was logged last.
    told_answer: Option<Option<String>>,
    /// The running examination, in its stored form.
    begun: Option<Kept>,
}

impl Advising {
    /// Creates the state of a process without advice.
    pub fn new(every: Duration) -> Advising {
        Advising {
            every,
            told: BTreeSet::new(),
            told_answer: None,
            begun: None,
        }
    }

    /// Returns the time from one examination to the next.
    pub fn every(&self) -> Duration {
        hastened(self.every)
    }

    /// Takes over the stored state of an earlier agent. Returns the time until the process may be
    /// examined again.
    pub fn resume(&self, searches: &Searches, numbers: &mut Numbers) -> Duration {
        let kept = searches.kept_advice();
        let kept = kept.and_then(|kept| kept.of(searches.identity().pid, searches.executable()));
        let Some(kept) = kept else {
            return Duration::ZERO;
        };
        numbers.advised = Some(Advised {
            every: self.every,
            last: kept.given.map(Arc::new),
            ..Advised::default()
        });
        self.every().saturating_sub(kept.examined.age())
    }

    /// Examines the process. A refusal is not an error, because the next attempt may succeed.
    pub fn round(&mut self, searches: &Searches, numbers: &mut Numbers) -> Result<(), Ended> {
        let mut advised = numbers.advised.take().unwrap_or_default();
        advised.every = self.every;
        advised.attempts += 1;
        advised.refused = match self.try_round(searches, &mut advised)? {
            Ok(advice) => {
                self.tell(searches.identity(), &advice);
                let given = Arc::new(given(&advice));
                advised.given += 1;
                advised.last = Some(Arc::clone(&given));
                let kept = self.begun.take().map(|begun| begun.with(&given));
                self.keep(searches, kept);
                if let (Some(files), Some(document)) = (searches.files_of_advice(), &given.document)
                    && let Err(error) = advice_files::write(files, searches.identity(), document)
                {
                    let path = files.directory.display();
                    warn(&format!(
                        "advice is not kept: cannot write into {path}: {error}"
                    ));
                }
                None
            }
            Err(why) => {
                *advised.refusals.entry(why.0).or_default() += 1;
                self.tell_refusal(searches.identity(), &why);
                Some(why.1)
            }
        };
        numbers.advised = Some(advised);
        Ok(())
    }

    fn try_round(
        &mut self,
        searches: &Searches,
        advised: &mut Advised,
    ) -> Result<Result<Advice, Why>, Ended> {
        if searches.is_starved()? {
            let why = "its threads get too little processor time to spare any: give it more (its control group may have a quota)";
            return Ok(Err(("starved", why.into())));
        }
        let Some(_turn) = searches.turn_within_budget(Queue::Advice, PATIENCE)? else {
            let why = "the agent has used up its share of the processors, or its memory";
            return Ok(Err(("budget", why.into())));
        };
        let pid = searches.identity().pid;
        if let Ok(Some(other)) = already_traced(pid) {
            return Ok(Err((reason(&other), chain(&other))));
        }
        // The time is written before the examination, so that the next examination is not early,
        // whatever happens to this examination or to the agent.
        self.begun = Kept::begins(pid, searches.executable());
        let kept = self.begun.clone().map(|begun| match &advised.last {
            Some(last) => begun.with(last),
            None => begun,
        });
        self.keep(searches, kept);
        let limits = searches.halved_limits();
        let root = TargetRoot::of(pid);
        let names = searches.names().map(|readers| SearchPath {
            readers: Some(readers.clone()),
            ..SearchPath::default()
        });
        let mut watched = Watched {
            searches,
            turn: None,
            names: OnceCell::new(),
            held: Duration::ZERO,
        };
        let examination = examination(searches, limits, names.clone());
        let examined = match examine(pid, examination, &mut watched) {
            Ok(examined) => examined,
            Err(_) if searches.has_gone() => return Err(Ended::Gone),
            Err(ExaminationError::Attach(error)) => {
                return Ok(Err((reason(&error), chain(&error))));
            }
            Err(error) => return Ok(Err(("failed", chain(&error)))),
        };
        advised.held += watched.held;
        drop(watched);
        match examined.end {
            End::Detached(Detached::Clean) => {}
            end => return Err(Ended::from(end)),
        }
        if searches.link().is_asked_back() {
            return Err(Ended::Left);
        }
        let failed = |why: String| Ok(Err(("failed", why)));
        let recording = match Recording::open(&examined.path) {
            Ok(recording) => recording,
            Err(error) => return failed(chain(&error)),
        };
        let mut symbols = match names {
            Some(path) => Symbolizer::new(SearchPath {
                roots: root.search_order(),
                ..path
            }),
            None => Symbolizer::without_files(),
        };
        symbols.set_modules(examined.modules.clone());
        let resident = resident_now(pid, limits, &recording);
        match advice_of(&recording, symbols, resident, true) {
            Ok(advice) => Ok(Ok(advice)),
            Err(error) => failed(chain(&error)),
        }
    }

    /// Stores the state of the process for the next agent.
    fn keep(&self, searches: &Searches, kept: Option<Kept>) {
        let (Some(to), Some(kept)) = (searches.kept_advice(), kept) else {
            return;
        };
        if let Err(error) = to.keep(&kept) {
            warn(&format!(
                "advice is not kept for the next agent: cannot write it: {error}"
            ));
        }
    }

    /// Logs the answer, if it differs from the last one.
    fn tell(&mut self, identity: &Identity, advice: &Advice) {
        // The bytes in the answer change each time.
        let kind = advice.findings.first().map(|finding| kind(finding.kind));
        if self.told_answer.replace(kind.clone()) != Some(kind) {
            let answer = advice.headline();
            let Identity { pid, process, .. } = identity;
            tracing::info!(pid, process, "advice: {answer}");
        }
    }

    /// Logs why there is no advice on a process, once for each reason.
    fn tell_refusal(&mut self, identity: &Identity, (reason, why): &Why) {
        if self.told.insert(reason) {
            let Identity { pid, process, .. } = identity;
            warn(&format!("no advice on process {pid} ({process}): {why}"));
        }
    }
}

/// Returns the settings of an examination within the agent's limits.
fn examination<'a>(
    searches: &'a Searches,
    limits: Limits,
    names: Option<SearchPath>,
) -> Examination<'a> {
    Examination {
        duration: hastened(TRACED_FOR),
        config: TraceConfig {
            max_memory: limits.memory,
            // With many targets, none may use several processors.
            drains: Some(1),
            ..usual_tracing(Some(searches.overhead().unwrap_or(OVERHEAD)))
        },
        files: Some(searches.files()),
        looks: Some(MemoryLooks {
            search: Request {
                limits,
                ..Request::to_search()
            },
            walk: limits,
            words: |error| chain(error),
        }),
        recording: Options {
            max_file_bytes: Some(MOST_RECORDED),
            overwrite: true,
            ..Options::default()
        },
        directory: searches.directory().to_owned(),
        names,
    }
}

/// Returns the part of an advice that is stored.
fn given(advice: &Advice) -> Given {
    let mut gains: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for finding in &advice.findings {
        let gain = gains.entry(kind(finding.kind)).or_default();
        gain.0 += finding.gain_bytes;
        gain.1 += finding.gain_bytes_an_hour.unwrap_or(0);
    }
    Given {
        made: Moment::now(),
        answer: advice.answer.clone(),
        gains,
        document: serde_json::to_string(advice).ok(),
    }
}

/// Returns the word for a kind of findings in documents.
fn kind(kind: memhook_advice::Kind) -> String {
    let word = serde_json::to_value(kind).ok();
    let word = word.as_ref().and_then(serde_json::Value::as_str);
    word.unwrap_or_default().to_owned()
}

fn reason(error: &AttachError) -> &'static str {
    match error {
        AttachError::AlreadyTraced { .. } | AttachError::Busy { .. } => "traced",
        AttachError::NothingToHook { .. } => "nothing_to_hook",
        AttachError::Refused(_) => "refused",
        AttachError::Open { .. } => "access",
        _ => "failed",
    }
}

/// The agent's view of a process under examination.
struct Watched<'a> {
    searches: &'a Searches,
    /// Turn in the queue. Copying two processes at the same time would take too much memory.
    turn: Option<MutexGuard<'a, ()>>,
    /// Time at which the wait for names began.
    names: OnceCell<Instant>,
    held: Duration,
}

impl Attendant for Watched<'_> {
    /// Returns false. Leaving all targets simultaneously would take too many resources, so the
    /// supervisor leaves a few at a time.
    fn ends_by_signal(&self) -> bool {
        false
    }

    fn pace(&self) -> Duration {
        Duration::from_millis(100)
    }

    fn calls(&self) -> Option<&Receiver<()>> {
        Some(self.searches.link().calls())
    }

    fn attached(&mut self, session: &Session) {
        self.held = session.held_time();
    }

    fn is_called_off(&mut self, drainer: Option<i32>) -> bool {
        let link = self.searches.link();
        if let Some(drainer) = drainer {
            link.tell_thread(drainer);
        }
        let _ = link.calls().try_recv();
        link.is_asked_back()
    }

    fn may_look(&mut self) -> bool {
        self.turn = self.turn.take().or_else(|| self.searches.try_turn());
        self.turn.is_some()
    }

    fn has_looked(&mut self) {
        self.turn = None;
    }

    fn gives_up_names(&self) -> bool {
        let since = self.names.get_or_init(Instant::now);
        self.searches.link().is_asked_back() || since.elapsed() >= NAMES_FOR
    }

    fn notice(&mut self, text: &str) {
        warn(text);
    }
}

/// Describes a configuration's advice, one line for each rule.
pub fn notes(file: &File) -> Vec<String> {
    let rules = file.rule.iter().map(toml::Spanned::get_ref);
    let notes = rules.filter_map(|rule| {
        let name = rule.name.get_ref();
        let every = duration_in_words(rule.advise.as_ref()?.get_ref().0.as_secs_f64());
        Some(format!(
            "the rule \"{name}\" traces each of its processes for a minute, once in {every}, and says what to do about its memory"
        ))
    });
    notes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(findings: &[(memhook_advice::Kind, u64, Option<u64>)]) -> Advice {
        let findings = findings
            .iter()
            .map(
                |&(kind, gain_bytes, gain_bytes_an_hour)| memhook_advice::Finding {
                    kind,
                    found: String::new(),
                    place: None,
                    gain_bytes,
                    gain_bytes_an_hour,
                    certainty: "exact",
                    remedy: String::new(),
                    cost: "",
                    evidence: String::new(),
                },
            );
        Advice {
            schema: "memhook-rs/advice/1",
            pid: 7,
            name: "nginx".into(),
            seconds: 60.0,
            rss_bytes: Some(1 << 30),
            class: "leak",
            unexplained_bytes: None,
            answer: Some("A leak".into()),
            more_seconds: None,
            unsure_site: None,
            not_examined: None,
            sites: Vec::new(),
            resident: Vec::new(),
            lines: Vec::new(),
            findings: findings.collect(),
            tried: None,
            notes: Vec::new(),
        }
    }

    #[test]
    fn findings_of_one_kind_add_up() {
        use memhook_advice::Kind::{Leak, ThreadCaches};
        let found = given(&advice(&[
            (Leak, 5, Some(50)),
            (Leak, 6, None),
            (ThreadCaches, 7, None),
        ]));
        let gains = [("leak", (11, 50)), ("thread_caches", (7, 0))];
        let gains = gains.map(|(kind, gain)| (kind.to_owned(), gain));
        assert_eq!(found.gains, BTreeMap::from(gains));
        let document = found.document.expect("a document");
        assert!(document.starts_with(r#"{"schema":"memhook-rs/advice/1","pid":7,"#));
        // Findings that are cured are gone.
        assert_eq!(given(&advice(&[])).gains.len(), 0);
    }

    #[test]
    fn an_answer_is_told_when_it_changes() {
        use memhook_advice::Kind::Leak;
        let mut advising = Advising::new(Duration::from_secs(3600));
        let identity = Identity::default();
        advising.tell(&identity, &advice(&[(Leak, 5, None)]));
        assert_eq!(advising.told_answer, Some(Some("leak".into())));
        advising.tell(&identity, &advice(&[]));
        assert_eq!(advising.told_answer, Some(None));
        for why in ["by 7", "by 8"] {
            advising.tell_refusal(&identity, &("traced", why.into()));
        }
        assert_eq!(advising.told, BTreeSet::from(["traced"]));
    }
}
