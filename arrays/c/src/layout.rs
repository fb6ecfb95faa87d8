//! Layouts: `lb_layout`.

use std::ffi::c_int;

use plan::redistribution::{Axis, AxisKind, AxisParameters, Grid, Halo, Layout, MemoryOrder};

use crate::asked::OwnLayout;
use crate::error::{Problem, at_border};
use crate::pointers::{free, given, hand_out, natural, natural32, put, slice};

/// `lb_layout`.
#[derive(Clone, Debug)]
pub(crate) enum LayoutOf {
    Known(Layout),
    Own(OwnLayout),
}

impl LayoutOf {
    /// The layout, if all processes know it.
    ///
    /// # Safety
    /// The pointer is null, or points to a layout that lives for `'a`.
    pub(crate) unsafe fn known<'a>(layout: *const LayoutOf, name: &str) -> Result<&'a Layout, Problem> {
        // SAFETY: the caller's promise.
        match unsafe { given(layout, name) }? {
            LayoutOf::Known(layout) => Ok(layout),
            LayoutOf::Own(_) => {
                let text = format_args!("{name} is of runs, of which each process knows its own alone");
                Err(Problem::invalid(text))
            }
        }
    }

    pub(crate) fn processes(&self) -> u32 {
        match self {
            LayoutOf::Known(layout) => layout.processes(),
            LayoutOf::Own(own) => own.size,
        }
    }

    pub(crate) fn shape(&self) -> &[u64] {
        match self {
            LayoutOf::Known(layout) => layout.shape(),
            LayoutOf::Own(own) => &own.shape,
        }
    }
}

/// `lb_axis`.
#[repr(C)]
pub(crate) struct AxisOf {
    kind: i32,
    over: i32,
    block: i64,
    first: i32,
    periodic: i32,
    before: i64,
    after: i64,
    sizes: *const i64,
    indices: *const i64,
}

/// `lb_run`.
#[repr(C)]
pub(crate) struct RunOf {
    first: i64,
    count: i64,
}

impl AxisOf {
    /// # Safety
    /// Its pointers are null or valid.
    unsafe fn axis(&self, number: usize) -> Result<(Axis, Halo), Problem> {
        let name = format!("axis {number}");
        let kind = AxisKind::numbered(self.kind)
            .ok_or_else(|| Problem::invalid(format_args!("{name}: kind is {}: there is no such kind", self.kind)))?;
        // SAFETY: the caller's promise.
        let mut described = unsafe { Described::new(self, &name) }?;
        let axis = Axis::described(kind, &mut described)?;
        let before = natural(self.before, format_args!("{name}: before"))?;
        let after = natural(self.after, format_args!("{name}: after"))?;
        Ok((axis, Halo { before, after, periodic: self.periodic != 0 }))
    }
}

/// An axis of a caller, whose pointers are null or valid.
struct Described<'a> {
    axis: &'a AxisOf,
    /// For messages.
    name: &'a str,
    over: u32,
}

impl<'a> Described<'a> {
    /// # Safety
    /// The pointers of the axis are null or valid.
    unsafe fn new(axis: &'a AxisOf, name: &'a str) -> Result<Described<'a>, Problem> {
        Ok(Described { axis, name, over: natural32(axis.over, format_args!("{name}: over"))? })
    }

    fn naturals(&self, numbers: &[i64], what: &str) -> Result<Vec<u64>, Problem> {
        let each = |(at, number): (usize, &i64)| natural(*number, format_args!("{}: {what}[{at}]", self.name));
        numbers.iter().enumerate().map(each).collect()
    }

    /// The sizes, which must be given.
    fn given_sizes(&self) -> Result<Vec<u64>, Problem> {
        // SAFETY: the promise to `new`.
        let sizes = unsafe { slice(self.axis.sizes, self.over as usize, &format!("{}: sizes", self.name)) }?;
        self.naturals(sizes, "sizes")
    }
}

impl AxisParameters for Described<'_> {
    type Error = Problem;

    fn over(&mut self) -> Result<u32, Problem> {
        Ok(self.over)
    }

    fn sizes(&mut self) -> Result<Option<Vec<u64>>, Problem> {
        if self.axis.sizes.is_null() { Ok(None) } else { self.given_sizes().map(Some) }
    }

    fn block(&mut self) -> Result<u64, Problem> {
        natural(self.axis.block, format_args!("{}: block", self.name))
    }

    fn first(&mut self) -> Result<u32, Problem> {
        natural32(self.axis.first, format_args!("{}: first", self.name))
    }

    fn lists(&mut self) -> Result<Vec<Vec<u64>>, Problem> {
        let (name, sizes) = (self.name, self.given_sizes()?);
        let all = sizes.iter().try_fold(0usize, |all, size| all.checked_add(*size as usize));
        let all = all.ok_or_else(|| Problem::invalid(format_args!("{name}: sizes are too great together")))?;
        // SAFETY: the promise to `new`.
        let indices = unsafe { slice(self.axis.indices, all, &format!("{name}: indices")) }?;
        let mut rest = self.naturals(indices, "indices")?.into_iter();
        Ok(sizes.iter().map(|size| rest.by_ref().take(*size as usize).collect()).collect())
    }
}

/// # Safety
/// As `lb_layout_create_on_grid`, with the grid as slices; `None`: one dimension for each axis.
unsafe fn layout(
    axes: i32,
    shape: *const i64,
    along: *const AxisOf,
    order: i32,
    grid: Option<(&[i32], &[i32])>,
) -> Result<Layout, Problem> {
    let axes = natural32(axes, "axes")? as usize;
    // SAFETY: the caller's promise.
    let (shape, along) = unsafe { (slice(shape, axes, "shape")?, slice(along, axes, "along")?) };
    let each = |(axis, extent): (usize, &i64)| natural(*extent, format_args!("shape[{axis}]"));
    let shape = shape.iter().enumerate().map(each).collect::<Result<Vec<u64>, Problem>>()?;
    // SAFETY: the caller's promise.
    let kinds = along.iter().enumerate().map(|(number, axis)| unsafe { axis.axis(number) });
    let (kinds, halos): (Vec<Axis>, Vec<Halo>) = kinds.collect::<Result<Vec<_>, Problem>>()?.into_iter().unzip();
    let order = match order {
        0 => MemoryOrder::C,
        1 => MemoryOrder::Fortran,
        other => return Err(Problem::invalid(format_args!("order is {other}: it can be LB_C or LB_FORTRAN"))),
    };
    let grid = match grid {
        None => None,
        Some((processes, of_axes)) => {
            let dimensions = processes.iter().enumerate();
            let dimensions = dimensions.map(|(at, of)| natural32(*of, format_args!("grid: processes[{at}]")));
            let dimensions = dimensions.collect::<Result<Vec<u32>, Problem>>()?;
            let mut along = vec![Vec::new(); axes];
            for (at, axis) in of_axes.iter().enumerate() {
                match usize::try_from(*axis) {
                    Ok(axis) if axis < axes => along[axis].push(at),
                    _ if *axis == -1 => {}
                    _ => {
                        let text = format_args!("grid: axis[{at}] is {axis}: the array has {axes} axes");
                        return Err(Problem::invalid(text));
                    }
                }
            }
            Some(Grid { dimensions, axes: along })
        }
    };
    let mut layout = Layout::new(shape, kinds).map_err(Problem::invalid)?;
    for (axis, halo) in halos.into_iter().enumerate() {
        layout = layout.with_halo(axis, halo).map_err(Problem::invalid)?;
    }
    if let Some(grid) = grid {
        layout = layout.over(grid).map_err(Problem::invalid)?;
    }
    Ok(layout.in_order(order))
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_layout_create(
    axes: i32,
    shape: *const i64,
    along: *const AxisOf,
    order: i32,
    made: *mut *mut LayoutOf,
) -> c_int {
    // SAFETY: the caller's promise.
    at_border(|| unsafe { hand_out(made, LayoutOf::Known(layout(axes, shape, along, order, None)?), "layout") })
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_layout_create_runs(
    axes: i32,
    shape: *const i64,
    size: i32,
    count: i64,
    runs: *const RunOf,
    made: *mut *mut LayoutOf,
) -> c_int {
    at_border(|| {
        let (axes, size) = (natural32(axes, "axes")? as usize, natural32(size, "size")?);
        let count = natural(count, "count")? as usize;
        // SAFETY: the caller's promise.
        let (shape, runs) = unsafe { (slice(shape, axes, "shape")?, slice(runs, count, "runs")?) };
        let each = |(axis, extent): (usize, &i64)| natural(*extent, format_args!("shape[{axis}]"));
        let shape = shape.iter().enumerate().map(each).collect::<Result<Vec<u64>, Problem>>()?;
        let run = |(at, run): (usize, &RunOf)| {
            let first = natural(run.first, format_args!("runs[{at}]: first"))?;
            Ok((first, natural(run.count, format_args!("runs[{at}]: count"))?))
        };
        let runs = runs.iter().enumerate().map(run).collect::<Result<Vec<(u64, u64)>, Problem>>()?;
        // SAFETY: the caller's promise.
        unsafe { hand_out(made, LayoutOf::Own(OwnLayout::new(shape, size, runs.into_iter())?), "layout") }
    })
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_layout_create_on_grid(
    axes: i32,
    shape: *const i64,
    along: *const AxisOf,
    order: i32,
    dimensions: i32,
    processes: *const i32,
    axis: *const i32,
    made: *mut *mut LayoutOf,
) -> c_int {
    at_border(|| {
        let dimensions = natural32(dimensions, "dimensions")? as usize;
        // SAFETY: the caller's promise.
        unsafe {
            let grid = (slice(processes, dimensions, "processes")?, slice(axis, dimensions, "axis")?);
            hand_out(made, LayoutOf::Known(layout(axes, shape, along, order, Some(grid))?), "layout")
        }
    })
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_layout_free(layout: *mut *mut LayoutOf) {
    // SAFETY: the caller's promise.
    unsafe { free(layout) }
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_layout_size(layout: *const LayoutOf) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { layout.as_ref() }.map_or(0, |layout| i32::try_from(layout.processes()).unwrap_or(i32::MAX))
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_layout_axes(layout: *const LayoutOf) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { layout.as_ref() }.map_or(0, |layout| layout.shape().len() as i32)
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_layout_shape(layout: *const LayoutOf, shape: *mut i64) -> c_int {
    at_border(|| {
        // SAFETY: the caller's promise.
        let layout = unsafe { given(layout, "layout") }?;
        // SAFETY: the caller's promise: there is room for one extent per axis.
        unsafe { put_all(shape, layout.shape()) }
    })
}

/// # Safety
/// There is room for all extents at `shape`.
unsafe fn put_all(shape: *mut i64, extents: &[u64]) -> Result<(), Problem> {
    for (axis, extent) in extents.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { put(shape.wrapping_add(axis), *extent as i64, "shape") }?;
    }
    Ok(())
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_layout_local_shape(layout: *const LayoutOf, process: i32, shape: *mut i64) -> c_int {
    at_border(|| {
        // SAFETY: the caller's promise.
        let layout = unsafe { LayoutOf::known(layout, "layout") }?;
        // SAFETY: the caller's promise: there is room for one extent per axis.
        unsafe { put_all(shape, &local_shape(layout, process)?) }
    })
}

fn local_shape(layout: &Layout, process: i32) -> Result<Vec<u64>, Problem> {
    match u32::try_from(process) {
        Ok(process) if process < layout.processes() => Ok(layout.local_shape(process)),
        _ => {
            let size = layout.processes();
            Err(Problem::invalid(format_args!("process is {process}: the layout is for {size} processes")))
        }
    }
}

/// # Safety
/// The caller keeps the contract in `landbridge.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn lb_layout_owner(layout: *const LayoutOf, index: *const i64, owner: *mut i32) -> c_int {
    at_border(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let layout = LayoutOf::known(layout, "layout")?;
            let index = slice(index, layout.axes(), "index")?;
            let found = index.iter().map(|at| u64::try_from(*at)).collect::<Result<Vec<u64>, _>>().ok();
            let found = found.and_then(|index| layout.owner(&index)).ok_or_else(|| {
                Problem::invalid(format_args!("index is {index:?}: the array has shape {:?}", layout.shape()))
            })?;
            put(owner, found as i32, "owner")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names and numbers of a list such as `LB_WHOLE = 0, LB_BLOCK = 1`.
    fn constants(list: &str) -> Vec<(String, i32)> {
        let each = |constant: &str| {
            let (name, number) = constant.split_once('=')?;
            let name = name.trim().trim_start_matches("LB_").trim_end_matches("_AXIS").to_lowercase();
            Some((name, number.trim().parse().ok()?))
        };
        list.split(',').filter_map(each).collect()
    }

    #[test]
    fn a_negative_number_of_processes_is_refused_for_every_kind() {
        for kind in (0..).take_while(|kind| AxisKind::numbered(*kind).is_some()) {
            let (sizes, indices) = (std::ptr::null(), std::ptr::null());
            let axis = AxisOf { kind, over: -1, block: 1, first: 0, periodic: 0, before: 0, after: 0, sizes, indices };
            // SAFETY: its pointers are null.
            assert!(unsafe { axis.axis(0) }.is_err(), "kind {kind}");
        }
    }

    #[test]
    fn c_and_fortran_number_kinds_of_axes_as_rust_does() {
        let c = include_str!("../include/landbridge.h").lines().find(|line| line.contains("LB_WHOLE = "));
        let c = constants(c.unwrap().trim_start_matches("enum {").trim_end_matches("};"));
        let fortran = include_str!("../fortran/landbridge.f90").lines().find(|line| line.contains(":: WHOLE = "));
        let fortran = constants(fortran.unwrap().split_once("::").unwrap().1);
        let number = (0..).take_while(|number| AxisKind::numbered(*number).is_some()).count();
        for language in [c, fortran] {
            assert_eq!(language.len(), number, "{language:?}");
            for (name, number) in &language {
                assert_eq!(AxisKind::numbered(*number), AxisKind::named(name), "{name}");
                assert!(AxisKind::named(name).is_some(), "{name}");
            }
        }
    }
}
