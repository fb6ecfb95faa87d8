//! The runs of this process whose pieces are not over: `lb_runs_…`.

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The addresses of runs, of the caller's own type. Only the caller uses what is there.
static RUNS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The caller's function that moves the pieces of a run.
type Advance = unsafe extern "C" fn(run: *mut c_void, moved: *mut c_int, over: *mut c_int) -> c_int;

fn runs() -> MutexGuard<'static, Vec<usize>> {
    RUNS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn lb_runs_enter(run: *mut c_void) {
    runs().push(run as usize);
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn lb_runs_leave(run: *mut c_void) {
    runs().retain(|other| *other != run as usize);
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn lb_runs_count() -> i64 {
    runs().len() as i64
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`: all runs that have entered and not left are valid, and `advance`
/// calls none of these functions.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_runs_advance(advance: Option<Advance>, moved: *mut c_int) -> c_int {
    // SAFETY: the caller's promise.
    let (Some(advance), Some(moved)) = (advance, unsafe { moved.as_mut() }) else { return 0 };
    let mut first = 0;
    runs().retain(|run| {
        let mut over = 0;
        // SAFETY: the caller's promise.
        let code = unsafe { advance(*run as *mut c_void, moved, &mut over) };
        first = if first == 0 { code } else { first };
        over == 0
    });
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn step(run: *mut c_void, moved: *mut c_int, over: *mut c_int) -> c_int {
        // SAFETY: the test passes numbers.
        let (left, moved, over) = unsafe { (&mut *run.cast::<i32>(), &mut *moved, &mut *over) };
        *left -= 1;
        (*moved, *over) = (1, c_int::from(*left == 0));
        c_int::from(*left < 0)
    }

    #[test]
    fn each_run_is_advanced_until_it_is_over_or_leaves() {
        let mut left = [1i32, 3, 9];
        let [a, b, c] = left.each_mut().map(|left| std::ptr::from_mut(left).cast::<c_void>());
        for run in [a, b, c] {
            lb_runs_enter(run);
        }
        let mut moved = 0;
        // SAFETY: the numbers outlive their places in the list.
        let mut advance = || unsafe { lb_runs_advance(Some(step), &mut moved) };
        assert_eq!(advance(), 0);
        assert_eq!(lb_runs_count(), 2);
        lb_runs_leave(c);
        assert_eq!([advance(), advance(), advance()], [0; 3]);
        assert_eq!(lb_runs_count(), 0);
        assert_eq!((left, moved), ([0, 0, 8], 1));
    }
}
