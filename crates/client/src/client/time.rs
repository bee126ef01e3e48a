//! Owns how a thread reads the rank's clock, and how it lets virtual time pass without a call to another rank.

use super::rounds::Kick;
use super::{Answer, Client, Compute, Op, Result, SimDuration, SimTime, Span, unexpected};
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

thread_local! {
    /// The thread was let go on in a loop and has asked nothing since.
    static JUST_YIELDED: Cell<bool> = const { Cell::new(false) };
    /// How often in a row the thread has looked at the clock.
    static LOOKS: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread asks the driver for something.
pub(super) fn asks() {
    JUST_YIELDED.set(false);
    LOOKS.set(0);
}

impl Client {
    /// Whether the calling thread compiles the program.
    pub fn is_compiling(&self) -> bool {
        self.capture().is_some_and(|capture| capture.is_compiling())
    }

    /// The rank's clock, and for how long it has computed.
    pub fn now(&self) -> Result<(SimTime, SimDuration)> {
        match self.ask(Op::Now)? {
            Answer::Now(now, computed) => Ok((now, computed)),
            other => unexpected("Now", &other),
        }
    }

    /// The rank's clock, of which the calling thread looks at that alone. In a process that a rank has started, where compute is not measured, that is
    /// free as long as nothing that it has said or run is to pass first, but in a loop that does nothing else.
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

    /// Whether the process has run operators, or the calling thread has said something, that the rank has not heard of.
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

    /// The rank's clock at its last answer, which costs nothing.
    pub fn last_now(&self) -> SimTime {
        SimTime::from_ps(self.clock.load(Relaxed))
    }

    /// The calling thread, of several, sleeps until `asleep` returns, which `kick` makes it do when `span` of virtual time is over. Returns
    /// what `asleep` has returned, and whether the time was up.
    pub fn pause<T>(&self, span: Span, kick: Kick, asleep: impl FnOnce() -> T) -> Result<(T, bool)> {
        {
            let _ours = self.ours();
            self.stands()?;
            self.push(Op::Pause(span))?;
            self.with_link(|client, link| {
                let reader = link.reader.clone();
                client.rounds.pause(client, link.speaker(), reader, kick);
                Ok(())
            })?;
        }
        let result = asleep();
        Ok((result, self.rounds.end_pause(self)))
    }

    /// The calling thread waits in a loop for what another one does. False: there is none that it could wait for.
    pub fn yields(&self) -> Result<bool> {
        if !self.rounds.threaded() {
            return Ok(false);
        }
        let _ours = self.ours();
        self.stands()?;
        self.ask(Op::Yield)?;
        // What it computes on its way to the clock is charged where that is measured.
        JUST_YIELDED.set(self.compute != Compute::Measured);
        Ok(true)
    }

    /// The rank's clock, if the calling thread has said nothing since it was let go on in a loop, in which it looks at the clock each time: once for
    /// each time, and at no cost.
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
