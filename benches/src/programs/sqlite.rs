//! sqlite3 inserting rows into a table in memory.

use super::{Program, find};
use crate::{Round, Standing, Subject, Tool, is_test, processors::Placement};
use memhook_tests::Target;
use std::time::Instant;

pub(super) const PROGRAM: Program = Program {
    works: &["sqlite3, 500,000 inserts"],
    start,
};

struct Sqlite(Target);

fn start(place: &Placement) -> Result<Box<dyn Subject>, String> {
    let program = find("sqlite3", "sqlite3")?;
    let mut command = place.command(&program);
    let mut target = Target::silent(command.args(["-batch", ":memory:"]));
    // What sqlite3 prints itself is buffered as long as it reads from a pipe.
    target.send(".shell echo ready\n");
    target.expect("ready");
    Ok(Box::new(Sqlite(target)))
}

impl Subject for Sqlite {
    fn round(&mut self, tool: Option<&dyn Tool>) -> Result<Round, String> {
        let pid = self.0.pid();
        let rows = if is_test() { 5_000 } else { 500_000 };
        let measure = || {
            self.0
                .send("create table t(i integer primary key, s text, n);\n.shell echo ready\n");
            self.0.expect("ready");
            let start = Instant::now();
            self.0.send(&format!(
                "begin; with recursive c(x) as (values(1) union all select x+1 from c where x<{rows})\n\
                 insert into t(s, n) select printf('row %d of many', x), x * 7 from c; commit;\n\
                 .shell echo done\n"
            ));
            self.0.expect("done");
            let ns = start.elapsed().as_nanos() as f64 / f64::from(rows);
            self.0.send("drop table t;\n.shell echo ready\n");
            self.0.expect("ready");
            Ok(vec![ns])
        };
        Standing { pid, measure }.round(tool)
    }
}
