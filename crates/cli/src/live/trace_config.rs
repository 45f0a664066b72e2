//! Turns tracing options into the configuration of a trace.

use crate::gate::limits::LimitOptions;
use crate::tracing::{Access, Clock, OnFull, Setting, Stacks, Tracing, Unwind};
use memhook_attach::{DEPTH_OF_REPORTS, TraceConfig};

impl Tracing {
    /// Returns the configuration that these options request.
    pub fn resolve(&self) -> TraceConfig {
        let on_full = match self.on_full {
            None | Some(OnFull::Wait) => memhook_attach::OnFull::Wait,
            Some(OnFull::Drop) => memhook_attach::OnFull::Drop,
            Some(OnFull::Adapt) => memhook_attach::OnFull::Adapt,
        };
        let sizes = self.sizes.clone().unwrap_or_default();
        let mut config = TraceConfig {
            depth: self.depth.unwrap_or(DEPTH_OF_REPORTS),
            functions: self.functions(),
            min_size: sizes.smallest,
            max_size: sizes.largest,
            sizes: sizes.exact,
            sample_bytes: self.sample,
            overhead: self.overhead,
            stacks: match self.stacks {
                Stacks::Alloc => memhook_attach::Stacks::Allocations,
                Stacks::All => memhook_attach::Stacks::All,
            },
            check_memo: self.check_memo,
            ring_bytes: on_full.usual_ring_bytes(),
            on_full,
            max_memory: self.max_memory,
            mappings: self.mappings,
            call_times: self.alloc_time,
            allocators: self.allocators.all(),
            accesses: match self.access.access {
                Access::On => memhook_attach::Accesses::Needed,
                Access::Auto | Access::Sampled | Access::Off => memhook_attach::Accesses::Off,
            },
            ..TraceConfig::default()
        };
        for setting in &self.settings {
            match setting {
                // These functions are already in `functions`.
                Setting::Functions(_) => {}
                Setting::Unwind(Unwind::Table) => {
                    config.unwinding = memhook_attach::Unwinding::Tables;
                }
                Setting::Unwind(Unwind::Fp) => {
                    config.unwinding = memhook_attach::Unwinding::FramePointers;
                }
                Setting::Clock(clock) => {
                    config.clock = match clock {
                        Clock::Coarse => memhook_attach::Clock::Coarse,
                        Clock::Tsc => memhook_attach::Clock::Tsc,
                        Clock::Monotonic => memhook_attach::Clock::Monotonic,
                        Clock::Attacher => memhook_attach::Clock::Attacher,
                    };
                }
                Setting::RingSize(bytes) => config.ring_bytes = *bytes,
                Setting::Drains(count) => config.drains = Some(*count),
            }
        }
        config
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

    /// Like `resolve`, for a trace with or without a recording.
    pub fn resolve_recorded(&self, is_recorded: bool) -> TraceConfig {
        let mut config = self.resolve();
        if is_recorded && self.access.access == Access::Auto {
            config.accesses = memhook_attach::Accesses::IfTold;
        }
        if is_recorded && self.access.access == Access::Sampled {
            config.accesses = memhook_attach::Accesses::Sampled;
        }
        config
    }
}
