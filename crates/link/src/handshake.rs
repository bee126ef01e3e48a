//! Owns the handshake of driver and worker: TLS 1.3 with a fresh key, then the [`Hello`]s, then proofs of the token.
//!
//! TLS prevents eavesdropping and tampering; its key proves no identity, because no authority certifies it. The proofs
//! are bound to the connection by its exported key material, so that a man in the middle with two connections can relay
//! neither proof.
//!
//! Messages: the worker's and the driver's [`Hello`]; the worker's [`Claim`]; the driver's [`Verdict`].

use crate::stream::{Receiver, Stream};
use crate::token::{PROOF, Side, Token};
use ring::signature::{Ed25519KeyPair, KeyPair};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, ServerConfig, ServerConnection, SignatureScheme};
use serde::{Deserialize, Serialize};
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use uniference_protocol::hello::{Disagreement, Hello};

/// Time limit of a whole handshake.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Longest message of a handshake, in bytes.
const LONGEST: usize = 1024;

/// First bytes of every worker's first message; they tell workers of another version from strangers.
const MAGIC: &[u8] = b"uniference ";

/// Reason why a driver refuses a worker that speaks its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The worker does not know the token.
    #[error("the token is wrong")]
    Token,
    /// Another worker of this name has joined.
    #[error("another worker of this name takes part in the run")]
    Taken,
    /// No device of the run is on a worker of this name, or the run has begun.
    #[error("the run does not wait for a worker of this name")]
    Unknown,
}

/// Reason why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The connection could not be made, or was lost.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side does not run Uniference.
    #[error("the other side is not Uniference")]
    Stranger,
    /// The two sides are not compatible.
    #[error("{0}")]
    Disagreement(#[from] Disagreement),
    /// The driver refuses the worker.
    #[error("{0}")]
    Refused(Refusal),
    /// The driver admits the worker without knowing the token.
    #[error("the driver does not know the token")]
    DriverProof,
}

/// Name of the rejected worker, if the worker sent it, and the reason.
pub(crate) type Rejected = (Option<String>, Failure);

/// A worker's name and its proof of the token.
#[derive(Serialize, Deserialize)]
struct Claim {
    name: String,
    proof: [u8; PROOF],
}

/// The driver's answer to a [`Claim`]: its own proof, or the reason of its refusal.
#[derive(Serialize, Deserialize)]
struct Verdict(Result<[u8; PROOF], Refusal>);

/// TLS configuration of a driver, with its key.
#[derive(Clone)]
pub(crate) struct Identity(Arc<ServerConfig>);

impl Identity {
    /// TLS configuration with a new key.
    pub(crate) fn new() -> Identity {
        const KEYS: &str = "the system has random numbers, and a new key is one of Ed25519";
        let random = ring::rand::SystemRandom::new();
        let document = Ed25519KeyPair::generate_pkcs8(&random).expect(KEYS);
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).expect(KEYS);
        let key = PrivatePkcs8KeyDer::from(document.as_ref().to_vec());
        let key = provider::sign::any_eddsa_type(&key).expect(KEYS);
        let certified = CertifiedKey::new(vec![CertificateDer::from(public_key(&pair))], key);
        let resolver = Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::new(certified)));
        let config = ServerConfig::builder_with_provider(Arc::new(provider::default_provider()))
            .with_protocol_versions(&[&TLS13])
            .expect("the provider has TLS 1.3")
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        Identity(Arc::new(config))
    }
}

/// Public key as SubjectPublicKeyInfo (RFC 8410, section 4): the algorithm's identifier, and the key as a bit string.
fn public_key(pair: &Ed25519KeyPair) -> Vec<u8> {
    const ED25519: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
    [&ED25519, pair.public_key().as_ref()].concat()
}

/// Carries out a driver's part of the handshake. `admits` decides whether a worker of that name, who knows the token,
/// is admitted.
pub(crate) fn admit(
    socket: TcpStream,
    identity: &Identity,
    token: &Token,
    ours: Hello,
    admits: impl FnOnce(&str) -> Result<(), Refusal>,
) -> Result<(String, Arc<Stream>, Receiver), Rejected> {
    let deadline = Instant::now() + PATIENCE;
    let connect = || -> Result<_, Failure> {
        let tls = ServerConnection::new(identity.0.clone()).map_err(io::Error::other)?;
        let (stream, mut receiver) = Stream::new(socket, tls.into())?;
        receiver.shake_hands(deadline)?;
        exchange_hellos(&stream, &mut receiver, ours, deadline)?;
        let claim: Claim = read(&receiver.receive_by(LONGEST, deadline)?)?;
        Ok((stream.binding()?, stream, receiver, claim))
    };
    let (binding, stream, receiver, Claim { name, proof }) = connect().map_err(|why| (None, why))?;
    let knows = token.verify(Side::Worker, &binding, name.as_bytes(), &proof);
    let verdict = if knows { admits(&name) } else { Err(Refusal::Token) };
    let answer = Verdict(verdict.map(|()| token.prove(Side::Driver, &binding, name.as_bytes())));
    let sent = stream.send(&[&write(&answer)]);
    match (verdict, sent) {
        // The worker is refused even if the message with the reason does not reach it.
        (Err(refusal), _) => {
            stream.finish();
            Err((Some(name), Failure::Refused(refusal)))
        }
        (Ok(()), Err(error)) => Err((Some(name), error.into())),
        (Ok(()), Ok(())) => Ok((name, stream, receiver)),
    }
}

/// Carries out a worker's part of the handshake.
pub(crate) fn claim(
    socket: TcpStream,
    token: &Token,
    ours: Hello,
    name: &str,
) -> Result<(Arc<Stream>, Receiver), Failure> {
    let deadline = Instant::now() + PATIENCE;
    let host = ServerName::try_from("uniference").expect("it is a name");
    let tls = ClientConnection::new(client_config(), host).map_err(io::Error::other)?;
    let (stream, mut receiver) = Stream::new(socket, tls.into())?;
    receiver.shake_hands(deadline)?;
    exchange_hellos(&stream, &mut receiver, ours, deadline)?;
    let binding = stream.binding()?;
    let proof = token.prove(Side::Worker, &binding, name.as_bytes());
    stream.send(&[&write(&Claim { name: name.to_owned(), proof })])?;
    match read::<Verdict>(&receiver.receive_by(LONGEST, deadline)?)?.0 {
        Err(refusal) => Err(Failure::Refused(refusal)),
        Ok(proof) if token.verify(Side::Driver, &binding, name.as_bytes(), &proof) => Ok((stream, receiver)),
        Ok(_) => Err(Failure::DriverProof),
    }
}

/// Exchanges versions first: the later messages have the format of one version.
fn exchange_hellos(stream: &Stream, receiver: &mut Receiver, ours: Hello, deadline: Instant) -> Result<(), Failure> {
    stream.send(&[MAGIC, &write(&ours)])?;
    let theirs = receiver.receive_by(LONGEST, deadline)?;
    let theirs = theirs.strip_prefix(MAGIC).ok_or(Failure::Stranger)?;
    Ok(ours.check(read(theirs)?)?)
}

fn write(message: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(message).expect("every message has a postcard form")
}

fn read<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Failure> {
    postcard::from_bytes(bytes).map_err(|_| Failure::Stranger)
}

fn client_config() -> Arc<ClientConfig> {
    let provider = Arc::new(provider::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .expect("the provider has TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyKey(provider)))
        .with_no_client_auth();
    Arc::new(config)
}

/// Verifier that accepts any raw public key (RFC 7250) whose owner signs the handshake; the proofs establish the
/// identity.
#[derive(Debug)]
struct AnyKey(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Driver's part of the handshake, played by an impostor that does not know the worker's token; returns the worker's
/// proof.
#[cfg(test)]
pub(crate) fn admit_anybody(socket: TcpStream, identity: &Identity, token: &Token, ours: Hello) -> [u8; PROOF] {
    let deadline = Instant::now() + PATIENCE;
    let tls = ServerConnection::new(identity.0.clone()).unwrap();
    let (stream, mut receiver) = Stream::new(socket, tls.into()).unwrap();
    receiver.shake_hands(deadline).unwrap();
    exchange_hellos(&stream, &mut receiver, ours, deadline).unwrap();
    let claim: Claim = read(&receiver.receive_by(LONGEST, deadline).unwrap()).unwrap();
    let ours = token.prove(Side::Driver, &stream.binding().unwrap(), claim.name.as_bytes());
    stream.send(&[&write(&Verdict(Ok(ours)))]).unwrap();
    claim.proof
}

/// Worker's part of the handshake up to its claim, with a proof from elsewhere; the driver's verdict is not read.
#[cfg(test)]
pub(crate) fn claim_with(address: &str, ours: Hello, name: &str, proof: [u8; PROOF]) -> (Arc<Stream>, Receiver) {
    let deadline = Instant::now() + PATIENCE;
    let host = ServerName::try_from("uniference").unwrap();
    let tls = ClientConnection::new(client_config(), host).unwrap();
    let (stream, mut receiver) = Stream::new(TcpStream::connect(address).unwrap(), tls.into()).unwrap();
    receiver.shake_hands(deadline).unwrap();
    exchange_hellos(&stream, &mut receiver, ours, deadline).unwrap();
    stream.send(&[&write(&Claim { name: name.to_owned(), proof })]).unwrap();
    let Verdict(verdict) = read(&receiver.receive_by(LONGEST, deadline).unwrap()).unwrap();
    assert_eq!(verdict, Err(Refusal::Token));
    (stream, receiver)
}
