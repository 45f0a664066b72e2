//! Differences by type of the blocks.

use super::{Fate, difference, fate, fate_key, of_both};
use crate::types::UNKNOWN_TYPE;
use crate::units::{bytes, change_with_error, counted};
use crate::{Amount, Measure, Profile, Style};
use memhook_foreign::visible;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// A type whose blocks changed.
#[derive(Clone, Debug, Serialize)]
pub struct TypeChange {
    /// Name of the type; `unknown` if the call stacks do not reveal it.
    pub name: String,
    /// Kind of the change.
    pub fate: Fate,
    /// Bytes in the old run.
    pub old_bytes: u64,
    /// Blocks in the old run.
    pub old_blocks: u64,
    /// Bytes in the new run.
    pub new_bytes: u64,
    /// Blocks in the new run.
    pub new_blocks: u64,
    /// Bytes in the new run minus bytes in the old run.
    pub change_bytes: i64,
    /// Standard error of `change_bytes` when one of the runs was sampled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_bytes: Option<u64>,
}

/// Changes by type, in place of sites.
#[derive(Clone, Debug, Serialize)]
pub struct TypeChanges {
    /// Types that changed: the largest growth first, the largest shrinkage last.
    pub rows: Vec<TypeChange>,
    /// Number of unlisted changes. Each is smaller than every listed change.
    pub more: u64,
    /// Number of types that did not change.
    pub same: u64,
}

type OldAndNew = (Amount, Amount);

pub(super) fn type_changes(
    old: &Profile,
    new: &Profile,
    measure: Measure,
    top: usize,
) -> TypeChanges {
    let mut sums: BTreeMap<&str, OldAndNew> = BTreeMap::new();
    for (profile, is_new) in [(old, false), (new, true)] {
        for site in &profile.sites {
            let amount = measure.of(&site.measures);
            if amount == Amount::default() {
                continue;
            }
            let name = profile.types.get(&site.stack);
            let sum = sums.entry(name.map_or(UNKNOWN_TYPE, String::as_str));
            let sum = sum.or_default();
            *(if is_new { &mut sum.1 } else { &mut sum.0 }) += amount;
        }
    }
    let all = sums.len();
    let is_other = |(_, (old, new)): &(&str, OldAndNew)| fate_key(old) != fate_key(new);
    let mut found: Vec<(&str, OldAndNew)> = sums.into_iter().filter(is_other).collect();
    let same = (all - found.len()) as u64;
    let change = |(old, new): &OldAndNew| difference(new.bytes, old.bytes);
    // Keeps the largest changes in both directions.
    found.sort_by_key(|(name, amounts)| (u64::MAX - change(amounts).unsigned_abs(), *name));
    let more = found.len().saturating_sub(top) as u64;
    found.truncate(top);
    found.sort_by(|(a_name, a), (b_name, b)| {
        let by_change = change(b).cmp(&change(a));
        by_change.then_with(|| a_name.cmp(b_name))
    });
    let rows = found.into_iter().map(|(name, (old, new))| TypeChange {
        name: name.to_owned(),
        fate: fate(&old, &new),
        old_bytes: old.bytes,
        old_blocks: old.blocks,
        new_bytes: new.bytes,
        new_blocks: new.blocks,
        change_bytes: difference(new.bytes, old.bytes),
        error_bytes: of_both(old, new).error_bytes(),
    });
    TypeChanges {
        rows: rows.collect(),
        more,
        same,
    }
}

impl TypeChanges {
    pub(super) fn write(&self, out: &mut String, style: Style) -> std::fmt::Result {
        let count = self.rows.len() as u64 + self.more;
        writeln!(
            out,
            "  {} changed, {} the same",
            counted(count, "type"),
            self.same
        )?;
        if !self.rows.is_empty() {
            writeln!(out)?;
        }
        for row in &self.rows {
            writeln!(
                out,
                "{} {} {}: {} in {} -> {} in {}",
                style.number(&format!(
                    "{:>11}",
                    change_with_error(row.change_bytes, row.error_bytes)
                )),
                row.fate.word(),
                style.strong(&visible(&row.name)),
                bytes(row.old_bytes),
                counted(row.old_blocks, "block"),
                bytes(row.new_bytes),
                counted(row.new_blocks, "block"),
            )?;
        }
        if self.more > 0 {
            let more = counted(self.more, "smaller change");
            writeln!(out, "... and {more} (--top)")?;
        }
        Ok(())
    }
}
