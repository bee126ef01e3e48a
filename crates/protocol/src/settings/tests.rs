use super::*;

fn environment(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn read(variables: &[(&str, &str)]) -> Read {
    of_communicator(&environment(variables), &[], true).unwrap()
}

#[test]
fn nothing_said_leaves_everything_to_nccl() {
    assert_eq!(read(&[]), Read::default());
    // Values that equal the default, and variables that change no time, cause no warning.
    let silent = [
        ("NCCL_DEBUG", "INFO"),
        ("NCCL_IB_DISABLE", "0"),
        ("NCCL_IB_TIMEOUT", "22"),
        ("NCCL_NVLS_ENABLE", "1"),
        ("NCCL_P2P_DISABLE", "0"),
        ("NCCL_VERSION", "2.21.5-1"),
    ];
    assert_eq!(read(&silent), Read::default());
}

#[test]
fn algorithms_and_protocols_are_read_as_nccl_does() {
    let (ring, tree, nvls) = (NcclSettings::RING, NcclSettings::TREE, NcclSettings::NVLS);
    let algorithms = |list| {
        let said = read(&[("NCCL_ALGO", list)]);
        (said.settings.unwrap_or_default().algorithms, said.warnings.len())
    };
    assert_eq!(algorithms("Ring"), ([ring; 5], 0));
    assert_eq!(algorithms("ring,tree"), ([ring | tree; 5], 0));
    assert_eq!(algorithms("^NVLS,NVLSTree"), ([ring | tree; 5], 0));
    assert_eq!(algorithms("ring;allreduce:tree,nvls"), ([ring, ring, ring, ring, tree | nvls], 0));
    // Names that are not modelled, and settings with which NCCL may fail, cause warnings.
    assert_eq!(algorithms("ring,CollnetDirect"), ([ring; 5], 1));
    assert_eq!(algorithms("Tree"), ([tree; 5], 1));
    assert_eq!(algorithms("PAT"), ([NcclSettings::ANY; 5], 1));
    assert_eq!(algorithms("^Rign"), ([NcclSettings::ANY; 5], 1));
    assert_eq!(algorithms("^ring,tree,nvls"), ([NcclSettings::ANY; 5], 1));
    let without_protocol = read(&[("NCCL_PROTO", "^LL,LL128,Simple")]);
    assert_eq!((without_protocol.settings, without_protocol.warnings.len()), (None, 1));
    let protocols = read(&[("NCCL_PROTO", "^LL128")]).settings.unwrap().protocols;
    assert_eq!(protocols, [NcclSettings::LL | NcclSettings::SIMPLE; 5]);
    let without_nvls = read(&[("NCCL_NVLS_ENABLE", "0")]).settings.unwrap().algorithms;
    assert_eq!(without_nvls, [ring | tree; 5]);
}

#[test]
fn the_environment_goes_before_the_configuration() {
    let channels = |variables: &[(&str, &str)], configuration: &[(&'static str, i64)]| {
        of_communicator(&environment(variables), configuration, false).map(|said| said.settings.map(|it| it.channels))
    };
    assert_eq!(channels(&[], &[("minCTAs", 2), ("maxCTAs", 4)]), Ok(Some([2, 4])));
    assert_eq!(channels(&[("NCCL_MAX_NCHANNELS", "8")], &[("maxCTAs", 4)]), Ok(Some([1, 8])));
    assert!(channels(&[], &[("minCTAs", 5), ("maxCTAs", 4)]).is_err());
    assert!(channels(&[], &[("minCTAs", 0), ("maxCTAs", 4)]).is_err());
}

#[test]
fn what_is_not_modelled_is_said() {
    let warned = |variables: &[(&str, &str)], spans| {
        of_communicator(&environment(variables), &[], spans).unwrap().warnings.join("|")
    };
    assert!(warned(&[("NCCL_BUFFSIZE", "8388608")], false).starts_with("NCCL_BUFFSIZE=8388608 is not modelled"));
    // Variables without an entry of their own, misspelt or newer than the table, cause warnings.
    assert!(warned(&[("NCCL_ALGORITHM", "Ring")], false).starts_with("NCCL_ALGORITHM=Ring is not modelled"));
    assert!(warned(&[("NCCL_IB_DISABLE", "1")], true).starts_with("NCCL_IB_DISABLE=1 is not modelled"));
    assert_eq!(warned(&[("NCCL_IB_DISABLE", "1")], false), "");
    let local = of_communicator(&environment(&[("NCCL_P2P_LEVEL", "LOC")]), &[], true).unwrap();
    assert!(!local.settings.unwrap().peer_access);
    let configuration = [("cgaClusterSize", 2), ("splitShare", 1)];
    let said = of_communicator(&BTreeMap::new(), &configuration, false).unwrap().warnings;
    assert!(
        said.len() == 1 && said[0].starts_with("NCCL's configuration cgaClusterSize=2 is not modelled"),
        "{said:?}"
    );
    assert_eq!(of_cuda(&environment(&[("CUDA_DEVICE_MAX_CONNECTIONS", "8"), ("CUDA_LAUNCH_BLOCKING", "1")])), [""; 0]);
    let said = of_cuda(&environment(&[("CUDA_DEVICE_MAX_CONNECTIONS", "1")]));
    assert!(said[0].starts_with("CUDA_DEVICE_MAX_CONNECTIONS=1 is not modelled"), "{said:?}");
    assert_eq!(of_cuda(&environment(&[("NVIDIA_TF32_OVERRIDE", "0")])), [""; 0]);
    assert_eq!(of_cuda(&environment(&[("NVIDIA_TF32_OVERRIDE", "1")])).len(), 1);
    assert!(is_on(&environment(&[("CUDA_LAUNCH_BLOCKING", "1")]), "CUDA_LAUNCH_BLOCKING"));
}

/// The page docs/reference/settings.md has a line for each entry of the tables. `UPDATE_DOCUMENTATION=1` writes these
/// lines.
#[test]
fn the_documentation_lists_all_settings() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/settings.md");
    let page = std::fs::read_to_string(path).unwrap();
    let mut written = page.clone();
    for (title, table) in [("nccl", NCCL), ("configuration", CONFIGURATION), ("cuda", CUDA)] {
        let rows: String = table
            .iter()
            .map(|setting| {
                let default = if setting.default.is_empty() { String::new() } else { format!("`{}`", setting.default) };
                format!("| `{}` | {} | {default} | {} |\n", setting.name, setting.effect.name(), setting.note)
            })
            .collect();
        let (begin, end) = (format!("<!-- begin {title} -->\n"), format!("<!-- end {title} -->"));
        let from = written.find(&begin).expect("the page has a place for the table") + begin.len();
        let to = written.find(&end).expect("the page says where it ends");
        let head = "| setting | effect | value that changes nothing | notes |\n|---|---|---|---|\n";
        written.replace_range(from..to, &format!("\n{head}{rows}\n"));
    }
    if std::env::var_os("UPDATE_DOCUMENTATION").is_some() {
        std::fs::write(path, &written).unwrap();
    }
    assert!(
        written == page || std::env::var_os("UPDATE_DOCUMENTATION").is_some(),
        "docs/reference/settings.md is not what the tables say"
    );
}
