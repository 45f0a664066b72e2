//! Preview of an agent: the processes to which it would attach now, and their cost.

use crate::budget::{machine_memory, processors};
use crate::config::{File, Mode, Reclaim, Rule};
use crate::facts::{Facts, Machine, is_hidden};
use crate::kubernetes::{limits_in_words, limits_of};
use crate::reads::Question;
use crate::rules::Rules;
use crate::said::chain;
use crate::supervisor::SILENT;
use memhook_attach::{Obstacle, kinship};
use memhook_report::{AgentPlan, PlannedKubelet, PlannedTarget, UnchosenProcess};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Plans for the present processes.
pub fn plan(file: &File) -> AgentPlan {
    let rules = Rules::new(file);
    let mut machine = Machine::default();
    let kubernetes = file.kubernetes.as_ref().map(toml::Spanned::get_ref);
    let listed = kubernetes.map(crate::kubernetes::ask);
    let kubelet = listed.as_ref().map(|listed| match listed {
        Ok(pods) => PlannedKubelet {
            pods: pods.count() as u64,
            error: None,
        },
        Err(why) => PlannedKubelet {
            pods: 0,
            error: Some(why.clone()),
        },
    });
    if let Some(listed) = listed {
        machine.set_pods(Arc::new(listed.unwrap_or_default()));
    }
    machine.look(Instant::now());
    machine.await_files(|facts| {
        let may_be_chosen = |parents: &Rule| rules.of(facts, Some(parents)).is_some();
        rules.of(facts, None).is_some()
            || file.rule.iter().any(|rule| may_be_chosen(rule.get_ref()))
    });
    let mut processes: Vec<Facts> = machine.processes().cloned().collect();
    // The agent attaches in this order, so a parent comes before its children.
    processes.sort_unstable_by_key(|facts| (facts.started, facts.pid));
    let memory = file.agent.max_memory.bytes(machine_memory());
    let most = *file.agent.max_targets.get_ref();
    let mut plan = AgentPlan {
        schema: AgentPlan::SCHEMA,
        max_targets: most,
        max_processors: file.agent.max_cpu.0 * processors(),
        max_memory_bytes: memory,
        kubelet,
        targets: Vec::new(),
        unchosen: Vec::new(),
        hidden: memhook_process::process_ids()
            .into_iter()
            .filter(|&pid| machine.get(pid).is_none() && is_hidden(pid))
            .count() as u64,
    };
    let mut members = BTreeMap::<i32, (Arc<Rule>, bool)>::new();
    for facts in &processes {
        let own = rules.of(facts, None);
        let inherited = own.is_none();
        let parents = members.get(&facts.parent).map(|(rule, _)| &**rule);
        if let Some(rule) = own.or_else(|| rules.of(facts, parents)) {
            members.insert(facts.pid, (rule, inherited));
        }
    }
    let ledger = crate::supervisor::ledger_bytes(file);
    let questions = members.iter().map(|(&pid, (rule, _))| {
        let config = Box::new(rule.tracing(ledger));
        let question = match rule.mode {
            Mode::Scan => Question::Obstacle(config),
            _ => Question::ObstacleNow(config),
        };
        (pid, question)
    });
    let mut answers = machine.await_obstacles(questions);
    let mut traced = Vec::new();
    for facts in &processes {
        let Some((rule, inherited)) = members.get(&facts.pid) else {
            plan.unchosen.push(UnchosenProcess {
                pid: facts.pid,
                process: facts.program().to_owned(),
                pod: facts.pod.clone(),
                namespace: facts.namespace.clone(),
                why: rules.why_not(facts),
            });
            continue;
        };
        let mut target = planned(facts, rule, ledger);
        target.inherited = *inherited;
        target.reclaim = rule.reclaim_of(*inherited).map(Reclaim::name);
        let of_rule = plan
            .targets
            .iter()
            .filter(|other| other.phase == "attaches" && other.rule == *rule.name.get_ref());
        let is_rule_full = rule
            .max_targets
            .is_some_and(|most| of_rule.count() >= most as usize);
        let shared_out = full_namespace(file, &plan.targets, &target);
        let kin = kinship(facts.pid, traced.iter().copied());
        let answer = answers.remove(&facts.pid);
        let refused = answer.unwrap_or_else(|| Some(SILENT.into()));
        let (phase, why) = match kin {
            Some(Obstacle::BorrowsMemory) => (
                "waits",
                Some("it shares the memory of another process until it calls execve".into()),
            ),
            Some(Obstacle::OfOurs) => ("waits", Some("it is a copy that memhook-rs made".into())),
            Some(Obstacle::Error(error)) => ("refused", Some(chain(&error))),
            None if refused.is_some() => ("refused", refused),
            None if is_rule_full => (
                "waits",
                Some("the rule has reached its limit of targets (its max_targets)".into()),
            ),
            None if shared_out.is_some() => ("waits", shared_out),
            None if traced.len() >= most as usize => (
                "waits",
                Some("the limit of targets is reached (max_targets)".into()),
            ),
            None => ("attaches", None),
        };
        (target.phase, target.why) = (phase, why);
        if phase == "attaches" {
            traced.push(facts.pid);
        }
        plan.targets.push(target);
    }
    plan
}

/// Returns the reason to show for a process that waits because its namespace is at its limit.
fn full_namespace(
    file: &File,
    targets: &[PlannedTarget],
    target: &PlannedTarget,
) -> Option<String> {
    let namespace = target.namespace.as_deref()?;
    let limits = limits_of(file, namespace)?;
    let is_traced = |other: &&PlannedTarget| {
        other.phase == "attaches" && other.namespace.as_deref() == Some(namespace)
    };
    let traced = targets.iter().filter(is_traced).count();
    let is_full = limits
        .max_targets
        .is_some_and(|most| traced >= most as usize);
    is_full.then(|| {
        let limits = limits_in_words(limits);
        format!("its namespace {namespace} has reached its limit of targets ({limits})")
    })
}

fn planned(facts: &Facts, rule: &Rule, ledger_bytes: u64) -> PlannedTarget {
    let config = rule.tracing(ledger_bytes);
    let is_traced = rule.mode != Mode::Scan;
    let sample_bytes = config.sample_bytes.filter(|_| is_traced);
    PlannedTarget {
        pid: facts.pid,
        process: facts.program().to_owned(),
        namespace: facts.namespace.clone(),
        pod: facts.pod.clone(),
        container_name: facts.container_name().map(str::to_owned),
        workload: facts.place.pod().and_then(|pod| {
            let both = || format!("{}/{}", pod.workload_type, pod.workload);
            (!pod.workload.is_empty()).then(both)
        }),
        rule: rule.name.get_ref().clone(),
        inherited: false,
        mode: rule.mode.name(),
        sample_bytes,
        overhead: config.overhead.filter(|_| is_traced),
        depth: is_traced.then_some(config.depth),
        reclaim: None,
        advise_seconds: rule
            .advise
            .as_ref()
            .map(|every| every.get_ref().0.as_secs_f64()),
        interval_seconds: rule.interval.get_ref().0.as_secs_f64(),
        send: rule.send.iter().map(|to| to.get_ref().name()).collect(),
        resident_bytes: facts.resident,
        expected_blocks: sample_bytes.map(|mean| facts.resident.div_ceil(mean.max(1))),
        ledger_limit_bytes: is_traced.then_some(ledger_bytes),
        phase: "attaches",
        why: None,
    }
}
