//! Turns options about tracing into the configuration of a trace.

use crate::gate::options::LimitOptions;
use crate::tracing::{Access, Clock, DEPTH, OnFull, Stacks, Tracing, Unwind};
use memhook_attach::{ADAPTING_RING_BYTES, TraceConfig, USUAL_RING_BYTES};

impl Tracing {
    /// The configuration that these options ask for.
    pub fn resolve(&self) -> TraceConfig {
        TraceConfig {
            depth: self.depth.unwrap_or(DEPTH),
            functions: self.functions.clone(),
            min_size: self.min_size,
            max_size: self.max_size,
            sizes: self.sizes.clone(),
            sample_bytes: self.sample,
            overhead: self.overhead,
            stacks: match self.stacks {
                Stacks::Alloc => memhook_attach::Stacks::Allocations,
                Stacks::All => memhook_attach::Stacks::All,
            },
            unwinding: match self.unwind {
                Unwind::Table => memhook_attach::Unwinding::Tables,
                Unwind::Fp => memhook_attach::Unwinding::FramePointers,
            },
            check_memo: self.check_memo,
            clock: match self.clock {
                Clock::Coarse => memhook_attach::Clock::Coarse,
                Clock::Tsc => memhook_attach::Clock::Tsc,
                Clock::Monotonic => memhook_attach::Clock::Monotonic,
                Clock::Attacher => memhook_attach::Clock::Attacher,
            },
            ring_bytes: self.ring_size.unwrap_or(if self.adapts() {
                ADAPTING_RING_BYTES
            } else {
                USUAL_RING_BYTES
            }),
            on_full: match self.on_full {
                None | Some(OnFull::Wait) => memhook_attach::OnFull::Wait,
                Some(OnFull::Drop) => memhook_attach::OnFull::Drop,
                Some(OnFull::Adapt) => memhook_attach::OnFull::Adapt,
            },
            max_memory: self.max_memory,
            drains: self.drains,
            mappings: self.mappings,
            call_times: self.alloc_time,
            allocators: self.allocators.all(),
            keeps_released: false,
            emits: None,
            keep_tables: !self.cache.no_symbol_cache,
            accesses: match self.access {
                Access::On => memhook_attach::Accesses::Needed,
                Access::Auto | Access::Sampled | Access::Off => memhook_attach::Accesses::Off,
            },
        }
    }

    /// Like `resolve`, for a gate with these limits.
    pub fn resolve_gated(&self, limits: &LimitOptions) -> TraceConfig {
        let mut config = self.resolve_recorded(limits.scores().is_some());
        config.keeps_released = true;
        if limits.need_accesses() {
            config.accesses = memhook_attach::Accesses::Needed;
        }
        config
    }

    /// Like `resolve`, for a trace that is recorded or not.
    pub fn resolve_recorded(&self, is_recorded: bool) -> TraceConfig {
        let mut config = self.resolve();
        if is_recorded && self.access == Access::Auto {
            config.accesses = memhook_attach::Accesses::IfTold;
        }
        if is_recorded && self.access == Access::Sampled {
            config.accesses = memhook_attach::Accesses::Sampled;
        }
        config
    }

    /// Refuses sampled accesses where nothing uses them.
    pub fn refuse_sampled_accesses(&self, command: &str) -> anyhow::Result<()> {
        if self.access == Access::Sampled {
            anyhow::bail!(
                "{command} has no scores of sampled accesses: use attach or run with --access sampled, or leave it out"
            );
        }
        Ok(())
    }
}
