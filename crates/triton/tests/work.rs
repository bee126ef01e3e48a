//! Work of kernels: amounts that follow from their loops.
#![allow(unsafe_code)] // Kernels are given addresses of vectors.
#![allow(missing_docs)]

use std::ops::Range;
use uniference_triton::{Argument, Kernel, Work};

fn work(text: &str, arguments: &[Argument], grid: [u32; 3]) -> Option<Work> {
    work_inside(text, arguments, grid, &[])
}

fn work_inside(text: &str, arguments: &[Argument], grid: [u32; 3], memory: &[Range<usize>]) -> Option<Work> {
    let kernel = Kernel::read(text).unwrap();
    // SAFETY: the tests' kernels read only integers of their vectors.
    unsafe { kernel.work(arguments, grid, memory, &mut || true) }.unwrap()
}

fn address<T>(of: &[T]) -> Argument {
    Argument::Integer(of.as_ptr() as i64)
}

/// Addresses without memory: values other than integers are not read.
const NOWHERE: [Argument; 3] = [Argument::Integer(1 << 32), Argument::Integer(2 << 32), Argument::Integer(3 << 32)];

fn module(parameters: &str, body: &str) -> String {
    format!(
        "#loc = loc(\"a.py\":1:0)\nmodule {{\n  tt.func public @kernel({parameters}) attributes {{noinline = false}} {{\n{body}\n    \
         tt.return loc(#loc)\n  }} loc(#loc)\n}} loc(#loc)\n"
    )
}

/// Doubles 64 numbers of 32 bits per program, up to `%n`.
fn doubled() -> String {
    module(
        "%x: !tt.ptr<f32>, %y: !tt.ptr<f32>, %n: i32",
        "%c64 = arith.constant 64 : i32\n\
         %two = arith.constant dense<2.000000e+00> : tensor<64xf32>\n\
         %p = tt.get_program_id x : i32\n\
         %b = arith.muli %p, %c64 : i32\n\
         %r = tt.make_range {end = 64 : i32, start = 0 : i32} : tensor<64xi32>\n\
         %s = tt.splat %b : i32 -> tensor<64xi32>\n\
         %i = arith.addi %s, %r : tensor<64xi32>\n\
         %m = tt.splat %n : i32 -> tensor<64xi32>\n\
         %on = arith.cmpi slt, %i, %m : tensor<64xi32>\n\
         %px = tt.splat %x : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>\n\
         %qx = tt.addptr %px, %i : tensor<64x!tt.ptr<f32>>, tensor<64xi32>\n\
         %v = tt.load %qx, %on : tensor<64x!tt.ptr<f32>>\n\
         %w = arith.mulf %v, %two : tensor<64xf32>\n\
         %e = math.exp %w : tensor<64xf32>\n\
         %py = tt.splat %y : !tt.ptr<f32> -> tensor<64x!tt.ptr<f32>>\n\
         %qy = tt.addptr %py, %i : tensor<64x!tt.ptr<f32>>, tensor<64xi32>\n\
         tt.store %qy, %e, %on : tensor<64x!tt.ptr<f32>>",
    )
}

#[test]
fn what_a_grid_reads_writes_and_calculates_is_counted() {
    let [x, y, _] = NOWHERE;
    let found = work(&doubled(), &[x, y, Argument::Integer(1000)], [16, 1, 1]).unwrap();
    let expected = Work { operations: [16 * 64 * 9, 0], read: 4000, written: 4000, ..Work::default() };
    assert_eq!(found, expected);
}

#[test]
fn some_programs_stand_for_a_large_grid() {
    let [x, y, _] = NOWHERE;
    let programs = 1 << 20;
    let found = work(&doubled(), &[x, y, Argument::Integer(i64::from(programs) * 64)], [programs, 1, 1]).unwrap();
    assert_eq!(found.operations, [u64::from(programs) * 64 * 9, 0]);
    assert_eq!((found.read, found.written), (u64::from(programs) * 256, u64::from(programs) * 256));
}

/// Each program multiplies 16 rows of `%a` by the whole of `%b`, 64 x 16, in 4 iterations; all programs read the same
/// `%b`.
fn product(precision: &str, of: &str) -> String {
    module(
        &format!("%a: !tt.ptr<{of}>, %b: !tt.ptr<{of}>, %c: !tt.ptr<f32>"),
        &format!(
            "%c0 = arith.constant 0 : i32\n%c4 = arith.constant 4 : i32\n%c1 = arith.constant 1 : i32\n\
             %c256 = arith.constant 256 : i32\n%c1024 = arith.constant 1024 : i32\n\
             %zero = arith.constant dense<0.000000e+00> : tensor<16x16xf32>\n\
             %p = tt.get_program_id x : i32\n\
             %r = tt.make_range {{end = 256 : i32, start = 0 : i32}} : tensor<256xi32>\n\
             %t = tt.reshape %r : tensor<256xi32> -> tensor<16x16xi32>\n\
             %pa = tt.splat %a : !tt.ptr<{of}> -> tensor<16x16x!tt.ptr<{of}>>\n\
             %pb = tt.splat %b : !tt.ptr<{of}> -> tensor<16x16x!tt.ptr<{of}>>\n\
             %mine = arith.muli %p, %c1024 : i32\n\
             %sum = scf.for %k = %c0 to %c4 step %c1 iter_args(%s = %zero) -> (tensor<16x16xf32>)  : i32 {{\n\
             %o = arith.muli %k, %c256 : i32\n\
             %oa = arith.addi %mine, %o : i32\n\
             %sa = tt.splat %oa : i32 -> tensor<16x16xi32>\n\
             %sb = tt.splat %o : i32 -> tensor<16x16xi32>\n\
             %ia = arith.addi %sa, %t : tensor<16x16xi32>\n\
             %ib = arith.addi %sb, %t : tensor<16x16xi32>\n\
             %qa = tt.addptr %pa, %ia : tensor<16x16x!tt.ptr<{of}>>, tensor<16x16xi32>\n\
             %qb = tt.addptr %pb, %ib : tensor<16x16x!tt.ptr<{of}>>, tensor<16x16xi32>\n\
             %va = tt.load %qa : tensor<16x16x!tt.ptr<{of}>>\n\
             %vb = tt.load %qb : tensor<16x16x!tt.ptr<{of}>>\n\
             %d = tt.dot %va, %vb, %s{precision} : tensor<16x16x{of}> * tensor<16x16x{of}> -> tensor<16x16xf32>\n\
             scf.yield %d : tensor<16x16xf32>\n\
             }}\n\
             %m = arith.muli %p, %c256 : i32\n\
             %sm = tt.splat %m : i32 -> tensor<16x16xi32>\n\
             %ic = arith.addi %sm, %t : tensor<16x16xi32>\n\
             %pc = tt.splat %c : !tt.ptr<f32> -> tensor<16x16x!tt.ptr<f32>>\n\
             %qc = tt.addptr %pc, %ic : tensor<16x16x!tt.ptr<f32>>, tensor<16x16xi32>\n\
             tt.store %qc, %sum : tensor<16x16x!tt.ptr<f32>>"
        ),
    )
}

#[test]
fn products_are_told_by_what_they_are_of_and_what_programs_share_is_read_once() {
    let cases = [
        ("", "f16", 1, 1, 2),
        (", inputPrecision = tf32", "f32", 2, 1, 4),
        (", inputPrecision = tf32x3", "f32", 2, 3, 4),
        (", inputPrecision = bf16x6", "f32", 1, 6, 4),
        ("", "f32", 3, 1, 4),
        ("", "f8E5M2", 0, 1, 1),
        (" {maxNumImpreciseAcc = 1073741824 : i32}", "f8E4M3FN", 0, 1, 1),
    ];
    for (precision, of, class, times, bytes) in cases {
        for programs in [8_u32, 200_000] {
            let found = work(&product(precision, of), &NOWHERE, [programs, 1, 1]).unwrap();
            let programs = u64::from(programs);
            let mut products = [0; 4];
            products[class] = programs * times * 4 * 2 * 16 * 16 * 16;
            assert_eq!((found.products, found.written), (products, programs * 1024), "{of}");
            let expected = ((programs + 1) * 1024 * bytes) as f64;
            // All programs read `%b`, and one program each part of `%a`: the estimate must suit both.
            assert!((0.97..1.03).contains(&(found.read as f64 / expected)), "{of} {programs}: {found:?}, {expected}");
            assert_eq!(found.integers, []);
        }
    }
}

/// About 4,000 programs read each part of memory, but no two sampled ones; spans may overlap.
#[test]
fn no_more_is_read_than_there_is() {
    let text = product("", "f16");
    let text = text.replace("%mine = arith.muli %p,", "%q = arith.remsi %p, %c256 : i32\n%mine = arith.muli %q,");
    let start = 1 << 32;
    let pieces = [start + 4096..start + 8192, start..start + 256 * 2048, 2 * start..2 * start + 2048];
    let all = work(&text, &NOWHERE, [1_000_000, 1, 1]).unwrap();
    let some = work_inside(&text, &NOWHERE, [1_000_000, 1, 1], &pieces).unwrap();
    assert_eq!((some.read, some.written), (256 * 2048 + 2048, all.written));
    assert!(all.read > 100 * some.read, "{all:?}");
}

/// Reads `%n` numbers per program, which `number` makes of the program's element of `%lengths`.
fn as_many(of: &str, number: &str) -> String {
    module(
        &format!("%lengths: !tt.ptr<{of}>, %x: !tt.ptr<f32>"),
        &format!(
            "%c0 = arith.constant 0 : i32\n%c1 = arith.constant 1 : i32\n\
             %p = tt.get_program_id x : i32\n\
             %q = tt.addptr %lengths, %p : !tt.ptr<{of}>, i32\n\
             %l = tt.load %q : !tt.ptr<{of}>\n\
             {number}\n\
             scf.for %k = %c0 to %n step %c1  : i32 {{\n\
             %y = tt.addptr %x, %k : !tt.ptr<f32>, i32\n\
             %v = tt.load %y : !tt.ptr<f32>\n\
             tt.store %y, %v : !tt.ptr<f32>\n\
             }}"
        ),
    )
}

#[test]
fn integers_in_memory_decide_and_numbers_of_floating_point_are_not_asked() {
    let lengths = [8_i32, 64, 0, 16];
    let text = as_many("i32", "%n = arith.addi %l, %c0 : i32");
    let found = work(&text, &[address(&lengths), NOWHERE[1]], [4, 1, 1]).unwrap();
    assert_eq!(found.written, 64 * 4);
    let at = lengths.as_ptr() as usize;
    assert!(found.integers.iter().any(|span| span.contains(&at)), "{found:?}");
    assert!(found.integers.iter().all(|span| span.start + 32 > at && span.end < at + 64), "{found:?}");
    let text = as_many("f32", "%n = arith.fptosi %l : f32 to i32");
    assert_eq!(work(&text, &[address(&[1.0_f32; 4]), NOWHERE[1]], [4, 1, 1]), None);
}

#[test]
fn what_lies_in_memory_that_is_not_there_makes_it_unknown() {
    // Addresses; an amount that another program added; an amount that the program wrote itself.
    let addresses = as_many(
        "i64",
        "%z = tt.int_to_ptr %l : i64 -> !tt.ptr<f32>\n%n = arith.trunci %l : i64 to i32\ntt.store %z, %one : !tt.ptr<f32>",
    );
    let addresses = addresses.replace("%c1 =", "%one = arith.constant 1.0 : f32\n%c1 =");
    assert_eq!(work(&addresses, &[address(&[1_i64; 4]), NOWHERE[1]], [4, 1, 1]), None);
    let tickets = as_many(
        "i32",
        "%true = arith.constant true\n%n = tt.atomic_rmw add, acq_rel, gpu, %q, %l, %true : (!tt.ptr<i32>, i32, i1) -> i32",
    );
    assert_eq!(work(&tickets, &[address(&[1_i32; 4]), NOWHERE[1]], [4, 1, 1]), None);
    let own = as_many("i32", "tt.store %q, %c1 : !tt.ptr<i32>\n%n = tt.load %q : !tt.ptr<i32>");
    assert_eq!(work(&own, &[address(&[1_i32; 4]), NOWHERE[1]], [4, 1, 1]), None);
}
