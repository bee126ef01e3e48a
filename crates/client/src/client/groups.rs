//! Owns a rank's view of its process groups: its membership in each, and the end of groups.

use super::arguments::{self, Membership};
use super::{Answer, Client, ClientError, GroupId, Op, Result, unexpected};
use uniference_protocol::messages::WRITES;
use uniference_sim::program::NcclSettings;

impl Client {
    /// Number of the process group of these ranks, in this order; each call creates a new group. `settings` are the
    /// NCCL settings that the program makes for the group. With `rendezvous` the group's messages wait for their
    /// receives, whichever library the cluster file names.
    pub fn group(&self, ranks: Vec<u32>, settings: Option<NcclSettings>, rendezvous: bool) -> Result<GroupId> {
        let sequence = || {
            let mut shared = self.shared();
            let count = shared.group_counts.entry(ranks.clone()).or_default();
            std::mem::replace(count, *count + 1)
        };
        self.named(ranks.clone(), sequence, settings, rendezvous)
    }

    /// The group in which this rank writes into the memory of rank `to`, which need not know of the group.
    pub(super) fn group_of_writes(&self, to: u32) -> Result<GroupId> {
        let pair = [self.rank(), to];
        if let Some(group) = self.shared().written.get(&pair) {
            return Ok(*group);
        }
        let group = self.named(pair.to_vec(), || WRITES, None, false)?;
        self.shared().written.insert(pair, group);
        Ok(group)
    }

    fn named(
        &self,
        ranks: Vec<u32>,
        sequence: impl FnOnce() -> u32,
        settings: Option<NcclSettings>,
        rendezvous: bool,
    ) -> Result<GroupId> {
        if self.relay.is_none() && self.barrier.another_communicates(self.rank) {
            return Err(self.another_communicates());
        }
        let membership = Membership::of(self.rank(), &ranks, self.world_size)?;
        let sequence = sequence();
        match self.ask(Op::Group { ranks, sequence, settings, rendezvous })? {
            Answer::Group(Answer::NO_GROUP) => Err(self.another_communicates()),
            Answer::Group(group) => {
                self.shared().groups.insert(group, membership);
                Ok(GroupId(group))
            }
            other => unexpected("Group", &other),
        }
    }

    fn another_communicates(&self) -> ClientError {
        let rank = self.rank();
        arguments::wrong(format!(
            "another process communicates for rank {rank} already: one process does for each rank"
        ))
    }

    /// Tells the driver that this rank is about to create a process group of `members` ranks by `call`, and that the
    /// members find each other by `name`.
    pub fn name_group(&self, name: &str, members: u32, call: &str, line: &str) -> Result<()> {
        let _ours = self.ours();
        let site = self.site(line)?;
        self.say(Op::NameGroup { name: name.to_owned(), members, call: call.to_owned(), site })
    }

    pub(super) fn member_of(&self, group: GroupId) -> Result<Membership> {
        let known = self.shared().groups.get(&group.0).copied();
        known.ok_or_else(|| arguments::wrong(format!("rank {} is not a member of group {}", self.rank(), group.0)))
    }

    /// Closes the rank's connections of a group, as visible to other ranks.
    pub fn close(&self, group: GroupId) -> Result<()> {
        let _ours = self.ours();
        if let Some(member) = self.shared().groups.get_mut(&group.0) {
            member.closed = true;
        }
        self.say(Op::Close(group.0))
    }

    /// Aborts the rank's outstanding operations in a group: these operations end without data, and other ranks are not
    /// notified.
    pub fn abort(&self, group: GroupId) -> Result<()> {
        let _ours = self.ours();
        self.say(Op::Abort(group.0))
    }

    /// Whether an operation in the group has failed because another rank closed a connection, according to answers up
    /// to now.
    pub fn has_failed(&self, group: GroupId) -> bool {
        self.shared().failed.contains(&group.0)
    }

    /// Whether this rank has closed its connections of a group.
    pub fn has_closed(&self, group: GroupId) -> bool {
        self.shared().groups.get(&group.0).is_some_and(|member| member.closed)
    }
}
