//! Catalogue of all experiments, with their subjects, durations and requirements.

use super::needs::Need;
use super::sheet::Sheets;
use super::{kal, memcov, memoro, slides, thesis};

/// A paper, in the order of `--list`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paper {
    Thesis,
    Slides,
    Kal,
    Memcov,
    Memoro,
}

impl Paper {
    pub const ALL: [Paper; 5] = [
        Paper::Thesis,
        Paper::Slides,
        Paper::Kal,
        Paper::Memcov,
        Paper::Memoro,
    ];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Paper::Thesis => "thesis",
            Paper::Slides => "slides",
            Paper::Kal => "kal",
            Paper::Memcov => "memcov",
            Paper::Memoro => "memoro",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Paper::Thesis => "Memory Allocation Tracing for C++ Applications in Live Systems",
            Paper::Slides => "Dynamic Tracing in Userspace",
            Paper::Kal => "Kernel-assisted Non-invasive Memory Leak Tolerance",
            Paper::Memcov => "Model Predictive Control for Memory Profiling",
            Paper::Memoro => "Detailed Heap Profiling",
        }
    }
}

/// One experiment.
pub struct Experiment {
    /// Name on the command line and in file names.
    pub name: &'static str,
    pub paper: Paper,
    /// Tables and figures of the paper that the experiment repeats.
    pub answers: &'static str,
    /// Duration on two idle processors, rounded up.
    pub minutes: u32,
    pub needs: &'static [Need],
    pub run: fn(&mut Sheets) -> Result<(), String>,
}

const TWO: Need = Need::TwoProcessors;
const BPFTRACE: Need = Need::Program("bpftrace", "bpftrace");
const VIM: Need = Need::Program("vim", "vim");
const VALGRIND: Need = Need::Program("valgrind", "valgrind");

pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "event-cost",
        paper: Paper::Thesis,
        answers: "table 2.1",
        minutes: 2,
        needs: &[
            Need::Root,
            TWO,
            BPFTRACE,
            Need::Program("gdb", "gdb"),
            Need::Program("strace", "strace"),
            Need::Program("ltrace", "ltrace"),
        ],
        run: thesis::event_cost::run,
    },
    Experiment {
        name: "latency",
        paper: Paper::Thesis,
        answers: "tables 5.1 and 5.3",
        minutes: 3,
        needs: &[Need::Root, TWO, BPFTRACE],
        run: thesis::latency::run,
    },
    Experiment {
        name: "start",
        paper: Paper::Thesis,
        answers: "table 5.2",
        minutes: 2,
        needs: &[
            Need::Root,
            BPFTRACE,
            VALGRIND,
            Need::Program("sqlite3", "sqlite3"),
            Need::Program("heaptrack", "heaptrack"),
        ],
        run: thesis::start::run,
    },
    Experiment {
        name: "unwinding",
        paper: Paper::Thesis,
        answers: "table and figure 6.1",
        minutes: 3,
        needs: &[TWO],
        run: thesis::unwinding::run,
    },
    Experiment {
        name: "realistic",
        paper: Paper::Thesis,
        answers: "table 6.2, and the goal of 20 %",
        minutes: 2,
        needs: &[Need::Root, TWO, BPFTRACE],
        run: thesis::realistic::run,
    },
    Experiment {
        name: "calls",
        paper: Paper::Slides,
        answers: "both overhead analyses, and the mutation time",
        minutes: 2,
        needs: &[Need::Root, TWO],
        run: slides::run,
    },
    Experiment {
        name: "downtime",
        paper: Paper::Kal,
        answers: "downtimes of figures 8 and 10",
        minutes: 3,
        needs: &[TWO],
        run: kal::downtime::run,
    },
    Experiment {
        name: "responses",
        paper: Paper::Kal,
        answers: "figure 10",
        minutes: 2,
        needs: &[TWO, Need::Program("redis-server", "redis-server")],
        run: kal::responses::run,
    },
    Experiment {
        name: "scan-cost",
        paper: Paper::Kal,
        answers: "figures 8 and 11",
        minutes: 8,
        needs: &[TWO],
        run: kal::scan_cost::run,
    },
    Experiment {
        name: "database",
        paper: Paper::Kal,
        answers: "figure 13",
        minutes: 5,
        needs: &[TWO, Need::Postgresql],
        run: kal::database::run,
    },
    Experiment {
        name: "leaktest",
        paper: Paper::Kal,
        answers: "figures 7 and 9",
        minutes: 2,
        needs: &[TWO, Need::File("/usr/include/gc.h", "libgc-dev")],
        run: kal::leaktest::run,
    },
    Experiment {
        name: "web-service",
        paper: Paper::Kal,
        answers: "figures 12, 14 and 15",
        minutes: 2,
        needs: &[
            Need::Root,
            TWO,
            Need::Program("php-fpm8.2", "php8.2-fpm"),
            Need::Program("php-config", "php8.2-dev"),
        ],
        run: kal::web_service::run,
    },
    Experiment {
        name: "vim",
        paper: Paper::Memcov,
        answers: "figures 4, 5 and 6",
        minutes: 4,
        needs: &[VIM],
        run: memcov::vim,
    },
    Experiment {
        name: "vim-time",
        paper: Paper::Memcov,
        answers: "71 % of the time of monitoring naively",
        minutes: 5,
        needs: &[VIM],
        run: memcov::vim_time,
    },
    Experiment {
        name: "pages",
        paper: Paper::Memcov,
        answers: "figures 7 and 8",
        minutes: 4,
        needs: &[TWO],
        run: memcov::pages,
    },
    Experiment {
        name: "protobuf",
        paper: Paper::Memoro,
        answers: "table 2, and LevelDB's column of table 1",
        minutes: 6,
        needs: &[
            VALGRIND,
            Need::Program("protoc", "protobuf-compiler"),
            Need::File("/usr/include/leveldb/db.h", "libleveldb-dev"),
        ],
        run: memoro::protobuf,
    },
    Experiment {
        name: "memcached",
        paper: Paper::Memoro,
        answers: "Memcached's column of table 1",
        minutes: 6,
        needs: &[
            VALGRIND,
            Need::Program("clang", "clang"),
            Need::File("/usr/include/event2/event.h", "libevent-dev"),
        ],
        run: memoro::memcached,
    },
    Experiment {
        name: "bamtools",
        paper: Paper::Memoro,
        answers: "tables 3 to 6",
        minutes: 6,
        needs: &[
            VALGRIND,
            Need::Program("clang", "clang"),
            Need::Program("cmake", "cmake"),
        ],
        run: memoro::bamtools,
    },
    Experiment {
        name: "stack-accesses",
        paper: Paper::Memoro,
        answers: "34 % of the accesses could be left out",
        minutes: 1,
        needs: &[Need::Program("g++", "g++")],
        run: memoro::stack_accesses,
    },
];
