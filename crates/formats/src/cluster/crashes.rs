//! Owns the ranks that crash by a cluster file, and the times. The simulator carries out the crashes.

use super::raw::RawCrash;
use super::source::Source;
use crate::diagnostic::{Diagnostic, suggest};
use crate::units::counted;
use toml::Spanned;
use uniference_sim::cluster::Device;
use uniference_sim::network::Topology;
use uniference_sim::time::SimTime;

/// Sets the devices' crashes; if a device has several, the first counts.
pub(super) fn resolve(
    raw: &[Spanned<RawCrash>],
    devices: &mut [Device],
    topology: &Topology,
    source: &Source,
) -> Result<(), Diagnostic> {
    for crash in raw {
        let at = SimTime::from_ps(crash.get_ref().at.0.as_ps());
        for index in victims(crash, devices, topology, source)? {
            let known = &mut devices[index].crash;
            *known = Some(known.map_or(at, |earlier| earlier.min(at)));
        }
    }
    Ok(())
}

/// The ranks that a crash stops.
fn victims(
    crash: &Spanned<RawCrash>,
    devices: &[Device],
    topology: &Topology,
    source: &Source,
) -> Result<Vec<usize>, Diagnostic> {
    let RawCrash { rank, device, host, .. } = crash.get_ref();
    match (rank, device, host) {
        (Some(rank), None, None) if (*rank.get_ref() as usize) < devices.len() => Ok(vec![*rank.get_ref() as usize]),
        (Some(rank), None, None) => {
            let message = format!(
                "rank {} is out of range: the cluster has {}",
                rank.get_ref(),
                counted(devices.len(), "device")
            );
            Err(source.error(message, rank.span()).hint("ranks are numbered from 0, one per device"))
        }
        (None, Some(name), None) => {
            let found = devices.iter().position(|device| device.name == *name.get_ref());
            let names = || devices.iter().map(|device| device.name.as_str());
            found.map(|index| vec![index]).ok_or_else(|| unknown("device", name, names(), source))
        }
        (None, None, Some(name)) => {
            let Some(host) = topology.host(name.get_ref()) else {
                return Err(unknown("host", name, topology.hosts().iter().map(String::as_str), source));
            };
            Ok((0..devices.len()).filter(|index| devices[*index].host == host).collect())
        }
        _ => {
            let hint = "give exactly one of `rank`, `device` or `host`";
            Err(source.error("a crash must name one `rank`, `device` or `host`", crash.span()).hint(hint))
        }
    }
}

fn unknown<'a>(
    kind: &str,
    name: &Spanned<String>,
    known: impl Iterator<Item = &'a str>,
    source: &Source,
) -> Diagnostic {
    let hint = suggest(name.get_ref(), &format!("{kind}s"), known);
    source.error(format!("unknown {kind} `{}`", name.get_ref()), name.span()).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::super::{Choices, ClusterFile, Resolved};
    use super::*;

    const BASE: &str =
        "[[device]]\nname = \"a\"\ncount = 4\nhost = \"h\"\nper_host = 2\n[network]\npreset = \"switch\"\n";

    fn resolve(more: &str) -> Result<Resolved, Diagnostic> {
        ClusterFile::parse("c.toml", &format!("{BASE}{more}"), &[])?.resolve(&Choices::default())
    }

    /// Time of each rank's crash, in seconds.
    fn crashes(more: &str) -> Vec<Option<u64>> {
        let seconds = |device: &Device| Some(device.crash?.as_ps() / 10_u64.pow(12));
        resolve(more).unwrap().cluster.devices.iter().map(seconds).collect()
    }

    #[test]
    fn a_crash_is_a_ranks_a_devices_or_a_hosts() {
        assert_eq!(crashes("[[crash]]\nrank = 3\nat = \"5 s\"\n"), [None, None, None, Some(5)]);
        assert_eq!(crashes("[[crash]]\ndevice = \"a.1\"\nat = \"5 s\"\n"), [None, Some(5), None, None]);
        let both = "[[crash]]\nhost = \"h.1\"\nat = \"5 s\"\n[[crash]]\nrank = 3\nat = \"2 s\"\n";
        assert_eq!(crashes(both), [None, None, Some(5), Some(2)]);
    }

    #[test]
    fn the_resolved_text_says_it() {
        let first = resolve("[[crash]]\nhost = \"h.1\"\nat = \"5 s\"\n").unwrap();
        let again = ClusterFile::parse("again", &first.toml, &[]).unwrap().resolve(&Choices::default()).unwrap();
        assert_eq!(again.cluster.devices, first.cluster.devices);
    }

    #[test]
    fn mistakes_are_refused_with_a_hint() {
        let cases = [
            "[[crash]]\nrank = 4\nat = \"5 s\"\n",
            "[[crash]]\ndevice = \"a\"\nat = \"5 s\"\n",
            "[[crash]]\nhost = \"h.2\"\nat = \"5 s\"\n",
            "[[crash]]\nat = \"5 s\"\n",
            "[[crash]]\nrank = 1\nhost = \"h.0\"\nat = \"5 s\"\n",
        ];
        let shown: Vec<String> = cases.iter().map(|more| resolve(more).err().unwrap().render(false)).collect();
        insta::assert_snapshot!(shown.join("\n"));
    }
}
