use super::*;
use crate::column::Column;
use crate::generated::keep;

const WHOLE: &str = r#"
name = "bandwidth and ranks"
where = "ranks * prompt <= 512"
replays = "always"

[program]
script = "prefill.py"
arguments = ["--layers", "4", "size={size}"]

[arguments]
prompt = [64, 128, 256]
size = "large"
fast = true

[options]
ranks = [2, 4]
cluster_name = "x"
compute = "from=earlier"

[cluster]
"network.bandwidth" = ["10 Mbps", "1 Gbps"]
network.host."orin.2".latency = ["1 ms"]
device.0.slowdown = { from = 1.0, to = 4.0, steps = 3 }
free = [[], ["all_gather"]]

[measures]
tokens_per_s_here = "prompt / makespan_s"
"#;

fn sweep(text: &str) -> Sweep {
    Sweep::parse("s.toml", text).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(text: &str) -> String {
    Sweep::parse("s.toml", text).and_then(|sweep| sweep.check_grid()).expect_err(text).to_string()
}

#[test]
fn a_point_is_a_command() {
    let sweep = sweep(WHOLE);
    let names: Vec<&str> = sweep.parameters.iter().map(|parameter| &*parameter.name).collect();
    assert_eq!(
        names,
        ["prompt", "ranks", "network.bandwidth", "network.host.\"orin.2\".latency", "device.0.slowdown", "free"]
    );
    let first: Vec<Value> = sweep.parameters.iter().map(|parameter| parameter.domain.at(0.99)).collect();
    let words = sweep.words(&first, Path::new("examples"));
    assert_eq!(words.command, ["run"]);
    assert_eq!(
        words.cluster,
        [
            "--ranks=4",
            "--set=network.bandwidth=\"1 Gbps\"",
            "--set=network.host.\"orin.2\".latency=\"1 ms\"",
            "--set=device.0.slowdown=4.0",
            "--set=free=[\"all_gather\"]",
        ]
    );
    assert_eq!(words.options, ["--cluster-name=x", "--compute=from=examples/earlier"]);
    assert_eq!(words.program, ["examples/prefill.py", "--layers", "4", "size=large", "--fast", "--prompt", "256"]);
}

#[test]
fn a_job_is_described_by_options() {
    let sweep = sweep("[program]\nworkload = \"llama\"\n[arguments]\ntp = [1, 2]\nbatch = 8\n[options]\nranks = 2");
    let words = sweep.words(&[Value::Integer(2)], Path::new(""));
    assert!(sweep.is_of_jobs());
    assert_eq!(
        words.all(&["--out=x".to_owned()]),
        ["workload", "llama", "--run", "--ranks=2", "--out=x", "--batch", "8", "--tp", "2"]
    );
}

#[test]
fn intervals_are_drawn_from_at_four_digits() {
    let sweep = sweep(
        "method = \"random\"\npoints = 3\n[program]\nmodule = \"m\"\n[arguments]\nwhole = { from = 1, to = 8 }\n\
         log = { from = 1.0, to = 100.0, scale = \"log\" }\nrate = { from = \"10 Mbps\", to = \"20 Mbps\" }\n",
    );
    let at = |parameter: usize, share| sweep.parameters[parameter].domain.at(share);
    // floor(1 + share * 8), exp(share * ln 100), 10 + share * 10
    assert_eq!((at(0, 0.0), at(0, 0.999)), (Value::Integer(1), Value::Integer(8)));
    assert_eq!((at(1, 0.5), at(1, 1.0 / 3.0)), (Value::Float(10.0), Value::Float(4.642)));
    assert_eq!(at(2, 0.12345), Value::Text("11.23 Mbps".to_owned()));
    assert_eq!(sweep.method, Method::Random { points: 3, seed: 0 });
}

#[test]
fn a_search_has_objectives_and_constraints() {
    let text = "[program]\nscript = \"a.py\"\n[arguments]\nprompt = { from = 1, to = 10 }\n[measures]\nrate = \"1 / makespan_s\"\n\
                [search]\ntrials = 20\nat_once = 4\nseed = 3\nminimize = [\"price\", \"decode.p50_s\"]\nmaximize = \"rate\"\n\
                constraints = [\"memory_bytes <= 8 * 10^9\", \"{decode.p50_s} < 0.1\"]\n";
    let sweep = sweep(text);
    let search = sweep.search.as_ref().unwrap();
    let objectives: Vec<(&str, bool)> =
        search.objectives.iter().map(|objective| (&*objective.column, objective.maximize)).collect();
    assert_eq!(objectives, [("price", false), ("decode.p50_s", false), ("rate", true)]);
    assert_eq!((search.trials, search.at_once, search.seed, search.constraints.len()), (20, 4, 3, 2));
    // An interval cannot be a grid.
    assert!(sweep.check_grid().is_err());
}

#[test]
fn what_cannot_be_meant_is_refused_with_place_and_hint() {
    let program = "[program]\nscript = \"a.py\"\n";
    let cases = [
        "name = 3".to_owned(),
        "metod = \"grid\"\n[program]\nscript = \"a.py\"".to_owned(),
        "method = \"gird\"\n[program]\nscript = \"a.py\"".to_owned(),
        "[program]\nscript = \"a.py\"\nmodule = \"a\"".to_owned(),
        "[program]\nscrip = \"a.py\"".to_owned(),
        format!("{program}[arguments]\nprompt = []"),
        format!("{program}[arguments]\nprompt = [1, 1]"),
        format!("{program}[arguments]\nprompt = [[1]]"),
        format!("{program}[arguments]\nprompt = {{ from = 1, to = 8 }}"),
        format!("{program}[arguments]\nprompt = {{ from = 8, to = 1, steps = 2 }}"),
        format!("{program}[arguments]\nprompt = {{ from = 1, till = 8 }}"),
        format!("{program}[arguments]\nprompt = {{ from = \"1 ms\", to = \"1 s\" }}"),
        format!("{program}[arguments]\nprompt = {{ from = 0, to = 1, scale = \"log\", steps = 2 }}"),
        format!(
            "{program}[arguments]\na = {{ from = 1, to = 1000, steps = 1000 }}\nb = {{ from = 1, to = 1000, steps = 1000 }}"
        ),
        format!("{program}[options]\nalgorithm = [\"all_reduce=ring\"]"),
        format!("{program}[arguments]\nseed = [1, 2]\n[options]\nseed = [1, 2]"),
        format!("{program}[arguments]\ndigest = [1, 2]"),
        format!("where = \"promt > 1\"\n{program}[arguments]\nprompt = [1, 2]"),
        format!("where = \"prompt > \"\n{program}[arguments]\nprompt = [1, 2]"),
        format!("where = \"rate > 1\"\n{program}[arguments]\nrate = [\"1 s\", \"2 s\"]"),
        format!("points = 3\n{program}[arguments]\nprompt = [1, 2]"),
        format!("method = \"random\"\n{program}[arguments]\nprompt = [1, 2]"),
        format!("method = \"random\"\npoints = 1_000_000\n{program}[arguments]\nprompt = [1, 2]"),
        "[program]\nscript = \"a.py\"\narguments = [\"{promt}\"]\n[arguments]\nprompt = [1, 2]".to_owned(),
        format!("{program}[measures]\nmakespan_s = \"1\""),
        "[program]\nscript = a.py".to_owned(),
        format!("{program}[search]\nminimize = \"makespan_s\""),
        format!("{program}[arguments]\nprompt = [1, 2]\n[search]\ntrials = 5"),
        format!("{program}[arguments]\nprompt = [1, 2]\n[search]\nminimise = \"makespan_s\""),
        format!("{program}[arguments]\nprompt = [1, 2]\n[search]\nminimize = [\"makspan_s\"]"),
        format!("{program}[arguments]\nprompt = [1, 2]\n[search]\nminimize = \"price\"\nconstraints = \"digest < 1\""),
    ];
    let shown: Vec<String> = cases.iter().map(|text| refused(text)).collect();
    insta::assert_snapshot!(shown.join("\n----\n"));
}

#[test]
fn the_documentation_has_the_columns() {
    let row = |column: &Column| format!("| `{}` | {} | {} |\n", column.name, column.kind.unit(), column.meaning());
    let rows: String = FIGURES.iter().map(row).collect();
    let text = format!("\n| column | unit | meaning |\n|---|---|---|\n{rows}\n");
    keep("docs/reference/sweep-file.md", ["<!-- columns -->", "<!-- end of columns -->"], &text);
}
