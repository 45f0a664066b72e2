//! Changes of the configuration while the agent runs.

use super::{Supervisor, bounds, names_memory};
use crate::AgentError;
use crate::kubernetes::is_same_server;
use crate::rules::Rules;
use crate::said::chain;
use memhook_inject::reloads;
use std::time::Instant;

impl Supervisor {
    /// Reads the configuration again after a signal.
    pub(super) fn reload(&mut self) {
        let asked = reloads();
        if asked == self.reloads {
            return;
        }
        self.reloads = asked;
        match self.reread() {
            // The state is updated before the message is logged, so that a reader of the log never
            // sees the old state.
            Ok(()) => {
                self.board.agent().has_refused_configuration = false;
                tracing::info!("the configuration was read again");
            }
            Err(error) => {
                {
                    let mut agent = self.board.agent();
                    agent.has_refused_configuration = true;
                    agent.refused_configurations += 1;
                }
                tracing::error!(
                    "{}; the configuration before it stays in use",
                    chain(&error)
                );
            }
        }
    }

    fn reread(&mut self) -> Result<(), AgentError> {
        let file = crate::config::read(&self.path, self.experiments)?;
        if file.agent.state != self.file.agent.state
            || file.http.listen != self.file.http.listen
            || file.http.hosts != self.file.http.hosts
        {
            return Err(AgentError::NeedsRestart {
                path: self.path.clone(),
            });
        }
        // The new senders are created before the old ones end, so that an unusable configuration is
        // refused as a whole.
        let changes_stores = file.files != self.file.files
            || unplaced(&file.pyroscope) != unplaced(&self.file.pyroscope)
            || unplaced(&file.otlp) != unplaced(&self.file.otlp)
            || unplaced(&file.labels) != unplaced(&self.file.labels)
            || !is_same_server(unplaced(&file.kubernetes), unplaced(&self.file.kubernetes))
            || file.agent.redact != self.file.agent.redact;
        if changes_stores {
            return Err(AgentError::NeedsRestart {
                path: self.path.clone(),
            });
        }
        let (rate, memory) = bounds(&file);
        self.budget.set(rate, memory);
        self.shared.names.set_limit(names_memory(memory));
        self.rules = Rules::new(&file);
        self.file = file;
        self.next_scan = Instant::now();
        self.drop_unchosen(true);
        Ok(())
    }
}

fn unplaced<T>(spanned: &Option<toml::Spanned<T>>) -> Option<&T> {
    spanned.as_ref().map(toml::Spanned::get_ref)
}
