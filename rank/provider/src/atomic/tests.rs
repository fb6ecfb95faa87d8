use super::*;

#[test]
fn limits_count_operands_and_compare_operands() {
    const DOUBLE: c_int = 9;
    let most = |operation: u8, form| AtomicAction::new(DOUBLE, c_int::from(operation), form).map(AtomicAction::most);
    assert_eq!(most(atomic::op::SUM, Form::Write), Ok(MAX_ATOMIC / 8));
    assert_eq!(most(atomic::op::CSWAP, Form::Compare), Ok(MAX_ATOMIC / 16));
    assert_eq!(most(atomic::op::BOR, Form::Write), Err(EOPNOTSUPP));
    assert_eq!(AtomicAction::new(300, 0, Form::Write).map(AtomicAction::most), Err(EOPNOTSUPP));
}

#[test]
fn pieces_must_add_up() {
    let pieces = [piece(std::ptr::null(), 2)[0], piece(std::ptr::null(), usize::MAX)[0]];
    assert_eq!(check_count(&pieces[..1], 2), Ok(()));
    assert_eq!(check_count(&pieces[..1], 3), Err(EINVAL));
    assert_eq!(check_count(&pieces, 1), Err(EINVAL), "overflow");
}
