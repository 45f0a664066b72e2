//! Source text of a situation's program.

use crate::situation::{Disease, Language, Situation};

const FRAME: &str = include_str!("programs.c.in");
const RUST_FRAME: &str = include_str!("programs.rs.in");

/// Returns the source text.
pub fn source(of: &Situation) -> String {
    let text = match of.language {
        Language::C => FRAME.replace("@PARTS@", &in_c(of.disease)),
        Language::Cpp => FRAME.replace("@PARTS@", &in_cpp(of.disease)),
        Language::Rust => {
            let (prepare, work) = in_rust(of.disease);
            RUST_FRAME
                .replace("@PREPARE@", prepare)
                .replace("@WORK@", work)
        }
    };
    text.replace("@NAME@", of.function)
        .replace("@SIZE@", &of.size.to_string())
        .replace("@RATE@", &of.rate.to_string())
        .replace("@LIMIT@", &of.limit.to_string())
        .replace("@SEED@", &of.seed.to_string())
}

fn with(functions: &str, prepare: &str, work: &str) -> String {
    format!(
        "{functions}\nOWN void prepare(void) {{ {prepare} }}\nOWN void work(long step) {{ (void)step; {work} }}\n"
    )
}

const FILLED: &str = "OWN char* @NAME@(size_t size) { char* p = (char*)malloc(size); memset(p, 'x', size); KEEP(p); return p; }\n";
const RING: &str = "OWN char* fill_cache(size_t size) { char* p = (char*)malloc(size); memset(p, 'c', size); KEEP(p); return p; }\n\
    static char* ring[LIMIT];\nstatic unsigned ring_at;\n\
    OWN void replace(void) { free(ring[ring_at]); ring[ring_at] = fill_cache(SIZE); ring_at = (ring_at + 1) % LIMIT; }\n";
const FILL_RING: &str = "for (int i = 0; i < LIMIT; i++) replace();";
const EACH: &str = "for (int i = 0; i < RATE; i++)";

/// Returns code that peaks at 60,000 small blocks, of which one in `pins` stays.
fn peak(pins: &str) -> String {
    with(
        &format!(
            "{FILLED}static char* all[160000];\nOWN char* pinned(size_t size) {{ return @NAME@(size); }}\n\
            OWN char* passing(size_t size) {{ char* p = (char*)malloc(size); memset(p, 'p', size); KEEP(p); return p; }}\n"
        ),
        &format!(
            "for (int i = 0; i < 160000; i++) all[i] = {pins} ? pinned(240) : passing(240);\n\
            KEEP(pinned(240));\n\
            for (int i = 0; i < 160000; i++) if (!({pins})) {{ free(all[i]); all[i] = NULL; }}"
        ),
        "",
    )
}

/// Returns the text of a Rust program: before the first step, and in each step.
fn in_rust(disease: Disease) -> (&'static str, &'static str) {
    match disease {
        Disease::Leak => ("", "for _ in 0..RATE { @NAME@(SIZE).leak(); }"),
        Disease::LeakBehindCache => (
            "for _ in 0..LIMIT { service.cache.push_back(fill_cache(SIZE)); }",
            "for _ in 0..2 * RATE { service.cache.pop_front(); service.cache.push_back(fill_cache(SIZE)); } \
             if step % 2 == 0 { @NAME@(SIZE / 2).leak(); }",
        ),
        Disease::Unbounded => (
            "",
            "for _ in 0..RATE { service.kept.push_back(@NAME@(SIZE)); }",
        ),
        Disease::Buffer => (
            "",
            "for _ in 0..RATE { append::@NAME@(&mut service.text, SIZE); }",
        ),
        Disease::BoundedCache => (
            "for _ in 0..LIMIT { service.cache.push_back(fill_cache(SIZE)); }",
            "for _ in 0..RATE { service.cache.pop_front(); service.cache.push_back(fill_cache(SIZE)); }",
        ),
        Disease::WarmingCache => (
            "service.slots.resize(LIMIT, None);",
            "for _ in 0..5 { let at = service.chance(LIMIT / 3); if service.slots[at].is_none() { service.slots[at] = Some(@NAME@(SIZE)); } }",
        ),
        Disease::Bursts => (
            "",
            "if step % 400 == 100 { for _ in 0..1000 { service.kept.push_back(@NAME@(SIZE)); } } \
             if step % 400 == 250 { service.kept.clear(); }",
        ),
        _ => ("", ""),
    }
}

fn in_c(disease: Disease) -> String {
    match disease {
        Disease::Leak => with(FILLED, "", &format!("{EACH} KEEP(@NAME@(SIZE));")),
        Disease::LeakBehindCache => with(
            &format!("{FILLED}{RING}"),
            FILL_RING,
            &format!(
                "{EACH} {{ replace(); replace(); }} if (step % 2 == 0) KEEP(@NAME@(SIZE / 2));"
            ),
        ),
        Disease::Unbounded => with(
            &format!("{FILLED}static char** kept;\n"),
            "",
            &format!("{EACH} {{ char** e = (char**)@NAME@(SIZE); *e = (char*)kept; kept = e; }}"),
        ),
        Disease::Buffer => with(
            "static char* text; static size_t used;\n\
             OWN void @NAME@(size_t more) { text = (char*)realloc(text, used + more); memset(text + used, 't', more); used += more; }\n",
            "",
            &format!("{EACH} @NAME@(SIZE);"),
        ),
        Disease::Retained => peak("0"),
        Disease::Pinned => peak("i % 16 == 0"),
        Disease::Mappings => with(
            "OWN void @NAME@(size_t size) { char* p = (char*)mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); memset(p, 'm', size); }\n",
            "",
            "if (step % 4 == 0) @NAME@(100000);",
        ),
        Disease::UnjoinedThreads => with(
            "static void* deep(void* n) { char room[100000]; memset(room, 1, sizeof room); KEEP(room); return n; }\n\
             OWN void @NAME@(void) { pthread_attr_t a; pthread_attr_init(&a); pthread_attr_setstacksize(&a, 262144); pthread_t t; pthread_create(&t, &a, deep, NULL); }\n",
            "",
            "if (step % 8 == 0) @NAME@();",
        ),
        Disease::BoundedCache => with(RING, FILL_RING, &format!("{EACH} replace();")),
        Disease::WarmingCache => with(
            &format!("{FILLED}static char* slots[LIMIT];\n"),
            "",
            "for (int i = 0; i < 5; i++) { unsigned at = chance(LIMIT / 3); if (!slots[at]) slots[at] = @NAME@(SIZE); }",
        ),
        Disease::Bursts => with(
            &format!("{FILLED}static char* batch[1000];\n"),
            "",
            "if (step % 400 == 100) for (int i = 0; i < 1000; i++) batch[i] = @NAME@(SIZE);\n\
             if (step % 400 == 250) for (int i = 0; i < 1000; i++) { free(batch[i]); batch[i] = NULL; }",
        ),
        Disease::Steady => with("", "", ""),
    }
}

fn in_cpp(disease: Disease) -> String {
    let lists = |prepare: &str, work: &str| {
        with(
            "struct Store { std::list<std::string> rows; };\nstatic Store* store;\n\
             OWN void @NAME@(size_t size) { store->rows.emplace_back(size, 'x'); }\n",
            &format!("store = new Store; {prepare}"),
            work,
        )
    };
    match disease {
        Disease::Leak => with(
            "OWN void @NAME@(size_t size) { auto* text = new std::string(size, 'x'); KEEP(text); }\n",
            "",
            &format!("{EACH} @NAME@(SIZE);"),
        ),
        Disease::LeakBehindCache => with(
            "static std::list<std::string>* cache;\n\
             OWN void fill_cache(size_t size) { cache->emplace_back(size, 'c'); if (cache->size() > LIMIT) cache->pop_front(); }\n\
             OWN void @NAME@(size_t size) { auto* text = new std::string(size, 'x'); KEEP(text); }\n",
            "cache = new std::list<std::string>; for (int i = 0; i < LIMIT; i++) fill_cache(SIZE);",
            &format!(
                "{EACH} {{ fill_cache(SIZE); fill_cache(SIZE); }} if (step % 2 == 0) @NAME@(SIZE / 2);"
            ),
        ),
        Disease::Unbounded => lists("", &format!("{EACH} @NAME@(SIZE);")),
        Disease::Buffer => with(
            "static std::vector<std::string>* rows;\n\
             OWN void @NAME@(size_t size) { rows->push_back(std::string(size, 'v')); }\n",
            "rows = new std::vector<std::string>;",
            &format!("{EACH} @NAME@(SIZE);"),
        ),
        Disease::BoundedCache => lists(
            "for (int i = 0; i < LIMIT; i++) @NAME@(SIZE);",
            &format!("{EACH} {{ @NAME@(SIZE); store->rows.pop_front(); }}"),
        ),
        Disease::WarmingCache => with(
            "static std::string* slots[LIMIT];\n\
             OWN void @NAME@(unsigned at) { slots[at] = new std::string(SIZE, 'w'); }\n",
            "",
            "for (int i = 0; i < 5; i++) { unsigned at = chance(LIMIT / 3); if (!slots[at]) @NAME@(at); }",
        ),
        Disease::Bursts => lists(
            "",
            "if (step % 400 == 100) for (int i = 0; i < 1000; i++) @NAME@(SIZE);\n\
             if (step % 400 == 250) store->rows.clear();",
        ),
        // The text is the same in both languages, because the heap does not depend on the language.
        other => in_c(other),
    }
}
