//! Owns a connection once it is encrypted (TLS 1.3): messages of bounded length in both directions, one thread that receives and any that send.
//!
//! Whether the other side is who it says is the handshake's business.
//!
//! A message is its length (u32, little endian) and its bytes. Whoever receives blocks in the socket without a lock, so that others can send
//! meanwhile.

use rustls::Connection;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What is read from the socket at once, and encrypted at once, at most.
const CHUNK: usize = 64 << 10;

/// The socket gives up sending what the other side does not take within this time.
pub const STUCK: Duration = Duration::from_secs(15);

/// One end of a connection, for those who send.
pub struct Stream {
    socket: TcpStream,
    tls: Mutex<Connection>,
    /// Locked before `tls`.
    sending: Mutex<Sending>,
}

/// What is to be sent.
#[derive(Default)]
struct Sending {
    /// Goes into records of TLS together, however many messages it is.
    plain: Vec<u8>,
    encrypted: Vec<u8>,
}

/// The same end, for the one that receives.
pub struct Receiver {
    stream: Arc<Stream>,
    encrypted: Vec<u8>,
    plain: Vec<u8>,
    taken: usize,
    /// How long the socket waits for something.
    patience: Option<Duration>,
}

impl Stream {
    /// Takes over a connected socket, on which nothing was sent.
    ///
    /// # Errors
    /// If the socket is closed already.
    pub(crate) fn new(socket: TcpStream, mut tls: Connection) -> io::Result<(Arc<Stream>, Receiver)> {
        socket.set_nodelay(true)?;
        // `send` flushes chunk by chunk.
        tls.set_buffer_limit(None);
        socket.set_write_timeout(Some(STUCK))?;
        rustix::net::sockopt::set_tcp_user_timeout(&socket, STUCK.as_millis() as u32)?;
        let stream = Arc::new(Stream { socket, tls: Mutex::new(tls), sending: Mutex::default() });
        let receiver =
            Receiver { stream: stream.clone(), encrypted: vec![0; CHUNK], plain: Vec::new(), taken: 0, patience: None };
        Ok((stream, receiver))
    }

    /// Sends a message, the concatenation of `parts`, behind those that wait for one.
    ///
    /// # Errors
    /// If the other side is gone, or has taken nothing for [`STUCK`].
    ///
    /// # Panics
    /// If it is longer than 4 GiB.
    pub fn send(&self, parts: &[&[u8]]) -> io::Result<()> {
        let mut sending = lock(&self.sending);
        self.append(&mut sending, parts)?;
        self.flush(&mut sending)
    }

    /// The same of a message that another one follows at once: what is short travels together.
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

    /// Ends the connection in both directions; who receives sees its end.
    pub fn close(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Says that nothing more is sent.
    pub fn finish(&self) {
        let mut sending = lock(&self.sending);
        // The other side may have gone before.
        let _ = self.flush(&mut sending);
        lock(&self.tls).send_close_notify();
        let _ = self.flush(&mut sending);
        let _ = self.socket.shutdown(Shutdown::Write);
    }

    /// Key material that only the two ends of this connection have (RFC 8446, section 7.5).
    pub(crate) fn binding(&self) -> io::Result<[u8; 32]> {
        let exported = lock(&self.tls).export_keying_material([0; 32], b"EXPORTER-uniference", None);
        exported.map_err(io::Error::other)
    }

    fn is_handshaking(&self) -> bool {
        lock(&self.tls).is_handshaking()
    }
}

impl Receiver {
    /// Carries out the handshake of TLS.
    ///
    /// # Errors
    /// If the other side does not by `deadline`, or is no side of TLS 1.3.
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

    /// The next message; `None`: the other side has ended the connection.
    ///
    /// # Errors
    /// A message longer than `longest`, a connection that was cut, or nothing heard for `silence`.
    pub fn receive(&mut self, longest: usize, silence: Duration) -> io::Result<Option<&[u8]>> {
        self.be_patient(silence)?;
        self.next(longest, |_| Ok(()))
    }

    /// The same of a side that is not known yet, which must have sent all of the message by `deadline`.
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

    /// Reads what the socket has, at least something; `false`: the other side has ended the connection.
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

/// A thread that has panicked has left nothing half done that the others see: its message is cut, and the connection of no use.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
