//! One program with the GPUs of all ranks, whose threads move to other ranks; and threads that poll for each other.

use super::streams::{Scripted, host, kernel};
use super::*;
use uniference_sim::engine::RunEnd;
use uniference_sim::replay::replay;

/// The steps of each rank.
#[derive(Default)]
struct Steps(BTreeMap<RankId, Vec<(TaskId, RecordedStep)>>);

impl Recorder for Steps {
    fn step(&mut self, rank: RankId, task: TaskId, step: &RecordedStep, _: &str) {
        self.0.entry(rank).or_default().push((task, step.clone()));
    }
}

/// All threads that wait inside the process stay asleep until they are woken.
const ASLEEP: Quiet = Quiet { parts: 1, outside: true };

/// Two ranks; only the first has a program, which has asked for its first turn.
fn lent() -> (Conversations, Engine) {
    let mut conversations = Conversations::new(Engine::new(&cluster(2)), 2, "script.py");
    conversations.lend();
    say(&mut conversations, 0, vec![Op::Start]);
    assert_eq!(heard(&mut conversations), [(0, Answer::Go)]);
    (conversations, Engine::new(&cluster(2)))
}

/// Answers to threads of the program, with the thread and the time.
fn told(conversations: &mut Conversations, recorder: &mut Steps) -> Vec<(u32, u64, Answer)> {
    conversations.advance(&mut (), recorder);
    let ready: Vec<Ready> = std::iter::from_fn(|| conversations.take_ready()).collect();
    let tell = |ready: Ready| {
        assert_eq!(ready.rank, RankId(0), "only rank 0 has a process");
        let task = ready.task.0;
        conversations.frame(ready).map(|frame| (task, frame.now.as_ps(), frame.answer))
    };
    ready.into_iter().filter_map(tell).collect()
}

fn sleep(us: u64) -> Op {
    Op::Sleep(Span::For(SimDuration::from_us(us)))
}

const US: u64 = 1_000_000;

/// A thread moves to rank 1 and sleeps there for 7 us. It then wakes the main thread of rank 0, which sleeps for 3 us
/// and ends.
#[test]
fn a_thread_that_uses_another_ranks_gpu_goes_on_there_in_the_same_time() {
    let ((mut conversations, mut again), mut steps) = (lent(), Steps::default());
    let other = conversations.open_task(RankId(0));
    assert!(conversations.say(RankId(0), other, vec![Op::Moves(1)], Some(ASLEEP)));
    assert_eq!(told(&mut conversations, &mut steps), [(1, 0, Answer::Moved)]);
    assert!(conversations.say(RankId(0), other, vec![sleep(7)], Some(ASLEEP)));
    assert_eq!(told(&mut conversations, &mut steps), [(1, 7 * US, Answer::Go)]);
    // The thread wakes the main thread through the kernel only, and ends.
    assert!(!conversations.say(RankId(0), other, vec![Op::Exit(Outcome::Ok)], Some(OF_TWO)));
    assert!(conversations.say(RankId(0), MAIN, vec![sleep(3)], Some(OF_TWO)));
    assert_eq!(told(&mut conversations, &mut steps), [(0, 10 * US, Answer::Go)]);
    conversations.say(RankId(0), MAIN, vec![Op::Exit(Outcome::Ok)], Some(ALONE));
    assert!(matches!(conversations.advance(&mut (), &mut steps), Progress::Finished));
    conversations.record_rest(&mut steps);
    // The time is the sleep of the thread of rank 1, not its wait for rank 0.
    assert_eq!(conversations.engine().now().as_ps(), 10 * US);
    let of_others = |rank: u32| {
        let found = steps.0[&RankId(rank)].iter().filter_map(|(_, step)| match step {
            RecordedStep::Follows { rank: other, task, .. } if other.0 != rank => Some((other.0, task.0)),
            _ => None,
        });
        found.collect::<Vec<_>>()
    };
    // The main thread started the thread and was woken by it; rank 1 ends together with the main thread's program.
    assert_eq!((of_others(0), of_others(1)), (vec![(1, 1)], vec![(0, 0), (0, 0)]));
    let records = steps.0.into_values().map(Vec::into_iter).collect();
    assert!(matches!(replay(&mut again, records, &mut ()), RunEnd::Finished));
    assert_eq!(again.now().as_ps(), 10 * US);
}

#[test]
fn rank_1_has_no_program_and_ends_as_the_only_one_does() {
    let ((mut conversations, _), mut steps) = (lent(), Steps::default());
    say(&mut conversations, 0, vec![sleep(2)]);
    assert_eq!(told(&mut conversations, &mut steps), [(0, 2 * US, Answer::Go)]);
    say(&mut conversations, 0, vec![Op::Exit(Outcome::Ok)]);
    assert!(matches!(conversations.advance(&mut (), &mut steps), Progress::Finished));
}

/// The program has ended and waits for its kernel of 10 us. Its process ends before the kernel, together with a thread
/// that was answered after 2 us and has sent nothing since, and a thread that sleeps.
#[test]
fn a_process_that_is_gone_does_not_keep_the_run_from_its_end() {
    let ((mut conversations, _), mut steps) = (lent(), Steps::default());
    conversations.cost_with(Box::new(Scripted(vec![vec![host(0), kernel(1, 10), host(0)]])));
    let [runs, sleeps] = [2, 100].map(|us| {
        let task = conversations.open_task(RankId(0));
        conversations.say(RankId(0), task, vec![sleep(us)], None);
        task
    });
    let measured = messages::ComputeSlice { measured: SimDuration::ZERO, operators: vec![0] };
    conversations.say(RankId(0), MAIN, vec![Op::Compute(measured), Op::Exit(Outcome::Ok)], None);
    assert_eq!(told(&mut conversations, &mut steps), [(runs.0, 2 * US, Answer::Go)]);
    assert!(matches!(conversations.advance(&mut (), &mut steps), Progress::Blocked));
    [runs, sleeps].into_iter().for_each(|task| conversations.close_task(RankId(0), task));
    assert!(conversations.is_running(RankId(0)), "the thread that was answered has not said that it waits");
    conversations.gone(RankId(0), true);
    assert_eq!(told(&mut conversations, &mut steps), []);
    assert!(matches!(conversations.advance(&mut (), &mut steps), Progress::Finished));
    assert_eq!(conversations.engine().now().as_ps(), 10 * US);
}

/// A slice of the first thread delays the second thread's slice, and the third thread sleeps: the record still has the
/// threads in their order.
#[test]
fn a_record_has_threads_in_their_order_though_one_must_wait_with_what_it_asks_first() {
    let ((mut conversations, mut again), mut steps) = (lent(), Steps::default());
    conversations.cost_with(Box::new(Scripted(vec![vec![host(1), kernel(1, 10), host(3)]])));
    let slice = || Op::Compute(messages::ComputeSlice { measured: SimDuration::ZERO, operators: vec![0] });
    let [second, third] = [(); 2].map(|()| conversations.open_task(RankId(0)));
    for (task, op) in [(MAIN, slice()), (second, slice())] {
        conversations.say(RankId(0), task, vec![op, sleep(1)], None);
    }
    conversations.say(RankId(0), third, vec![sleep(1)], Some(Quiet { parts: 1, outside: false }));
    let mut order = Vec::new();
    while order.len() < 3 {
        for (task, _, _) in told(&mut conversations, &mut steps) {
            order.push(task);
            let op = if task == 0 { sleep(100) } else { Op::Exit(Outcome::Ok) };
            conversations.say(RankId(0), TaskId(task), vec![op], Some(ALONE));
        }
    }
    told(&mut conversations, &mut steps);
    conversations.say(RankId(0), MAIN, vec![Op::Exit(Outcome::Ok)], Some(ALONE));
    assert!(matches!(conversations.advance(&mut (), &mut steps), Progress::Finished));
    conversations.record_rest(&mut steps);
    let mut known = Vec::new();
    for (task, _) in &steps.0[&RankId(0)] {
        if !known.contains(task) {
            known.push(*task);
        }
    }
    assert_eq!(known, [MAIN, second, third]);
    let ended = conversations.engine().now();
    let records = steps.0.into_values().map(Vec::into_iter).collect();
    assert!(matches!(replay(&mut again, records, &mut ()), RunEnd::Finished));
    assert_eq!(again.now(), ended);
}

/// The other thread pauses exactly until the main thread's sleep ends. The main thread ends that pause before its
/// expiry is reported, and is then woken from a pause by the other thread. A replay counts both pauses, whatever ends a
/// pause that expires at this time.
#[test]
fn a_pause_counts_whether_its_time_was_up_or_another_thread_has_ended_it() {
    let (mut conversations, mut again, mut steps) = (ranks(1), Engine::new(&cluster(1)), Steps::default());
    let other = conversations.open_task(RankId(0));
    let pause = |us| Op::Pause(Span::For(SimDuration::from_us(us)));
    conversations.say(RankId(0), other, vec![pause(5)], None);
    conversations.say(RankId(0), MAIN, vec![sleep(5)], Some(ALONE));
    conversations.advance(&mut (), &mut steps);
    let [main, over] = [(); 2].map(|()| conversations.take_ready().unwrap());
    assert_eq!((main.task, over.task, &over.answer), (MAIN, other, &Answer::Over));
    assert_eq!(conversations.frame(main).map(|frame| frame.answer), Some(Answer::Go));
    conversations.say(RankId(0), other, vec![sleep(3)], Some(OF_TWO));
    conversations.say(RankId(0), MAIN, vec![pause(50)], Some(OF_TWO));
    assert_eq!(conversations.frame(over), None);
    assert_eq!(told(&mut conversations, &mut steps), [(1, 8 * US, Answer::Go)]);
    conversations.say(RankId(0), MAIN, vec![sleep(4)], Some(OF_TWO));
    conversations.say(RankId(0), other, vec![Op::Exit(Outcome::Ok)], Some(OF_TWO));
    assert_eq!(told(&mut conversations, &mut steps), [(0, 12 * US, Answer::Go)]);
    conversations.say(RankId(0), MAIN, vec![Op::Exit(Outcome::Ok)], Some(ALONE));
    assert!(matches!(conversations.advance(&mut (), &mut steps), Progress::Finished));
    conversations.record_rest(&mut steps);
    let records = steps.0.into_values().map(Vec::into_iter).collect();
    assert!(matches!(replay(&mut again, records, &mut ()), RunEnd::Finished));
    assert_eq!(again.now().as_ps(), 12 * US);
}

/// Rank 1 sleeps for 7 us and then wakes two threads of rank 0 through the kernel only: from a pause of 100 us, and
/// from a wait for something outside.
#[test]
fn what_another_rank_has_let_go_on_outside_the_simulation_does_so_in_a_replay_at_the_same_time() {
    let (mut conversations, mut steps) = (ranks(2), Steps::default());
    let second = conversations.open_task(RankId(0));
    let told = |conversations: &mut Conversations, steps: &mut Steps| {
        while matches!(conversations.advance(&mut (), steps), Progress::Idle) {
            conversations.still_waits();
        }
        let ready = std::iter::from_fn(|| conversations.take_ready()).collect::<Vec<_>>();
        let tell = |ready: Ready| {
            let (rank, task) = (ready.rank.0, ready.task.0);
            conversations.frame(ready).map(|frame| (rank, task, frame.now.as_ps(), frame.answer))
        };
        ready.into_iter().filter_map(tell).collect::<Vec<_>>()
    };
    conversations.say(RankId(0), second, vec![Op::Pause(Span::For(SimDuration::from_us(100)))], Some(ASLEEP));
    conversations.say(RankId(1), MAIN, vec![sleep(7)], Some(ALONE));
    assert_eq!(told(&mut conversations, &mut steps), [(1, 0, 7 * US, Answer::Go)]);
    conversations.say(RankId(0), second, vec![sleep(3)], None);
    conversations.say(RankId(0), MAIN, vec![sleep(5)], Some(ALONE));
    conversations.say(RankId(1), MAIN, vec![Op::Exit(Outcome::Ok)], Some(ALONE));
    assert_eq!(told(&mut conversations, &mut steps), [(0, 1, 10 * US, Answer::Go)]);
    conversations.say(RankId(0), second, vec![Op::Exit(Outcome::Ok)], Some(ALONE));
    assert_eq!(told(&mut conversations, &mut steps), [(0, 0, 12 * US, Answer::Go)]);
    conversations.say(RankId(0), MAIN, vec![Op::Exit(Outcome::Ok)], Some(ALONE));
    assert!(matches!(conversations.advance(&mut (), &mut steps), Progress::Finished));
    conversations.record_rest(&mut steps);
    let records = steps.0.into_values().map(Vec::into_iter).collect();
    let mut again = Engine::new(&cluster(2));
    assert!(matches!(replay(&mut again, records, &mut ()), RunEnd::Finished));
    assert_eq!(again.now().as_ps(), 12 * US);
}

/// Rank 0 waits for something outside while rank 1 sleeps for 7 us. Time does not advance to the end of the sleep
/// before rank 0 is known to be still waiting, nor while a thread of rank 0 has sent operations and another one may
/// run. The operations of rank 0 come first in that case.
#[test]
fn time_does_not_pass_to_the_end_of_a_sleep_while_a_rank_may_have_been_let_go_on() {
    let (mut conversations, mut steps) = (ranks(2), Steps::default());
    let second = conversations.open_task(RankId(0));
    conversations.say(RankId(0), second, vec![Op::Pause(Span::For(SimDuration::from_us(100)))], Some(ASLEEP));
    conversations.say(RankId(1), MAIN, vec![sleep(7)], Some(ALONE));
    assert!(matches!(conversations.advance(&mut (), &mut steps), Progress::Idle));
    assert!(conversations.wakeable().eq([RankId(0)]));
    conversations.say(RankId(0), second, vec![sleep(3)], None);
    assert!(matches!(conversations.advance(&mut (), &mut steps), Progress::Blocked));
    conversations.say(RankId(0), MAIN, vec![sleep(5)], Some(ALONE));
    assert!(conversations.wakeable().next().is_none(), "all have asked");
    conversations.advance(&mut (), &mut steps);
    let ready = conversations.take_ready().map(|ready| (ready.rank, ready.task));
    assert_eq!(ready, Some((RankId(0), second)));
    assert_eq!(conversations.engine().now().as_ps(), 3 * US);
}

/// The action of the second thread after 2.5 us makes the main thread poll, which starts a third thread: this follows
/// from the second thread's answer, because the main thread has had none since.
#[test]
fn what_a_thread_does_that_was_let_look_follows_from_what_let_it() {
    let (mut conversations, mut steps) = (ranks(1), Steps::default());
    let second = conversations.open_task(RankId(0));
    conversations.say(RankId(0), MAIN, vec![Op::Yield], Some(OF_TWO));
    conversations.say(RankId(0), second, vec![Op::Sleep(Span::For(SimDuration::from_ns(2500)))], Some(OF_TWO));
    loop {
        match told(&mut conversations, &mut steps)[..] {
            [(0, _, Answer::Go)] => conversations.say(RankId(0), MAIN, vec![Op::Yield], Some(ALONE)),
            [(1, now, Answer::Go)] => break assert_eq!(now, 5 * US / 2),
            ref answers => panic!("{answers:?}"),
        };
    }
    conversations.say(RankId(0), second, vec![sleep(10)], Some(ALONE));
    assert_eq!(told(&mut conversations, &mut steps), [(0, 5 * US / 2, Answer::Go)]);
    let third = conversations.open_task(RankId(0));
    conversations.say(RankId(0), third, vec![sleep(1)], Some(OF_TWO));
    conversations.say(RankId(0), MAIN, vec![sleep(20)], Some(OF_TWO));
    assert_eq!(told(&mut conversations, &mut steps), [(2, 7 * US / 2, Answer::Go)]);
    conversations.record_rest(&mut steps);
    let first = steps.0[&RankId(0)].iter().find(|(task, _)| *task == third).map(|(_, step)| step);
    assert!(matches!(first, Some(RecordedStep::Follows { task, .. }) if *task == second), "{first:?}");
}

/// The other thread polls for the main thread, which sleeps for 100 us. The intervals between polls start at one
/// microsecond and grow; a poll also follows the end of the main thread's sleep.
#[test]
fn a_thread_that_waits_in_a_loop_looks_when_another_one_has_run() {
    let mut conversations = ranks(1);
    let other = conversations.open_task(RankId(0));
    conversations.say(RankId(0), MAIN, vec![sleep(100)], Some(OF_TWO));
    conversations.say(RankId(0), other, vec![Op::Yield], Some(OF_TWO));
    let (mut looks, mut steps) = (Vec::new(), Steps::default());
    loop {
        let answers = told(&mut conversations, &mut steps);
        let [(task, now, Answer::Go)] = answers[..] else { panic!("{answers:?}") };
        if task == 0 {
            assert_eq!(now, 100 * US);
            break;
        }
        looks.push(now);
        conversations.say(RankId(0), other, vec![Op::Yield], Some(ALONE));
    }
    assert!(looks.len() < 60, "{looks:?}");
    assert_eq!(looks[..2], [0, US]);
    let waits = looks.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>();
    assert!(waits.is_sorted() && *waits.last().unwrap() <= 100 * US / 16, "{waits:?}");
    // The main thread has run: the other thread polls at once, although its interval is not over, and again at the end
    // of the interval.
    conversations.say(RankId(0), MAIN, vec![sleep(100)], Some(ALONE));
    assert_eq!(told(&mut conversations, &mut steps), [(1, 100 * US, Answer::Go)]);
    conversations.say(RankId(0), other, vec![Op::Exit(Outcome::Ok)], Some(ALONE));
    assert_eq!(told(&mut conversations, &mut steps), [(0, 200 * US, Answer::Go)]);
}

/// Two polling threads cause each other to poll, because each may do what the other waits for; time still passes.
#[test]
fn threads_that_wait_in_loops_for_each_other_do_not_stop_time() {
    let mut conversations = ranks(1);
    let other = conversations.open_task(RankId(0));
    conversations.say(RankId(0), MAIN, vec![Op::Yield], Some(OF_TWO));
    conversations.say(RankId(0), other, vec![Op::Yield], Some(OF_TWO));
    let mut steps = Steps::default();
    for _ in 0..100 {
        for (task, now, answer) in told(&mut conversations, &mut steps) {
            assert_eq!(answer, Answer::Go);
            if now > 3 * US {
                return;
            }
            conversations.say(RankId(0), TaskId(task), vec![Op::Yield], Some(ALONE));
        }
    }
    panic!("time has not passed");
}
