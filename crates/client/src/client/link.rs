//! Owns one thread's connection: operations are collected in batches, and messages from the driver are answers to the
//! thread's requests.
//!
//! `client` creates the operations; in a process with several threads, rounds send them.

use super::account::{is_exiting, relays};
use super::{Client, ClientError, Compute, Result, is_severed, never};
use crate::thread_barrier::{self, Speaker};
use std::collections::BTreeMap;
use std::sync::Arc;
use uniference_protocol::frame::{self, FrameBuffer};
use uniference_protocol::memory::Region;
use uniference_protocol::messages::{Answer, Batch, ComputeSlice, Fetched, Offset, Op, Quiet, Reply};
use uniference_protocol::wire::{Opening, Wire};
use uniference_sim::ids::Site;

/// Number of operations from which a batch is sent although no operation in it needs an answer, so that batches do not
/// grow without bound.
const LONGEST_BATCH: usize = 256;

/// Largest number of bytes of operators per message.
const LONGEST_PART: usize = 1 << 20;

/// One thread's connection.
pub(super) struct Link {
    pub(super) client: u64,
    /// `None` on the main task: it writes to `Client::main`, under its lock.
    writer: Option<Arc<dyn Wire>>,
    pub(super) reader: Arc<dyn Wire>,
    /// The opening of the task, until the driver has received it.
    pub(super) opens: Option<Opening>,
    frames: FrameBuffer,
    /// Number by which marks refer to this thread; `None` until the thread has reported its number.
    pub(super) thread: Option<u32>,
    pub(super) batch: Vec<Op>,
    sites: BTreeMap<String, Site>,
    /// Lines of the user's program, by their number ([`Site`]).
    lines: Vec<String>,
    buffer: Vec<u8>,
}

/// Operations of threads that share a log, in their order, until one of these threads asks: the operations then belong
/// to that thread. Lines are kept as texts.
pub(super) type PendingOps = Vec<(Op, Option<String>)>;

/// An input, and its block in the arena.
pub(super) type Fill<'a> = (&'a [Region], Offset);

/// Work of a thread between its request and the driver's answer.
#[derive(Default)]
pub(super) struct Meanwhile<'a> {
    /// Copies this input to its block.
    pub(super) fill: Option<Fill<'a>>,
    /// Copies the operation's data to the caller, if the data arrives before the answer.
    pub(super) take: Option<&'a mut dyn FnMut(Fetched)>,
}

impl Link {
    pub(super) fn new(client: u64, writer: Option<Arc<dyn Wire>>, reader: Arc<dyn Wire>, frames: FrameBuffer) -> Link {
        let (batch, sites, lines, buffer) = (Vec::new(), BTreeMap::new(), Vec::new(), Vec::new());
        Link { client, writer, reader, opens: None, frames, thread: None, batch, sites, lines, buffer }
    }

    pub(super) fn speaker(&mut self) -> Speaker<'_> {
        Speaker { writer: self.writer.clone(), opens: &mut self.opens, ops: std::mem::take(&mut self.batch) }
    }

    pub(super) fn site(&mut self, line: &str) -> Site {
        if let Some(site) = self.sites.get(line) {
            return *site;
        }
        let site = Site::from(self.sites.len());
        self.sites.insert(line.to_owned(), site);
        self.lines.push(line.to_owned());
        self.batch.push(Op::Site(line.to_owned()));
        site
    }

    pub(super) fn push(&mut self, client: &Client, op: Op) -> Result<()> {
        let ends = op.asks();
        match op {
            // The caller has already checked whether there are unsent operations.
            Op::Look => {}
            Op::Exit(_) => self.take_over_pending(client, Client::take_all_pending)?,
            _ if ends => self.take_over_pending(client, Client::take_pending_of_log)?,
            _ if client.keeps_pending() => {
                let line = match &op {
                    Op::Issue { site, .. } => Some(self.lines[site.index()].clone()),
                    _ => None,
                };
                client.with_pending(|pending| pending.push((op, line)));
                return Ok(());
            }
            _ => {}
        }
        self.batch.push(op);
        if self.batch.len() < LONGEST_BATCH { Ok(()) } else { self.send(client) }
    }

    /// Sends operations of this thread, and of threads that share its log.
    pub(super) fn hand_over(&mut self, client: &Client) -> Result<()> {
        self.take_over_pending(client, Client::take_pending_of_log)?;
        self.send(client)
    }

    fn take_over_pending(&mut self, client: &Client, take: impl FnOnce(&Client) -> PendingOps) -> Result<()> {
        take(client).into_iter().try_for_each(|(op, line)| self.take_over(client, op, line))
    }

    /// Whether this thread, or one that shares its log, has unsent operations.
    pub(super) fn has_something_to_say(&self, client: &Client) -> bool {
        !self.batch.is_empty() || client.with_pending(|pending| !pending.is_empty()).unwrap_or(false)
    }

    /// Adds an operation, possibly of another thread, to the batch.
    fn take_over(&mut self, client: &Client, mut op: Op, line: Option<String>) -> Result<()> {
        if let (Op::Issue { site, .. }, Some(line)) = (&mut op, line) {
            *site = self.site(&line);
        }
        let long = matches!(op, Op::Operators(_));
        self.batch.push(op);
        if long { self.send(client) } else { Ok(()) }
    }

    /// Adds a slice; the operation that ends the slice must follow.
    pub(super) fn push_slice(&mut self, client: &Client, mut slice: ComputeSlice) -> Result<()> {
        let mut pieces = Vec::new();
        while slice.operators.len() > LONGEST_PART {
            let rest = slice.operators.split_off(LONGEST_PART);
            pieces.push(Op::Operators(std::mem::replace(&mut slice.operators, rest)));
        }
        if client.keeps_pending() {
            pieces.push(Op::Compute(slice));
            client.with_pending(|pending| pending.extend(pieces.into_iter().map(|op| (op, None))));
            return Ok(());
        }
        for piece in pieces {
            self.batch.push(piece);
            self.send(client)?;
        }
        // The slice must not end a batch: it belongs to the line of the next operation.
        self.batch.push(Op::Compute(slice));
        Ok(())
    }

    /// Sends the batch, which needs no answer.
    pub(super) fn send(&mut self, client: &Client) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        if client.barrier.threaded() {
            client.refuse_in_fork()?;
            client.barrier.say(client, self.speaker());
            return Ok(());
        }
        self.write(client, None)
    }

    pub(super) fn write(&mut self, client: &Client, quiet: Option<Quiet>) -> Result<()> {
        client.refuse_in_fork()?;
        let names = client.take_dictionary();
        if names.says_something() {
            self.batch.insert(0, names);
        }
        let batch = Batch { opens_task: None, ops: std::mem::take(&mut self.batch), quiet };
        self.buffer.clear();
        frame::encode(&batch, &mut self.buffer);
        self.batch = batch.ops;
        self.batch.clear();
        let sent = match &self.writer {
            Some(wire) => wire.write(&self.buffer),
            None => client.main.lock().expect("no holder of this lock panics").write(&self.buffer),
        };
        match sent {
            Err(error) if is_severed(&error) => Err(ClientError::Severed { rank: client.rank }),
            Err(_) => never(),
            Ok(()) => Ok(()),
        }
    }

    pub(super) fn read(&mut self, client: &Client, meanwhile: &mut Meanwhile<'_>) -> Reply {
        loop {
            let reply: Reply = self.frames.read(&*self.reader).unwrap_or_else(|error| client.lost(&error));
            client.take_in(&reply);
            match reply.answer {
                Answer::Ahead(fetched) => {
                    meanwhile.take.as_mut().expect("only who takes it is sent data ahead")(fetched)
                }
                answer if thread_barrier::is_stale(&answer) => {}
                answer => return Reply { answer, ..reply },
            }
        }
    }
}

impl Client {
    /// Sends the calling thread's launches before the thread may wait for another one, or ends: the other thread may
    /// query the driver about these launches.
    pub fn hands_over(&self) {
        let is_nobodys = || relays() || is_exiting() || self.is_inside() || self.refuse_in_fork().is_err();
        if self.pending_by_log.get().is_none() || !self.barrier.threaded() || is_nobodys() {
            return;
        }
        let is_written = self.capture().is_some_and(|capture| capture.log().1);
        if !is_written && !self.with_pending(|pending| !pending.is_empty()).unwrap_or(false) {
            return;
        }
        let _ours = self.ours();
        let slice = self.take_slice();
        let handed = self.with_link(|client, link| {
            if let Some(slice) = slice {
                link.push_slice(client, slice)?;
            }
            link.hand_over(client)
        });
        handed.unwrap_or_else(|error| error.end());
    }

    /// Whether operators of the calling thread must be charged before the thread lets another thread or process of the
    /// rank continue. Operators must be charged if compute is modelled, because the thread has then run the operators
    /// in less than their virtual time.
    pub fn must_settle(&self) -> bool {
        if self.compute != Compute::Modelled || !self.barrier.threaded() {
            return false;
        }
        let is_nobodys = is_exiting() || relays() || self.is_inside();
        !is_nobodys && self.has_unsettled() && self.refuse_in_fork().is_ok()
    }

    /// Returns once virtual time has advanced by all operators of the calling thread.
    ///
    /// # Errors
    /// If the calling process is a child process of a rank.
    pub fn settles(&self) -> Result<()> {
        self.ask(Op::Settle).map(drop)
    }

    /// Whether the calling thread keeps its operations in the log that it shares with other threads, until one of these
    /// threads asks the driver something.
    pub(super) fn keeps_pending(&self) -> bool {
        self.pending_by_log.get().is_some() && !relays()
    }

    /// Runs `f` on the unsent operations of the calling thread and of threads that share its log; `None`: the thread
    /// keeps none.
    pub(super) fn with_pending<T>(&self, f: impl FnOnce(&mut PendingOps) -> T) -> Option<T> {
        let pending = self.pending_by_log.get().filter(|_| !relays())?;
        let log = self.capture().map_or(0, |capture| capture.log().0);
        let mut pending = pending.lock().expect("no holder of this lock panics");
        let at = pending.iter().position(|(of, _)| *of == log).unwrap_or_else(|| {
            pending.push((log, PendingOps::new()));
            pending.len() - 1
        });
        let result = f(&mut pending[at].1);
        if pending[at].1.is_empty() {
            pending.remove(at);
        }
        Some(result)
    }

    fn take_pending_of_log(&self) -> PendingOps {
        self.with_pending(std::mem::take).unwrap_or_default()
    }

    /// Unsent operations of all threads, for the end of the process.
    fn take_all_pending(&self) -> PendingOps {
        let pending = self.pending_by_log.get().filter(|_| !relays());
        let all = pending.map(|pending| std::mem::take(&mut *pending.lock().expect("no holder of this lock panics")));
        all.into_iter().flatten().flat_map(|(_, pending)| pending).collect()
    }
}
