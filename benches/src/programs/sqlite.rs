//! Has sqlite3 insert rows into an in-memory table.

use super::{Program, find};
use crate::{Figure, Round, Standing, Subject, Tool, processors::Placement};
use memhook_tests::Target;

pub(super) const PROGRAM: Program = Program {
    works: &["sqlite3, 500,000 inserts"],
    cycles: 20,
    stands: true,
    start,
};

struct Sqlite {
    target: Target,
    rows: u32,
}

fn start(place: &Placement) -> Result<Box<dyn Subject>, String> {
    let program = find("sqlite3", "sqlite3")?;
    let mut command = place.command(&program);
    let mut target = Target::silent(command.args(["-batch", ":memory:"]));
    // sqlite3 buffers its own output when its input is a pipe, so a shell command prints the word.
    target.send(".shell echo ready\n");
    target.expect("ready");
    Ok(Box::new(Sqlite {
        target,
        rows: place.part(500_000),
    }))
}

impl Subject for Sqlite {
    fn round(&mut self, tool: Option<&dyn Tool>) -> Result<Round, String> {
        let pid = self.target.pid();
        let rows = self.rows;
        let measure = || {
            self.target
                .send("create table t(i integer primary key, s text, n);\n.shell echo ready\n");
            self.target.expect("ready");
            let figure = Figure::of(pid, || {
                self.target.send(&format!(
                    "begin; with recursive c(x) as (values(1) union all select x+1 from c where x<{rows})\n\
                     insert into t(s, n) select printf('row %d of many', x), x * 7 from c; commit;\n\
                     .shell echo done\n"
                ));
                self.target.expect("done");
                Ok(f64::from(rows))
            })?;
            self.target.send("drop table t;\n.shell echo ready\n");
            self.target.expect("ready");
            Ok(vec![figure])
        };
        Standing { pid, measure }.round(tool)
    }
}
