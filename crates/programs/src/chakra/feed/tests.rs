use super::*;
use proptest::prelude::*;
use uniference_formats::chakra::read::Reader;
use uniference_formats::chakra::schema::{GlobalMetadata, NodeType};
use uniference_formats::chakra::write::Writer;

fn trace(nodes: &[(u64, Vec<u64>)]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &GlobalMetadata::default()).unwrap();
    for (id, data_deps) in nodes {
        let node = Node { id: *id, r#type: NodeType::Comp.into(), data_deps: data_deps.clone(), ..Node::default() };
        writer.node(&node).unwrap();
    }
    writer.finish().unwrap()
}

/// Runs to the end; `choose` names the index, among the free nodes, of the next node to end. Returns the plan.
fn run(bytes: &[u8], window: usize, mut choose: impl FnMut(usize) -> usize) -> Result<Vec<u64>, FeedError> {
    let mut feed = Feed::with_window(Reader::open(bytes).unwrap(), window);
    let (mut plan, mut free) = (Vec::new(), Vec::new());
    loop {
        while let Some((id, is_free)) = feed.plan()? {
            plan.push(id);
            free.extend(is_free.then_some(id));
        }
        if free.is_empty() {
            assert!(feed.is_done());
            return Ok(plan);
        }
        let id = free.swap_remove(choose(free.len()));
        feed.complete(id, &mut |id| free.push(id));
    }
}

#[test]
fn the_lowest_id_that_can_be_planned_comes_first_wherever_it_stands() {
    // 9 comes first in the file and depends on 5, which comes last; 7 depends on neither.
    let nodes = [(9, vec![5]), (7, vec![]), (5, vec![])];
    assert_eq!(run(&trace(&nodes), 100, |_| 0).unwrap(), [5, 7, 9]);
    // With a window of one node, 7 is planned before 5 is read.
    assert_eq!(run(&trace(&nodes), 1, |_| 0).unwrap(), [7, 5, 9]);
}

#[test]
fn what_is_not_there_is_not_waited_for() {
    assert_eq!(run(&trace(&[(1, vec![3, 8, 8]), (3, vec![4])]), 100, |_| 0).unwrap(), [3, 1]);
}

#[test]
fn a_cycle_is_refused_when_nothing_else_is_left_and_an_id_twice_when_it_is_read() {
    let error = run(&trace(&[(1, vec![]), (2, vec![1, 4]), (3, vec![2]), (4, vec![3])]), 100, |_| 0).unwrap_err();
    assert!(error.to_string().starts_with("nodes depend on each other in a cycle: 2 -> 4 -> 3 -> 2\n"), "{error}");
    for window in [1, 100] {
        let error = run(&trace(&[(1, vec![]), (2, vec![1]), (1, vec![])]), window, |_| 0).unwrap_err();
        assert!(error.to_string().starts_with("duplicate node id 1"), "{error}");
    }
}

#[test]
fn memory_holds_two_windows_at_most() {
    // A chain of 1,000 nodes: with a window of 4, at most 4 planned nodes are not done and 4 are read ahead.
    let nodes: Vec<_> = (1..=1_000).map(|id| (id, if id > 1 { vec![id - 1] } else { vec![] })).collect();
    let bytes = trace(&nodes);
    let mut feed = Feed::with_window(Reader::open(&bytes[..]).unwrap(), 4);
    for id in 1..=1_000 {
        while feed.plan().unwrap().is_some() {}
        assert!(feed.slots.len() <= 8, "{} nodes are held at node {id}", feed.slots.len());
        feed.complete(id, &mut |_| ());
    }
    feed.plan().unwrap();
    assert!(feed.is_done());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every node runs once, after its dependencies, and the plan does not depend on the order in which nodes end.
    #[test]
    fn the_plan_is_a_topological_order_that_no_clock_can_change(
        edges in proptest::collection::vec((0_u64..20, 0_u64..20), 0..60),
        order in Just((0_u64..20).collect::<Vec<_>>()).prop_shuffle(),
        window in 1_usize..30,
        choices in proptest::collection::vec(any::<prop::sample::Index>(), 40),
    ) {
        let depends = |id: u64| edges.iter().filter(|(a, b)| *a.max(b) == id && a != b).map(|(a, b)| *a.min(b)).collect();
        let nodes: Vec<(u64, Vec<u64>)> = order.iter().map(|id| (*id, depends(*id))).collect();
        let bytes = trace(&nodes);
        let plan = run(&bytes, window, |_| 0).unwrap();
        prop_assert_eq!(plan.iter().copied().collect::<BTreeSet<_>>(), (0..20).collect::<BTreeSet<_>>());
        let place = |id: &u64| plan.iter().position(|planned| planned == id);
        for (id, dependencies) in &nodes {
            prop_assert!(dependencies.iter().all(|dependency| place(dependency) < place(id)));
        }
        let mut choices = choices.iter();
        prop_assert_eq!(run(&bytes, window, |count| choices.next().unwrap().index(count)).unwrap(), plan);
    }
}
