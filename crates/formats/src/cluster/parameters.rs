//! Owns the parameters of a backend in their notation, in a library's profile or in a user's `[backend]`: their types
//! and their precedence. `backend` checks the values.

use crate::units::{Bandwidth, Duration, Size};
use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{self, MapAccess};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::marker::PhantomData;
use toml::Spanned;
use uniference_sim::time::SimDuration;

/// A backend: its name, and its parameters. Missing parameters are as in the profile of that name.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct Parameters {
    pub(super) name: Spanned<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) concurrency: Option<Spanned<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) connections: Option<RawConnections>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) call: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hand_over: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) wake: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) copy: Option<OrNone<Bandwidth>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reduce: Option<OrNone<Bandwidth>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) staging: Option<OrNone<Bandwidth>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) packet: Option<Spanned<OrNone<RawPacket>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) handshake: Option<OrNone<RawHandshake>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) buffer: Option<Spanned<OrNone<Size>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) window: Option<Spanned<OrNone<RawWindow>>>,
    /// NVLink SHARP; a key of NCCL only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) nvls: Option<Spanned<bool>>,
    /// Largest number of channels; a key of NCCL only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) max_channels: Option<Spanned<u32>>,
    /// Direct access of GPUs to each other's memory over PCI Express; a key of NCCL only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pcie_peers: Option<Spanned<bool>>,
}

/// The operations that share a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RawConnections {
    /// The operations of one group between two ranks.
    Group,
    /// All operations between two ranks, whatever their group.
    Pair,
}

/// A packet's payload and its size on the wire.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawPacket {
    pub(super) payload: Size,
    pub(super) wire: Size,
}

/// The messages before data.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawHandshake {
    pub(super) control: Size,
    pub(super) preamble: Size,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) eager: Option<Size>,
}

/// The first and the largest window of a connection.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, expecting = "a table")]
pub(super) struct RawWindow {
    pub(super) first: Size,
    pub(super) cap: Size,
    #[serde(default = "retransmission_time_out")]
    pub(super) idle: OrNone<Duration>,
}

/// The least retransmission timeout of Linux, its `TCP_RTO_MIN`.
fn retransmission_time_out() -> OrNone<Duration> {
    OrNone(Some(Duration(SimDuration::from_us(200_000))))
}

/// A value, or `"none"`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OrNone<T>(pub(super) Option<T>);

impl Parameters {
    /// Parameters without values, with a name.
    pub(super) fn named(name: Spanned<String>) -> Parameters {
        Parameters {
            name,
            concurrency: None,
            connections: None,
            call: None,
            hand_over: None,
            message: None,
            wake: None,
            copy: None,
            reduce: None,
            staging: None,
            packet: None,
            handshake: None,
            buffer: None,
            window: None,
            nvls: None,
            max_channels: None,
            pcie_peers: None,
        }
    }

    /// The values of `self`, and for missing ones the values of `profile`.
    pub(super) fn over(self, profile: Parameters) -> Parameters {
        Parameters {
            name: self.name,
            concurrency: self.concurrency.or(profile.concurrency),
            connections: self.connections.or(profile.connections),
            call: self.call.or(profile.call),
            hand_over: self.hand_over.or(profile.hand_over),
            message: self.message.or(profile.message),
            wake: self.wake.or(profile.wake),
            copy: self.copy.or(profile.copy),
            reduce: self.reduce.or(profile.reduce),
            staging: self.staging.or(profile.staging),
            packet: self.packet.or(profile.packet),
            handshake: self.handshake.or(profile.handshake),
            buffer: self.buffer.or(profile.buffer),
            window: self.window.or(profile.window),
            nvls: self.nvls.or(profile.nvls),
            max_channels: self.max_channels.or(profile.max_channels),
            pcie_peers: self.pcie_peers.or(profile.pcie_peers),
        }
    }
}

impl<T: Serialize> Serialize for OrNone<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Some(value) => value.serialize(serializer),
            None => serializer.serialize_str("none"),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OrNone<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OrNone<T>, D::Error> {
        struct Visitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> de::Visitor<'de> for Visitor<T> {
            type Value = Option<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value, or \"none\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<T>, E> {
                if text == "none" { Ok(None) } else { T::deserialize(StrDeserializer::new(text)).map(Some) }
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Option<T>, M::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Some)
            }
        }
        deserializer.deserialize_any(Visitor(PhantomData)).map(OrNone)
    }
}
