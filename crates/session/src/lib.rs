//! The library behind all simulations, for the command line, Python, and Rust programs.
//!
//! The caller chooses a cluster ([`ClusterOptions`]). A [`Session`] creates the run folder and drives a [`Source`] of
//! simulated programs while its observers record the run; the result is an [`Outcome`], and a report in the run folder.
//! Sources are live ranks ([`live`]), the record of an earlier run ([`recorded`]), execution traces ([`traces`]),
//! generated jobs ([`generated`]) and the caller's own programs ([`Programs`]). Inputs that can be simulated without a
//! program ([`Replayed`]) can be explained ([`Replayed::explain`]) and changed ([`whatif`]):
//!
//! ```
//! use uniference_session::{ClusterOptions, Outcome, Output, Programs, Session};
//! use uniference_sim::program::{Activity, Origin, Outcome as Exited, Program, ProgramError, Reply, Request, Work};
//! use uniference_sim::ids::{Handle, QueueId, Site, TaskId};
//! use uniference_sim::time::{SimDuration, SimTime};
//!
//! /// Computes for a millisecond.
//! struct Computes;
//!
//! impl Program for Computes {
//!     fn resume(&mut self, _now: SimTime, _task: TaskId, reply: Reply) -> Result<Request, ProgramError> {
//!         let work = Work::new(SimDuration::from_us(1_000), Origin::Measured);
//!         let site = Site(0);
//!         Ok(match reply {
//!             Reply::Start => Request::Issue { activity: Activity::Compute(work), queue: QueueId(0), after: vec![], site },
//!             Reply::Issued(handle) => Request::Wait { handles: vec![handle], any: false, timeout: None, site },
//!             _ => Request::Exit(Exited::Ok),
//!         })
//!     }
//! }
//!
//! # fn main() -> Result<(), uniference_session::HostError> {
//! # let dir = std::env::temp_dir().join(format!("uniference-session-example-{}", std::process::id()));
//! let cluster = ClusterOptions { ranks: Some(2), slowdown: vec![1.0, 3.0], ..ClusterOptions::default() };
//! let output = Output { folder: Some(dir.clone()), ..Output::default() };
//! let session = Session::new(cluster.resolve()?, 0, vec!["example".to_owned()], &output)?;
//! match session.carry_out(&mut Programs(vec![Computes, Computes]))? {
//!     Outcome::Finished(figures) => {
//!         let report = session.report(*figures, Vec::new());
//!         assert_eq!(report.makespan_s, 0.003);
//!         session.write(&report)?;
//!     }
//!     Outcome::Stopped(stop) => panic!("{}", stop.message),
//!     Outcome::Unlike(_) => unreachable!("every rank is simulated"),
//! }
//! # std::fs::remove_dir_all(dir).unwrap();
//! # Ok(())
//! # }
//! ```
//!
//! The session sends messages to the user to [`Notices`].

pub mod cluster;
pub mod compute;
pub mod doubts;
mod elsewhere;
pub mod export;
pub mod fit;
pub mod folder;
pub mod generated;
pub mod input;
pub mod live;
pub mod lock;
mod names;
mod notices;
mod overlap;
pub mod overview;
pub mod page;
mod patience;
mod places;
pub mod profile;
mod programs;
mod progress;
pub mod recorded;
pub mod repeated;
mod replayed;
pub mod results;
mod session;
mod simulated;
pub mod sweep;
pub mod tables;
mod tight;
pub mod traces;
pub mod whatif;
pub mod whole;

pub use cluster::ClusterOptions;
pub use compute::{Compute, ComputeOptions, DatabaseOptions, HostTime, PythonTime};
pub use notices::Notices;
pub use overlap::Arrangement;
pub use programs::{Programs, Ranks};
pub use replayed::Replayed;
pub use results::RecordLevel;
pub use session::{End, Ended, Outcome, Output, RunResults, Session, SimulationEnd, Source, Stop, Watch};
pub use uniference_host::error::{Exit, HostError};
