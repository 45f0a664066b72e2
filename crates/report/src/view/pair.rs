//! Two runs on one page, with the growth and shrinkage of the newer run.

use crate::same_code::Code;
use crate::{Compared, ComparedPoint, Profile, ProfileFrame, ProfileSite};
use std::collections::{HashMap, HashSet};

/// Returns the new run with the sites of the old run appended. All other contents come from the new
/// run: its scores, its releases, and its heap over time, next to which the page draws the old
/// run's heap. Stacks with the same code have the same frames in the result, so that the page joins
/// exactly the stacks that [`crate::diff()`] joins.
pub fn beside(mut new: Profile, old: Profile) -> Profile {
    let cut_root = match (new.cut_root, old.cut_root) {
        (None, Some(_)) => {
            new.frames.push(ProfileFrame::cut_root());
            Some(new.frames.len() as u32 - 1)
        }
        (known, _) => known,
    };
    new.cut_root = cut_root;
    let (modules, frames) = (new.modules.len() as u32, new.frames.len() as u32);
    let stacks = new.stacks.len() as u32;
    new.compared = Some(Compared {
        name: old.target.name.clone(),
        pid: old.target.pid,
        seconds: old.to_ns.saturating_sub(old.from_ns) as f64 / 1e9,
        custom: old
            .scores
            .as_ref()
            .map_or_else(Vec::new, |scores| scores.custom.clone()),
        scores: old.scores.as_ref().map(|scores| scores.run),
        first_site: new.sites.len() as u32,
        timeline: timeline(&old),
    });
    new.modules.extend(old.modules);
    new.frames
        .extend(old.frames.into_iter().map(|frame| ProfileFrame {
            module: frame.module.map(|module| module + modules),
            ..frame
        }));
    let frame_of = |frame: u32| match cut_root {
        Some(root) if Some(frame) == old.cut_root => root,
        _ => frame + frames,
    };
    let moved = old.stacks.into_iter();
    let moved = moved.map(|stack| stack.into_iter().map(frame_of).collect());
    new.stacks.extend(moved);
    let types = old.types.into_iter();
    new.types
        .extend(types.map(|(stack, name)| (stack + stacks, name)));
    new.sites
        .extend(old.sites.into_iter().map(|site| ProfileSite {
            stack: site.stack + stacks,
            ..site
        }));
    name_modules(&mut new, frames);
    join_stacks(&mut new);
    new
}

fn timeline(run: &Profile) -> Vec<ComparedPoint> {
    let points = run.timeline.iter();
    let compared = points.map(|point| ComparedPoint {
        after_ns: point.time_ns.saturating_sub(run.from_ns),
        bytes: point.live.bytes,
        blocks: point.live.blocks,
    });
    compared.collect()
}

/// Assigns the old run's frames, which begin at `first_old`, to the new run's modules. Modules that
/// the new run lacks were renamed or are gone.
fn name_modules(both: &mut Profile, first_old: u32) {
    let code = Code::of(both);
    let (new, old) = both.frames.split_at_mut(first_old as usize);
    let known: HashSet<Option<&str>> = new.iter().map(|f| f.frame.module.as_deref()).collect();
    let mut of_code: HashMap<&str, &ProfileFrame> = HashMap::new();
    for (frame, number) in new.iter().zip(0..) {
        of_code.entry(code.frame(number)).or_insert(frame);
    }
    for (frame, number) in old.iter_mut().zip(first_old..) {
        if known.contains(&frame.frame.module.as_deref()) {
            continue;
        }
        if let Some(same) = of_code.get(code.frame(number)) {
            frame.module = same.module;
            frame.frame.module.clone_from(&same.frame.module);
        }
    }
}

/// Makes all stacks with equal code and kind of allocation use the frames of the first of them. If
/// the new run has such a stack, these are the new run's frames.
fn join_stacks(both: &mut Profile) {
    let code = Code::of(both);
    let mut kinds: HashMap<u32, &str> = HashMap::new();
    for site in &both.sites {
        kinds.entry(site.stack).or_insert(&site.kind);
    }
    let mut first: HashMap<(&str, Vec<String>), u32> = HashMap::new();
    let mut same = Vec::new();
    for stack in 0..both.stacks.len() as u32 {
        // A stack that only released blocks, or that only has scores, belongs to no site.
        let Some(kind) = kinds.get(&stack) else {
            continue;
        };
        let known = first
            .entry((kind, code.stack(both, stack)))
            .or_insert(stack);
        if *known != stack {
            same.push((stack, *known));
        }
    }
    for (stack, known) in same {
        let is_cut = both.is_cut(stack);
        let mut frames = both.known_frames(known).to_vec();
        frames.extend(both.cut_root.filter(|_| is_cut));
        both.stacks[stack as usize] = frames;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Amount;

    fn run(function: &str, bytes: u64, is_cut: bool) -> Profile {
        let mut frame = ProfileFrame::cut_root();
        frame.frame.function = Some(function.into());
        let mut profile = Profile {
            frames: vec![frame],
            stacks: vec![vec![0]],
            ..Profile::default()
        };
        if is_cut {
            profile.frames.push(ProfileFrame::cut_root());
            profile.cut_root = Some(1);
            profile.stacks[0].push(1);
        }
        let mut site = ProfileSite::default();
        site.measures.live = Amount {
            blocks: 1,
            bytes,
            ..Amount::default()
        };
        profile.sites.push(site);
        profile
    }

    #[test]
    fn stacks_keep_their_frames() {
        for (new_cut, old_cut) in [(false, false), (false, true), (true, false), (true, true)] {
            let both = beside(run("new", 10, new_cut), run("old", 30, old_cut));
            let compared = both.compared.as_ref().expect("two runs");
            assert_eq!((compared.first_site, both.sites.len()), (1, 2));
            for (site, name, is_cut) in [(0, "new", new_cut), (1, "old", old_cut)] {
                let stack = both.sites[site].stack;
                let frames = both.stack(stack);
                assert_eq!(frames.len(), 1);
                assert_eq!(frames[0].function.as_deref(), Some(name));
                assert_eq!(both.is_cut(stack), is_cut, "{name}");
            }
        }
    }
}
