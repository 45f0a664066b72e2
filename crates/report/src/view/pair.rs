//! Two runs in one page: what the new one has more of, and what less.

use crate::{Compared, Profile, ProfileFrame, ProfileSite};

/// The new run with the sites of the old one behind its own. Everything else is the new run's: its heap over
/// time, its scores, its releases.
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
        scores: old.scores.as_ref().map(|scores| scores.run),
        first_site: new.sites.len() as u32,
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
    new
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
