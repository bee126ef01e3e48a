//! Ranks as on another machine: the real client and the real conversations, over TCP wires, with tensors that also travel
//! over TCP.
//!
//! Each rank is a process of its own, because waiting threads are detected from the kernel's data on the process.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::RecvFlags;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::{env, thread};
use uniference_client::{Blocking, Client, Ran};
use uniference_formats::cluster::{Choices, ClusterFile, Flags};
use uniference_lowering::conversations::{Conversations, Progress};
use uniference_protocol::arena::{self, Layout, SharedArena};
use uniference_protocol::frame::{self, FrameBuffer};
use uniference_protocol::hello::Hello;
use uniference_protocol::memory::{Region, Tensors};
use uniference_protocol::messages::{Batch, Compute, Fetched, Offset, Op, OutputPart, Reply, Welcome};
use uniference_protocol::wire::{Opening, Wire};
use uniference_sim::engine::Engine;
use uniference_sim::ids::{RankId, TaskId};
use uniference_sim::program::{Collective, CollectiveKind, DType, ReduceOp, Shape};

const RANKS: u32 = 2;

/// Environment variables of a rank's process: its number, and the driver's address.
const RANK: &str = "UNIFERENCE_TEST_RANK";
const DRIVER: &str = "UNIFERENCE_TEST_DRIVER";

/// First ticket of a rank's connections: the main wire's, followed by the tickets of its tensors and of the wires that
/// it opens.
fn first_ticket(rank: u32) -> u64 {
    1_000 * u64::from(rank)
}

fn connect(driver: SocketAddr, ticket: u64) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(driver)?;
    stream.set_nodelay(true)?;
    stream.write_all(&ticket.to_le_bytes())?;
    Ok(stream)
}

/// The driver's listener for connections, which arrive in any order.
struct Door {
    listener: TcpListener,
    early: Mutex<BTreeMap<u64, TcpStream>>,
}

impl Door {
    /// Waits for the connection with this ticket.
    fn admit(&self, ticket: u64) -> io::Result<TcpStream> {
        let mut early = self.early.lock().unwrap();
        loop {
            if let Some(stream) = early.remove(&ticket) {
                return Ok(stream);
            }
            let (mut stream, _) = self.listener.accept()?;
            stream.set_nodelay(true)?;
            let mut theirs = [0; 8];
            stream.read_exact(&mut theirs)?;
            early.insert(u64::from_le_bytes(theirs), stream);
        }
    }
}

struct TcpWire {
    stream: TcpStream,
    side: Side,
}

enum Side {
    Rank { driver: SocketAddr, tickets: Arc<AtomicU64> },
    Driver(Arc<Door>),
}

impl AsFd for TcpWire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl Wire for TcpWire {
    fn write(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.stream).write_all(bytes)
    }

    fn read(&self, buffer: &mut [u8], _: &mut VecDeque<OwnedFd>, wait: bool) -> io::Result<usize> {
        let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        Ok(rustix::net::recv(&self.stream, buffer, flags)?.1)
    }

    fn open(&self) -> io::Result<(Arc<dyn Wire>, Opening)> {
        let Side::Rank { driver, tickets } = &self.side else { panic!("only ranks open wires") };
        let ticket = tickets.fetch_add(1, Relaxed);
        let stream = connect(*driver, ticket)?;
        let side = Side::Rank { driver: *driver, tickets: tickets.clone() };
        Ok((Arc::new(TcpWire { stream, side }), Opening { ticket, end: None }))
    }

    fn announce(&self, frame: &[u8], _: Opening) -> io::Result<()> {
        self.write(frame)
    }

    fn accept(&self, ticket: u64, _: &mut VecDeque<OwnedFd>) -> io::Result<Arc<dyn Wire>> {
        let Side::Driver(door) = &self.side else { panic!("only the driver accepts wires") };
        Ok(Arc::new(TcpWire { stream: door.admit(ticket)?, side: Side::Driver(door.clone()) }))
    }
}

/// A rank's request to the machine that has the arena. Numbers travel as bytes in a fixed order.
enum Move {
    Write,
    Read,
    Fold,
}

/// The arena, as used from another machine.
struct TcpTensors(Mutex<TcpStream>);

impl TcpTensors {
    /// Sends a request with its data, and returns the reply.
    fn ask(&self, what: Move, fetched: &Fetched, data: &[u8]) -> io::Result<Vec<u8>> {
        let mut stream = self.0.lock().unwrap();
        let mut message = vec![what as u8];
        frame::encode(fetched, &mut message);
        message.extend((data.len() as u64).to_le_bytes());
        message.extend(data);
        stream.write_all(&message)?;
        take(&mut *stream)
    }
}

/// Reads a length, and that number of bytes.
fn take(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let mut data = vec![0; u64::from_le_bytes(length) as usize];
    stream.read_exact(&mut data)?;
    Ok(data)
}

impl Tensors for TcpTensors {
    fn write(&self, at: Offset, inputs: &[Region]) -> io::Result<()> {
        let mut data = Vec::new();
        inputs.iter().for_each(|input| input.append_to(&mut data));
        let piece = OutputPart { offset: at, bytes: data.len() as u64, other: None };
        self.ask(Move::Write, &Fetched { pieces: vec![piece], ..Fetched::default() }, &data).map(drop)
    }

    fn read(&self, fetched: &Fetched, outputs: &[Region]) -> io::Result<()> {
        let data = self.ask(Move::Read, fetched, &[])?;
        let mut rest = &data[..];
        for output in outputs {
            let (part, more) = rest.split_at(output.bytes() as usize);
            output.fill(part);
            rest = more;
        }
        Ok(())
    }

    fn fold(&self, fetched: &Fetched) -> io::Result<()> {
        self.ask(Move::Fold, fetched, &[]).map(drop)
    }

    fn forget(&self, _: Offset, _: u64) {}

    fn mapped(&self) -> Option<(*mut u8, usize)> {
        None
    }
}

/// Carries out a rank's requests until the connection ends.
fn serve(mut stream: TcpStream, arena: &SharedArena) {
    let mut what = [0];
    while stream.read_exact(&mut what).is_ok() {
        let mut length = [0; 4];
        stream.read_exact(&mut length).unwrap();
        let mut body = vec![0; u32::from_le_bytes(length) as usize];
        stream.read_exact(&mut body).unwrap();
        let fetched: Fetched = postcard::from_bytes(&body).unwrap();
        let mut data = take(&mut stream).unwrap();
        if what[0] == Move::Write as u8 {
            arena.write(fetched.pieces[0].offset, &[region(&mut data)]).unwrap();
            data.clear();
        } else if what[0] == Move::Read as u8 {
            data.resize(fetched.pieces.iter().map(|piece| piece.bytes as usize).sum(), 0);
            arena.read(&fetched, &[region(&mut data)]).unwrap();
        } else {
            arena.fold(&fetched).unwrap();
        }
        stream.write_all(&(data.len() as u64).to_le_bytes()).unwrap();
        stream.write_all(&data).unwrap();
    }
}

fn region<T>(data: &mut [T]) -> Region {
    // SAFETY: in each use the data outlives the region, and is not accessed elsewhere at the same time.
    #[allow(unsafe_code)]
    unsafe {
        Region::new(data.as_mut_ptr() as usize, size_of_val(data))
    }
}

/// Runs one rank: sums over all ranks, of few elements and of more than fit a packet, and a clock read by a second
/// thread.
fn run_rank(rank: u32, driver: SocketAddr) {
    let first = first_ticket(rank);
    let side = Side::Rank { driver, tickets: Arc::new(AtomicU64::new(first + 2)) };
    let wire = Arc::new(TcpWire { stream: connect(driver, first).unwrap(), side });
    let tensors = Box::new(TcpTensors(Mutex::new(connect(driver, first + 1).unwrap())));
    // The client is leaked, because its watch thread never ends.
    let client: &Client = Box::leak(Box::new(Client::join(wire, tensors, rank, RANKS).unwrap()));
    client.start().unwrap();
    let group = client.group((0..RANKS).collect(), None, false).unwrap();
    for count in [1, 300_000] {
        let mut data = vec![rank as f32 + 1.5; count];
        let op = Collective {
            kind: CollectiveKind::AllReduce,
            dtype: DType::Float32,
            reduce: Some(ReduceOp::Sum),
            root: None,
            shape: Shape::Even(count as u64),
            kernel: None,
        };
        let memory = [region(&mut data)];
        let call = Blocking { op, input: Some(&memory), output: &memory, timeout: None, site: "a.py:1" };
        assert_eq!(client.run(group, call).unwrap(), Ran::Delivered { lacks_values: false });
        // 1.5 + 2.5
        assert!(data.iter().all(|element| *element == 4.0), "{data:?}");
    }
    assert!(client.begins_threads());
    thread::spawn(move || -> () { client.watch(&|_| ()) });
    let path = client.starts_thread();
    let second = thread::spawn(move || {
        client.begin_thread(path);
        client.now().unwrap().0.as_ps()
    });
    assert!(second.join().unwrap() > 0);
    client.finish(true).unwrap();
}

/// The driver's end of one task.
struct Connection {
    rank: RankId,
    task: TaskId,
    wire: Arc<dyn Wire>,
    frames: FrameBuffer,
    is_open: bool,
    has_exited: bool,
}

impl Connection {
    fn new(rank: RankId, task: TaskId, wire: Arc<dyn Wire>, frames: FrameBuffer) -> Connection {
        Connection { rank, task, wire, frames, is_open: true, has_exited: false }
    }
}

/// Carries the ranks' conversations to their end.
fn drive(mut conversations: Conversations, mut tasks: Vec<Connection>) {
    loop {
        let standing = conversations.advance(&mut (), &mut ());
        // Data that is available before an answer is written first.
        let mut answers: Vec<(RankId, TaskId, Reply)> =
            std::iter::from_fn(|| conversations.take_ahead()).map(|(rank, reply)| (rank, TaskId(0), reply)).collect();
        while let Some(ready) = conversations.take_ready() {
            let (rank, task) = (ready.rank, ready.task);
            answers.extend(conversations.frame(ready).map(|reply| (rank, task, reply)));
        }
        for (rank, task, reply) in answers {
            let mut bytes = Vec::new();
            frame::encode(&reply, &mut bytes);
            let of = |known: &&Connection| (known.rank, known.task) == (rank, task);
            tasks.iter().find(of).unwrap().wire.write(&bytes).unwrap();
        }
        match standing {
            Progress::Finished => return,
            Progress::Halted(halt) => panic!("{halt:?}"),
            Progress::Idle => {
                conversations.still_waits();
                continue;
            }
            Progress::Blocked => {}
        }
        let open: Vec<usize> = (0..tasks.len()).filter(|at| tasks[*at].is_open).collect();
        let mut fds: Vec<PollFd<'_>> =
            open.iter().map(|at| PollFd::from_borrowed_fd(tasks[*at].wire.as_fd(), PollFlags::IN)).collect();
        poll(&mut fds, None).unwrap();
        let ready: Vec<usize> =
            open.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(at, _)| *at).collect();
        for at in ready {
            let Connection { rank, task, wire, frames, is_open, has_exited } = &mut tasks[at];
            let (rank, task) = (*rank, *task);
            *is_open = frames.fill(&**wire, false).unwrap() > 0;
            let mut opened = Vec::new();
            while let Some(Batch { opens_task, ops, quiet }) = frames.next_frame().unwrap() {
                if let Some(ticket) = opens_task {
                    opened.push(frames.accept(&**wire, ticket).unwrap());
                }
                *has_exited |= ops.iter().any(|op| matches!(op, Op::Exit(_)));
                conversations.say(rank, task, ops, quiet);
            }
            if !*is_open && task != TaskId(0) {
                conversations.close_task(rank, task);
            }
            assert!(*is_open || *has_exited || task != TaskId(0), "{rank} has left before its program had ended");
            for wire in opened {
                let task = conversations.open_task(rank);
                tasks.push(Connection::new(rank, task, wire, FrameBuffer::default()));
            }
        }
    }
}

/// The ranks' processes, which are ended when the test ends.
struct Ranks(Vec<Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.0 {
            rank.kill().unwrap();
            rank.wait().unwrap();
        }
    }
}

#[test]
fn ranks_behind_tcp_compute_what_ranks_of_this_machine_do() {
    if let Ok(rank) = env::var(RANK) {
        return run_rank(rank.parse().unwrap(), env::var(DRIVER).unwrap().parse().unwrap());
    }
    let flags = Flags { ranks: RANKS, bandwidth: None, latency: None, slowdown: vec![] };
    let file = ClusterFile::parse("test", &flags.to_toml().unwrap(), &[]).unwrap();
    let cluster = file.resolve(&Choices::default()).unwrap().cluster;
    let layout = Layout::for_world(RANKS);
    let file = arena::create(layout).unwrap();
    let mut conversations = Conversations::new(Engine::new(&cluster), RANKS, "script.py");
    conversations.reduce_in(arena::map(&file, layout.total).unwrap());
    let arena = SharedArena::map(file, layout.total).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let driver = listener.local_addr().unwrap().to_string();
    let door = Arc::new(Door { listener, early: Mutex::default() });
    thread::scope(|scope| {
        let start = |rank: u32| {
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(["--exact", "ranks_behind_tcp_compute_what_ranks_of_this_machine_do", "--nocapture"]);
            command.env(RANK, rank.to_string()).env(DRIVER, &driver).spawn().unwrap()
        };
        let mut ranks = Ranks((0..RANKS).map(start).collect());
        let mut tasks = Vec::new();
        for rank in 0..RANKS {
            let stream = door.admit(first_ticket(rank)).unwrap();
            let wire = TcpWire { stream, side: Side::Driver(door.clone()) };
            let (data, arena) = (door.admit(first_ticket(rank) + 1).unwrap(), &arena);
            scope.spawn(move || serve(data, arena));
            let welcome = Welcome {
                compute: Compute::None,
                cores: 1,
                arena_bytes: layout.total,
                staging: (layout.part * u64::from(rank), layout.part),
                retain_bytes: layout.retain,
                processor: None,
            };
            let mut bytes = Vec::new();
            frame::encode(&Hello::new(false), &mut bytes);
            frame::encode(&welcome, &mut bytes);
            wire.write(&bytes).unwrap();
            let mut frames = FrameBuffer::default();
            Hello::new(false).hear(&mut frames, &wire).unwrap();
            tasks.push(Connection::new(RankId(rank), TaskId(0), Arc::new(wire), frames));
        }
        drive(conversations, tasks);
        for rank in &mut ranks.0 {
            assert!(rank.wait().unwrap().success());
        }
    });
}
