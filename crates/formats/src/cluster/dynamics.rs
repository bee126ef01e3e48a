//! Owns the changes of a cluster over time by a cluster file: jitter, outages and profiles of links, background
//! traffic, stragglers.
//!
//! The simulator carries out the changes.

use super::rates::RawRates;
use super::raw::{RawBackground, RawChange, RawCluster, RawJitter, RawPoint, RawProfile, RawStraggler};
use super::source::Source;
use crate::diagnostic::{Diagnostic, suggest};
use crate::units::{Bandwidth, Duration};
use std::collections::BTreeMap;
use std::ops::Range;
use toml::Spanned;
use uniference_sim::cluster::{Device, SlowSpell};
use uniference_sim::ids::LinkId;
use uniference_sim::network::{Background, Dynamics, Jitter, LinkDynamics, Profile, ProfilePoint, Topology};
use uniference_sim::time::{SimDuration, SimTime};

/// The texts of files that a cluster file names, by the name in the cluster file.
pub(super) type Attachments = BTreeMap<String, String>;

/// The changes of the links of `topology`. The caller has the seeds.
pub(super) fn resolve(
    raw: &RawCluster,
    topology: &Topology,
    attached: &Attachments,
    source: &Source,
) -> Result<Dynamics, Diagnostic> {
    let reader = Reader { topology, attached, source };
    let mut dynamics = Dynamics::default();
    for network in raw.network.iter().map(Spanned::get_ref) {
        for change in &network.change {
            let links = reader.links(change.get_ref())?;
            let (out, into) = (reader.change(change, RawRates::egress)?, reader.change(change, RawRates::ingress)?);
            reader.check_directions(change.get_ref(), &links)?;
            for link in links {
                // Whether the link goes out of the host or switch that the change names.
                let ends = topology.link(link).name.split_once(" -> ");
                let wanted = change.get_ref().link.as_ref();
                let leaves = ends.zip(wanted).is_some_and(|((from, _), wanted)| from == wanted.get_ref());
                let described = if leaves { &out } else { &into };
                // Several changes of one link are combined: lists are concatenated, and of single values the last one
                // counts.
                let known = dynamics.links.entry(link).or_default();
                known.outages.extend(&described.outages);
                known.outages.sort();
                known.profile = described.profile.clone().or(known.profile.take());
                known.jitter = described.jitter.or(known.jitter);
            }
        }
        for traffic in &network.background {
            dynamics.background.push(reader.background(traffic)?);
        }
    }
    Ok(dynamics)
}

/// Sets the devices' slow intervals.
pub(super) fn slow_down(
    raw: &[Spanned<RawStraggler>],
    devices: &mut [Device],
    source: &Source,
) -> Result<(), Diagnostic> {
    for straggler in raw {
        let RawStraggler { device: name, from, to, factor } = straggler.get_ref();
        let spell = SlowSpell { from: instant(*from), to: instant(*to.get_ref()), factor: *factor.get_ref() };
        if spell.to <= spell.from {
            return Err(source
                .error("`to` must be later than `from`", to.span())
                .hint("give the end of the slow interval as `to`"));
        }
        if !(spell.factor.is_finite() && spell.factor > 0.0) {
            let message = format!("`factor` must be greater than 0, not {}", spell.factor);
            return Err(source.error(message, factor.span()).hint("with 4, compute takes four times as long"));
        }
        let names: Vec<String> = devices.iter().map(|device| device.name.clone()).collect();
        let Some(device) = devices.iter_mut().find(|device| device.name == *name.get_ref()) else {
            let hint = suggest(name.get_ref(), "devices", names.iter().map(String::as_str));
            return Err(source.error(format!("unknown device `{}`", name.get_ref()), name.span()).hint(hint));
        };
        device.spells.push(spell);
        device.spells.sort_by_key(|spell| spell.from);
        if device.spells.windows(2).any(|pair| pair[1].from < pair[0].to) {
            let message = format!("slow intervals of device `{}` overlap", device.name);
            return Err(source.error(message, straggler.span()).hint("split them so that each period has one factor"));
        }
    }
    Ok(())
}

/// The names of the files that have profiles.
pub(super) fn files(raw: &RawCluster) -> Vec<String> {
    let changes = raw.network.iter().flat_map(|network| &network.get_ref().change);
    let named = changes.filter_map(|change| match change.get_ref().profile.as_ref()?.get_ref() {
        RawProfile::File(name) => Some(name.clone()),
        RawProfile::Points(_) => None,
    });
    named.collect()
}

/// Replaces the names of files by their contents.
pub(super) fn inline(raw: &mut RawCluster, attached: &Attachments, source: &Source) -> Result<(), Diagnostic> {
    let changes = raw.network.iter_mut().flat_map(|network| &mut network.get_mut().change);
    for profile in changes.filter_map(|change| change.get_mut().profile.as_mut()) {
        *profile.get_mut() = RawProfile::Points(points(profile, attached, source)?);
    }
    Ok(())
}

fn points(profile: &Spanned<RawProfile>, attached: &Attachments, source: &Source) -> Result<Vec<RawPoint>, Diagnostic> {
    match profile.get_ref() {
        RawProfile::Points(points) => Ok(points.clone()),
        RawProfile::File(name) => {
            let text = attached.get(name).ok_or_else(|| {
                source
                    .error(format!("`{name}` was not loaded"), profile.span())
                    .hint("write the points of the profile in the cluster file")
            })?;
            super::profile::read(name, text)
        }
    }
}

/// Selects the rate of the direction that a change names.
type Direction = fn(RawRates) -> Option<Bandwidth>;

struct Reader<'a> {
    topology: &'a Topology,
    attached: &'a Attachments,
    source: &'a Source,
}

impl Reader<'_> {
    /// The links that a change names.
    fn links(&self, change: &RawChange) -> Result<Vec<LinkId>, Diagnostic> {
        let all = self.topology.links().iter().enumerate();
        let Some(wanted) = &change.link else { return Ok(all.map(|(index, _)| LinkId::from(index)).collect()) };
        let matching = all.filter(|(_, link)| matches(&link.name, wanted.get_ref()));
        let links: Vec<LinkId> = matching.map(|(index, _)| LinkId::from(index)).collect();
        if links.is_empty() {
            let names = self.topology.links().iter().map(|link| link.name.as_str());
            let hint =
                suggest(wanted.get_ref(), "links", names.chain(self.topology.hosts().iter().map(String::as_str)));
            return Err(self.error(format!("unknown link `{}`", wanted.get_ref()), wanted.span()).hint(hint));
        }
        Ok(links)
    }

    /// Refuses different rates out and in unless it is clear whose egress they mean, and each link has one direction.
    fn check_directions(&self, change: &RawChange, links: &[LinkId]) -> Result<(), Diagnostic> {
        let Some(profile) = &change.profile else { return Ok(()) };
        let points = points(profile, self.attached, self.source)?;
        let rates = points.iter().filter_map(|point| point.bandwidth);
        let of_one_end = change.link.as_ref().is_some_and(|wanted| ends(wanted.get_ref()).is_none());
        let shared = |link: &LinkId| self.topology.link(*link).name.contains(" <-> ");
        if of_one_end && !links.iter().any(shared) || rates.into_iter().all(|rates| rates.single().is_some()) {
            return Ok(());
        }
        let hint = "name one host with full-duplex links, for example link = \"orin.2\", or give one bandwidth";
        Err(self.error("`egress` and `ingress` are ambiguous here", profile.span()).hint(hint))
    }

    fn change(&self, raw: &Spanned<RawChange>, direction: Direction) -> Result<LinkDynamics, Diagnostic> {
        let RawChange { jitter, outages, profile, period, .. } = raw.get_ref();
        if jitter.is_none() && outages.is_empty() && profile.is_none() {
            let hint = "add `jitter`, `outages` or a `profile`";
            return Err(self.error("this change has no effect", raw.span()).hint(hint));
        }
        let mut windows: Vec<(SimTime, SimTime)> = Vec::new();
        for window in outages {
            let (from, to) = (instant(window.get_ref().from), instant(window.get_ref().to));
            if to <= from {
                let hint = "give the end of the outage as `to`; remove a link that never comes back";
                return Err(self.error("`to` must be later than `from`", window.span()).hint(hint));
            }
            windows.push((from, to));
        }
        let profile = profile.as_ref().map(|profile| self.profile(profile, period.as_ref(), direction)).transpose()?;
        if let (None, Some(period)) = (&profile, period) {
            let hint = "add a `profile` to be repeated with this period";
            return Err(self.error("`period` requires `profile`", period.span()).hint(hint));
        }
        let jitter = jitter.as_ref().map(|jitter| self.jitter(jitter)).transpose()?;
        Ok(LinkDynamics { profile, outages: windows, jitter })
    }

    fn profile(
        &self,
        raw: &Spanned<RawProfile>,
        period: Option<&Spanned<Duration>>,
        direction: Direction,
    ) -> Result<Profile, Diagnostic> {
        let points: Vec<ProfilePoint> = points(raw, self.attached, self.source)?
            .into_iter()
            .map(|RawPoint { at, bandwidth, latency }| ProfilePoint {
                at: at.0,
                bandwidth: bandwidth.and_then(direction).map(|Bandwidth(rate)| rate),
                latency: latency.map(|Duration(span)| span),
            })
            .collect();
        if points.is_empty() || points.windows(2).any(|pair| pair[1].at <= pair[0].at) {
            let hint = "sort the points, and give every point another time";
            return Err(self
                .error("the points of a profile must be in order of strictly increasing time", raw.span())
                .hint(hint));
        }
        let last = points.last().map_or(SimDuration::ZERO, |point| point.at);
        match period {
            Some(period) if period.get_ref().0 <= last => {
                let hint = "give a period that is longer than the time of the last point";
                Err(self.error("`period` must be longer than the profile", period.span()).hint(hint))
            }
            _ => Ok(Profile { points: points.into(), period: period.map(|period| period.get_ref().0) }),
        }
    }

    fn jitter(&self, raw: &Spanned<RawJitter>) -> Result<Jitter, Diagnostic> {
        Ok(match *raw.get_ref() {
            RawJitter::Uniform { max } => Jitter::Uniform { max: max.0 },
            RawJitter::Normal { deviation } => Jitter::Normal { deviation: deviation.0 },
            RawJitter::Exponential { mean } => Jitter::Exponential { mean: mean.0 },
            RawJitter::LogNormal { median, sigma } if sigma.is_finite() && sigma >= 0.0 => {
                Jitter::LogNormal { median: median.0, sigma }
            }
            RawJitter::LogNormal { sigma, .. } => {
                let hint = "`sigma` is the standard deviation of the logarithm, for example 0.5";
                return Err(self.error(format!("`sigma` must not be negative, not {sigma}"), raw.span()).hint(hint));
            }
        })
    }

    fn background(&self, raw: &Spanned<RawBackground>) -> Result<Background, Diagnostic> {
        let RawBackground { from, to, rate, start, end } = raw.get_ref();
        let start = start.map_or(SimTime::ZERO, instant);
        if let Some(end) = end.as_ref().filter(|end| instant(*end.get_ref()) <= start) {
            let hint = "give the end of the traffic as `end`";
            return Err(self.error("`end` must be later than `start`", end.span()).hint(hint));
        }
        let host = |name: &Spanned<String>| {
            self.topology.host(name.get_ref()).ok_or_else(|| {
                let hint = suggest(name.get_ref(), "hosts", self.topology.hosts().iter().map(String::as_str));
                self.error(format!("unknown host `{}`", name.get_ref()), name.span()).hint(hint)
            })
        };
        Ok(Background {
            from: host(from)?,
            to: host(to)?,
            rate: rate.map(|Bandwidth(rate)| rate),
            start,
            end: end.as_ref().map(|end| instant(*end.get_ref())),
        })
    }

    fn error(&self, message: impl Into<String>, span: Range<usize>) -> Diagnostic {
        self.source.error(message, span)
    }
}

/// Whether a link's name, `a -> b` or `a <-> b`, fits the name in a change: an end, both ends, or a direction.
fn matches(name: &str, wanted: &str) -> bool {
    match (ends(name), ends(wanted)) {
        _ if name == wanted => true,
        (Some((a, b)), None) => wanted == a || wanted == b,
        (Some((a, b)), Some(pair)) => wanted.contains(" <-> ") && (pair == (a, b) || pair == (b, a)),
        (None, _) => false,
    }
}

fn ends(name: &str) -> Option<(&str, &str)> {
    name.split_once(" <-> ").or_else(|| name.split_once(" -> "))
}

fn instant(since_zero: Duration) -> SimTime {
    SimTime::from_ps(since_zero.0.as_ps())
}

#[cfg(test)]
mod tests {
    use super::super::{Choices, ClusterFile, Resolved};
    use super::*;

    const BASE: &str = "[[device]]\nname = \"a\"\ncount = 3\n[network]\npreset = \"switch\"\n";

    fn resolve(more: &str) -> Result<Resolved, Diagnostic> {
        let mut file = ClusterFile::parse("c.toml", &format!("{BASE}{more}"), &[])?;
        for name in file.files() {
            file.attach(name, "time_s,bandwidth_mbps,latency_ms\n0,10,\n1.5,20,3\n".to_owned());
        }
        file.resolve(&Choices::default())
    }

    #[test]
    fn a_change_is_of_the_links_that_it_names() {
        let count = |link: &str| {
            let outage = "outages = [{ from = \"1 s\", to = \"2 s\" }]";
            resolve(&format!("[[network.change]]\n{link}{outage}\n")).map(|it| it.cluster.dynamics.links.len())
        };
        assert_eq!(count("").unwrap(), 6);
        assert_eq!(count("link = \"a.1\"\n").unwrap(), 2);
        let names =
            resolve("").unwrap().cluster.topology.links().iter().map(|link| link.name.clone()).collect::<Vec<_>>();
        assert_eq!(count(&format!("link = \"{}\"\n", names[0])).unwrap(), 1);
        assert_eq!(count(&format!("link = \"{}\"\n", names[0].replace(" -> ", " <-> "))).unwrap(), 2);
        let error = count("link = \"a.7\"\n").unwrap_err().render(false);
        assert!(error.contains("unknown link `a.7`") && error.contains("a.0"), "{error}");
    }

    /// The rate out of a.1 is a tenth from 1 s on; the rate into a.1 and all other rates are unchanged.
    #[test]
    fn a_profile_has_a_rate_for_each_direction() {
        let more = "[[network.change]]\nlink = \"a.1\"\n\
            profile = [{ at = \"1 s\", bandwidth = { egress = \"1 Gbps\" } }]\n";
        let cluster = resolve(more).unwrap().cluster;
        let rates = |name: &str| {
            let id = cluster.topology.links().iter().position(|link| link.name == name).unwrap();
            let points = &cluster.dynamics.links[&LinkId::from(id)].profile.as_ref().unwrap().points;
            points.iter().map(|point| point.bandwidth.map(|rate| rate.bytes_per_second())).collect::<Vec<_>>()
        };
        assert_eq!((rates("a.1 -> switch"), rates("switch -> a.1")), (vec![Some(125e6)], vec![None]));
        let again = ClusterFile::parse("again", &resolve(more).unwrap().toml, &[]).unwrap();
        assert_eq!(again.resolve(&Choices::default()).unwrap().cluster.dynamics, cluster.dynamics);
    }

    /// The resolved text has the values that were read from a file, and resolves to the same cluster without the file.
    #[test]
    fn the_resolved_text_says_all_of_it() {
        let more = "[[network.change]]\nprofile = \"lte.csv\"\nperiod = \"3 s\"\n\
            jitter = { distribution = \"normal\", deviation = \"50 us\" }\n\
            [[network.background]]\nfrom = \"a.0\"\nto = \"a.1\"\nrate = \"5 Mbps\"\nstart = \"1 s\"\n\
            [[straggler]]\ndevice = \"a.2\"\nfrom = \"3 s\"\nto = \"5 s\"\nfactor = 4.0\n";
        let first = resolve(more).unwrap();
        let again = ClusterFile::parse("again", &first.toml, &[]).unwrap();
        assert!(again.files().is_empty());
        let again = again.resolve(&Choices::default()).unwrap();
        assert_eq!(again.toml, first.toml);
        assert_eq!(again.cluster.dynamics, first.cluster.dynamics);
        assert_eq!(again.cluster.devices, first.cluster.devices);
        let spell = SlowSpell {
            from: SimTime::from_ps(3 * 10_u64.pow(12)),
            to: SimTime::from_ps(5 * 10_u64.pow(12)),
            factor: 4.0,
        };
        assert_eq!(first.cluster.devices[2].spells, [spell]);
    }

    #[test]
    fn mistakes_are_refused_with_a_hint() {
        let cases = [
            "[[network.change]]\nlink = \"a.0\"\n",
            "[[network.change]]\noutages = [{ from = \"2 s\", to = \"2 s\" }]\n",
            "[[network.change]]\nprofile = [{ at = \"2 s\" }, { at = \"1 s\" }]\n",
            "[[network.change]]\nprofile = [{ at = \"2 s\" }]\nperiod = \"1 s\"\n",
            "[[network.change]]\njitter = { distribution = \"uniform\", max = \"1 ms\" }\nperiod = \"1 s\"\n",
            "[[network.change]]\njitter = { distribution = \"log_normal\", median = \"1 ms\", sigma = -1.0 }\n",
            "[[network.change]]\njitter = { distribution = \"gauss\" }\n",
            "[[network.change]]\nprofile = [{ at = \"0 s\", bandwidth = { egress = \"1 Mbps\" } }]\n",
            "[[network.change]]\nlink = \"a.0\"\nprofile = [{ at = \"0 s\", bandwidth = {} }]\n",
            "[[network.background]]\nfrom = \"b\"\nto = \"a.0\"\n",
            "[[network.background]]\nfrom = \"a.1\"\nto = \"a.0\"\nstart = \"2 s\"\nend = \"1 s\"\n",
            "[[straggler]]\ndevice = \"a\"\nfrom = \"1 s\"\nto = \"2 s\"\nfactor = 2.0\n",
            "[[straggler]]\ndevice = \"a.0\"\nfrom = \"2 s\"\nto = \"1 s\"\nfactor = 2.0\n",
            "[[straggler]]\ndevice = \"a.0\"\nfrom = \"1 s\"\nto = \"2 s\"\nfactor = 0.0\n",
        ];
        let shown: Vec<String> = cases.iter().map(|more| resolve(more).err().unwrap().render(false)).collect();
        insta::assert_snapshot!(shown.join("\n----\n"));
    }
}
