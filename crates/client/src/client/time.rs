//! Owns a thread's reads of the rank's clock, and the passage of virtual time without a call to another rank.

use super::thread_barrier::Kick;
use super::{Answer, Client, Compute, Op, Result, SimDuration, SimTime, Span, unexpected};
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

thread_local! {
    /// Whether the thread's last answer was to a poll, without another request since.
    static JUST_YIELDED: Cell<bool> = const { Cell::new(false) };
    /// Number of clock reads by the thread without another request between them.
    static LOOKS: Cell<u32> = const { Cell::new(0) };
}

/// Notes that the calling thread makes a request to the driver.
pub(super) fn asks() {
    JUST_YIELDED.set(false);
    LOOKS.set(0);
}

impl Client {
    /// Whether the calling thread compiles the program.
    pub fn is_compiling(&self) -> bool {
        self.capture().is_some_and(|capture| capture.is_compiling())
    }

    /// The rank's clock, and its compute time up to now.
    pub fn now(&self) -> Result<(SimTime, SimDuration)> {
        match self.ask(Op::Now)? {
            Answer::Now(now, computed) => Ok((now, computed)),
            other => unexpected("Now", &other),
        }
    }

    /// The rank's clock, for a call that needs only the clock. In a process that a rank has started, with compute that
    /// is not measured, the read costs no request as long as no unsent operation or operator precedes it, except in a
    /// loop that only reads the clock.
    pub fn look(&self) -> Result<SimTime> {
        const MOST_FREE_LOOKS: u32 = 1000;
        let looks = LOOKS.get() + 1;
        if self.relay.is_none() || looks > MOST_FREE_LOOKS || self.has_something_to_say()? {
            let (now, _) = self.now()?;
            LOOKS.set(looks.min(MOST_FREE_LOOKS));
            return Ok(now);
        }
        let Answer::Now(now, _) = self.ask(Op::Look)? else { panic!("the relay tells no time") };
        LOOKS.set(looks);
        Ok(now)
    }

    /// Whether the process has run operators, or the calling thread has operations, that the rank has not received.
    fn has_something_to_say(&self) -> Result<bool> {
        let _ours = self.ours();
        let slice = self.take_slice().filter(|slice| !slice.operators.is_empty());
        self.with_link(|client, link| {
            if let Some(slice) = slice {
                link.push_slice(client, slice)?;
            }
            Ok(link.has_something_to_say(client))
        })
    }

    /// The rank's clock at its last answer; no request is sent.
    pub fn last_now(&self) -> SimTime {
        SimTime::from_ps(self.clock.load(Relaxed))
    }

    /// Makes the calling thread, one of several, sleep until `asleep` returns, which `kick` causes after `span` of
    /// virtual time. Returns the result of `asleep`, and whether `span` was over.
    pub fn pause<T>(&self, span: Span, kick: Kick, asleep: impl FnOnce() -> T) -> Result<(T, bool)> {
        {
            let _ours = self.ours();
            self.stands()?;
            self.push(Op::Pause(span))?;
            self.with_link(|client, link| {
                let reader = link.reader.clone();
                client.barrier.pause(client, link.speaker(), reader, kick);
                Ok(())
            })?;
        }
        let result = asleep();
        Ok((result, self.barrier.end_pause(self)))
    }

    /// Waits in a polling loop for another thread. False: no other thread exists.
    pub fn yields(&self) -> Result<bool> {
        if !self.barrier.threaded() {
            return Ok(false);
        }
        let _ours = self.ours();
        self.stands()?;
        self.ask(Op::Yield)?;
        // Compute before the next clock read is charged if compute is measured.
        JUST_YIELDED.set(self.compute != Compute::Measured);
        Ok(true)
    }

    /// The rank's clock for a thread that polls and has sent no operation since its last answer: at most one read per
    /// poll costs no request.
    pub fn now_after_yield(&self) -> Option<SimTime> {
        JUST_YIELDED.take().then(|| self.last_now())
    }

    /// Sleeps in virtual time.
    pub fn sleep(&self, span: Span) -> Result<()> {
        let _ours = self.ours();
        self.stands()?;
        self.ask(Op::Sleep(span)).map(drop)
    }
}
