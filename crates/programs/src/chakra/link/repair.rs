//! Owns the repair of graphs with cycles: the choice of dependencies to drop so that no cycle is left.
//!
//! The smallest such set (a minimum feedback arc set) is NP-hard to find. The chosen set is minimal: no dropped
//! dependency could be restored without closing a cycle. The candidates come from the greedy order of Eades, Lin and
//! Smyth (1993), which drops at most half of the dependencies minus a sixth of the nodes; each candidate is restored if
//! that closes no cycle.

use std::collections::{BTreeMap, BTreeSet};

/// The dependencies to drop, as (node, index in its list). `deps` holds the dependencies of each node.
pub(super) fn circle_closing(deps: &[Vec<u32>]) -> Vec<(u32, usize)> {
    let core = core(deps);
    if core.is_empty() {
        return Vec::new();
    }
    let inside = |node: u32| core.binary_search(&node).ok();
    let mut after: Vec<Vec<u32>> = vec![Vec::new(); core.len()];
    let mut before: Vec<Vec<u32>> = vec![Vec::new(); core.len()];
    let mut edges = Vec::new();
    for (node, id) in (0_u32..).zip(&core) {
        for (place, on) in deps[*id as usize].iter().enumerate() {
            if let Some(on) = inside(*on) {
                after[on].push(node);
                before[node as usize].push(on as u32);
                edges.push((on as u32, node, place));
            }
        }
    }
    let position = greedy_order(&after, &before);
    let (mut kept, backward): (Vec<_>, Vec<_>) =
        edges.into_iter().partition(|(on, node, _)| position[*on as usize] < position[*node as usize]);
    after.iter_mut().for_each(Vec::clear);
    kept.drain(..).for_each(|(on, node, _)| after[on as usize].push(node));
    let mut dropped = Vec::new();
    for (on, node, place) in backward {
        match on == node || reaches(&after, node, on) {
            true => dropped.push((core[node as usize], place)),
            false => after[on as usize].push(node),
        }
    }
    dropped.sort_unstable();
    dropped
}

/// The nodes on cycles and between cycles: those that remain after repeated removal of sources and sinks.
fn core(deps: &[Vec<u32>]) -> Vec<u32> {
    let mut dependents: Vec<Vec<u32>> = vec![Vec::new(); deps.len()];
    let mut waits_for: Vec<usize> = deps.iter().map(Vec::len).collect();
    for (node, deps) in (0_u32..).zip(deps) {
        deps.iter().for_each(|on| dependents[*on as usize].push(node));
    }
    let mut is_waited_for: Vec<usize> = dependents.iter().map(Vec::len).collect();
    let mut gone = vec![false; deps.len()];
    let ends = |node: &usize| waits_for[*node] == 0 || is_waited_for[*node] == 0;
    let mut free: Vec<usize> = (0..deps.len()).filter(ends).collect();
    while let Some(node) = free.pop() {
        if std::mem::replace(&mut gone[node], true) {
            continue;
        }
        for dependent in &dependents[node] {
            let dependent = *dependent as usize;
            waits_for[dependent] -= 1;
            if waits_for[dependent] == 0 {
                free.push(dependent);
            }
        }
        for on in &deps[node] {
            let on = *on as usize;
            is_waited_for[on] -= 1;
            if is_waited_for[on] == 0 {
                free.push(on);
            }
        }
    }
    (0..deps.len() as u32).filter(|node| !gone[*node as usize]).collect()
}

/// The position of each node in the greedy order: sinks last, sources first; without either, the node with the largest
/// surplus of dependents over dependencies is next.
fn greedy_order(after: &[Vec<u32>], before: &[Vec<u32>]) -> Vec<usize> {
    let count = after.len();
    let mut degrees: Vec<(usize, usize)> = (0..count).map(|node| (after[node].len(), before[node].len())).collect();
    let class = |(out, into): (usize, usize)| match (out, into) {
        (0, _) => (0, 0),
        (_, 0) => (1, 0),
        (out, into) => (2, into as i64 - out as i64),
    };
    let mut order: BTreeSet<((u8, i64), usize)> = (0..count).map(|node| (class(degrees[node]), node)).collect();
    let mut position = vec![0; count];
    let (mut first, mut last) = (0, count);
    while let Some(((class_of, _), node)) = order.pop_first() {
        if class_of == 0 {
            last -= 1;
            position[node] = last;
        } else {
            position[node] = first;
            first += 1;
        }
        let mut changes: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
        after[node].iter().for_each(|other| changes.entry(*other as usize).or_default().1 += 1);
        before[node].iter().for_each(|other| changes.entry(*other as usize).or_default().0 += 1);
        for (other, (out, into)) in changes {
            if order.remove(&(class(degrees[other]), other)) {
                degrees[other] = (degrees[other].0 - out, degrees[other].1 - into);
                order.insert((class(degrees[other]), other));
            }
        }
    }
    position
}

fn reaches(after: &[Vec<u32>], from: u32, to: u32) -> bool {
    let mut seen = vec![false; after.len()];
    let mut open = vec![from];
    while let Some(node) = open.pop() {
        if node == to {
            return true;
        }
        if !std::mem::replace(&mut seen[node as usize], true) {
            open.extend(&after[node as usize]);
        }
    }
    false
}
