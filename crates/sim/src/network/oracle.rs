//! Owns a simple solver of max-min fair sharing, from scratch, to test the real solver against. The solver follows the
//! textbook (Bertsekas and Gallager, "Data Networks", 6.5.2): raise all rates together, a quantum at a time; if links
//! have no room for one more quantum, their flows stop, those of several links together.

/// The rate of each flow, from the links' capacities and the links on each flow's route.
pub(super) fn max_min_rates(capacities: &[u64], routes: &[Vec<u32>]) -> Vec<u64> {
    let mut rates = vec![None; routes.len()];
    while rates.contains(&None) {
        let crosses = |flow: usize, link: usize| routes[flow].contains(&(link as u32));
        let share = |link: usize| {
            let on_it = (0..routes.len()).filter(|flow| crosses(*flow, link));
            let (stopped, going): (Vec<usize>, Vec<usize>) = on_it.partition(|flow| rates[*flow].is_some());
            let used: u64 = stopped.iter().map(|flow| rates[*flow].unwrap()).sum();
            (capacities[link] - used).checked_div(going.len() as u64)
        };
        let shares: Vec<Option<u64>> = (0..capacities.len()).map(share).collect();
        let level = shares.iter().flatten().min().copied().expect("a route has links");
        let full = |link: &u32| shares[*link as usize] == Some(level);
        for flow in 0..routes.len() {
            if routes[flow].iter().any(full) {
                rates[flow].get_or_insert(level);
            }
        }
    }
    rates.into_iter().map(|rate| rate.unwrap()).collect()
}

/// Parking lot: a long flow over two links, and a short one on each.
#[test]
fn the_oracle_solves_a_parking_lot() {
    // Link 0: 10 / 2 flows = 5, so that link 1 has 30 - 5 = 25 left for its short flow.
    assert_eq!(max_min_rates(&[10, 30], &[vec![0, 1], vec![0], vec![1]]), [5, 5, 25]);
    // Both links are full at 5 of 5.5: neither's short flow gets the quantum that is left.
    assert_eq!(max_min_rates(&[11, 11], &[vec![0, 1], vec![0], vec![1]]), [5, 5, 5]);
}
