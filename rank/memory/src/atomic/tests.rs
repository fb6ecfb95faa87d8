use super::*;

const INT32: u8 = 4;
const FLOAT: u8 = 8;
const DOUBLE: u8 = 9;

/// One element: target, operand, compare operand in; new target out. The element lies at an odd address.
fn run<const N: usize>(datatype: u8, operation: u8, values: [[u8; N]; 3]) -> Result<[u8; N], Unsupported> {
    let [target, operand, compare] = values;
    let odd = |bytes: [u8; N]| [&[0xEE][..], &bytes].concat();
    let (mut target, operand, compare) = (odd(target), odd(operand), odd(compare));
    let (before, mut old) = (target.clone(), vec![9]);
    let outcome = apply(datatype, operation, &mut target[1..], &operand[1..], &compare[1..], &mut old);
    match outcome {
        Ok(()) => assert_eq!((old[0], &old[1..]), (9, &before[1..])),
        Err(_) => assert_eq!((&target, old), (&before, vec![9])),
    }
    outcome.map(|()| target[1..].try_into().unwrap())
}

macro_rules! table {
    (
        $name:ident, $type:ty, $datatype:expr,
        [$(($op:ident, $target:expr, $operand:expr, $compare:expr) => $expected:expr),* $(,)?]
    ) => {
        #[test]
        fn $name() {
            $({
                let values: [$type; 3] = [$target, $operand, $compare];
                let result = run($datatype, op::$op, values.map(|v| v.to_ne_bytes())).map(<$type>::from_ne_bytes);
                assert_eq!(result, Ok($expected), "{}{values:?}", stringify!($op));
            })*
        }
    };
}

table!(signed_integers, i32, INT32, [
    (MIN, 3, -4, 0) => -4, (MIN, -4, 3, 0) => -4, (MAX, 3, -4, 0) => 3, (MAX, -4, 3, 0) => 3,
    (SUM, i32::MAX, 1, 0) => i32::MIN, (DIFF, i32::MIN, 1, 0) => i32::MAX, (PROD, -3, 7, 0) => -21,
    (LOR, 0, 5, 0) => 1, (LOR, 0, 0, 0) => 0, (LAND, 4, 2, 0) => 1, (LAND, 4, 0, 0) => 0,
    (LXOR, 4, 2, 0) => 0, (LXOR, 0, 2, 0) => 1,
    (BOR, 0b1100, 0b1010, 0) => 0b1110, (BAND, 0b1100, 0b1010, 0) => 0b1000, (BXOR, 0b1100, 0b1010, 0) => 0b0110,
    (READ, 8, 1, 0) => 8, (WRITE, 8, 1, 0) => 1,
    (CSWAP, 8, 1, 8) => 1, (CSWAP, 8, 1, 7) => 8, (CSWAP_NE, 8, 1, 8) => 8, (CSWAP_NE, 8, 1, 7) => 1,
    (CSWAP_LE, 8, 1, 8) => 1, (CSWAP_LE, 8, 1, 9) => 8, (CSWAP_LT, 8, 1, 8) => 8, (CSWAP_LT, 8, 1, -9) => 1,
    (CSWAP_GE, 8, 1, 8) => 1, (CSWAP_GE, 8, 1, 7) => 8, (CSWAP_GT, 8, 1, 8) => 8, (CSWAP_GT, 8, 1, 9) => 1,
    (MSWAP, 0x1234, 0x5678, 0x0FF0) => 0x1674,
]);

table!(unsigned_bytes, u8, 1, [(SUM, 250, 10, 0) => 4, (MAX, 200, 100, 0) => 200, (PROD, 16, 17, 0) => 16]);
table!(signed_bytes, i8, 0, [(MAX, -56, 100, 0) => 100, (DIFF, -128, 1, 0) => 127]);
table!(shorts, i16, 2, [(SUM, i16::MAX, 1, 0) => i16::MIN]);
table!(unsigned_shorts, u16, 3, [(MIN, 0x8000, 1, 0) => 1]);
table!(unsigned_words, u32, 5, [(MAX, 0x8000_0000, 1, 0) => 0x8000_0000]);
table!(longs, i64, 6, [(SUM, 1 << 40, 1 << 41, 0) => 3 << 40, (CSWAP, -1, 5, -1) => 5]);
table!(unsigned_longs, u64, 7, [(MIN, u64::MAX, 3, 0) => 3]);
table!(long_longs, i128, 14, [(SUM, 1 << 100, 1 << 100, 0) => 1 << 101, (MIN, -1, 1, 0) => -1]);
table!(unsigned_long_longs, u128, 15, [(MAX, u128::MAX, 1, 0) => u128::MAX]);
table!(floats, f32, FLOAT, [
    (SUM, 1.5, 2.0, 0.0) => 3.5, (DIFF, 1.5, 2.0, 0.0) => -0.5, (PROD, 1.5, 2.0, 0.0) => 3.0,
    (MIN, 1.5, -2.0, 0.0) => -2.0, (MAX, 1.5, 2.0, 0.0) => 2.0, (LAND, 0.5, 3.0, 0.0) => 1.0,
    (CSWAP, 1.5, 9.0, 1.5) => 9.0, (CSWAP_GT, 1.5, 9.0, 1.25) => 1.5,
]);
table!(doubles, f64, DOUBLE, [
    (SUM, 0.5, 0.25, 0.0) => 0.75, (CSWAP_NE, 1.0, 2.0, 3.0) => 2.0, (LXOR, 0.0, 2.0, 0.0) => 1.0,
    (MIN, 1.0, f64::NAN, 0.0) => 1.0,
]);

fn complex(real: f64, imaginary: f64) -> [u8; 16] {
    [real.to_ne_bytes(), imaginary.to_ne_bytes()].concat().try_into().unwrap()
}

#[test]
fn complex_numbers() {
    let values = [complex(1.0, 2.0), complex(3.0, -1.0), complex(1.0, 2.0)];
    assert_eq!(run(11, op::SUM, values), Ok(complex(4.0, 1.0)));
    assert_eq!(run(11, op::DIFF, values), Ok(complex(-2.0, 3.0)));
    assert_eq!(run(11, op::PROD, values), Ok(complex(5.0, 5.0)));
    assert_eq!(run(11, op::LAND, values), Ok(complex(1.0, 0.0)));
    assert_eq!(run(11, op::CSWAP, values), Ok(values[1]));
    assert_eq!(run(11, op::CSWAP_NE, values), Ok(values[0]));
    assert!(matches!(run(11, op::MIN, values), Err(Unsupported::Combination { datatype: 11, operation: op::MIN })));
    let single = |re: f32, im: f32| -> [u8; 8] { [re.to_ne_bytes(), im.to_ne_bytes()].concat().try_into().unwrap() };
    assert_eq!(run(10, op::PROD, [single(0.0, 1.0); 3]), Ok(single(-1.0, 0.0)));
}

#[test]
fn many_elements_each_on_its_own() {
    let bytes = |values: &[u16]| values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>();
    let (mut target, mut old) = (bytes(&[1, 2, 3, 4]), Vec::new());
    apply(3, op::CSWAP, &mut target, &bytes(&[9, 9, 9, 9]), &bytes(&[1, 0, 3, 0]), &mut old).unwrap();
    assert_eq!((target, old), (bytes(&[9, 2, 9, 4]), bytes(&[1, 2, 3, 4])));
}

#[test]
fn what_cannot_be_is_refused() {
    let mut old = Vec::new();
    for datatype in [12, 13, 16, 19, 255] {
        assert_eq!(size(datatype), None);
        assert!(matches!(run(datatype, op::SUM, [[0; 16]; 3]), Err(Unsupported::Combination { .. })));
    }
    assert!(matches!(run(INT32, 20, [[0; 4]; 3]), Err(Unsupported::Combination { .. })));
    assert!(matches!(run(DOUBLE, op::BOR, [[0; 8]; 3]), Err(Unsupported::Combination { .. })));
    assert!(matches!(run(DOUBLE, op::MSWAP, [[0; 8]; 3]), Err(Unsupported::Combination { .. })));
    let lengths = |target, operands, compares| Err(Unsupported::Lengths { target, operands, compares });
    assert_eq!(apply(INT32, op::SUM, &mut [0; 6], &[0; 6], &[], &mut old), lengths(6, 6, 0));
    assert_eq!(apply(INT32, op::SUM, &mut [0; 8], &[0; 4], &[], &mut old), lengths(8, 4, 0));
    assert_eq!(apply(INT32, op::CSWAP, &mut [0; 8], &[0; 8], &[0; 4], &mut old), lengths(8, 8, 4));
    assert_eq!(apply(INT32, op::READ, &mut [7; 4], &[], &[], &mut old), Ok(()));
    assert_eq!(old, [7; 4]);
}

#[test]
fn forms() {
    for (operation, forms) in [
        (op::SUM, [true, true, false]),
        (op::BXOR, [true, true, false]),
        (op::READ, [false, true, false]),
        (op::WRITE, [true, true, false]),
        (op::CSWAP, [false, false, true]),
        (op::MSWAP, [false, false, true]),
        (op::DIFF, [true, true, false]),
        (20, [false; 3]),
    ] {
        assert_eq!([Form::Write, Form::Fetch, Form::Compare].map(|f| supported(INT32, operation, f)), forms);
    }
    assert!(!supported(DOUBLE, op::MSWAP, Form::Compare));
    assert!(!supported(12, op::SUM, Form::Write), "long double");
}
