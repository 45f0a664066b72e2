//! Editors in which the page can open a source line, through a URL that the browser passes to the
//! editor.

use std::str::FromStr;

/// Addresses of editors that register their own scheme.
const KNOWN: [(&str, &str); 4] = [
    ("vscode", "vscode://file{file}:{line}"),
    ("vscodium", "vscodium://file{file}:{line}"),
    ("zed", "zed://file{file}:{line}"),
    ("idea", "idea://open?file={file}&line={line}"),
];
/// Schemes that a browser executes or shows itself.
const OF_BROWSERS: [&str; 5] = ["javascript", "data", "vbscript", "blob", "about"];

/// An editor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Editor(String);

impl Editor {
    /// Returns the editor's URL pattern, with `{file}` for an absolute path and `{line}` for a line
    /// number, counted from 1.
    pub fn address(&self) -> &str {
        &self.0
    }
}

impl FromStr for Editor {
    type Err = String;

    fn from_str(text: &str) -> Result<Editor, String> {
        if let Some((_, address)) = KNOWN.iter().find(|(name, _)| *name == text) {
            return Ok(Editor((*address).to_owned()));
        }
        let names = KNOWN.map(|(name, _)| name).join(", ");
        let scheme = text.split_once(':').map(|(scheme, _)| scheme);
        let Some(scheme) = scheme.filter(|_| text.contains("{file}")) else {
            return Err(format!(
                "expected {names}, or an address with {{file}} and {{line}} in it"
            ));
        };
        // The syntax is from RFC 3986, section 3.1.
        let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        let is_of_browsers = OF_BROWSERS.contains(&scheme.to_ascii_lowercase().as_str());
        let is_plain = text.chars().all(|c| c.is_ascii_graphic());
        if !is_scheme || is_of_browsers || !is_plain {
            return Err(format!("{text:?} is not the address of an editor"));
        }
        Ok(Editor(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses() {
        let address = |text: &str| text.parse::<Editor>().map(|editor| editor.0);
        assert_eq!(address("vscode").unwrap(), "vscode://file{file}:{line}");
        let own = "emacs+own://open?{file}#{line}";
        assert_eq!(address(own).unwrap(), own);
        assert!(address("emacs").unwrap_err().contains("vscode, vscodium"));
        for text in [
            "",
            "{file}",
            "x://nothing",
            "javascript:alert('{file}')",
            "JavaScript:{file}",
            "data:text/html,{file}",
            "1x://{file}",
            "x y://{file}",
            "x://{file}\n",
        ] {
            assert!(address(text).is_err(), "{text}");
        }
    }
}
