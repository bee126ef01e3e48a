//! Parameters that a kernel may write to.

use uniference_triton::Kernel;

const PARAMETERS: &str = "%x: !tt.ptr<i32>, %y: !tt.ptr<i32>, %z: !tt.ptr<i32>, %n: i32";

fn written(functions: &str, body: &str) -> Option<Vec<usize>> {
    let text = format!(
        "#loc = loc(\"a.py\":1:0)\nmodule {{\n{functions}  tt.func public @kernel({PARAMETERS}) attributes {{noinline = false}} {{\n{body}\n    \
         tt.return loc(#loc)\n  }} loc(#loc)\n}} loc(#loc)\n"
    );
    let text = text.replace(')', ") ").replace(") )", "))");
    Kernel::read(&text).unwrap().written()
}

#[test]
fn what_says_where_is_not_written_to() {
    let store = "%i = tt.load %x : !tt.ptr<i32>
        %p = tt.addptr %y, %i : !tt.ptr<i32>, i32
        tt.store %p, %n : !tt.ptr<i32>";
    assert_eq!(written("", store), Some(vec![1]));
    let atomic = "%t = arith.constant true
        %i = tt.load %x : !tt.ptr<i32>
        %p = tt.addptr %z, %i : !tt.ptr<i32>, i32
        %b = tt.atomic_rmw add, acq_rel, gpu, %p, %n, %t : (!tt.ptr<i32>, i32, i1) -> i32";
    assert_eq!(written("", atomic), Some(vec![2]));
    assert_eq!(written("", "%i = tt.load %x : !tt.ptr<i32>"), Some(vec![]));
}

#[test]
fn addresses_are_followed_through_loops_choices_and_functions() {
    let looped = "%c0 = arith.constant 0 : i32
        %c1 = arith.constant 1 : i32
        %last = scf.for %i = %c0 to %n step %c1 iter_args(%p = %y) -> (!tt.ptr<i32>)  : i32 {
          %next = tt.addptr %p, %i : !tt.ptr<i32>, i32
          scf.yield %next : !tt.ptr<i32>
        }
        tt.store %last, %n : !tt.ptr<i32>";
    assert_eq!(written("", looped), Some(vec![1]));
    let chosen = "%c0 = arith.constant 0 : i32
        %is = arith.cmpi sgt, %n, %c0 : i32
        %p = arith.select %is, %x, %z : !tt.ptr<i32>
        tt.store %p, %n : !tt.ptr<i32>";
    assert_eq!(written("", chosen), Some(vec![0, 2]));
    // `find` loads an index through one parameter, and `further` advances another parameter by it.
    let functions = "  tt.func private @find(%t: !tt.ptr<i32>, %n: i32) -> i32 attributes {noinline = false} {
    %p = tt.addptr %t, %n : !tt.ptr<i32>, i32
    %i = tt.load %p : !tt.ptr<i32>
    tt.return %i : i32
  }
  tt.func private @further(%t: !tt.ptr<i32>, %n: i32) -> !tt.ptr<i32> attributes {noinline = false} {
    %p = tt.addptr %t, %n : !tt.ptr<i32>, i32
    tt.return %p : !tt.ptr<i32>
  }
";
    let called = "%i = tt.call @find(%x, %n) : (!tt.ptr<i32>, i32) -> i32
        %p = tt.call @further(%z, %i) : (!tt.ptr<i32>, i32) -> !tt.ptr<i32>
        tt.store %p, %n : !tt.ptr<i32>";
    assert_eq!(written(functions, called), Some(vec![2]));
}

/// An address made of an integer may point to any parameter's memory.
#[test]
fn nobody_knows_whose_an_address_from_memory_is() {
    let text = "%a = arith.extsi %n : i32 to i64
        %p = tt.int_to_ptr %a : i64 -> !tt.ptr<i32>
        tt.store %p, %n : !tt.ptr<i32>";
    assert_eq!(written("", text), None);
    let read = text.replace("tt.store %p, %n", "%b = tt.load %p") + "\ntt.store %y, %b : !tt.ptr<i32>";
    assert_eq!(written("", &read), Some(vec![1]));
}
