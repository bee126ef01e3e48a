//! Owns the issue of a rank's operations: it stages their inputs in the arena, and assigns their handles.
//!
//! [`super`] handles waits for operations and their data; `arguments` checks arguments.

use super::link::{Fill, Meanwhile};
use super::{Blocking, Client, ClientError, Ran, Result, size_of_all, unexpected};
use uniference_protocol::memory::Region;
use uniference_protocol::messages::{Answer, ArenaBlock, Compute, Fetched, LocalHandle, Offset, OnStream, Op};
use uniference_sim::ids::{GroupId, GroupRank};
use uniference_sim::program::{Call, CallOp, Collective};
use uniference_sim::time::Bytes;

/// Number of bytes from which copying needs more time than notifying others of the copy.
pub(super) const MANY: u64 = 1 << 20;

impl Client {
    /// Copies an input into a new block; returns its offset in the arena.
    pub(super) fn stage(&self, input: &[Region]) -> Result<Offset> {
        let offset = self.room_for(input)?;
        self.tensors().write(offset, input).unwrap_or_else(|error| self.lost(&error));
        Ok(offset)
    }

    fn room_for(&self, input: &[Region]) -> Result<Offset> {
        let bytes = size_of_all(input);
        self.shared().rooms.allocate(bytes).ok_or(ClientError::ArenaFull { rank: self.rank, bytes })
    }

    /// Carries out a collective from its issue to its data: `collective`, `wait` and `deliver` with one request to the
    /// driver. The operation is released, whatever its outcome.
    pub fn run(&self, group: GroupId, blocking: Blocking<'_>) -> Result<Ran> {
        let Blocking { op, input, output, timeout, site } = blocking;
        self.member_of(group)?.check(&op, input, Some(output))?;
        let _ours = self.ours();
        let (staged, fill) = self.stage_or_promise(input)?;
        let staged = staged.zip(input).map(room);
        let (handle, site) = (self.next_handle(), self.site(site)?);
        let call = Call { group, op: CallOp::Collective(op) };
        self.push(Op::Issue { handle, call, staged, filled: fill.is_none(), stream: None, site })?;
        let mut came_ahead = false;
        let mut take = |fetched: Fetched| {
            came_ahead = true;
            self.read(&fetched, output);
        };
        let ahead = self.copies_side_by_side(output);
        let wait = Op::Wait { handles: vec![handle], any: false, timeout, ahead, site };
        let ran = match self.ask_meanwhile(wait, Meanwhile { fill, take: Some(&mut take) })? {
            Answer::Complete(mut complete) => {
                let (_, fetched) = complete.pop().expect("one was asked for");
                if !came_ahead {
                    self.fold(handle, &fetched)?;
                    self.read(&fetched, output);
                }
                let delivered = Ran::Delivered { lacks_values: fetched.lacks_values };
                fetched.closed_by.map_or(delivered, Ran::ClosedBy)
            }
            Answer::TimedOut => Ran::TimedOut,
            other => unexpected("Wait", &other),
        };
        self.with_link(|client, link| link.push(client, Op::Release(handle)))?;
        Ok(ran)
    }

    /// Copies an input into a new block, or returns the copy to be made later.
    fn stage_or_promise<'a>(&self, input: Option<&'a [Region]>) -> Result<(Option<Offset>, Option<Fill<'a>>)> {
        let Some(input) = input else { return Ok((None, None)) };
        if !self.copies_side_by_side(input) {
            return Ok((Some(self.stage(input)?), None));
        }
        let room = self.room_for(input)?;
        Ok((Some(room), Some((input, room))))
    }

    /// Whether the input is large enough to copy it while other ranks copy theirs. This disturbs no measurement,
    /// because compute is not measured.
    fn copies_side_by_side(&self, memory: &[Region]) -> bool {
        self.compute != Compute::Measured && self.is_alone() && size_of_all(memory) >= MANY
    }

    /// Issues a collective with its input, if it contributes one.
    pub fn collective(
        &self,
        group: GroupId,
        op: Collective,
        input: Option<&[Region]>,
        site: &str,
    ) -> Result<LocalHandle> {
        self.member_of(group)?.check(&op, input, None)?;
        self.issue(Call { group, op: CallOp::Collective(op) }, input, None, site)
    }

    /// Issues an operation on a CUDA stream of the rank's device, with its input, if it contributes one that has
    /// values.
    pub fn call_on(&self, stream: OnStream, call: Call, input: Option<&[Region]>, site: &str) -> Result<LocalHandle> {
        let member = self.member_of(call.group)?;
        match &call.op {
            CallOp::Collective(op) => member.check(op, input, None)?,
            CallOp::Send { to: peer, .. } | CallOp::Recv { from: Some(peer), .. } | CallOp::Write { to: peer, .. } => {
                member.check_peer(*peer)?;
            }
            CallOp::Recv { from: None, .. } => {}
        }
        self.issue(call, input, Some(stream), site)
    }

    /// Issues a send of `input`, or of its size alone if its values were not computed.
    pub fn send(
        &self,
        group: GroupId,
        to: GroupRank,
        tag: u64,
        input: &[Region],
        has_values: bool,
        site: &str,
    ) -> Result<LocalHandle> {
        self.member_of(group)?.check_peer(to)?;
        let bytes = Bytes(input.iter().map(Region::bytes).sum());
        self.issue(Call { group, op: CallOp::Send { to, tag, bytes } }, has_values.then_some(input), None, site)
    }

    /// Issues a receive.
    pub fn recv(
        &self,
        group: GroupId,
        from: Option<GroupRank>,
        tag: u64,
        bytes: Bytes,
        site: &str,
    ) -> Result<LocalHandle> {
        let member = self.member_of(group)?;
        from.map_or(Ok(()), |from| member.check_peer(from))?;
        self.issue(Call { group, op: CallOp::Recv { from, tag, bytes } }, None, None, site)
    }

    /// Issues a write of `bytes` bytes, without values, into the memory of another rank, which does not participate.
    ///
    /// # Errors
    /// If there is no such rank, or another process communicates for this rank.
    pub fn write(&self, to: u32, bytes: Bytes, site: &str) -> Result<LocalHandle> {
        let group = self.group_of_writes(to)?;
        self.issue(Call { group, op: CallOp::Write { to: GroupRank(1), bytes } }, None, None, site)
    }

    fn issue(&self, call: Call, input: Option<&[Region]>, stream: Option<OnStream>, site: &str) -> Result<LocalHandle> {
        let _ours = self.ours();
        let staged = input.map(|input| self.stage(input)).transpose()?.zip(input).map(room);
        let (handle, site) = (self.next_handle(), self.site(site)?);
        self.say(Op::Issue { handle, call, staged, filled: true, stream, site }).map(|()| handle)
    }

    fn next_handle(&self) -> LocalHandle {
        let mut shared = self.shared();
        let next = shared.next_handle.checked_add(1).expect("more than 2^32 operations of one rank");
        std::mem::replace(&mut shared.next_handle, next)
    }
}

fn room((at, input): (Offset, &[Region])) -> ArenaBlock {
    ArenaBlock { at, bytes: size_of_all(input) }
}
