//! Results of TTIR operations in minimal kernels: written down, or computed by Rust's own arithmetic.
#![allow(unsafe_code)] // Kernels are given addresses of vectors.
#![allow(missing_docs)]

use proptest::prelude::*;
use rstest::rstest;
use uniference_triton::{Argument, Kernel, Scalar, Stopped, Unreadable};

fn module(parameters: &str, body: &str) -> String {
    format!(
        "#loc = loc(\"a.py\":1:0)\nmodule {{\n  tt.func public @kernel({parameters}) attributes {{noinline = false}} {{\n{body}\n    \
         tt.return loc(#loc)\n  }} loc(#loc)\n}} loc(#loc)\n"
    )
}

fn address<T>(of: &mut [T]) -> Argument {
    Argument::Integer(of.as_mut_ptr() as i64)
}

fn launch(text: &str, arguments: &[Argument], grid: [u32; 3]) -> Result<Vec<std::ops::Range<usize>>, Stopped> {
    let kernel = Kernel::read(text).unwrap();
    // SAFETY: the tests' kernels stay in their vectors.
    unsafe { kernel.run(arguments, grid, &[], &mut || true, &mut |_| ()) }
}

/// Result of an operation on two vectors of these types; `%a` and `%b` are their names, `%r` is the result's.
fn calculated<A: Copy, R: Copy + Default>(body: &str, types: [&str; 2], a: &mut [A], b: &mut [A]) -> Vec<R> {
    let [of, to] = types;
    let count = a.len();
    let mut out = vec![R::default(); count];
    let load = |name: &str| {
        format!(
            "%p{name} = tt.splat %x{name} : !tt.ptr<{of}> -> tensor<{count}x!tt.ptr<{of}>>\n\
             %q{name} = tt.addptr %p{name}, %i : tensor<{count}x!tt.ptr<{of}>>, tensor<{count}xi32>\n\
             %{name} = tt.load %q{name} : tensor<{count}x!tt.ptr<{of}>>\n"
        )
    };
    let text = module(
        &format!("%xa: !tt.ptr<{of}>, %xb: !tt.ptr<{of}>, %xr: !tt.ptr<{to}>"),
        &format!(
            "%i = tt.make_range {{end = {count} : i32, start = 0 : i32}} : tensor<{count}xi32>\n{}{}{body}\n\
             %pr = tt.splat %xr : !tt.ptr<{to}> -> tensor<{count}x!tt.ptr<{to}>>\n\
             %qr = tt.addptr %pr, %i : tensor<{count}x!tt.ptr<{to}>>, tensor<{count}xi32>\n\
             tt.store %qr, %r : tensor<{count}x!tt.ptr<{to}>>",
            load("a"),
            load("b")
        ),
    );
    let text = text.replace("tensor<T>", &format!("tensor<{count}x{of}>"));
    launch(&text, &[address(a), address(b), address(&mut out)], [1; 3]).unwrap();
    out
}

#[rstest]
#[case("addi", i32::wrapping_add)]
#[case("subi", i32::wrapping_sub)]
#[case("muli", i32::wrapping_mul)]
#[case("divsi", i32::wrapping_div)]
#[case("divui", |a, b| (a as u32 / b as u32) as i32)]
#[case("remsi", i32::wrapping_rem)]
#[case("remui", |a, b| (a as u32 % b as u32) as i32)]
#[case("floordivsi", |a, b| (f64::from(a) / f64::from(b)).floor() as i64 as i32)]
#[case("ceildivsi", |a, b| (f64::from(a) / f64::from(b)).ceil() as i64 as i32)]
#[case("ceildivui", |a, b| (a as u32).div_ceil(b as u32) as i32)]
#[case("andi", |a, b| a & b)]
#[case("ori", |a, b| a | b)]
#[case("xori", |a, b| a ^ b)]
#[case("shli", |a: i32, b| a.checked_shl(b as u32).unwrap_or(0))]
#[case("shrsi", |a, b| a >> (b as u32).min(31))]
#[case("shrui", |a, b| (a as u32).checked_shr(b as u32).unwrap_or(0) as i32)]
#[case("minsi", Ord::min)]
#[case("maxsi", Ord::max)]
#[case("minui", |a, b| (a as u32).min(b as u32) as i32)]
#[case("maxui", |a, b| (a as u32).max(b as u32) as i32)]
fn integers_are_calculated_in_their_width(#[case] name: &str, #[case] expected: fn(i32, i32) -> i32) {
    let mut a = [7, -7, i32::MAX, i32::MIN, 0, 1 << 20, -1, 12345];
    let mut b = [3, 2, 5, -3, 40, 1 << 15, 31, -100];
    let got: Vec<i32> = calculated(&format!("%r = arith.{name} %a, %b : tensor<T>"), ["i32", "i32"], &mut a, &mut b);
    let expected: Vec<i32> = a.iter().zip(&b).map(|(a, b)| expected(*a, *b)).collect();
    assert_eq!(got, expected);
}

#[rstest]
#[case("slt", |a: i8, b: i8| a < b)]
#[case("sge", |a, b| a >= b)]
#[case("ult", |a, b| (a as u8) < b as u8)]
#[case("ule", |a, b| a as u8 <= b as u8)]
#[case("ugt", |a, b| a as u8 > b as u8)]
#[case("eq", |a, b| a == b)]
#[case("ne", |a, b| a != b)]
fn integers_are_compared_with_their_sign_or_without(#[case] name: &str, #[case] expected: fn(i8, i8) -> bool) {
    let (mut a, mut b) = ([1, -1, 127, -128, 5, 0], [2, 1, -128, 127, 5, -1]);
    let body =
        format!("%c = arith.cmpi {name}, %a, %b : tensor<T>\n%r = arith.extui %c : tensor<6xi1> to tensor<6xi32>");
    let got: Vec<i32> = calculated(&body, ["i8", "i32"], &mut a, &mut b);
    let expected: Vec<i32> = a.iter().zip(&b).map(|(a, b)| i32::from(expected(*a, *b))).collect();
    assert_eq!(got, expected);
}

#[rstest]
#[case("oeq", [1, 0, 0, 0])]
#[case("ueq", [1, 0, 1, 0])]
#[case("one", [0, 1, 0, 1])]
#[case("une", [0, 1, 1, 1])]
#[case("olt", [0, 1, 0, 0])]
#[case("ult", [0, 1, 1, 0])]
#[case("oge", [1, 0, 0, 1])]
#[case("ord", [1, 1, 0, 1])]
#[case("uno", [0, 0, 1, 0])]
fn numbers_are_compared_and_nan_is_what_the_name_says(#[case] name: &str, #[case] expected: [i32; 4]) {
    let (mut a, mut b) = ([1.0_f32, 1.0, f32::NAN, 2.0], [1.0_f32, 2.0, 1.0, -2.0]);
    let body =
        format!("%c = arith.cmpf {name}, %a, %b : tensor<T>\n%r = arith.extui %c : tensor<4xi1> to tensor<4xi32>");
    assert_eq!(calculated::<_, i32>(&body, ["f32", "i32"], &mut a, &mut b), expected);
}

#[rstest]
#[case("arith.addf", |a: f32, b: f32| a + b)]
#[case("arith.subf", |a, b| a - b)]
#[case("arith.mulf", |a, b| a * b)]
#[case("arith.divf", |a, b| a / b)]
#[case("arith.remf", |a, b| a % b)]
#[case("arith.maxnumf", f32::max)]
#[case("arith.minnumf", f32::min)]
#[case("arith.maximumf", |a: f32, b: f32| if a.is_nan() || b.is_nan() { f32::NAN } else { a.max(b) })]
fn numbers_are_calculated_in_single_precision(#[case] name: &str, #[case] expected: fn(f32, f32) -> f32) {
    let (mut a, mut b) = ([1.5_f32, -2.25, 1e30, f32::NAN, 7.0], [0.1_f32, 3.0, 1e30, 1.0, -2.5]);
    let got: Vec<f32> = calculated(&format!("%r = {name} %a, %b : tensor<T>"), ["f32", "f32"], &mut a, &mut b);
    let expected: Vec<u32> = a.iter().zip(&b).map(|(a, b)| expected(*a, *b).to_bits()).collect();
    assert_eq!(got.iter().map(|number| number.to_bits()).collect::<Vec<_>>(), expected);
}

#[rstest]
#[case("math.exp", f64::exp)]
#[case("math.exp2", f64::exp2)]
#[case("math.log", f64::ln)]
#[case("math.log2", f64::log2)]
#[case("math.sqrt", f64::sqrt)]
#[case("math.rsqrt", |x: f64| 1.0 / x.sqrt())]
#[case("math.sin", f64::sin)]
#[case("math.cos", f64::cos)]
#[case("math.tanh", f64::tanh)]
#[case("math.erf", libm::erf)]
#[case("math.floor", f64::floor)]
#[case("math.ceil", f64::ceil)]
#[case("math.absf", f64::abs)]
fn functions_are_what_mathematics_says(#[case] name: &str, #[case] expected: fn(f64) -> f64) {
    let mut a = [0.5_f32, 1.0, 2.75, 10.0];
    let got: Vec<f32> = calculated(&format!("%r = {name} %a : tensor<T>"), ["f32", "f32"], &mut a, &mut [0.0; 4]);
    for (got, a) in got.iter().zip(a) {
        assert!((f64::from(*got) - expected(f64::from(a))).abs() <= 1e-6 * expected(f64::from(a)).abs(), "{got} {a}");
    }
}

#[rstest]
#[case("__nv_rsqrtf", 0.5)]
#[case("__nv_erff", 0.999_999_98)]
#[case("__nv_fabsf", 4.0)]
#[case("__nv_fast_logf", 1.386_294_4)]
#[case("__nv_tanhf", 0.999_329_3)]
#[case("__nv_rint", 4.0)]
fn functions_of_libdevice_are_known_by_their_symbol(#[case] symbol: &str, #[case] expected: f32) {
    let body = format!(
        "%r = tt.extern_elementwise %a {{libname = \"\", libpath = \"\", pure = true, symbol = \"{symbol}\"}} : (tensor<T>) -> tensor<T>"
    );
    let got: Vec<f32> = calculated(&body, ["f32", "f32"], &mut [4.0_f32; 2], &mut [0.0; 2]);
    assert!((got[0] - expected).abs() < 1e-6, "{got:?}");
}

#[rstest]
#[case("none", 0x3f80_0000)]
#[case("all", 0x7fc0_0000)]
fn what_is_no_number_is_clamped_as_the_text_says(#[case] propagated: &str, #[case] expected: u32) {
    let body = format!(
        "%one = arith.constant dense<1.000000e+00> : tensor<T>
         %r = tt.clampf %a, %one, %b, propagateNan = {propagated} : tensor<T>"
    );
    let got: Vec<f32> = calculated(&body, ["f32", "f32"], &mut [0.0, 2.0, 9.0, f32::NAN], &mut [5.0_f32; 4]);
    assert_eq!(
        got.iter().map(|number| number.to_bits()).collect::<Vec<_>>()[..3],
        [1.0_f32, 2.0, 5.0].map(f32::to_bits)
    );
    assert_eq!(got[3].to_bits() & 0x7fff_ffff, expected);
}

#[test]
fn whether_a_number_is_none_is_asked_of_libdevice_too() {
    let body = "%r = tt.extern_elementwise %a {libname = \"\", libpath = \"\", pure = true, symbol = \"__nv_isnanf\"} : (tensor<T>) -> tensor<2xi32>";
    assert_eq!(calculated::<_, i32>(body, ["f32", "i32"], &mut [1.0_f32, f32::NAN], &mut [0.0; 2]), [0, 1]);
}

#[test]
fn narrow_numbers_are_rounded_after_each_operation() {
    // 1 + 2^-9 is not representable in bfloat16, but in single precision.
    let (mut a, mut b) = ([0x3f80_u16, 0x4000], [0x3b00_u16, 0x3f81]);
    let body = "%s = arith.addf %a, %b : tensor<T>\n%r = arith.subf %s, %a : tensor<T>";
    assert_eq!(calculated::<_, u16>(body, ["bf16", "bf16"], &mut a, &mut b), [0, 0x3f80]);
}

#[rstest]
#[case("arith.extsi %a : tensor<T> to tensor<3xi64>", "i64", [-1, 127, -128])]
#[case("arith.extui %a : tensor<T> to tensor<3xi64>", "i64", [255, 127, 128])]
fn integers_are_widened(#[case] cast: &str, #[case] to: &str, #[case] expected: [i64; 3]) {
    let got: Vec<i64> = calculated(&format!("%r = {cast}"), ["i8", to], &mut [-1_i8, 127, -128], &mut [0; 3]);
    assert_eq!(got, expected);
}

#[test]
fn numbers_become_integers_and_the_other_way_round() {
    let mut a = [1.9_f32, -1.9, 1e20, f32::NAN];
    let body = "%r = arith.fptosi %a : tensor<T> to tensor<4xi32>";
    assert_eq!(calculated::<_, i32>(body, ["f32", "i32"], &mut a, &mut [0.0; 4]), [1, -1, i32::MAX, 0]);
    let body = "%r = arith.uitofp %a : tensor<T> to tensor<2xf32>";
    assert_eq!(calculated::<_, f32>(body, ["i32", "f32"], &mut [-1_i32, 3], &mut [0; 2]), [4_294_967_296.0, 3.0]);
    let body = "%r = tt.bitcast %a : tensor<T> -> tensor<2xi32>";
    assert_eq!(calculated::<_, u32>(body, ["f32", "i32"], &mut [1.0_f32, -0.0], &mut [0.0; 2]), [0x3f80_0000, 1 << 31]);
}

#[test]
fn masked_elements_are_neither_read_nor_written() {
    let (mut from, mut to) = ([1_i32, 2], [9_i32; 4]);
    let text = module(
        "%x: !tt.ptr<i32>, %y: !tt.ptr<i32>, %n: i32",
        "%other = arith.constant dense<-5> : tensor<4xi32>
         %i = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
         %limit = tt.splat %n : i32 -> tensor<4xi32>
         %mask = arith.cmpi slt, %i, %limit : tensor<4xi32>
         %p = tt.splat %x : !tt.ptr<i32> -> tensor<4x!tt.ptr<i32>>
         %far = arith.constant dense<1000000000> : tensor<4xi32>
         %j = arith.select %mask, %i, %far : tensor<4xi1>, tensor<4xi32>
         %q = tt.addptr %p, %j : tensor<4x!tt.ptr<i32>>, tensor<4xi32>
         %v = tt.load %q, %mask, %other evictionPolicy = evict_last {isVolatile = true} : tensor<4x!tt.ptr<i32>>
         %r = tt.splat %y : !tt.ptr<i32> -> tensor<4x!tt.ptr<i32>>
         %s = tt.addptr %r, %i : tensor<4x!tt.ptr<i32>>, tensor<4xi32>
         tt.store %s, %v : tensor<4x!tt.ptr<i32>>
         %twice = arith.addi %v, %v : tensor<4xi32>
         tt.store %s, %twice, %mask : tensor<4x!tt.ptr<i32>>",
    );
    launch(&text, &[address(&mut from), address(&mut to), Argument::Integer(2)], [1; 3]).unwrap();
    assert_eq!(to, [2, 4, -5, -5]);
}

#[rstest]
#[case(0, [3.0, 5.0, 7.0, 0.0])]
#[case(1, [3.0, 12.0, 0.0, 0.0])]
fn reductions_go_along_their_axis(#[case] axis: usize, #[case] expected: [f32; 4]) {
    let mut out = [0.0_f32; 4];
    let (size, constant) = ([3, 2][axis], "dense<[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]>");
    let text = module(
        "%y: !tt.ptr<f32>",
        &format!(
            "%x = arith.constant {constant} : tensor<2x3xf32>
             %s = \"tt.reduce\"(%x) <{{axis = {axis} : i32}}> ({{
             ^bb0(%a: f32 loc(\"a\"(#loc)), %b: f32 loc(unknown)):
               %c = arith.addf %a, %b : f32
               tt.reduce.return %c : f32
             }}) : (tensor<2x3xf32>) -> tensor<{size}xf32>
             %i = tt.make_range {{end = {size} : i32, start = 0 : i32}} : tensor<{size}xi32>
             %p = tt.splat %y : !tt.ptr<f32> -> tensor<{size}x!tt.ptr<f32>>
             %q = tt.addptr %p, %i : tensor<{size}x!tt.ptr<f32>>, tensor<{size}xi32>
             tt.store %q, %s : tensor<{size}x!tt.ptr<f32>>"
        ),
    );
    launch(&text, &[address(&mut out)], [1; 3]).unwrap();
    assert_eq!(out, expected);
}

#[test]
fn reductions_of_several_values_keep_them_together() {
    let mut out = [0_i32; 2];
    // The index of the maximum, by a region with a branch: the first of equal maxima.
    let text = module(
        "%y: !tt.ptr<i32>",
        "%x = arith.constant dense<[3, 9, 4, 9, 1]> : tensor<5xi32>
         %i = arith.constant dense<[0, 1, 2, 3, 4]> : tensor<5xi32>
         %m:2 = \"tt.reduce\"(%x, %i) <{axis = 0 : i32}> ({
         ^bb0(%a: i32, %ai: i32, %b: i32, %bi: i32):
           %more = arith.cmpi sgt, %a, %b : i32
           %same = arith.cmpi eq, %a, %b : i32
           %before = arith.cmpi slt, %ai, %bi : i32
           %tie = arith.andi %same, %before : i1
           %first = arith.ori %more, %tie : i1
           %r:2 = scf.if %first -> (i32, i32) {
             scf.yield %a, %ai : i32, i32
           } else {
             scf.yield %b, %bi : i32, i32
           }
           tt.reduce.return %r#0, %r#1 : i32, i32
         }) : (tensor<5xi32>, tensor<5xi32>) -> (i32, i32)
         tt.store %y, %m#0 : !tt.ptr<i32>
         %one = arith.constant 1 : i32
         %z = tt.addptr %y, %one : !tt.ptr<i32>, i32
         tt.store %z, %m#1 : !tt.ptr<i32>",
    );
    launch(&text, &[address(&mut out)], [1; 3]).unwrap();
    assert_eq!(out, [9, 1]);
}

#[rstest]
#[case(false, [1, 3, 6, 10, 15])]
#[case(true, [15, 14, 12, 9, 5])]
fn scans_go_either_way(#[case] reverse: bool, #[case] expected: [i32; 5]) {
    let body = format!(
        "%r = \"tt.scan\"(%a) <{{axis = 0 : i32, reverse = {reverse}}}> ({{
         ^bb0(%c: i32, %d: i32):
           %e = arith.addi %c, %d : i32
           tt.scan.return %e : i32
         }}) : (tensor<T>) -> tensor<T>"
    );
    assert_eq!(calculated::<_, i32>(&body, ["i32", "i32"], &mut [1_i32, 2, 3, 4, 5], &mut [0; 5]), expected);
}

#[test]
fn loops_and_branches_go_where_their_conditions_say() {
    let mut out = [0_i32; 6];
    // Steps of Collatz's sequence from each program's number on; a program with the number 0 skips it.
    let text = module(
        "%y: !tt.ptr<i32>",
        "%c0 = arith.constant 0 : i32
         %c1 = arith.constant 1 : i32
         %c2 = arith.constant 2 : i32
         %c3 = arith.constant 3 : i32
         %n = tt.get_program_id x : i32
         %none = arith.cmpi eq, %n, %c0 : i32
         cf.cond_br %none, ^bb1, ^bb2(%n : i32)
       ^bb1:  // 2 preds: ^bb0, ^bb2
         tt.return
       ^bb2(%from: i32):  // pred: ^bb0
         %r:2 = scf.while (%at = %from, %steps = %c0) : (i32, i32) -> (i32, i32) {
           %more = arith.cmpi ne, %at, %c1 : i32
           scf.condition(%more) %at, %steps : i32, i32
         } do {
         ^bb0(%at: i32, %steps: i32):
           %half = arith.divsi %at, %c2 : i32
           %rest = arith.remsi %at, %c2 : i32
           %odd = arith.cmpi eq, %rest, %c1 : i32
           %next = scf.if %odd -> (i32) {
             %triple = arith.muli %at, %c3 : i32
             %more = arith.addi %triple, %c1 : i32
             scf.yield %more : i32
           } else {
             scf.yield %half : i32
           }
           %counted = arith.addi %steps, %c1 : i32
           scf.yield %next, %counted : i32, i32
         }
         %twice = scf.for %i = %c0 to %c2 step %c1 iter_args(%sum = %c0) -> (i32)  : i32 {
           %more = arith.addi %sum, %r#1 : i32
           scf.yield %more : i32
         } {tt.num_stages = 1 : i32}
         %p = tt.addptr %y, %n : !tt.ptr<i32>, i32
         tt.store %p, %twice : !tt.ptr<i32>
         cf.br ^bb1",
    );
    // The last block returns by a branch; the text's own return belongs to another block.
    let text = text.replace("cf.br ^bb1\n    tt.return loc(#loc)", "cf.br ^bb1");
    launch(&text, &[address(&mut out)], [6, 1, 1]).unwrap();
    assert_eq!(out, [0, 0, 2, 14, 4, 10]);
}

#[test]
fn shapes_are_changed_and_matrices_multiplied() {
    let mut out = [0.0_f32; 4];
    // a = [[1, 2], [3, 4]]; its transpose times a, and one more.
    let text = module(
        "%y: !tt.ptr<f32>",
        "%a = arith.constant dense<[[1.0, 2.0], [3.0, 4.0]]> : tensor<2x2xf32>
         %ones = arith.constant dense<1.000000e+00> : tensor<2x2xf32>
         %t = tt.trans %a {order = array<i32: 1, 0>} : tensor<2x2xf32> -> tensor<2x2xf32>
         %d = tt.dot %t, %a, %ones, inputPrecision = tf32 : tensor<2x2xf32> * tensor<2x2xf32> -> tensor<2x2xf32>
         %i = tt.make_range {end = 2 : i32, start = 0 : i32} : tensor<2xi32>
         %two = arith.constant dense<2> : tensor<2x1xi32>
         %row = tt.expand_dims %i {axis = 1 : i32} : tensor<2xi32> -> tensor<2x1xi32>
         %rows = arith.muli %row, %two : tensor<2x1xi32>
         %column = tt.expand_dims %i {axis = 0 : i32} : tensor<2xi32> -> tensor<1x2xi32>
         %r = tt.broadcast %rows : tensor<2x1xi32> -> tensor<2x2xi32>
         %c = tt.broadcast %column : tensor<1x2xi32> -> tensor<2x2xi32>
         %at = arith.addi %r, %c : tensor<2x2xi32>
         %p = tt.splat %y : !tt.ptr<f32> -> tensor<2x2x!tt.ptr<f32>>
         %q = tt.addptr %p, %at : tensor<2x2x!tt.ptr<f32>>, tensor<2x2xi32>
         tt.store %q, %d : tensor<2x2x!tt.ptr<f32>>",
    );
    launch(&text, &[address(&mut out)], [1; 3]).unwrap();
    assert_eq!(out, [11.0, 15.0, 15.0, 21.0]);
}

/// 8-bit integers are multiplied to 32-bit ones, as by `cublasGemmEx` and tensor cores.
#[test]
fn matrices_of_integers_are_multiplied() {
    let mut out = [0_i32; 4];
    let text = module(
        "%y: !tt.ptr<i32>",
        "%a = arith.constant dense<[[100, -128], [3, 4]]> : tensor<2x2xi8>
         %b = arith.constant dense<[[100, 1], [-128, 2]]> : tensor<2x2xi8>
         %c = arith.constant dense<7> : tensor<2x2xi32>
         %d = tt.dot %a, %b, %c, inputPrecision = tf32 : tensor<2x2xi8> * tensor<2x2xi8> -> tensor<2x2xi32>
         %i = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32>
         %at = tt.reshape %i : tensor<4xi32> -> tensor<2x2xi32>
         %p = tt.splat %y : !tt.ptr<i32> -> tensor<2x2x!tt.ptr<i32>>
         %q = tt.addptr %p, %at : tensor<2x2x!tt.ptr<i32>>, tensor<2x2xi32>
         tt.store %q, %d : tensor<2x2x!tt.ptr<i32>>",
    );
    launch(&text, &[address(&mut out)], [1; 3]).unwrap();
    assert_eq!(out, [10_000 + 16_384 + 7, 100 - 256 + 7, 300 - 512 + 7, 3 + 8 + 7]);
}

#[test]
fn tensors_are_joined_split_and_gathered() {
    let body = "%j = tt.join %a, %b : tensor<T> -> tensor<3x2xi32>
        %l, %m = tt.split %j : tensor<3x2xi32> -> tensor<T>
        %places = arith.constant dense<[2, 0, 0]> : tensor<3xi32>
        %g = tt.gather %m[%places] {axis = 0 : i32} : (tensor<T>, tensor<3xi32>) -> tensor<T>
        %r = arith.subi %l, %g : tensor<T>";
    assert_eq!(calculated::<_, i32>(body, ["i32", "i32"], &mut [10_i32, 20, 30], &mut [1, 2, 3]), [7, 19, 29]);
}

/// Triton 3.9's TTIR of a kernel that looks up the slots of each sequence's tokens in a paged cache.
#[test]
fn a_text_of_the_compilers_is_carried_out() {
    let (tokens, block, most) = (5_i32, 16, 2000);
    let (mut starts, mut positions) = ([0_i32, 2, 3, 5], [17_i64, 40, 3, 0, 31]);
    let mut blocks: Vec<i32> = (0..3 * 4).map(|number| 100 + number).collect();
    let mut slots = vec![0_i64; most as usize];
    let arguments = [
        Argument::Integer(tokens.into()),
        Argument::Integer(most),
        address(&mut starts),
        address(&mut positions),
        address(&mut blocks),
        Argument::Integer(4),
        address(&mut slots),
    ];
    launch(include_str!("slots.ttir"), &arguments, [4, 1, 1]).unwrap();
    let expected = [(0, 17), (0, 40), (1, 3), (2, 0), (2, 31)];
    let expected = expected.map(|(row, at)| i64::from(blocks[row * 4 + at / block]) * 16 + (at % block) as i64);
    assert_eq!(slots[..5], expected);
    assert!(slots[5..].iter().all(|slot| *slot == -1));
}

#[test]
fn programs_add_to_the_same_place_one_after_the_other() {
    let (mut sum, mut last) = ([0.0_f32], [7_i32]);
    let text = module(
        "%s: !tt.ptr<f32>, %l: !tt.ptr<i32>",
        "%true = arith.constant true
         %n = tt.get_program_id y : i32
         %c7 = arith.constant 7 : i32
         %c8 = arith.constant 8 : i32
         %f = arith.sitofp %n : i32 to f32
         %old = tt.atomic_rmw fadd, acq_rel, gpu, %s, %f, %true : (!tt.ptr<f32>, f32, i1) -> f32
         %was = tt.atomic_cas acq_rel, gpu, %l, %c7, %c8 : (!tt.ptr<i32>, i32, i32) -> i32
         %before = tt.atomic_rmw add, relaxed, cta, %l, %was, %true : (!tt.ptr<i32>, i32, i1) -> i32",
    );
    launch(&text, &[address(&mut sum), address(&mut last)], [1, 4, 1]).unwrap();
    assert_eq!(sum, [6.0]);
    // 7 becomes 8 once; then 7 is added, and the value is doubled three times.
    assert_eq!(last, [15 * 8]);
}

#[test]
fn functions_are_called_with_their_arguments() {
    let text = "module {
        tt.func public @kernel(%y: !tt.ptr<i32>, %x: i32) {
          %r = tt.call @twice(%x) : (i32) -> i32
          tt.store %y, %r : !tt.ptr<i32>
          tt.return
        }
        tt.func private @twice(%x: i32) -> i32 attributes {noinline = true} {
          %r = arith.addi %x, %x : i32
          tt.return %r : i32
        }
      }";
    let mut out = [0_i32];
    launch(text, &[address(&mut out), Argument::Integer(21)], [1; 3]).unwrap();
    assert_eq!(out, [42]);
    let recursive = text.replace("arith.addi %x, %x : i32", "tt.call @twice(%x) : (i32) -> i32");
    assert_eq!(Kernel::read(&recursive).unwrap_err(), Unreadable::Unknown("recursion of twice".into()));
}

#[test]
fn what_depends_on_absent_values_is_absent() {
    let (mut from, mut to) = ([1_i32, 2, 3], [0_i32; 3]);
    let text = module(
        "%x: !tt.ptr<i32>, %y: !tt.ptr<i32>",
        "%n = tt.get_program_id x : i32
         %p = tt.addptr %x, %n : !tt.ptr<i32>, i32
         %v = tt.load %p : !tt.ptr<i32>
         %q = tt.addptr %y, %n : !tt.ptr<i32>, i32
         tt.store %q, %v : !tt.ptr<i32>",
    );
    let kernel = Kernel::read(&text).unwrap();
    let arguments = [address(&mut from), address(&mut to)];
    let middle = from.as_ptr() as usize + 4;
    let uncomputed = middle..middle + 4;
    // SAFETY: the kernel's accesses stay in the vectors.
    let written =
        unsafe { kernel.run(&arguments, [3, 1, 1], std::slice::from_ref(&uncomputed), &mut || true, &mut |_| ()) };
    let place = to.as_ptr() as usize + 4;
    assert_eq!(written.unwrap(), std::iter::once(place..place + 4).collect::<Vec<_>>());
    assert_eq!(to, [1, 2, 3]);
}

#[test]
fn what_goes_on_for_ever_can_be_interrupted() {
    let text = module(
        "",
        "%true = arith.constant true
         scf.while : () -> () {
           scf.condition(%true)
         } do {
           scf.yield
         }",
    );
    let kernel = Kernel::read(&text).unwrap();
    let mut asked = 0;
    let mut goes_on = || {
        asked += 1;
        asked < 3
    };
    // SAFETY: the kernel has no loads and stores, so no address must be valid.
    assert_eq!(unsafe { kernel.run(&[], [1; 3], &[], &mut goes_on, &mut |_| ()) }, Err(Stopped::Interrupted));
}

#[test]
fn a_kernel_ends_where_an_assertion_fails() {
    let (mut from, mut to) = ([5_i32, -1], [0_i32; 2]);
    let text = module(
        "%x: !tt.ptr<i32>, %y: !tt.ptr<i32>",
        "%n = tt.get_program_id x : i32
         %zero = arith.constant 0 : i32
         %p = tt.addptr %x, %n : !tt.ptr<i32>, i32
         %v = tt.load %p : !tt.ptr<i32>
         %fits = arith.cmpi sge, %v, %zero : i32
         tt.assert %fits, \"index out of bounds: 0 <= v\" : i1 loc(#loc)
         %q = tt.addptr %y, %n : !tt.ptr<i32>, i32
         tt.store %q, %v : !tt.ptr<i32>",
    );
    let stopped = launch(&text, &[address(&mut from), address(&mut to)], [2, 1, 1]).unwrap_err();
    assert_eq!(stopped.to_string(), "assertion failed: index out of bounds: 0 <= v");
    assert_eq!(to, [5, 0]);
}

#[test]
fn parameters_are_named_and_counted() {
    let text = module("%x: !tt.ptr<bf16> {tt.divisibility = 16 : i32} loc(\"x\"(#loc)), %n: i64 loc(\"n\"(#loc))", "");
    let kernel = Kernel::read(&text).unwrap();
    assert_eq!(kernel.parameters().collect::<Vec<_>>(), [("x", Scalar::Pointer), ("n", Scalar::Int(64))]);
    let error = launch(&text, &[Argument::Integer(0)], [1; 3]).unwrap_err();
    assert_eq!(error.to_string(), "it has 2 parameters and was given 1");
}

#[rstest]
#[case(
    "%r = tt.elementwise_inline_asm \"add $0;\" {packed_element = 1 : i32, pure = true} %n : i32 -> i32",
    "tt.elementwise_inline_asm  is not known"
)]
#[case(
    "%f = arith.sitofp %n : i32 to f32\n%r = arith.truncf %f toward_zero : f32 to f16",
    "`toward_zero` of arith.truncf is not known"
)]
#[case(
    "%r = tt.expand_dims %n {axis = 0 : i32, sparse = true} : i32 -> tensor<1xi32>",
    "`sparse` of tt.expand_dims is not known"
)]
#[case("%r = tt.bitcast %n : i32 -> f8E4M3B11FNUZ", "type f8E4M3B11FNUZ is not known")]
#[case("%r = arith.addi %n : i32", "line 5: expected other operands of arith.addi, found \"tt.return loc(#loc)\"")]
#[case("%r = arith.addi %n, %m : i32", "line 6: expected a definition of %m, found \"\"")]
#[case(
    "%r = arith.constant dense<[1, 2]> : tensor<3xi32>",
    "line 4: expected a constant of this type, found \"tt.return loc(#loc)\""
)]
#[case("cf.br ^bb7", "line 6: expected a block that there is, found \"tt.return loc(#loc)\"")]
fn what_is_not_known_is_refused_before_anything_is_written(#[case] body: &str, #[case] expected: &str) {
    let text = module("%n: i32", body);
    let said = Kernel::read(&text).unwrap_err().to_string();
    assert!(said.starts_with(expected.split(", found").next().unwrap()), "{said}");
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(module \\{|tt.func public @k\\(|%a|: i32|\\)|\\{|\\}|\\^bb0|scf.for|=|tensor<4xi32>|\"|loc\\(|\n|[ -~]){0,60}") {
        let _ = Kernel::read(&text);
    }

    #[test]
    fn a_text_that_is_cut_off_is_refused(length in 0_usize..400) {
        let text = module("%x: !tt.ptr<i32>, %n: i32", "%c = arith.constant dense<[1, 2]> : tensor<2xi32>\nscf.for %i = %n to %n step %n : i32 {\n}\n");
        let length = length % (text.rfind('}').unwrap());
        prop_assert!(Kernel::read(&text[..length]).is_err());
    }
}

/// Rounds to nearest, ties to even, also into the exponent; numbers that are too large become the largest.
#[test]
fn numbers_of_eight_bits_are_rounded_and_never_overflow() {
    let cast = |to: &str, a: &mut [f32]| -> Vec<u8> {
        let count = a.len();
        let body = format!("%r = tt.fp_to_fp %a, rounding = rtne : tensor<T> -> tensor<{count}x{to}>");
        calculated(&body, ["f32", to], a, &mut vec![0.0; count])
    };
    let mut given = [1.0, 1.0625, 1.1875, 1.97, -3.9, 500.0, f32::NEG_INFINITY, f32::NAN, 0.001];
    assert_eq!(cast("f8E4M3FN", &mut given), [0x38, 0x38, 0x3a, 0x40, 0xc8, 0x7e, 0xfe, 0x7f, 0x01]);
    let mut given = [1.0, 1.125, 1.375, 1.97, -3.9, 1e6, f32::NEG_INFINITY, 0.001];
    assert_eq!(cast("f8E5M2", &mut given), [0x3c, 0x3c, 0x3e, 0x40, 0xc4, 0x7b, 0xfb, 0x14]);
    let mut bits = [0x38_u8, 0xc8, 0x7e, 0x01];
    let body = "%r = tt.fp_to_fp %a : tensor<T> -> tensor<4xf32>";
    let back: Vec<f32> = calculated(body, ["f8E4M3FN", "f32"], &mut bits, &mut [0; 4]);
    assert_eq!(back, [1.0, -4.0, 448.0, 0.001953125]);
}

#[rstest]
#[case::of_a_vector(
    r#"tt.print " x: " {hex = false, isSigned = array<i32: 1>} : %r : tensor<2xi32>"#,
    "pid (0, 0, 0) idx (0) x: 4\npid (0, 0, 0) idx (1) x: 5\npid (1, 0, 0) idx (0) x: 4\npid (1, 0, 0) idx (1) x: 5\n"
)]
#[case::of_a_scalar(
    r#"tt.print " n: " {hex = true, isSigned = array<i32: 1>} : %n : i32"#,
    "pid (0, 0, 0) idx () n: 0x00000000\npid (1, 0, 0) idx () n: 0x00000001\n"
)]
#[case::of_several(
    r#"tt.print ": " {hex = false, isSigned = array<i32: 0, 1>} : %m, %half : i8, f32"#,
    "pid (0, 0, 0) idx (): (operand 0) 255\npid (0, 0, 0) idx (): (operand 1) 0.500000\n\
     pid (1, 0, 0) idx (): (operand 0) 255\npid (1, 0, 0) idx (): (operand 1) 0.500000\n"
)]
#[case::of_nothing(
    r#"tt.print " here" {hex = false, isSigned = array<i32>}"#,
    "pid (0, 0, 0) idx () here\npid (1, 0, 0) idx () here\n"
)]
fn a_kernel_prints_a_line_for_each_element(#[case] print: &str, #[case] expected: &str) {
    let text = module(
        "",
        &format!(
            "%n = tt.get_program_id x : i32
             %m = arith.constant -1 : i8
             %half = arith.constant 5.000000e-01 : f32
             %i = tt.make_range {{end = 2 : i32, start = 0 : i32}} : tensor<2xi32>
             %c = arith.constant dense<4> : tensor<2xi32>
             %r = arith.addi %i, %c : tensor<2xi32>
             {print}"
        ),
    );
    let kernel = Kernel::read(&text).unwrap();
    let mut printed = String::new();
    // SAFETY: the kernel has no loads and stores, so no address must be valid.
    let done = unsafe { kernel.run(&[], [2, 1, 1], &[], &mut || true, &mut |text| printed.push_str(text)) };
    assert_eq!((done, printed.as_str()), (Ok(Vec::new()), expected));
}
