//! Alternating rounds with and without tools.

use crate::guard::Limit;
use crate::round::{Round, Subject};
use crate::tools::Tool;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Rounds measured with one tool.
pub struct Traced {
    /// The tool's name.
    pub tool: String,
    /// One round for each cycle. Empty if the tool failed too often.
    pub rounds: Vec<Round>,
    /// Number of failed rounds that were repeated.
    pub repeated: u32,
    /// Error text of the last failed round.
    pub failure: Option<String>,
}

/// All rounds of a subject.
pub struct Alternated {
    /// Rounds without a tool, one for each cycle.
    pub untraced: Vec<Round>,
    /// Rounds with each tool.
    pub traced: Vec<Traced>,
}

impl Alternated {
    fn nothing(tools: &[&str], failure: Option<&str>) -> Alternated {
        let traced = tools.iter().map(|&tool| Traced {
            tool: tool.to_owned(),
            rounds: Vec::new(),
            repeated: 0,
            failure: failure.map(str::to_owned),
        });
        Alternated {
            untraced: Vec::new(),
            traced: traced.collect(),
        }
    }

    /// Returns a result without rounds, for a subject that could not be started.
    pub fn impossible(tools: &[&str], why: &str) -> Alternated {
        Self::nothing(tools, Some(why))
    }
}

/// Number of failures after which a tool is excluded.
const PATIENCE: u32 = 3;

/// Time limit for one round. A round takes less even with the slowest tool, so a round that exceeds
/// the limit hangs.
const LIMIT: Duration = Duration::from_secs(90);

/// Runs one round. A panic (usually because the target has ended) and a hang both count as a
/// failure.
fn round(subject: &mut dyn Subject, tool: Option<&dyn Tool>) -> Result<Round, String> {
    let _limit = Limit::start(LIMIT);
    let result = catch_unwind(AssertUnwindSafe(|| subject.round(tool)));
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(text.unwrap_or("it panicked").to_owned())
    })
}

/// Runs rounds in cycles. Each cycle has one round without a tool and one round with each tool. The
/// order is reversed in every second cycle, so that slow changes of the machine favour no tool. A
/// failed round is repeated, and a tool that keeps failing is excluded. If the round without a tool
/// fails, there is no result.
pub fn alternate(subject: &mut dyn Subject, tools: &[&dyn Tool], cycles: usize) -> Alternated {
    let names: Vec<&str> = tools.iter().map(|tool| tool.name()).collect();
    let mut all = Alternated::nothing(&names, None);
    for cycle in 0..cycles {
        let mut order: Vec<Option<usize>> = std::iter::once(None)
            .chain((0..tools.len()).map(Some))
            .collect();
        if cycle % 2 == 1 {
            order.reverse();
        }
        for turn in order {
            let Some(at) = turn else {
                match round(subject, None) {
                    Ok(round) => all.untraced.push(round),
                    Err(why) => {
                        let why = format!("without a tool: {why}");
                        return Alternated::impossible(&names, &why);
                    }
                }
                continue;
            };
            let traced = &mut all.traced[at];
            while traced.repeated < PATIENCE {
                match round(subject, Some(tools[at])) {
                    Ok(round) => {
                        traced.rounds.push(round);
                        break;
                    }
                    Err(failure) => {
                        traced.repeated += 1;
                        traced.failure = Some(failure);
                    }
                }
            }
        }
    }
    // Only a tool with a round in every cycle can be compared round by round.
    for traced in &mut all.traced {
        if traced.rounds.len() < cycles {
            traced.rounds.clear();
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::Running;

    struct Named;

    impl Tool for Named {
        fn name(&self) -> &str {
            "named"
        }
        fn start(&self, _: u32) -> Result<Box<dyn Running>, String> {
            Err("not started here".into())
        }
    }

    /// A test subject that fails or panics in the listed rounds.
    struct Script {
        rounds: usize,
        failing: &'static [usize],
        panicking: &'static [usize],
        order: String,
    }

    impl Subject for Script {
        fn round(&mut self, tool: Option<&dyn Tool>) -> Result<Round, String> {
            let number = self.rounds;
            self.rounds += 1;
            self.order.push(if tool.is_some() { 'T' } else { 'U' });
            assert!(!self.panicking.contains(&number), "round {number}");
            if self.failing.contains(&number) {
                Err(format!("round {number}"))
            } else {
                Ok(Round::default())
            }
        }
    }

    fn run(failing: &'static [usize], panicking: &'static [usize]) -> (Alternated, String) {
        let mut script = Script {
            rounds: 0,
            failing,
            panicking,
            order: String::new(),
        };
        let all = alternate(&mut script, &[&Named], 3);
        (all, script.order)
    }

    #[test]
    fn the_order_turns_round_in_every_cycle() {
        let (all, order) = run(&[], &[]);
        assert_eq!(order, "UTTUUT");
        assert_eq!((all.untraced.len(), all.traced[0].rounds.len()), (3, 3));
    }

    #[test]
    fn a_round_that_fails_is_taken_again() {
        let (all, order) = run(&[1], &[]);
        assert_eq!(order, "UTTTUUT");
        let traced = &all.traced[0];
        assert_eq!((traced.rounds.len(), traced.repeated), (3, 1));
        assert_eq!(traced.failure.as_deref(), Some("round 1"));
    }

    #[test]
    fn a_tool_that_goes_on_failing_has_no_rounds() {
        let (all, order) = run(&[1, 2, 3], &[]);
        assert_eq!(order, "UTTTUU");
        assert!(all.traced[0].rounds.is_empty());
    }

    #[test]
    fn a_panic_is_a_failure_and_without_a_baseline_there_is_no_result() {
        let (all, _) = run(&[], &[3]);
        assert!(all.untraced.is_empty() && all.traced[0].rounds.is_empty());
        let failure = all.traced[0].failure.as_deref();
        assert_eq!(failure, Some("without a tool: round 3"));
    }
}
