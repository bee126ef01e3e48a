//! Owns the loop that drives programs of this process, which answer immediately.

use crate::session::{End, SimulationEnd, Source, Stop, Watch};
use uniference_formats::units::counted;
use uniference_host::error::{Exit, HostError};
use uniference_sim::cluster::Cluster;
use uniference_sim::engine::{self, Engine, Failure, Halt, Resumption, Turn};
use uniference_sim::program::{Program, ProgramError, Reply, Request};
use uniference_sim::replay::RecordedStep;

/// Programs of ranks that answer immediately, and may fail.
pub trait Ranks {
    /// Resumes a rank's program; returns its next request.
    ///
    /// # Errors
    /// If the program cannot continue, which ends the simulation.
    fn resume(&mut self, resumption: Resumption) -> Result<Request, ProgramError>;
}

/// Runs all ranks until they exit, or the first one fails.
pub(crate) fn drive(engine: &mut Engine, ranks: &mut impl Ranks, watch: Watch<'_>) -> engine::RunEnd {
    loop {
        match engine.next(watch.observer) {
            Turn::Resume(resumption) => {
                let Resumption { rank, task, now, ref reply } = resumption;
                if let Reply::Group(group) = reply {
                    watch.recorder.step(rank, task, &RecordedStep::Named(*group), "");
                }
                let step = match ranks.resume(resumption) {
                    Ok(request) => RecordedStep::Request(request),
                    Err(error) => return engine::RunEnd::Failed(Failure { rank, task, at: now, error }),
                };
                watch.recorder.step(rank, task, &step, "");
                let RecordedStep::Request(request) = step else { unreachable!("it was made one") };
                engine.submit(rank, task, request);
            }
            Turn::Finished => return engine::RunEnd::Finished,
            Turn::Halted(halt) => return engine::RunEnd::Halted(halt),
            Turn::Blocked => panic!("every program of this process answers at once"),
        }
    }
}

/// Programs that run inside this process, one per rank.
pub struct Programs<P>(pub Vec<P>);

impl<P: Program> Ranks for Programs<P> {
    fn resume(&mut self, Resumption { rank, task, now, reply }: Resumption) -> Result<Request, ProgramError> {
        self.0[rank.index()].resume(now, task, reply)
    }
}

impl<P: Program> Source for Programs<P> {
    fn drive(&mut self, cluster: &Cluster, watch: Watch<'_>) -> Result<End, HostError> {
        let (programs, devices) = (self.0.len(), cluster.devices.len());
        if programs != devices {
            return Err(HostError::Usage(format!(
                "given {}, but the cluster has {}\nhint: give one program per device",
                counted(programs, "program"),
                counted(devices, "device")
            )));
        }
        let ending = match drive(&mut Engine::new(cluster), self, watch) {
            engine::RunEnd::Finished => SimulationEnd::Finished,
            engine::RunEnd::Halted(halt) => halted(&halt, &[]),
            engine::RunEnd::Failed(failure) => SimulationEnd::Stopped(Stop {
                exit: Exit::ProgramFailed,
                message: format!("error: a program failed: {failure}\n"),
            }),
            engine::RunEnd::CutShort => unreachable!("nothing is replayed"),
        };
        Ok(End::new(ending, Vec::new()))
    }
}

/// The ending of programs that came to a halt; `lines` are their source lines.
pub(crate) fn halted(halt: &Halt, lines: &[String]) -> SimulationEnd {
    let text = halt.render(&|site| lines.get(site.index()).cloned().unwrap_or_default(), &|_| Vec::new());
    SimulationEnd::Stopped(Stop { exit: Exit::Halted, message: format!("error: {text}") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ClusterOptions;
    use crate::session::{Outcome, Output, Session};
    use uniference_sim::ids::TaskId;
    use uniference_sim::time::SimTime;

    /// A program that fails because it has no input.
    struct Fails;

    impl Program for Fails {
        fn resume(&mut self, _: SimTime, _: TaskId, _: Reply) -> Result<Request, ProgramError> {
            Err("the first layer has no weights".into())
        }
    }

    #[test]
    fn a_program_that_fails_stops_the_session_with_its_error() {
        let dir = tempfile::tempdir().unwrap();
        let cluster = ClusterOptions { ranks: Some(1), ..ClusterOptions::default() };
        let output = Output { folder: Some(dir.path().join("out")), ..Output::default() };
        let session = Session::new(cluster.resolve().unwrap(), 0, Vec::new(), &output).unwrap();
        let Outcome::Stopped(stop) = session.carry_out(&mut Programs(vec![Fails])).unwrap() else {
            panic!("it is not stopped")
        };
        assert_eq!(stop.exit, Exit::ProgramFailed);
        let message = "error: a program failed: rank 0, task 0, at 0 ps: the first layer has no weights\n";
        assert_eq!(stop.message, message);
    }
}
