//! Folded stacks. Each line has a call stack, outermost function first, with `;` between the
//! functions, then a space and the value. flamegraph.pl, inferno, speedscope and many other tools
//! read them.

use super::{Format, FormatOptions};
use crate::Profile;
use crate::labels::Labels;
use std::collections::BTreeMap;
use std::io::{Result, Write};

/// Folded stacks.
pub struct Folded;

impl Format<Profile> for Folded {
    fn name(&self) -> &'static str {
        "folded"
    }

    fn write(&self, profile: &Profile, options: &FormatOptions, out: &mut dyn Write) -> Result<()> {
        let labels = Labels::new(profile);
        let mut lines: BTreeMap<String, u64> = BTreeMap::new();
        for site in &profile.sites {
            let value = options.of(&site.measures);
            if value == 0 {
                continue;
            }
            let stack = labels.stack(profile, site.stack);
            // The format has no escape for its separator.
            let names = stack
                .iter()
                .rev()
                .map(|&n| labels.text(n).replace(';', ":"));
            let line = names.collect::<Vec<_>>().join(";");
            *lines.entry(line).or_default() += value;
        }
        for (stack, value) in lines {
            writeln!(out, "{stack} {value}")?;
        }
        Ok(())
    }
}
