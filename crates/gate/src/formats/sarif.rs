//! SARIF 2.1.0 (OASIS), in the form that code scanning services accept.

use super::{alike, possible_sentence, relative, shared_sentence, stack_lines};
use crate::evidence::{SourceFrame, is_below};
use crate::{AllocationSite, Judgement, Outcome};
use memhook_report::{Format, FormatOptions, Nature};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::io::{Result, Write};

/// The SARIF log. Source paths below the source root become relative.
pub struct Sarif;

impl Format<Judgement> for Sarif {
    fn name(&self) -> &'static str {
        "sarif"
    }

    fn nature(&self) -> Nature {
        Nature::Json
    }

    fn write(
        &self,
        verdicts: &Judgement,
        options: &FormatOptions,
        out: &mut dyn Write,
    ) -> Result<()> {
        let results = results(verdicts, options);
        let rule = |id: &str, text: &str| json!({ "id": id, "shortDescription": { "text": text } });
        let log = json!({
            "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
            "version": "2.1.0",
            "runs": [{
                "tool": { "driver": {
                    "name": "memhook-rs",
                    "version": env!("CARGO_PKG_VERSION"),
                    "rules": [
                        rule("memory-leak", "Memory that nothing points to any more"),
                        rule("memory-limit", "More memory than a limit allows"),
                        rule("memory-possibly-lost", "Memory that only pointers into it reach"),
                    ],
                }},
                "results": results,
            }],
        });
        serde_json::to_writer_pretty(&mut *out, &log)?;
        writeln!(out)
    }
}

/// Base of source paths outside the repository: the build directory of a module that was built
/// elsewhere. That directory is unknown, so the log has no `originalUriBaseIds` (section 3.14.14).
const ELSEWHERE: &str = "BUILD_DIRECTORY";

fn results(judged: &Judgement, options: &FormatOptions) -> Vec<Value> {
    let root = &options.source_root;
    let leaks = judged.leaks(|_| true);
    let mut results: Vec<Value> = leaks
        .iter()
        .map(|leak| {
            let lines = stack_lines(leak.verdict, &leak.group, options);
            let text = format!("{}\n{}", shared_sentence(leak), lines.join("\n"));
            of_site("memory-leak", "error", &text, leak.site(), root)
        })
        .collect();
    // A leak found in several processes is written once. Sites of one process that only look alike
    // remain separate.
    let mut said = HashSet::new();
    for verdict in judged.iter() {
        let mut keys = Vec::new();
        for leak in &verdict.evidence.possible {
            let site = &verdict.evidence.sites[leak.site];
            keys.push(site.leak_key());
            if !said.contains(&site.leak_key()) {
                let text = possible_sentence(verdict, leak);
                results.push(of_site("memory-possibly-lost", "note", &text, site, root));
            }
        }
        said.extend(keys);
    }
    let others = judged
        .iter()
        .filter(|v| v.outcome == Outcome::Failed && v.counted().is_empty());
    for (line, _) in alike(others) {
        results.push(json!({
            "ruleId": "memory-limit",
            "level": "error",
            "message": { "text": line },
        }));
    }
    results
}

/// Returns a result about blocks of one allocation site.
fn of_site(rule: &str, level: &str, text: &str, site: &AllocationSite, root: &str) -> Value {
    let location = site.culprit(root).map(|frame| location(frame, root));
    let frames: Vec<Value> = site
        .stack
        .iter()
        .map(|frame| json!({ "location": location_or_name(frame, root) }))
        .collect();
    json!({
        "ruleId": rule,
        "level": level,
        "message": { "text": text },
        "locations": location.into_iter().collect::<Vec<_>>(),
        "stacks": [{ "message": { "text": "allocated here" }, "frames": frames }],
        "partialFingerprints": { "site/v2": fingerprint(&site.identity_by(&site.leak_key().1)) },
    })
}

fn location(frame: &SourceFrame, root: &str) -> Value {
    let file = frame.file.as_deref().unwrap_or_default();
    let mut artifact = json!({ "uri": uri(relative(file, root)) });
    if !file.starts_with('/') && !is_below(file, root) {
        artifact["uriBaseId"] = json!(ELSEWHERE);
    }
    json!({ "physicalLocation": {
        "artifactLocation": artifact,
        "region": { "startLine": frame.line.unwrap_or(1).max(1) },
    }})
}

/// Returns a URI reference (RFC 3986). A path in the repository is relative to its root. Any other
/// path is a file of this machine, which a code scanning service must not look for in the
/// repository.
fn uri(path: &str) -> String {
    let path = path.strip_prefix("./").unwrap_or(path);
    let mut uri = String::from(if path.starts_with('/') { "file://" } else { "" });
    for byte in path.bytes() {
        match byte {
            // These are the unreserved characters and the separator. If the first segment contained
            // a colon, it would be read as a scheme.
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                uri.push(char::from(byte));
            }
            other => uri += &format!("%{other:02X}"),
        }
    }
    uri
}

fn location_or_name(frame: &SourceFrame, root: &str) -> Value {
    let mut value = match frame.file {
        Some(_) => location(frame, root),
        None => json!({}),
    };
    value["message"] = json!({ "text": frame.name() });
    value
}

/// Returns a number that identifies a site in every build (FNV-1a, 64 bits).
fn fingerprint(identity: &[String]) -> String {
    let bytes = identity.iter().flat_map(|name| name.bytes().chain([0]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AllocationSite, Evidence, Exceptions, Leak, Limits, Sum, judge};
    use memhook_report::formats::write;

    #[test]
    fn paths_as_uris() {
        for (path, expected) in [
            ("src/main.cc", "src/main.cc"),
            ("./src/main.cc", "src/main.cc"),
            ("a b/\u{e4}%.cc", "a%20b/%C3%A4%25.cc"),
            ("c:d.cc", "c%3Ad.cc"),
            (
                "/usr/include/c++/12/new",
                "file:///usr/include/c%2B%2B/12/new",
            ),
        ] {
            assert_eq!(uri(path), expected);
        }
    }

    /// A relative path from a build elsewhere does not belong to the repository.
    #[test]
    fn relative_paths_are_the_repositorys_only_if_they_are_there() {
        let frame = |file: &str| SourceFrame {
            file: Some(file.into()),
            line: Some(7),
            ..SourceFrame::default()
        };
        let root = env!("CARGO_MANIFEST_DIR");
        let base = |file| {
            let location = location(&frame(file), root);
            location["physicalLocation"]["artifactLocation"]["uriBaseId"].clone()
        };
        for file in ["src/lib.rs", "./src/lib.rs", "/usr/include/new"] {
            assert_eq!(base(file), Value::Null, "{file}");
        }
        assert_eq!(base("./string/strdup.c"), ELSEWHERE);
        let site = AllocationSite {
            stack: ["./string/strdup.c", "src/lib.rs"].map(frame).into(),
            ..AllocationSite::default()
        };
        let culprit = site.culprit(root).expect("a frame");
        assert_eq!(culprit.file.as_deref(), Some("src/lib.rs"));
    }

    /// Checks an object that we write against the requirements of SARIF 2.1.0 (OASIS, sections 3.13
    /// to 3.52). The schema allows no other property in any of these objects.
    fn check(value: &Value, object: &str) {
        let (required, optional): (&[&str], &[&str]) = match object {
            "sarifLog" => (&["version", "runs"], &["$schema"]),
            "run" => (&["tool"], &["results"]),
            "tool" => (&["driver"], &[]),
            "driver" => (&["name"], &["version", "rules"]),
            "rule" => (&["id"], &["shortDescription"]),
            "message" => (&["text"], &[]),
            "result" => (
                &["message"],
                &[
                    "ruleId",
                    "level",
                    "locations",
                    "stacks",
                    "partialFingerprints",
                ],
            ),
            "stack" => (&["frames"], &["message"]),
            "frame" => (&[], &["location"]),
            "location" => (&[], &["physicalLocation", "message"]),
            "physicalLocation" => (&["artifactLocation"], &["region"]),
            "artifactLocation" => (&["uri"], &["uriBaseId"]),
            "region" => (&["startLine"], &[]),
            other => panic!("{other} is not known"),
        };
        let fields = value
            .as_object()
            .unwrap_or_else(|| panic!("{object}: {value}"));
        for name in required {
            assert!(
                fields.contains_key(*name),
                "{object} has no {name}: {value}"
            );
        }
        for (name, field) in fields {
            let name = name.as_str();
            assert!(
                required.contains(&name) || optional.contains(&name),
                "{object}: {name}"
            );
            let each = |object| {
                let items = field
                    .as_array()
                    .unwrap_or_else(|| panic!("{name}: {field}"));
                items.iter().for_each(|item| check(item, object));
            };
            match name {
                "runs" => each("run"),
                "results" => each("result"),
                "rules" => each("rule"),
                "locations" => each("location"),
                "stacks" => each("stack"),
                "frames" => each("frame"),
                "message" | "shortDescription" => check(field, "message"),
                "tool" | "driver" | "location" | "physicalLocation" | "artifactLocation"
                | "region" => check(field, name),
                "level" => {
                    let level = field.as_str().unwrap_or_default();
                    assert!(["none", "note", "warning", "error"].contains(&level));
                }
                "version" if object == "sarifLog" => assert_eq!(field, "2.1.0"),
                "startLine" => assert!(field.as_u64().is_some_and(|line| line >= 1)),
                "partialFingerprints" => {
                    let prints = field.as_object().expect("an object");
                    assert!(prints.values().all(Value::is_string));
                }
                "uri" => {
                    let uri = field.as_str().expect("text");
                    // RFC 3986 allows no other characters. The only scheme is `file`.
                    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._~/%".contains(c);
                    let path = uri.strip_prefix("file:///").unwrap_or(uri);
                    assert!(path.chars().all(is_allowed), "{uri}");
                    assert!(!path.starts_with('/'), "{uri}");
                }
                _ => assert!(field.is_string(), "{name}: {field}"),
            }
        }
    }

    #[test]
    fn the_log_is_what_the_standard_asks_for() {
        let frame = |file: Option<&str>| SourceFrame {
            function: Some("f<int>(char const*)".into()),
            file: file.map(Into::into),
            line: file.map(|_| 7),
            ..SourceFrame::default()
        };
        let site = |files: &[Option<&str>]| AllocationSite {
            kind: "malloc".into(),
            stack: files.iter().map(|file| frame(*file)).collect(),
            ..AllocationSite::default()
        };
        let leak = |site| Leak {
            site,
            direct: Sum {
                blocks: 1,
                bytes: 8,
            },
            ..Leak::default()
        };
        let root = "/src/app";
        let evidence = Evidence {
            sites: vec![
                site(&[Some("/usr/include/new"), Some("/src/app/a b.cc"), None]),
                site(&[Some("/src/application/other.cc")]),
                site(&[]),
            ],
            leaks: (0..3).map(leak).collect(),
            ..Evidence::default()
        };
        let verdict = judge(
            evidence,
            &Limits::default(),
            &mut Exceptions::default(),
            false,
        );
        let options = FormatOptions {
            source_root: root.into(),
            ..FormatOptions::default()
        };
        let mut out = Vec::new();
        write(
            &Sarif as &dyn Format<Judgement>,
            &Judgement::from(vec![verdict]),
            &options,
            &mut out,
        )
        .expect("written");
        let log: Value = serde_json::from_slice(&out).expect("JSON");
        check(&log, "sarifLog");
        let text = String::from_utf8(out).expect("text");
        for uri in [
            "a%20b.cc",
            "file:///usr/include/new",
            "file:///src/application/other.cc",
        ] {
            assert!(
                text.contains(&format!("\"uri\": \"{uri}\"")),
                "{uri}: {text}"
            );
        }
    }
}
