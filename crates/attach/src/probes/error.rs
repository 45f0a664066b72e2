//! Reasons why functions cannot be probed.

/// Reason why no probe was placed. The process is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// No function has this name.
    #[error("no function is called '{wanted}'{}", suggestion(near))]
    Unknown {
        /// Requested name.
        wanted: String,
        /// Similar names.
        near: Vec<String>,
    },
    /// The function was inlined everywhere.
    #[error(
        "'{wanted}' has no code of its own: it was inlined at {}; probe the functions that contain it",
        places.join(", ")
    )]
    Inlined {
        /// Name that was requested.
        wanted: String,
        /// File and line of some of its calls.
        places: Vec<String>,
    },
    /// No module has this name.
    #[error("process {pid} has no module '{module}'{}", suggestion(near))]
    UnknownModule {
        /// The process.
        pid: i32,
        /// Requested module.
        module: String,
        /// Modules with similar names.
        near: Vec<String>,
    },
    /// Several functions have this name.
    #[error("'{wanted}' matches {} functions: name one of {}", places.len(), places.join(", "))]
    Ambiguous {
        /// Requested name.
        wanted: String,
        /// Unique names of the functions.
        places: Vec<String>,
    },
    /// Every requested function was refused.
    #[error("{0}")]
    AllRefused(String),
    /// Not enough room for the histograms.
    #[error("the latency of {functions} functions cannot be measured together: the limit is 256")]
    TooManyLatencies {
        /// Number of functions.
        functions: usize,
    },
    /// Not enough room for the tables.
    #[error(
        "arguments and stacks of {functions} functions cannot be counted together: the limit is 256"
    )]
    TooManyEvents {
        /// Number of functions.
        functions: usize,
    },
    /// There is not enough free address space for pads within reach of a module.
    #[error("process {pid} has no free addresses within 2 GB of {module}")]
    NoRoom {
        /// The process.
        pid: i32,
        /// The module.
        module: String,
    },
    /// The processor lacks an instruction that pads use.
    #[error(
        "this processor cannot load flags in 64-bit mode (lahf_lm in /proc/cpuinfo), which probes need"
    )]
    NoFlags,
    /// The pads could not be written.
    #[error("cannot write the pads of process {pid}: {cause}")]
    Pads {
        /// The process.
        pid: i32,
        /// Error from the kernel.
        cause: std::io::Error,
    },
}

fn suggestion(near: &[String]) -> String {
    if near.is_empty() {
        String::new()
    } else {
        format!(": did you mean {}?", near.join(", "))
    }
}
