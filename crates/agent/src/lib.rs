//! Traces many processes of a machine in one agent. Rules choose the processes, a budget bounds the
//! agent's use of resources, and profiles and numbers go to existing stores.
//!
//! [`check`] reads and checks a configuration, and [`run`] follows it until a signal ends the
//! agent. This crate does not store, aggregate or query profiles.

mod advice_files;
mod advising;
mod black_box;
mod board;
mod budget;
mod config;
mod facts;
mod haste;
mod http_client;
mod http_server;
mod journal;
mod kept_advice;
mod kubernetes;
mod member;
mod metrics;
mod moment;
mod plan;
mod proc_events;
mod reads;
mod reclaiming;
mod rules;
mod said;
mod scanning;
mod send;
mod sums;
mod supervisor;
mod target_job;
mod targets_document;
mod waits;
mod worker;

use board::Board;
use journal::State;
use memhook_report::AgentPlan;
use std::path::{Path, PathBuf};
use supervisor::Supervisor;

/// Result of the agent's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every target is as it was before.
    Done,
    /// A target could not be restored completely.
    NotRestored,
}

/// Reason why the agent cannot work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The configuration is refused.
    #[error(transparent)]
    Config(ConfigError),
    /// The agent's state directory is unusable.
    #[error(transparent)]
    State(#[from] journal::StateError),
    /// Profiles cannot be sent.
    #[error(transparent)]
    Send(#[from] send::SendError),
    /// Requests to the kubelet are impossible.
    #[error(transparent)]
    Kubelet(#[from] http_client::ClientError),
    /// The address cannot be served.
    #[error(transparent)]
    Listen(#[from] http_server::ListenError),
    /// A thread cannot be started.
    #[error(
        "cannot start a thread: too many are running, or a limit of this process is too low (ulimit -u)"
    )]
    Thread(#[source] std::io::Error),
    /// Settings that cannot change while the agent runs.
    #[error("{}: changes of state, [http], [files], [pyroscope], [otlp], [kubernetes] (except for its namespaces), [labels] and redact need a restart; waiting profiles are kept", path.display())]
    NeedsRestart {
        /// The configuration.
        path: PathBuf,
    },
}

pub use config::{ConfigError, Experiments};

/// Result of a check of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Number of rules.
    pub rules: usize,
    /// Warnings about settings that the author probably did not intend, one line each, with their
    /// locations.
    pub warnings: Vec<String>,
    /// Notes about freed blocks, advice, pods and namespaces, one line each.
    pub notes: Vec<String>,
}

/// Reads and checks a configuration, without acting on it.
pub fn check(path: &Path, experiments: Experiments) -> Result<Checked, ConfigError> {
    let (file, warnings) = config::read_with_warnings(path, experiments)?;
    Ok(Checked {
        rules: file.rule.len(),
        warnings,
        notes: [
            reclaiming::notes(&file),
            advising::notes(&file),
            kubernetes::notes(&file),
        ]
        .concat(),
    })
}

/// Returns the targets that an agent with this configuration would trace now. Does not attach, send
/// or write anything.
pub fn plan(path: &Path, experiments: Experiments) -> Result<AgentPlan, ConfigError> {
    memhook_process::see_groups_as_init();
    config::read(path, experiments).map(|file| plan::plan(&file))
}

/// Runs the agent with a configuration until SIGTERM or SIGINT. SIGHUP makes the agent read the
/// configuration again.
pub fn run(path: &Path, experiments: Experiments) -> Result<Outcome, AgentError> {
    let file = config::read(path, experiments)?;
    // This must come before the start of any other thread that reads process data.
    if memhook_process::see_groups_as_init() {
        tracing::debug!("control groups are seen as by process 1");
    }
    // This must come before any attach, because a signal must not end this process during an
    // attach.
    memhook_inject::catch_stops_and_reloads();
    memhook_inject::allow_many_open_files();
    memhook_inject::keep_little_memory();
    let mut given_up = 0;
    let (state, left) = State::take(&file.agent.state, |own| {
        let has_removed = send::give_up_oldest(own);
        given_up += u32::from(has_removed);
        has_removed
    })?;
    if given_up > 0 {
        said::warn(&format!(
            "the disk of {} is full: {given_up} profiles that waited there were dropped",
            file.agent.state.display()
        ));
    }
    let board = Board::new();
    if let Some(address) = file.http.listen {
        http_server::serve(address, &file.http, &board)?;
    }
    let mut supervisor =
        Supervisor::new((path.to_owned(), experiments), file, state, &left, board)?;
    tracing::info!("the agent runs, by {}", path.display());
    supervisor.run();
    let outcome = supervisor.finish();
    said::count_repeats(true);
    tracing::info!("the agent ends");
    Ok(outcome)
}
