//! Names of output files with placeholders that the command fills in when it runs.

use std::path::{Path, PathBuf};

/// An output file name that cannot be completed.
#[derive(Debug, thiserror::Error)]
#[error("--output {name}: %{letter} means nothing: use %p (process id), %h (host) or %%")]
pub struct OutputNameError {
    name: String,
    letter: String,
}

/// Fills in the placeholders of a name: `%p` is the process id, `%h` this host, `%%` a percent
/// sign.
///
/// # Errors
/// Fails if another character, or none, follows a percent sign.
pub fn output_name(path: &Path, pid: i32) -> Result<PathBuf, OutputNameError> {
    let Some(text) = path.to_str().filter(|text| text.contains('%')) else {
        return Ok(path.to_owned());
    };
    let mut expanded = String::new();
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            expanded.push(c);
            continue;
        }
        match rest.next() {
            Some('p') => expanded += &pid.to_string(),
            Some('h') => {
                let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
                expanded += host.unwrap_or_default().trim_end();
            }
            Some('%') => expanded.push('%'),
            other => {
                return Err(OutputNameError {
                    name: text.to_owned(),
                    letter: other.map_or(String::new(), String::from),
                });
            }
        }
    }
    Ok(expanded.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_outputs() {
        let expand = |text: &str| output_name(Path::new(text), 42).map(|p| p.display().to_string());
        assert_eq!(expand("a.json").unwrap(), "a.json");
        assert_eq!(
            expand("/x/heap-%p-100%%.json").unwrap(),
            "/x/heap-42-100%.json"
        );
        assert!(!expand("%h").unwrap().contains('%'));
        assert!(
            expand("%q")
                .unwrap_err()
                .to_string()
                .contains("%q means nothing")
        );
    }
}
