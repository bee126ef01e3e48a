//! Owns the functions of floating-point numbers.

/// A function of one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Math1 {
    Negate,
    Absolute,
    Exp,
    Exp2,
    ExpLess1,
    Log,
    Log2,
    Log10,
    LogOf1More,
    SquareRoot,
    InverseSquareRoot,
    CubeRoot,
    Sin,
    Cos,
    Tan,
    Arcsine,
    Arccosine,
    ArctangentOf1,
    Sinh,
    Cosh,
    Tanh,
    Erf,
    Erfc,
    Floor,
    Ceil,
    Truncate,
    /// Rounds half away from zero.
    Round,
    RoundEven,
}

/// A function of two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Math2 {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    /// The minimum, which is NaN only if both numbers are.
    Least,
    Most,
    LeastOrNan,
    MostOrNan,
    Power,
    Arctangent,
    CopySign,
}

impl Math1 {
    /// The function with this name in the dialect `math`.
    pub(crate) fn of_dialect(name: &str) -> Option<Math1> {
        Some(match name {
            "absf" => Math1::Absolute,
            "exp" => Math1::Exp,
            "exp2" => Math1::Exp2,
            "expm1" => Math1::ExpLess1,
            "log" => Math1::Log,
            "log2" => Math1::Log2,
            "log10" => Math1::Log10,
            "log1p" => Math1::LogOf1More,
            "sqrt" => Math1::SquareRoot,
            "rsqrt" => Math1::InverseSquareRoot,
            "cbrt" => Math1::CubeRoot,
            "sin" => Math1::Sin,
            "cos" => Math1::Cos,
            "tan" => Math1::Tan,
            "asin" => Math1::Arcsine,
            "acos" => Math1::Arccosine,
            "atan" => Math1::ArctangentOf1,
            "sinh" => Math1::Sinh,
            "cosh" => Math1::Cosh,
            "tanh" => Math1::Tanh,
            "erf" => Math1::Erf,
            "erfc" => Math1::Erfc,
            "floor" => Math1::Floor,
            "ceil" => Math1::Ceil,
            "trunc" => Math1::Truncate,
            "round" => Math1::Round,
            "roundeven" => Math1::RoundEven,
            _ => return None,
        })
    }
}

/// Operations of both precisions.
pub(crate) trait Number: Copy + PartialOrd {
    fn math1(self, function: Math1) -> Self;
    fn math2(self, function: Math2, other: Self) -> Self;
    fn multiply_add(self, by: Self, and: Self) -> Self;
    fn is_nan(self) -> bool;
}

macro_rules! number {
    ($of:ty, $($function:ident = $library:ident),*) => {
        impl Number for $of {
            #[inline]
            fn math1(self, function: Math1) -> Self {
                match function {
                    Math1::Negate => -self,
                    Math1::Absolute => self.abs(),
                    Math1::SquareRoot => self.sqrt(),
                    Math1::InverseSquareRoot => 1.0 / self.sqrt(),
                    Math1::Floor => self.floor(),
                    Math1::Ceil => self.ceil(),
                    Math1::Truncate => self.trunc(),
                    Math1::Round => self.round(),
                    Math1::RoundEven => self.round_ties_even(),
                    // The C library's functions differ between machines.
                    $(Math1::$function => libm::$library(self),)*
                }
            }

            #[inline]
            fn math2(self, function: Math2, other: Self) -> Self {
                match function {
                    Math2::Add => self + other,
                    Math2::Subtract => self - other,
                    Math2::Multiply => self * other,
                    Math2::Divide => self / other,
                    Math2::Remainder => self % other,
                    Math2::Least => self.min(other),
                    Math2::Most => self.max(other),
                    Math2::LeastOrNan if self.is_nan() || other.is_nan() => <$of>::NAN,
                    Math2::MostOrNan if self.is_nan() || other.is_nan() => <$of>::NAN,
                    Math2::LeastOrNan => self.min(other),
                    Math2::MostOrNan => self.max(other),
                    Math2::Power => libm::pow(f64::from(self), f64::from(other)) as $of,
                    Math2::Arctangent => libm::atan2(f64::from(self), f64::from(other)) as $of,
                    Math2::CopySign => self.copysign(other),
                }
            }

            #[inline]
            fn multiply_add(self, by: Self, and: Self) -> Self {
                self.mul_add(by, and)
            }

            #[inline]
            fn is_nan(self) -> bool {
                <$of>::is_nan(self)
            }
        }
    };
}

number!(
    f32,
    Exp = expf,
    Exp2 = exp2f,
    ExpLess1 = expm1f,
    Log = logf,
    Log2 = log2f,
    Log10 = log10f,
    LogOf1More = log1pf,
    CubeRoot = cbrtf,
    Sin = sinf,
    Cos = cosf,
    Tan = tanf,
    Arcsine = asinf,
    Arccosine = acosf,
    ArctangentOf1 = atanf,
    Sinh = sinhf,
    Cosh = coshf,
    Tanh = tanhf,
    Erf = erff,
    Erfc = erfcf
);
number!(
    f64,
    Exp = exp,
    Exp2 = exp2,
    ExpLess1 = expm1,
    Log = log,
    Log2 = log2,
    Log10 = log10,
    LogOf1More = log1p,
    CubeRoot = cbrt,
    Sin = sin,
    Cos = cos,
    Tan = tan,
    Arcsine = asin,
    Arccosine = acos,
    ArctangentOf1 = atan,
    Sinh = sinh,
    Cosh = cosh,
    Tanh = tanh,
    Erf = erf,
    Erfc = erfc
);
