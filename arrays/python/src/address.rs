//! The address of an array's elements.

use std::ffi::{c_char, c_int, c_void};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// `PyArrayInterface` of NumPy's array interface protocol, version 3.
#[repr(C)]
struct ArrayInterface {
    /// Always 2.
    two: c_int,
    dimensions: c_int,
    kind: c_char,
    item_size: c_int,
    flags: c_int,
    shape: *const isize,
    strides: *const isize,
    data: *mut c_void,
}

/// The address of the first element of a NumPy array. `__array_interface__` has it too, but makes a dictionary each
/// time, which takes longer than a small array's transfer.
///
/// Raises TypeError if `array` has no array interface.
#[pyfunction]
pub(crate) fn address_of(array: &Bound<'_, PyAny>) -> PyResult<usize> {
    let capsule = array.getattr(pyo3::intern!(array.py(), "__array_struct__"))?.cast_into::<PyCapsule>()?;
    let interface = capsule.pointer().cast::<ArrayInterface>();
    // SAFETY: the protocol says what a capsule of this attribute points to for as long as the capsule exists.
    match unsafe { interface.as_ref() } {
        Some(interface) if interface.two == 2 => Ok(interface.data as usize),
        _ => Err(PyTypeError::new_err("the array's __array_struct__ is no array interface")),
    }
}
