//! Owns the start of ranks: their sockets and pipes, and the request to the zygote or to the worker of another machine.
//!
//! `zygote` forks the ranks; [`super`] handles their messages afterwards.

use super::Driver;
use crate::error::HostError;
use crate::live::connections::{Process, RankConnections, TaskConnection, pipe};
use crate::live::output::{Pipe, Stream};
use crate::live::remote::remote_worker::Birth;
use crate::live::sources::Source;
use crate::live::zygote::{self, RankPlacement};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use uniference_client::processor::Visit;
use uniference_protocol::frame;
use uniference_protocol::hello::Hello;
use uniference_protocol::messages::Welcome;
use uniference_protocol::wire::{UnixWire, write_with_fds};
use uniference_sim::ids::{RankId, TaskId};

impl Driver<'_> {
    /// Starts the next `count` ranks that have processes.
    pub(super) fn ask_for_ranks(&mut self, count: u32) -> Result<(), HostError> {
        let setup = self.setup;
        let mut left = count;
        while left > 0
            && let Some(place) = setup.places.get(self.asked as usize)
        {
            self.asked += 1;
            let runs = match &self.fold_plan {
                Some(fold_plan) => fold_plan.runs(RankId(place.rank)),
                None => !setup.one_program || place.rank == 0,
            };
            if runs {
                self.ask_for_rank(place)?;
                left -= 1;
            } else {
                self.ranks.push(RankConnections::absent());
            }
        }
        Ok(())
    }

    fn ask_for_rank(&mut self, place: &RankPlacement) -> Result<(), HostError> {
        let rank = RankId(place.rank);
        if self.board_of[rank.index()].is_some() {
            return self.ask_board_for_rank(place);
        }
        let (socket, control) = UnixStream::pair().map_err(HostError::system("creating a rank's socket"))?;
        self.greet(&socket, place.rank)?;
        let setup = self.setup;
        let pipes = match &setup.terminal {
            Some(terminal) if terminal.rank == place.rank => {
                let [input, out, err] = &terminal.fds;
                let fds = [control.as_fd(), out.as_fd(), err.as_fd(), input.as_fd()];
                self.zygote.fork(&zygote::fork(&setup.script, place, Some(terminal.rank), false), &fds)?;
                [None, None]
            }
            other => {
                let ((out, their_out), (err, their_err)) = (pipe()?, pipe()?);
                let debugged = other.as_ref().map(|terminal| terminal.rank);
                let input = setup.input.as_ref().filter(|_| place.rank == 0 && debugged.is_none());
                let mut fds = vec![control.as_fd(), their_out.as_fd(), their_err.as_fd()];
                fds.extend(input.map(AsFd::as_fd));
                self.zygote.fork(&zygote::fork(&setup.script, place, debugged, input.is_some()), &fds)?;
                self.sources.add(out.as_fd(), Source::Pipe(rank, Stream::Out))?;
                self.sources.add(err.as_fd(), Source::Pipe(rank, Stream::Err))?;
                [Some(Pipe::new(out)), Some(Pipe::new(err))]
            }
        };
        self.sources.add(socket.as_fd(), Source::Task(rank, TaskId(0)))?;
        let main = TaskConnection::new(Arc::new(UnixWire::of_driver(socket)));
        self.ranks.push(RankConnections {
            tasks: vec![main],
            greeted: false,
            pipes,
            process: Process::Coming,
            crashed: false,
        });
        Ok(())
    }

    fn ask_board_for_rank(&mut self, place: &RankPlacement) -> Result<(), HostError> {
        let (rank, layout) = (RankId(place.rank), self.arena.1);
        let ((out, their_out), (err, their_err)) = (pipe()?, pipe()?);
        let board = self.board(place.rank).expect("it runs there");
        let wire = board.fork(Birth {
            rank: place.rank,
            compute: self.setup.compute[rank.index()],
            cores: place.cores.unwrap_or(1),
            home: (layout.part * u64::from(place.rank), layout.part),
            order: zygote::fork(&self.setup.script, place, None, false),
            outputs: [their_out, their_err],
        })?;
        self.sources.add(out.as_fd(), Source::Pipe(rank, Stream::Out))?;
        self.sources.add(err.as_fd(), Source::Pipe(rank, Stream::Err))?;
        self.sources.add(wire.as_fd(), Source::Task(rank, TaskId(0)))?;
        self.ranks.push(RankConnections {
            tasks: vec![TaskConnection::new(wire)],
            // The worker has already read the rank's hello message.
            greeted: true,
            pipes: [Some(Pipe::new(out)), Some(Pipe::new(err))],
            process: Process::Coming,
            crashed: false,
        });
        Ok(())
    }

    fn greet(&self, socket: &UnixStream, rank: u32) -> Result<(), HostError> {
        let (file, layout) = &self.arena;
        let welcome = Welcome {
            compute: self.setup.compute[rank as usize],
            cores: self.setup.places[rank as usize].cores.unwrap_or(1),
            arena_bytes: layout.total,
            staging: (layout.part * u64::from(rank), layout.part),
            retain_bytes: layout.retain,
            processor: self.stay.as_ref().map(Visit::processor),
        };
        let mut bytes = Vec::new();
        frame::encode(&Hello::new(true), &mut bytes);
        frame::encode(&welcome, &mut bytes);
        write_with_fds(socket, &bytes, &[file.as_fd(), self.lookout.file()])
            .map_err(HostError::system("sending the welcome to a rank"))
    }
}
