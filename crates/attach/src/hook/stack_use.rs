//! Stack use of a traced call, computed from the compiler's figures for each function. It matters because a program may
//! have little space left on its stack. The figures are in `hook-cxx/stack_room.hpp` and docs/safety.md.

use std::collections::{HashMap, HashSet};

/// Functions that are called only if there is enough stack for them (`has_stack_room`). Without them, a traced call
/// takes at most `ALWAYS` bytes.
const ASKS: [&str; 3] = ["unwind_and_remember(", "check_memo(", "with_frames("];
const ALWAYS: u64 = 704;
/// Limit on the stack use of shmat(2), of calls through a passage, and of the wrappers of described allocators, whose
/// frames store their callers' registers.
const OF_OTHERS: u64 = 800;
/// Frame of `memhook_pass` (arch/x86_64/passage.hpp), including both return addresses.
const OF_PASSAGE: u64 = 8 + 8 + 160 + 8;

/// Call graph, by linker symbol: readable names, frame sizes and callees.
#[derive(Default)]
struct Calls {
    frames: HashMap<String, (String, u64)>,
    callees: HashMap<String, HashSet<String>>,
}

/// Returns the quoted text after `key`.
fn quoted<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split_once(key)?.1.split('"').nth(1)
}

impl Calls {
    /// Reads the output of GCC's -fcallgraph-info=su.
    fn read(text: &str) -> Calls {
        let mut calls = Calls::default();
        for line in text.lines() {
            if let (Some(name), Some(label)) = (quoted(line, "title:"), quoted(line, "label:")) {
                let bytes = label
                    .rsplit("\\n")
                    .find_map(|part| part.split_once(" bytes")?.0.parse().ok());
                let called = label.split("\\n").next().unwrap_or_default();
                if let Some(bytes) = bytes {
                    calls
                        .frames
                        .insert(name.to_owned(), (called.to_owned(), bytes));
                }
            }
            if let (Some(from), Some(to)) =
                (quoted(line, "sourcename:"), quoted(line, "targetname:"))
            {
                let callees = calls.callees.entry(from.to_owned()).or_default();
                callees.insert(to.to_owned());
            }
        }
        calls
    }

    /// Returns true if the function is a wrapper that records. Other wrappers tail-call it (selective.hpp), so their
    /// frames no longer exist when it runs.
    fn is_full(&self, name: &str) -> bool {
        let called = self.frames.get(name).map(|(called, _)| called.as_str());
        called.is_some_and(|called| called.contains("Policy = memhook::Recording"))
    }

    /// Returns the stack use of a function, including its return address and its callees, except callees that are not
    /// `counted`.
    fn taken(
        &self,
        name: &str,
        counted: &dyn Fn(&str) -> bool,
        known: &mut HashMap<String, u64>,
    ) -> u64 {
        if let Some(&taken) = known.get(name) {
            return taken;
        }
        let Some((called, own)) = self.frames.get(name).filter(|(called, _)| counted(called))
        else {
            return 0;
        };
        assert!(!called.is_empty());
        // The hook has no recursion.
        known.insert(name.to_owned(), 0);
        let (mut called_by_it, mut jumped_to) = (0, 0);
        for callee in self.callees.get(name).into_iter().flatten() {
            let taken = self.taken(callee, counted, known);
            let most = match self.is_full(callee) {
                true => &mut jumped_to,
                false => &mut called_by_it,
            };
            *most = taken.max(*most);
        }
        let taken = jumped_to.max(own + 8 + called_by_it);
        known.insert(name.to_owned(), taken);
        taken
    }

    /// Returns the largest stack use among these functions.
    fn most(&self, is_one: &dyn Fn(&str) -> bool, counted: &dyn Fn(&str) -> bool) -> u64 {
        let mut known = HashMap::new();
        let ones = self.frames.iter().filter(|(_, (called, _))| is_one(called));
        let most = ones
            .map(|(name, _)| self.taken(name, counted, &mut known))
            .max();
        most.expect("it is in the hook")
    }
}

fn figure(name: &str) -> u64 {
    let header = include_str!("../../hook-cxx/stack_room.hpp");
    let (_, rest) = header.split_once(name).expect("it is in the header");
    let digits = rest.trim_start_matches(" = ").split(';').next();
    digits
        .and_then(|digits| digits.parse().ok())
        .expect("a number")
}

#[test]
fn a_traced_call_takes_no_more_stack_than_is_said() {
    let read =
        |file| Calls::read(&std::fs::read_to_string(file).expect("the compiler has written it"));
    let files = (
        option_env!("MEMHOOK_HOOK_OBJECT_CALLS"),
        option_env!("MEMHOOK_EMITTER_OBJECT_CALLS"),
    );
    let (Some(hook), Some(emitter)) = files else {
        return;
    };
    let calls = read(hook);
    let of_other = |called: &str| called.contains("Shmat(") || called.contains("memhook_described");
    let of_allocator = |called: &str| called.contains("Wrappers") && !of_other(called);
    let asks = |called: &str| ASKS.iter().any(|one| called.contains(&format!("::{one}")));
    let native = |called: &str| !called.contains("::with_frames(");
    let any = |called: &str| of_allocator(called) || of_other(called);
    let always = calls.most(&of_allocator, &|called| !asks(called));
    let others = calls.most(&of_other, &|called| !asks(called));
    let unwinding = calls.most(&any, &native);
    let python = calls.most(&any, &|_| true);
    let is_passed = |called: &str| called.contains("memhook_pass_");
    let passed = OF_PASSAGE + calls.most(&is_passed, &|called| !asks(called));
    assert!((200..=OF_OTHERS).contains(&passed), "{passed}");
    let passed = OF_PASSAGE + calls.most(&is_passed, &native);
    assert!(passed <= figure("room_for_unwinding"), "{passed}");
    println!("{always} {others} {unwinding} {python}");
    assert!((200..=ALWAYS).contains(&always), "{always}");
    let emitting = read(emitter).most(&of_allocator, &|called| !asks(called));
    assert!((100..=ALWAYS).contains(&emitting), "{emitting}");
    assert!((200..=OF_OTHERS).contains(&others), "{others}");
    let limits = [figure("room_for_unwinding"), figure("room_for_python")];
    assert!((always..=limits[0]).contains(&unwinding), "{unwinding}");
    assert!((unwinding..=limits[1]).contains(&python), "{python}");
}
