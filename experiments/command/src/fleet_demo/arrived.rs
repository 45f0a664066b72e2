//! Data that arrived in one of the stores, by host and service.

use anyhow::{Context, Result};
use memhook_tests::agents::Pprof;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Site that leaks.
pub const SITE: &str = "planted_leak";

/// Profiles of one service of one host.
#[derive(Default)]
struct Series {
    profiles: u64,
    allocated: i64,
    /// Live bytes of each innermost function in the last profile.
    live: BTreeMap<String, i64>,
    at: u64,
}

/// Data in one store.
#[derive(Default)]
pub struct Arrived(BTreeMap<(String, String), Series>);

fn lines(path: &Path) -> Result<Vec<Value>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let lines = text.lines().filter(|line| !line.is_empty());
    lines.map(|line| Ok(serde_json::from_str(line)?)).collect()
}

/// Parses a number of protobuf's JSON, where large numbers are strings.
fn number(value: &Value) -> i64 {
    let text = value.as_str().and_then(|text| text.parse().ok());
    value.as_i64().or(text).unwrap_or(0)
}

impl Arrived {
    fn series(&mut self, host: &str, service: &str) -> &mut Series {
        self.0
            .entry((host.to_owned(), service.to_owned()))
            .or_default()
    }

    /// Reads the collector's output, which is OTLP as JSON.
    pub fn at_collector(path: &Path) -> Result<Arrived> {
        let mut arrived = Arrived::default();
        for request in lines(path)? {
            let tables = &request["dictionary"];
            for resource in request["resourceProfiles"].as_array().into_iter().flatten() {
                let attributes = resource["resource"]["attributes"].as_array();
                // The collector may have moved strings into the dictionary.
                let text = |of: &Value, plain: &str, index: &str| match of[index].is_null() {
                    true => of[plain].as_str().unwrap_or_default().to_owned(),
                    false => string(tables, &of[index]).to_owned(),
                };
                let attribute = |key: &str| {
                    let mut all = attributes.into_iter().flatten();
                    let found = all.find(|of| text(of, "key", "keyStrindex") == key);
                    let value = found.map(|of| &of["value"]);
                    value.map_or_else(String::new, |value| {
                        text(value, "stringValue", "stringValueStrindex")
                    })
                };
                let series = arrived.series(&attribute("host.name"), &attribute("service.name"));
                series.profiles += 1;
                for profile in resource["scopeProfiles"][0]["profiles"]
                    .as_array()
                    .into_iter()
                    .flatten()
                {
                    let at = number(&profile["timeUnixNano"]) as u64
                        + number(&profile["durationNano"]) as u64;
                    take(series, tables, profile, at);
                }
            }
        }
        Ok(arrived)
    }

    /// Reads the receiver's output.
    pub fn at_receiver(path: &Path) -> Result<Arrived> {
        let mut arrived = Arrived::default();
        for (at, line) in lines(path)?.iter().enumerate() {
            let label = |name: &str| line["labels"][name].as_str().unwrap_or_default().to_owned();
            let series = arrived.series(&label("host"), &label("service_name"));
            if let Some(allocated) = line["sums"].get("alloc_space") {
                series.profiles += 1;
                series.allocated += number(allocated);
            }
            if let Some(live) = line["sites"]["inuse_space"].as_object() {
                series.live = live
                    .iter()
                    .map(|(site, bytes)| (site.clone(), number(bytes)))
                    .collect();
                series.at = at as u64;
            }
        }
        Ok(arrived)
    }

    /// Reads the files that the agents wrote into directories named after their hosts.
    pub fn in_files(out: &Path) -> Result<Arrived> {
        let mut arrived = Arrived::default();
        for host in super::hosts::NAMES {
            for entry in std::fs::read_dir(out.join(host))? {
                let path = entry?.path();
                let name = path
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                let Some(service) = name
                    .strip_prefix("memhook-")
                    .and_then(|rest| rest.split('-').next())
                else {
                    continue;
                };
                let profile = Pprof::read(&std::fs::read(&path)?);
                let series = arrived.series(host, service);
                series.profiles += 1;
                series.allocated += profile.sum("alloc_space");
            }
        }
        Ok(arrived)
    }

    /// Returns the services of a host.
    pub fn services(&self, host: &str) -> BTreeSet<String> {
        let of = self.0.keys().filter(|(of, _)| of == host);
        of.map(|(_, service)| service.clone()).collect()
    }

    /// Returns the number of profiles of a service, and the sum of their allocated bytes.
    pub fn allocated(&self, host: &str, service: &str) -> (u64, i64) {
        let series = self.0.get(&(host.to_owned(), service.to_owned()));
        series.map_or((0, 0), |series| (series.profiles, series.allocated))
    }

    /// Returns service, site and live bytes of the last profile of each service, largest first.
    pub fn largest(&self, host: &str) -> Vec<(String, String, i64)> {
        let of = self.0.iter().filter(|((of, _), _)| of == host);
        let mut sites: Vec<_> = of
            .flat_map(|((_, service), series)| {
                series
                    .live
                    .iter()
                    .map(|(site, bytes)| (service.clone(), site.clone(), *bytes))
            })
            .collect();
        sites.sort_by_key(|(.., bytes)| std::cmp::Reverse(*bytes));
        sites
    }
}

fn string<'a>(tables: &'a Value, index: &Value) -> &'a str {
    let text = &tables["stringTable"][number(index) as usize];
    text.as_str().unwrap_or_default()
}

/// Adds one value of an OTLP profile.
fn take(series: &mut Series, tables: &Value, profile: &Value, at: u64) {
    let row = |table: &str, index: &Value| &tables[table][number(index) as usize];
    let text = |index: &Value| string(tables, index);
    let kind = text(&profile["sampleType"]["typeStrindex"]);
    let samples = profile["samples"].as_array().into_iter().flatten();
    let samples = samples.map(|sample| {
        let stack = row("stackTable", &sample["stackIndex"]);
        let location = row("locationTable", &stack["locationIndices"][0]);
        let function = row("functionTable", &location["lines"][0]["functionIndex"]);
        (
            text(&function["nameStrindex"]),
            number(&sample["values"][0]),
        )
    });
    match kind {
        "alloc_space" => series.allocated += samples.map(|(_, value)| value).sum::<i64>(),
        "inuse_space" if at >= series.at => {
            series.at = at;
            series.live.clear();
            for (site, value) in samples {
                *series.live.entry(site.to_owned()).or_default() += value;
            }
        }
        _ => {}
    }
}
