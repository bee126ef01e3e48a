//! Owns one thread's connection: what it says is collected in batches, and what it hears is the answer to its question.
//!
//! What is said is `client`'s business; of a process with several threads the rounds send it.

use super::account::relays;
use super::{Client, ClientError, Result, is_severed, never};
use crate::rounds::{self, Speaker};
use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard};
use uniference_protocol::frame::{self, FrameBuffer};
use uniference_protocol::memory::Region;
use uniference_protocol::messages::{Answer, Batch, Fetched, Offset, Op, Quiet, Reply, Slice};
use uniference_protocol::wire::{Opening, Wire};
use uniference_sim::ids::Site;

/// A batch this long travels without a question, so that it does not grow without bound.
const LONGEST_BATCH: usize = 256;

/// More bytes of operators travel in several messages.
const LONGEST_PART: usize = 1 << 20;

/// One thread's connection.
pub(super) struct Link {
    pub(super) client: u64,
    /// `None` on the main task: it writes to `Client::main`, under its lock.
    writer: Option<Arc<dyn Wire>>,
    pub(super) reader: Arc<dyn Wire>,
    /// Until the driver has been told of the task.
    pub(super) opens: Option<Opening>,
    frames: FrameBuffer,
    pub(super) batch: Vec<Op>,
    sites: BTreeMap<String, Site>,
    /// By number.
    lines: Vec<String>,
    buffer: Vec<u8>,
}

/// What threads have said that take turns, in the order in which they did, until one of them asks: then it is that thread's. Lines of one thread
/// go by their texts.
pub(super) type Joint = Vec<(Op, Option<String>)>;

/// An input, and the room that it is to be copied to.
pub(super) type Fill<'a> = (&'a [Region], Offset);

/// What a thread does between a question and its answer.
#[derive(Default)]
pub(super) struct Meanwhile<'a> {
    /// Copies this input to its room.
    pub(super) fill: Option<Fill<'a>>,
    /// Copies the operation's data, if it comes ahead.
    pub(super) take: Option<&'a mut dyn FnMut(Fetched)>,
}

impl Link {
    pub(super) fn new(client: u64, writer: Option<Arc<dyn Wire>>, reader: Arc<dyn Wire>, frames: FrameBuffer) -> Link {
        let (batch, sites, lines, buffer) = (Vec::new(), BTreeMap::new(), Vec::new(), Vec::new());
        Link { client, writer, reader, opens: None, frames, batch, sites, lines, buffer }
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
        let ends = op.asks() || matches!(op, Op::Exit(_));
        if let Some(mut joint) = client.joint()
            && !matches!(op, Op::Pause(_) | Op::Look)
        {
            if !ends {
                let line = match &op {
                    Op::Issue { site, .. } => Some(self.lines[site.index()].clone()),
                    _ => None,
                };
                joint.push((op, line));
                return Ok(());
            }
            for (op, line) in std::mem::take(&mut *joint) {
                self.take_over(client, op, line)?;
            }
        }
        self.batch.push(op);
        if self.batch.len() < LONGEST_BATCH { Ok(()) } else { self.send(client) }
    }

    /// Whether this thread, or one that takes turns with it, has said something that was not sent.
    pub(super) fn has_something_to_say(&self, client: &Client) -> bool {
        !self.batch.is_empty() || client.joint().is_some_and(|joint| !joint.is_empty())
    }

    /// Says what a thread has said that may be another one.
    fn take_over(&mut self, client: &Client, mut op: Op, line: Option<String>) -> Result<()> {
        if let (Op::Issue { site, .. }, Some(line)) = (&mut op, line) {
            *site = self.site(&line);
        }
        let long = matches!(op, Op::Operators(_));
        self.batch.push(op);
        if long { self.send(client) } else { Ok(()) }
    }

    /// What the program has done; the operation that it led to must follow.
    pub(super) fn push_slice(&mut self, client: &Client, mut slice: Slice) -> Result<()> {
        if let Some(mut joint) = client.joint() {
            while slice.operators.len() > LONGEST_PART {
                let rest = slice.operators.split_off(LONGEST_PART);
                joint.push((Op::Operators(std::mem::replace(&mut slice.operators, rest)), None));
            }
            joint.push((Op::Compute(slice), None));
            return Ok(());
        }
        while slice.operators.len() > LONGEST_PART {
            let rest = slice.operators.split_off(LONGEST_PART);
            self.batch.push(Op::Operators(std::mem::replace(&mut slice.operators, rest)));
            self.send(client)?;
        }
        // Not alone at the end of a batch: it belongs to the line of what follows.
        self.batch.push(Op::Compute(slice));
        Ok(())
    }

    /// Sends what needs no answer.
    pub(super) fn send(&mut self, client: &Client) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        if client.rounds.threaded() {
            client.refuse_in_fork()?;
            client.rounds.say(client, self.speaker());
            return Ok(());
        }
        self.write(client, None)
    }

    pub(super) fn write(&mut self, client: &Client, quiet: Option<Quiet>) -> Result<()> {
        client.refuse_in_fork()?;
        let entries = client.take_dictionary();
        if !entries.is_empty() {
            self.batch.insert(0, Op::Dictionary { process: 0, entries });
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
                answer if rounds::is_stale(&answer) => {}
                answer => return Reply { answer, ..reply },
            }
        }
    }
}

impl Client {
    /// What threads have said that take turns, if the calling thread is one of them.
    fn joint(&self) -> Option<MutexGuard<'_, Joint>> {
        self.joint.get().filter(|_| !relays()).map(|joint| joint.lock().expect("no holder of this lock panics"))
    }
}
