//! libfabric's atomic operations, element by element on bytes.
//!
//! Knows `enum fi_datatype` and `enum fi_op` (fi_atomic(3)), not regions or messages. Atomicity comes from the caller,
//! who holds the region's lock. Elements need not be aligned.
//!
//! Supported: integers of 8 to 128 bits, `float`, `double` and their complex forms. Not supported: `long double` and
//! its complex form (no safe portable arithmetic on them), and the 16- and 8-bit floating point types, which libfabric
//! defines for collectives.

use thiserror::Error;

/// Operands and result of an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Operand in, nothing back.
    Write,
    /// Operand in (none for `FI_ATOMIC_READ`), old value back.
    Fetch,
    /// Operand and compare operand in, old value back.
    Compare,
}

/// Reasons why an operation was not applied. The target is then unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unsupported {
    /// This operation is not defined on this datatype.
    #[error("atomic operation {operation} is not supported on datatype {datatype}")]
    Combination {
        /// `enum fi_datatype`.
        datatype: u8,
        /// `enum fi_op`.
        operation: u8,
    },
    /// The operands or compare operands differ in length from the target, or the target ends inside an element.
    #[error("lengths do not match: {target} bytes of target, {operands} of operands, {compares} of compare operands")]
    Lengths {
        target: usize,
        /// Bytes of operands.
        operands: usize,
        /// Bytes of compare operands.
        compares: usize,
    },
}

/// `enum fi_op`.
pub mod op {
    pub const MIN: u8 = 0;
    pub const MAX: u8 = 1;
    pub const SUM: u8 = 2;
    pub const PROD: u8 = 3;
    pub const LOR: u8 = 4;
    pub const LAND: u8 = 5;
    pub const BOR: u8 = 6;
    pub const BAND: u8 = 7;
    pub const LXOR: u8 = 8;
    pub const BXOR: u8 = 9;
    pub const READ: u8 = 10;
    pub const WRITE: u8 = 11;
    pub const CSWAP: u8 = 12;
    pub const CSWAP_NE: u8 = 13;
    pub const CSWAP_LE: u8 = 14;
    pub const CSWAP_LT: u8 = 15;
    pub const CSWAP_GE: u8 = 16;
    pub const CSWAP_GT: u8 = 17;
    pub const MSWAP: u8 = 18;
    pub const DIFF: u8 = 19;
}

/// Bytes of one element of an `enum fi_datatype`; `None` if it is not supported at all.
pub fn size(datatype: u8) -> Option<usize> {
    Some(match datatype {
        0 | 1 => 1,
        2 | 3 => 2,
        4 | 5 | 8 => 4,
        6 | 7 | 9 | 10 => 8,
        11 | 14 | 15 => 16,
        _ => return None,
    })
}

/// True if [`apply`] supports this operation on this datatype, and the operation exists in this form.
pub fn supported(datatype: u8, operation: u8, form: Form) -> bool {
    let right_form = match form {
        Form::Write => operation < op::READ || matches!(operation, op::WRITE | op::DIFF),
        Form::Fetch => operation <= op::WRITE || operation == op::DIFF,
        Form::Compare => (op::CSWAP..=op::MSWAP).contains(&operation),
    };
    right_form && defined(datatype, operation)
}

fn defined(datatype: u8, operation: u8) -> bool {
    match datatype {
        0..=7 | 14 | 15 => operation <= op::DIFF,
        8 | 9 => operation <= op::DIFF && !matches!(operation, op::BOR | op::BAND | op::BXOR | op::MSWAP),
        // Complex numbers have no order and no bits.
        10 | 11 => matches!(
            operation,
            op::SUM
                | op::PROD
                | op::DIFF
                | op::LOR
                | op::LAND
                | op::LXOR
                | op::READ
                | op::WRITE
                | op::CSWAP
                | op::CSWAP_NE
        ),
        _ => false,
    }
}

/// Applies an operation to every element of `target`. Appends the previous bytes to `old`.
///
/// `operands` is as long as `target` (may be empty for `FI_ATOMIC_READ`). So is `compares` for compare-and-swaps and
/// `FI_MSWAP`; otherwise it is ignored. Integers wrap around.
///
/// # Errors
/// [`Unsupported`]; nothing has then changed.
pub fn apply(
    datatype: u8,
    operation: u8,
    target: &mut [u8],
    operands: &[u8],
    compares: &[u8],
    old: &mut Vec<u8>,
) -> Result<(), Unsupported> {
    let Some(size) = size(datatype).filter(|_| defined(datatype, operation)) else {
        return Err(Unsupported::Combination { datatype, operation });
    };
    let wants_operand = operation != op::READ;
    let wants_compare = (op::CSWAP..=op::MSWAP).contains(&operation);
    if !target.len().is_multiple_of(size)
        || (wants_operand && operands.len() != target.len())
        || (wants_compare && compares.len() != target.len())
    {
        return Err(Unsupported::Lengths { target: target.len(), operands: operands.len(), compares: compares.len() });
    }
    old.extend_from_slice(target);
    match operation {
        op::READ => {}
        op::WRITE => target.copy_from_slice(operands),
        _ => {
            let compares = wants_compare.then_some(compares);
            match datatype {
                0 => each::<i8, 1>(operation, target, operands, compares),
                1 => each::<u8, 1>(operation, target, operands, compares),
                2 => each::<i16, 2>(operation, target, operands, compares),
                3 => each::<u16, 2>(operation, target, operands, compares),
                4 => each::<i32, 4>(operation, target, operands, compares),
                5 => each::<u32, 4>(operation, target, operands, compares),
                6 => each::<i64, 8>(operation, target, operands, compares),
                7 => each::<u64, 8>(operation, target, operands, compares),
                8 => each::<f32, 4>(operation, target, operands, compares),
                9 => each::<f64, 8>(operation, target, operands, compares),
                10 => each::<Complex<f32>, 8>(operation, target, operands, compares),
                11 => each::<Complex<f64>, 16>(operation, target, operands, compares),
                14 => each::<i128, 16>(operation, target, operands, compares),
                _ => each::<u128, 16>(operation, target, operands, compares),
            }
        }
    }
    Ok(())
}

/// A datatype whose elements take `N` bytes.
trait Element<const N: usize>: Copy + PartialEq {
    fn from_bytes(bytes: [u8; N]) -> Self;
    fn to_bytes(self) -> [u8; N];
    fn truth(self) -> bool;
    fn from_truth(truth: bool) -> Self;
    /// The operations that differ between datatypes: arithmetic, order, bits. `None` where undefined.
    fn combine(operation: u8, target: Self, operand: Self, compare: Self) -> Option<Self>;
}

fn each<T: Element<N>, const N: usize>(operation: u8, target: &mut [u8], operands: &[u8], compares: Option<&[u8]>) {
    let (elements, _) = target.as_chunks_mut::<N>();
    let (operands, _) = operands.as_chunks::<N>();
    let (compares, _) = compares.unwrap_or_default().as_chunks::<N>();
    for (index, (element, operand)) in elements.iter_mut().zip(operands).enumerate() {
        let (target, operand) = (T::from_bytes(*element), T::from_bytes(*operand));
        let compare = compares.get(index).map_or(target, |bytes| T::from_bytes(*bytes));
        if let Some(value) = one(operation, target, operand, compare) {
            *element = value.to_bytes();
        }
    }
}

fn one<T: Element<N>, const N: usize>(operation: u8, target: T, operand: T, compare: T) -> Option<T> {
    match operation {
        op::LOR => Some(T::from_truth(target.truth() || operand.truth())),
        op::LAND => Some(T::from_truth(target.truth() && operand.truth())),
        op::LXOR => Some(T::from_truth(target.truth() != operand.truth())),
        op::CSWAP => (compare == target).then_some(operand),
        op::CSWAP_NE => (compare != target).then_some(operand),
        _ => T::combine(operation, target, operand, compare),
    }
}

macro_rules! ordered {
    ($operation:expr, $target:expr, $operand:expr, $compare:expr) => {
        match $operation {
            op::MIN => ($operand < $target).then_some($operand),
            op::MAX => ($operand > $target).then_some($operand),
            op::CSWAP_LE => ($compare <= $target).then_some($operand),
            op::CSWAP_LT => ($compare < $target).then_some($operand),
            op::CSWAP_GE => ($compare >= $target).then_some($operand),
            op::CSWAP_GT => ($compare > $target).then_some($operand),
            _ => None,
        }
    };
}

macro_rules! integers {
    ($($type:ty: $size:literal),*) => {$(
        impl Element<$size> for $type {
            fn from_bytes(bytes: [u8; $size]) -> Self {
                <$type>::from_ne_bytes(bytes)
            }
            fn to_bytes(self) -> [u8; $size] {
                self.to_ne_bytes()
            }
            fn truth(self) -> bool {
                self != 0
            }
            fn from_truth(truth: bool) -> Self {
                <$type>::from(truth)
            }
            fn combine(operation: u8, target: Self, operand: Self, compare: Self) -> Option<Self> {
                match operation {
                    op::SUM => Some(target.wrapping_add(operand)),
                    op::DIFF => Some(target.wrapping_sub(operand)),
                    op::PROD => Some(target.wrapping_mul(operand)),
                    op::BOR => Some(target | operand),
                    op::BAND => Some(target & operand),
                    op::BXOR => Some(target ^ operand),
                    op::MSWAP => Some((operand & compare) | (target & !compare)),
                    _ => ordered!(operation, target, operand, compare),
                }
            }
        }
    )*};
}

integers!(i8: 1, u8: 1, i16: 2, u16: 2, i32: 4, u32: 4, i64: 8, u64: 8, i128: 16, u128: 16);

#[derive(Clone, Copy, PartialEq)]
struct Complex<F> {
    real: F,
    imaginary: F,
}

macro_rules! floats {
    ($($type:ty: $size:literal, complex $double:literal),*) => {$(
        impl Element<$size> for $type {
            fn from_bytes(bytes: [u8; $size]) -> Self {
                <$type>::from_ne_bytes(bytes)
            }
            fn to_bytes(self) -> [u8; $size] {
                self.to_ne_bytes()
            }
            fn truth(self) -> bool {
                self != 0.0
            }
            fn from_truth(truth: bool) -> Self {
                if truth { 1.0 } else { 0.0 }
            }
            fn combine(operation: u8, target: Self, operand: Self, compare: Self) -> Option<Self> {
                match operation {
                    op::SUM => Some(target + operand),
                    op::DIFF => Some(target - operand),
                    op::PROD => Some(target * operand),
                    _ => ordered!(operation, target, operand, compare),
                }
            }
        }

        impl Element<$double> for Complex<$type> {
            fn from_bytes(bytes: [u8; $double]) -> Self {
                let (mut real, mut imaginary) = ([0; $size], [0; $size]);
                real.copy_from_slice(&bytes[..$size]);
                imaginary.copy_from_slice(&bytes[$size..]);
                Complex { real: <$type>::from_ne_bytes(real), imaginary: <$type>::from_ne_bytes(imaginary) }
            }
            fn to_bytes(self) -> [u8; $double] {
                let mut bytes = [0; $double];
                bytes[..$size].copy_from_slice(&self.real.to_ne_bytes());
                bytes[$size..].copy_from_slice(&self.imaginary.to_ne_bytes());
                bytes
            }
            fn truth(self) -> bool {
                self.real != 0.0 || self.imaginary != 0.0
            }
            fn from_truth(truth: bool) -> Self {
                Complex { real: <$type as Element<$size>>::from_truth(truth), imaginary: 0.0 }
            }
            fn combine(operation: u8, target: Self, operand: Self, _: Self) -> Option<Self> {
                let (a, b) = (target, operand);
                match operation {
                    op::SUM => Some(Complex { real: a.real + b.real, imaginary: a.imaginary + b.imaginary }),
                    op::DIFF => Some(Complex { real: a.real - b.real, imaginary: a.imaginary - b.imaginary }),
                    op::PROD => Some(Complex {
                        real: a.real * b.real - a.imaginary * b.imaginary,
                        imaginary: a.real * b.imaginary + a.imaginary * b.real,
                    }),
                    _ => None,
                }
            }
        }
    )*};
}

floats!(f32: 4, complex 8, f64: 8, complex 16);

#[cfg(test)]
mod tests;
