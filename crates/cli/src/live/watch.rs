//! `watch`: traces a process at little cost, and keeps what explains it when memory runs out.

mod evidence;

use super::attach::hooked;
use super::ending::of_trace;
use super::model::Reporter;
use super::signals::{self, NameWait};
use crate::exit_code;
use crate::options::View;
use crate::target::Target;
use crate::tracing::{DEPTH_TO_ROOTS, Tracing};
use evidence::{Evidence, Place};
use memhook_attach::{End, Job, Trace, Turn, refuse};
use memhook_foreign::units;
use memhook_heap::account_of_mappings;
use memhook_process::{AlarmAt, MemoryAlarm, Trigger, ended_with, resident_counters};
use memhook_report::{Death, ReportModel, RssReport, RssView, SetAside, WatchMoment, WatchReport};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Mean bytes between samples: about a thousand samples of a heap of 16 MiB.
const SAMPLE_BYTES: u64 = 16 << 10;
/// How often names are looked up in advance, so that they are there when a report is due.
const NAMES_PERIOD: Duration = Duration::from_secs(2);
/// Seconds between two moments of the history in the reports, and how many of them are kept: ten minutes.
const HISTORY_PAUSE: f64 = 5.0;
const HISTORY_MOMENTS: usize = 120;
/// How long an urgent report waits for names that are not there yet.
const URGENT_WAIT: Duration = Duration::from_millis(20);
/// Reports that wait for their names; those before them keep what they have.
const MOST_UNNAMED: usize = 16;
/// How long one look for names takes at the end; then signals are looked for.
const NAMES_PAUSE: Duration = Duration::from_millis(50);

/// Options of `watch`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Write a report when this much memory is used
    ///
    /// A share of the limit of its memory cgroup or, if that has none, of the machine's memory. Another report
    /// follows when half of the rest is used.
    #[arg(long, value_name = "SHARE|SIZE", value_parser = share, default_value = "90%")]
    at: AlarmAt,
    /// Write a report when it has more than this in memory
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    rss_above: Option<u64>,
    /// Write a report when processes wait for memory
    ///
    /// In the kernel's syntax: 'some 150000 1000000' is 150 ms of waiting within a second.
    #[arg(long, value_name = "TRIGGER")]
    psi: Option<String>,
    /// Write the reports into this directory
    #[arg(short, long, value_name = "DIRECTORY", required = true)]
    output: PathBuf,
    /// How many reports to keep, beside the last one
    #[arg(long, value_name = "N", default_value_t = 10)]
    keep: usize,
    /// Run this shell command after each report
    ///
    /// MEMHOOK_REPORT is the file, MEMHOOK_REASON is limit, growth, rss, pressure or end, and MEMHOOK_PID is
    /// the process.
    #[arg(long, value_name = "COMMAND")]
    exec: Option<String>,
    /// End the watch after this time (500ms, 30s, 10m)
    #[arg(short, long, value_name = "TIME", value_parser = units::duration)]
    duration: Option<Duration>,
    /// Trace every allocation rather than a sample
    #[arg(long, conflicts_with = "sample")]
    exact: bool,
    #[command(flatten)]
    view: View,
    #[command(flatten)]
    tracing: Tracing,
}

fn share(text: &str) -> Result<AlarmAt, String> {
    text.parse()
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.tracing.refuse_sampled_accesses("watch")?;
    let pid = args.target.largest()?;
    let mut tracing = args.tracing.with_depth(DEPTH_TO_ROOTS);
    if args.exact {
        tracing = tracing.for_running();
    } else {
        tracing.sample = tracing.sample.or(Some(SAMPLE_BYTES));
    }
    let config = tracing.resolve();
    refuse(pid, &config)?;
    // Before the process is touched: what cannot be written costs it nothing then.
    let evidence = Evidence::new(&args.output, pid, args.keep, args.exec.clone())?;
    let alarm = MemoryAlarm::new(pid, args.at, args.rss_above, args.psi.as_deref())?;
    let depth = config.depth;
    signals::catch_stops();
    let mut trace = Trace::start(pid, config)?;
    let mut job = Watch {
        pid,
        kills_before: alarm.kills(),
        kills: None,
        alarm,
        reporter: Reporter::new(pid, args.view.clone(), depth),
        top: args.view.top,
        next_names: Duration::ZERO,
        history: VecDeque::new(),
        evidence,
        unnamed: VecDeque::new(),
        died: None,
        code: exit_code::DONE,
    };
    trace.run(args.duration, &mut job);
    let is_written = job.evidence.finish();
    let code = if is_written {
        job.code
    } else {
        job.code.max(exit_code::BAD_INPUT)
    };
    Ok(ExitCode::from(code))
}

/// A report that was written before its names were there.
struct Unnamed {
    place: Place,
    report: WatchReport,
    /// `None` for the one whose names are being looked up.
    rest: Option<SetAside>,
}

/// The watch of one process.
struct Watch {
    pid: i32,
    alarm: MemoryAlarm,
    kills_before: Option<u64>,
    /// As they were last seen: the group may go with the process.
    kills: Option<u64>,
    reporter: Reporter,
    top: usize,
    next_names: Duration,
    /// The last minutes.
    history: VecDeque<WatchMoment>,
    evidence: Evidence,
    /// Reports that were written before their names were there, the last one first. Its names are being looked up.
    unnamed: VecDeque<Unnamed>,
    /// Its wait status, if it could be read.
    died: Option<i32>,
    code: u8,
}

impl Watch {
    /// Notes what the process uses, and what lives by the report.
    fn note(&mut self, report: &ReportModel) {
        let Some(found) = resident_counters(self.pid) else {
            return;
        };
        self.history.push_back(WatchMoment {
            time_s: report.elapsed_s,
            rss_bytes: found.resident(),
            live_bytes: report.totals.live_bytes,
        });
        if self.history.len() > HISTORY_MOMENTS {
            self.history.pop_front();
        }
    }

    fn look_at_the_end(&mut self) {
        self.kills = self.alarm.kills().or(self.kills);
        self.died = ended_with(self.pid).or(self.died);
    }

    /// Writes a report at once with the names that are there. It is written again when the others have come.
    fn urgent(&mut self, trace: &Trace, trigger: &Trigger) {
        let (session, consumer) = (trace.session(), trace.consumer());
        if let Some(before) = self.unnamed.front_mut() {
            before.rest = self.reporter.set_aside();
        }
        self.reporter.begin(session, consumer, false);
        let found = match self.reporter.poll(session, URGENT_WAIT) {
            Some(report) => Some((report, false)),
            None => self.reporter.so_far(session),
        };
        if let Some((report, lacks_names)) = found {
            self.note(&report);
            let account = account_of_mappings(self.pid).ok().map(|account| {
                let view = RssView {
                    top: self.top,
                    pins: false,
                };
                RssReport::new(self.pid, &account, None, view)
            });
            let report = WatchReport::new(
                self.pid,
                trigger.name(),
                trigger.to_string(),
                account,
                report,
            );
            let report = report.with_history(self.history.iter().copied().collect());
            let place = self.evidence.keep(&report);
            if lacks_names {
                self.unnamed.push_front(Unnamed {
                    place,
                    report,
                    rest: None,
                });
                self.unnamed.truncate(MOST_UNNAMED);
                return;
            }
        }
        self.take_up_unnamed();
    }

    /// Writes a report again whose names have come.
    fn replace_unnamed(&mut self, with_names: &ReportModel) {
        if let Some(Unnamed { place, report, .. }) = self.unnamed.pop_front() {
            let report = report.with_report(with_names.clone());
            self.evidence.replace(place, &report);
            self.take_up_unnamed();
        }
    }

    /// Goes on with the report before.
    fn take_up_unnamed(&mut self) {
        let next = self.unnamed.front_mut();
        if let Some(rest) = next.and_then(|next| next.rest.take()) {
            self.reporter.take_up(rest);
        }
    }

    /// Waits at the end for the names of reports that lack them.
    fn finish_unnamed(&mut self, trace: &Trace) {
        let (session, wait) = (trace.session(), NameWait::begin());
        while !self.unnamed.is_empty() {
            let found = match wait.is_over() {
                true => self.reporter.give_up_names(session),
                false => self.reporter.poll(session, NAMES_PAUSE),
            };
            match found {
                Some(report) => self.replace_unnamed(&report),
                None if wait.is_over() => break,
                None => {}
            }
        }
    }

    fn death(&self) -> Death {
        let kills = self.kills.zip(self.kills_before);
        let kills = kills.map(|(now, before)| now.saturating_sub(before));
        let signal = self.died.map(|status| status & 0x7f);
        Death {
            out_of_memory: kills.is_some_and(|kills| kills > 0),
            kills,
            signal: signal.filter(|&signal| signal != 0),
            status: self
                .died
                .filter(|status| status & 0x7f == 0)
                .map(|status| status >> 8 & 0xff),
        }
    }

    /// The last report, with the names that are there when nobody waits any longer.
    fn last_report(&mut self, trace: &Trace) -> Option<ReportModel> {
        let (session, consumer) = (trace.session(), trace.consumer());
        let wait = NameWait::begin();
        self.reporter.begin(session, consumer, true);
        loop {
            if let Some(report) = self.reporter.poll(session, NAMES_PAUSE) {
                return Some(report);
            }
            if wait.is_over() {
                return self.reporter.give_up_names(session);
            }
        }
    }
}

impl Job for Watch {
    fn begin(&mut self, trace: &Trace) {
        let hooked = hooked(trace.session());
        eprintln!(
            "Watching {}: {hooked}; reports go to {}. Ctrl-C ends it",
            self.pid,
            self.evidence.directory().display()
        );
    }

    fn turn(&mut self, trace: &Trace, turn: &Turn) -> ControlFlow<()> {
        if turn.gone {
            self.look_at_the_end();
        }
        if turn.is_last {
            return ControlFlow::Continue(());
        }
        if let Some(trigger) = self.alarm.check() {
            eprintln!("memhook-rs: {trigger}");
            self.urgent(trace, &trigger);
        }
        self.kills = self.alarm.kills().or(self.kills);
        let now = trace.consumer().elapsed();
        // What has been begun is to get its names first.
        if now >= self.next_names && self.unnamed.is_empty() {
            self.next_names = now + NAMES_PERIOD;
            self.reporter
                .begin(trace.session(), trace.consumer(), false);
        }
        // Its names are wanted, for a report that is urgent, and now and then what lives.
        if let Some(report) = self.reporter.poll(trace.session(), Duration::ZERO) {
            self.replace_unnamed(&report);
            let last = self.history.back().map_or(0.0, |last| last.time_s);
            if self.history.is_empty() || report.elapsed_s - last >= HISTORY_PAUSE {
                self.note(&report);
            }
        }
        ControlFlow::Continue(())
    }

    fn end(&mut self, trace: &mut Trace, end: &End) {
        self.look_at_the_end();
        let death = matches!(end, End::Gone).then(|| self.death());
        let explanation = match &death {
            Some(death) => death.explanation(),
            None => "the watch was ended, and the process goes on".into(),
        };
        if death.is_some() {
            eprintln!("memhook-rs: process {} {explanation}", self.pid);
        }
        self.finish_unnamed(trace);
        if let Some(report) = self.last_report(trace) {
            let report = WatchReport::new(self.pid, "end", explanation, None, report);
            let report = report.with_history(self.history.iter().copied().collect());
            self.evidence.keep(&report.with_death(death));
        }
        let gaps = trace.consumer().gaps(trace.consumer().elapsed());
        let of_gaps = if gaps.is_empty() {
            exit_code::DONE
        } else {
            exit_code::HAS_GAPS
        };
        self.code = of_trace(end, self.pid).max(of_gaps);
    }

    fn notice(&mut self, text: &str) {
        eprintln!("memhook-rs: {text}");
    }
}
