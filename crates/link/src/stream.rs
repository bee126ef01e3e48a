//! Owns an encrypted connection (TLS 1.3): messages of bounded length in both directions, one receiving thread and any
//! number of sending threads.
//!
//! The handshake verifies the identity of the other side.
//!
//! A message is its length (u32, little endian) and its bytes. The receiving thread blocks in the socket without a
//! lock, so that other threads can send.

use rustls::Connection;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most bytes that are read from the socket, or encrypted, at once.
const CHUNK: usize = 64 << 10;

/// Time limit of a send: the socket gives up if the other side accepts no data for this long.
pub const STUCK: Duration = Duration::from_secs(15);

/// Sending side of one end of a connection.
pub struct Stream {
    socket: TcpStream,
    tls: Mutex<Connection>,
    /// Locked before `tls`.
    sending: Mutex<Sending>,
}

/// Buffers of messages to send.
#[derive(Default)]
struct Sending {
    /// Messages not yet encrypted; they share TLS records.
    plain: Vec<u8>,
    encrypted: Vec<u8>,
}

/// Receiving side of one end of a connection.
pub struct Receiver {
    stream: Arc<Stream>,
    encrypted: Vec<u8>,
    plain: Vec<u8>,
    taken: usize,
    /// Read timeout that the socket currently has.
    patience: Option<Duration>,
}

impl Stream {
    /// Wraps a connected socket on which nothing was sent.
    ///
    /// # Errors
    /// If the socket is closed already.
    pub(crate) fn new(socket: TcpStream, mut tls: Connection) -> io::Result<(Arc<Stream>, Receiver)> {
        socket.set_nodelay(true)?;
        // TLS buffers are unlimited, because `send` flushes them chunk by chunk.
        tls.set_buffer_limit(None);
        socket.set_write_timeout(Some(STUCK))?;
        rustix::net::sockopt::set_tcp_user_timeout(&socket, STUCK.as_millis() as u32)?;
        let stream = Arc::new(Stream { socket, tls: Mutex::new(tls), sending: Mutex::default() });
        let receiver =
            Receiver { stream: stream.clone(), encrypted: vec![0; CHUNK], plain: Vec::new(), taken: 0, patience: None };
        Ok((stream, receiver))
    }

    /// Sends a message, the concatenation of `parts`, after all messages queued by [`Stream::send_soon`].
    ///
    /// # Errors
    /// If the other side is gone, or has accepted nothing for [`STUCK`].
    ///
    /// # Panics
    /// If the message is longer than 4 GiB.
    pub fn send(&self, parts: &[&[u8]]) -> io::Result<()> {
        let mut sending = lock(&self.sending);
        self.append(&mut sending, parts)?;
        self.flush(&mut sending)
    }

    /// Queues a message that another one follows at once: short messages travel together.
    ///
    /// # Errors
    /// See [`Stream::send`].
    ///
    /// # Panics
    /// See [`Stream::send`].
    pub fn send_soon(&self, parts: &[&[u8]]) -> io::Result<()> {
        self.append(&mut lock(&self.sending), parts)
    }

    fn append(&self, sending: &mut Sending, parts: &[&[u8]]) -> io::Result<()> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let header = u32::try_from(length).expect("a message is shorter than 4 GiB").to_le_bytes();
        for mut part in std::iter::once(&header[..]).chain(parts.iter().copied()) {
            while !part.is_empty() {
                let (now, later) = part.split_at(part.len().min(CHUNK - sending.plain.len()));
                sending.plain.extend_from_slice(now);
                part = later;
                if sending.plain.len() == CHUNK {
                    self.flush(sending)?;
                }
            }
        }
        Ok(())
    }

    fn flush(&self, sending: &mut Sending) -> io::Result<()> {
        let Sending { plain, encrypted } = sending;
        {
            let mut tls = lock(&self.tls);
            let written = tls.writer().write_all(plain);
            plain.clear();
            written?;
            while tls.wants_write() {
                tls.write_tls(encrypted)?;
            }
        }
        let sent = (&self.socket).write_all(encrypted);
        encrypted.clear();
        sent
    }

    /// Closes the connection in both directions; the receiver of the other side sees the end of the stream.
    pub fn close(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Closes the sending direction.
    pub fn finish(&self) {
        let mut sending = lock(&self.sending);
        // The send fails if the other side has closed the connection already.
        let _ = self.flush(&mut sending);
        lock(&self.tls).send_close_notify();
        let _ = self.flush(&mut sending);
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Exported key material that only the two ends of this connection have (RFC 8446, section 7.5).
    pub(crate) fn binding(&self) -> io::Result<[u8; 32]> {
        let exported = lock(&self.tls).export_keying_material([0; 32], b"EXPORTER-uniference", None);
        exported.map_err(io::Error::other)
    }

    fn is_handshaking(&self) -> bool {
        lock(&self.tls).is_handshaking()
    }
}

impl Receiver {
    /// Carries out the TLS handshake.
    ///
    /// # Errors
    /// If the handshake is not complete by `deadline`, or the other side does not speak TLS 1.3.
    pub(crate) fn shake_hands(&mut self, deadline: Instant) -> io::Result<()> {
        let stream = self.stream.clone();
        stream.flush(&mut lock(&stream.sending))?;
        while stream.is_handshaking() {
            self.wait_until(deadline)?;
            if !self.fill()? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// The next message; `None`: the other side has closed the connection.
    ///
    /// # Errors
    /// A message longer than `longest`, a lost connection, or no data for `silence`.
    pub fn receive(&mut self, longest: usize, silence: Duration) -> io::Result<Option<&[u8]>> {
        self.be_patient(silence)?;
        self.next(longest, |_| Ok(()))
    }

    /// Receives a message of a side that is not authenticated yet; the whole message must arrive by `deadline`.
    pub(crate) fn receive_by(&mut self, longest: usize, deadline: Instant) -> io::Result<Vec<u8>> {
        let message = self.next(longest, |receiver| receiver.wait_until(deadline))?;
        message.map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn next(
        &mut self,
        longest: usize,
        mut prepare: impl FnMut(&mut Receiver) -> io::Result<()>,
    ) -> io::Result<Option<&[u8]>> {
        if self.taken == self.plain.len() {
            self.plain.clear();
        } else {
            self.plain.drain(..self.taken);
        }
        self.taken = 0;
        loop {
            if let Some((header, body)) = self.plain.split_first_chunk::<4>() {
                let length = u32::from_le_bytes(*header) as usize;
                if length > longest {
                    let message = format!("a message of {length} bytes, where {longest} are the most");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, message));
                }
                if body.len() >= length {
                    self.taken = 4 + length;
                    return Ok(Some(&self.plain[4..4 + length]));
                }
            }
            prepare(self)?;
            if !self.fill()? {
                let cut = !self.plain.is_empty();
                return if cut { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(None) };
            }
        }
    }

    fn wait_until(&mut self, deadline: Instant) -> io::Result<()> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.be_patient(left)
    }

    fn be_patient(&mut self, patience: Duration) -> io::Result<()> {
        if self.patience != Some(patience) {
            self.stream.socket.set_read_timeout(Some(patience))?;
            self.patience = Some(patience);
        }
        Ok(())
    }

    /// Reads at least one byte from the socket; `false`: the other side has closed the connection.
    fn fill(&mut self) -> io::Result<bool> {
        let count = loop {
            match (&self.stream.socket).read(&mut self.encrypted) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(io::ErrorKind::TimedOut.into()),
                other => break other?,
            }
        };
        let mut rest = &self.encrypted[..count];
        let wants_write = {
            let mut tls = lock(&self.stream.tls);
            if count == 0 {
                return if tls.is_handshaking() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(false) };
            }
            while !rest.is_empty() {
                tls.read_tls(&mut rest)?;
                let state = tls.process_new_packets();
                let state = state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
                let before = self.plain.len();
                self.plain.resize(before + state.plaintext_bytes_to_read(), 0);
                tls.reader().read_exact(&mut self.plain[before..])?;
                if state.peer_has_closed() {
                    return Ok(self.plain.len() > before);
                }
            }
            tls.wants_write()
        };
        if wants_write {
            self.stream.flush(&mut lock(&self.stream.sending))?;
        }
        Ok(true)
    }
}

/// A poisoned lock is safe to use: a thread that panicked has at most cut its own message, after which the connection
/// is unusable.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
