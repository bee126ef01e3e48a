//! Owns max-min fair sharing the obvious way, from scratch, to test the solver that is used against. As in the textbook (Bertsekas and
//! Gallager, "Data Networks", 6.5.2): raise all rates together; where a link is full, its flows stop.

/// The rate of each flow: links' capacities in, and the links on each flow's route.
pub(super) fn max_min_rates(capacities: &[f64], routes: &[Vec<u32>]) -> Vec<f64> {
    let mut rates = vec![None; routes.len()];
    while rates.contains(&None) {
        let crosses = |flow: usize, link: usize| routes[flow].contains(&(link as u32));
        let share = |link: usize| {
            let on_it = (0..routes.len()).filter(|flow| crosses(*flow, link));
            let (stopped, going): (Vec<usize>, Vec<usize>) = on_it.partition(|flow| rates[*flow].is_some());
            let used: f64 = stopped.iter().map(|flow| rates[*flow].unwrap()).sum();
            (!going.is_empty()).then(|| (capacities[link] - used) / going.len() as f64)
        };
        let shares = (0..capacities.len()).filter_map(|link| Some((share(link)?, link)));
        let (level, link) = shares.min_by(|a, b| a.0.total_cmp(&b.0)).expect("a route has links");
        for flow in (0..routes.len()).filter(|flow| crosses(*flow, link)).collect::<Vec<_>>() {
            rates[flow].get_or_insert(level);
        }
    }
    rates.into_iter().map(|rate| rate.unwrap()).collect()
}

/// Parking lot: a long flow over two links, and a short one on each.
#[test]
fn the_oracle_solves_a_parking_lot() {
    // Link 0: 10 / 2 flows = 5, so that link 1 has 30 - 5 = 25 left for its short flow.
    assert_eq!(max_min_rates(&[10.0, 30.0], &[vec![0, 1], vec![0], vec![1]]), [5.0, 5.0, 25.0]);
}
